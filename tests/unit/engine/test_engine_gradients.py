"""The flat gradient buffer: views, loss scaling, clipping, precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_toy import ALONE
from torch import nn

from train_jobs.config import OptimizerConfig
from train_jobs.engine.loop.gradients import FlatGradients
from train_jobs.engine.runtime.devices import LossScale, autocast, describe_arithmetic, resolve_precision
from train_jobs.optim.factory import build_optimizer

CPU = torch.device("cpu")


def model_of(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def losses_of(model: nn.Module, count: int = 3) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [model(torch.randn(5, 3, generator=draw)).square().mean() for _ in range(count)]


def test_gradients_are_views_of_buffer_in_order() -> None:
    parameters = list(model_of().parameters())
    gradients = FlatGradients(parameters)
    gradients.flat.copy_(torch.arange(gradients.flat.numel()))
    expected = torch.cat([parameter.grad.flatten() for parameter in parameters])
    assert gradients.flat.tolist() == expected.tolist()
    assert [parameter.grad.shape for parameter in parameters] == [parameter.shape for parameter in parameters]
    assert gradients.flat.dtype == torch.float32


def test_backward_passes_accumulate_in_buffer() -> None:
    model = model_of()
    gradients = FlatGradients(list(model.parameters()))
    buffer = gradients.flat.data_ptr()
    for loss in losses_of(model):
        loss.backward()
    expected = torch.autograd.grad(sum(losses_of(model)), list(model.parameters()))
    torch.testing.assert_close(gradients.flat, torch.cat([gradient.flatten() for gradient in expected]))
    assert gradients.flat.data_ptr() == buffer


def test_zeroing_keeps_views() -> None:
    model = model_of()
    gradients = FlatGradients(list(model.parameters()))
    losses_of(model, 1)[0].backward()
    first = gradients.flat.clone()
    assert first.abs().sum() > 0
    gradients.zero_()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())
    losses_of(model, 1)[0].backward()
    assert torch.equal(gradients.flat, first)


def test_frozen_parameters_are_not_in_buffer() -> None:
    model = model_of()
    model[0].requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = FlatGradients(trained)
    losses_of(model, 1)[0].backward()
    assert gradients.flat.numel() == 4 + 4 + 8 + 2
    assert model[0].weight.grad is None


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_optimizers_step_on_views(name: str) -> None:
    config = OptimizerConfig(name=name, learning_rate=0.1)
    flat, plain = model_of(), model_of()
    gradients = FlatGradients(list(flat.parameters()))
    optimizers = [build_optimizer(config, model.named_parameters()) for model in (flat, plain)]
    for _ in range(3):
        gradients.zero_()
        optimizers[1].zero_grad()
        for model, optimizer in zip((flat, plain), optimizers, strict=True):
            sum(losses_of(model)).backward()
            optimizer.step()
    torch.testing.assert_close(flat.state_dict(), plain.state_dict(), rtol=0, atol=0)
    assert not torch.equal(flat[0].weight, model_of()[0].weight)


@pytest.mark.parametrize("scale", [1.0, 2.0**16])
def test_loss_scale_is_divided_out_exactly(scale: float) -> None:
    model = model_of()
    gradients = FlatGradients(list(model.parameters()))
    losses_of(model, 1)[0].backward()
    expected = gradients.flat.clone()
    gradients.zero_()
    (losses_of(model, 1)[0] * scale).backward()
    gradients.reduce_(ALONE, torch.tensor(2.5), scale=scale)
    assert gradients.read_figures(ALONE, torch.tensor(1.0)) == (2.5, 1.0)
    assert torch.equal(gradients.flat, expected)


@pytest.mark.parametrize("bound", [0.5, 1.0, None])
def test_norm_is_clipped_over_all_parameters(bound: float | None) -> None:
    model = model_of()
    gradients = FlatGradients(list(model.parameters()))
    gradients.flat.copy_(torch.randn(gradients.flat.numel(), generator=torch.Generator().manual_seed(2)))
    exact = gradients.flat.double()
    norm = exact.square().sum().sqrt()
    assert norm > 1
    found = gradients.clip_(bound)
    assert found.item() == pytest.approx(norm.item(), rel=1e-6)
    expected = exact if bound is None else exact * (bound / norm)
    torch.testing.assert_close(gradients.flat.double(), expected, rtol=1e-6, atol=0)


def test_gradients_below_bound_are_unchanged() -> None:
    gradients = FlatGradients(list(model_of().parameters()))
    gradients.flat.fill_(1e-3)
    before = gradients.flat.clone()
    gradients.clip_(1.0)
    assert torch.equal(gradients.flat, before)


def test_scale_halved_immediately_doubled_after_good_steps() -> None:
    scaler = LossScale(scale=8.0, interval=3)
    seen = []
    for finite in [True, True, False, True, True, True, True, True, True, True]:
        scaler.update(finite, dynamic=True)
        seen.append(scaler.scale)
    assert seen == [8, 8, 4, 4, 4, 8, 8, 8, 16, 16]


def test_scale_never_falls_below_minimum() -> None:
    scaler = LossScale(scale=4.0)
    seen = []
    for _ in range(4):
        scaler.update(False, dynamic=True)
        seen.append((scaler.scale, scaler.at_floor))
    assert seen == [(2.0, False), (1.0, True), (1.0, True), (1.0, True)]


@pytest.mark.parametrize(("precision", "scale"), [("fp16", 2.0**20), ("bf16", 1.0), ("fp32", 1.0)])
def test_only_fp16_is_scaled(precision: str, scale: float) -> None:
    scaler = LossScale.for_precision(precision)
    assert scaler.scale == scale
    for _ in range(2 * scaler.interval):
        scaler.update(True, dynamic=precision == "fp16")
    assert scaler.scale == (4 * scale if precision == "fp16" else 1.0)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_explicit_precision_is_used(precision: str) -> None:
    assert resolve_precision(precision, CPU) == precision


@pytest.fixture(autouse=True)
def without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lift limits on the instructions that oneDNN uses."""
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def bf16_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the processor has bf16 instructions."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": "AMD Zen 4"}, raising=False)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="no /proc/cpuinfo to compare with")
def test_auto_precision_on_cpu_with_bf16_is_bf16() -> None:
    flags = set(Path("/proc/cpuinfo").read_text().split())
    slow = {"GenuineIntel", "avx512_fp16"} <= flags and "amx_bf16" not in flags
    able = bool(flags & {"amx_bf16", "avx512_bf16"}) and not slow
    assert resolve_precision("auto", CPU) == ("bf16" if able else "fp32")


@pytest.mark.parametrize(("amx", "avx", "expected"), [(1, 0, "bf16"), (0, 1, "bf16"), (0, 0, "fp32")])
def test_auto_precision_accepts_amx_or_avx_bf16(
    monkeypatch: pytest.MonkeyPatch, amx: int, avx: int, expected: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: bool(amx), raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bool(avx), raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    assert resolve_precision("auto", CPU) == expected


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("AVX2", "fp32"),
        ("avx512_core", "fp32"),
        ("AVX512_CORE_BF16", "bf16"),
        ("AVX512_CORE_AMX", "bf16"),
        ("", "bf16"),
    ],
)
@pytest.mark.usefixtures("bf16_processor")
def test_auto_precision_obeys_instruction_limit(
    monkeypatch: pytest.MonkeyPatch, name: str, limit: str, expected: str
) -> None:
    monkeypatch.setenv(name, limit)
    assert resolve_precision("auto", CPU) == expected


@pytest.mark.usefixtures("bf16_processor")
def test_arithmetic_line_gives_reason_for_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_arithmetic("auto", CPU)[0].startswith("arithmetic bf16 on cpu, ")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    (line,) = describe_arithmetic("auto", CPU)
    assert line.startswith("arithmetic fp32 on cpu (auto: ONEDNN_MAX_CPU_ISA=AVX2 excludes bf16 instructions), ")


@pytest.mark.parametrize(
    ("found", "limit", "reason"),
    [
        ({"cpu_name": "Intel Xeon", "avx512_fp16": True, "amx_bf16": True}, "", None),
        (
            {"cpu_name": "Intel Xeon", "avx512_fp16": True, "amx_bf16": False},
            "",
            "slowly without AMX, which it does not",
        ),
        (
            {"cpu_name": "Intel Xeon", "avx512_fp16": True, "amx_bf16": True},
            "AVX512_CORE_BF16",
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 excludes AMX",
        ),
        ({"cpu_name": "Intel Xeon", "avx512_fp16": True, "amx_bf16": True}, "DEFAULT", None),
        ({"cpu_name": "Intel Xeon", "avx512_fp16": False, "amx_bf16": False}, "", None),  # Cooper Lake
        ({"cpu_name": "AMD Zen 6", "avx512_fp16": True, "amx_bf16": False}, "", None),
    ],
)
@pytest.mark.usefixtures("bf16_processor")
def test_intel_without_amx_computes_in_fp32(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, object], limit: str, reason: str | None
) -> None:
    """There, a step in bf16 took 1.57 times as long as in fp32, although the processor has bf16 instructions."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert resolve_precision("auto", CPU) == ("fp32" if reason else "bf16")
    assert (reason or "arithmetic bf16") in describe_arithmetic("auto", CPU)[0]
    warnings = describe_arithmetic("bf16", CPU)[1:]
    assert [line.partition(":")[2].partition(":")[0] for line in warnings] == (
        [" precision bf16 is slower than fp32"] if reason else []
    )


@pytest.mark.usefixtures("bf16_processor")
def test_explicit_emulated_bf16_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(describe_arithmetic("bf16", CPU)) == 1
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert resolve_precision("bf16", CPU) == "bf16"
    arithmetic, warning = describe_arithmetic("bf16", CPU)
    assert arithmetic.startswith("arithmetic bf16 on cpu, ")
    assert warning.startswith("warning: precision bf16 is emulated")


def test_auto_precision_without_torch_probes_is_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported", raising=False)
    assert resolve_precision("auto", CPU) == "fp32"


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_forward_in_precision_weights_stay_fp32(precision: str, dtype: torch.dtype) -> None:
    layer = nn.Linear(3, 3)
    with autocast(precision, CPU):
        assert layer(torch.ones(2, 3)).dtype == dtype
    assert layer.weight.dtype == torch.float32
