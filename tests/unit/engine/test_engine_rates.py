"""Throughput, memory and gradient metrics of a report."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from engine_toy import ALONE, ToyTask, make_loop, run

from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.config.arithmetic import data_sheet
from train_jobs.engine.loop.state import Meter
from train_jobs.engine.reporting.metrics import ProgressLine
from train_jobs.engine.runtime import devices
from train_jobs.engine.runtime.devices import memory_bytes, peak_flops
from train_jobs.engine.runtime.distributed import World
from train_jobs.optim.lamb import l2_norms


def filled() -> Meter:
    """Return a meter with steps of 8 and of 6 sequences, and one skipped step."""
    meter = Meter()
    for sequences, tokens, norm in ((8, 60.0, 3.0), (6, 40.0, 1.0)):
        meter.add(torch.ones(1), 2.0, data_seconds=0.25, sequences=sequences, tokens=tokens, norm=norm)
    meter.add(None, 1.0, data_seconds=0.5, sequences=8, tokens=50.0, norm=float("inf"))
    return meter


def test_rates_cover_whole_time_and_steps() -> None:
    found = filled().rates(flops=ToyTask().flops, peak_flops=6240.0)
    assert found == {
        "gradient_norm": 2.0,
        "sequences_per_second": 14 / 5,
        "tokens_per_second": 100 / 5,
        "data_wait_share": 1 / 5,
        "mfu": 0.5,
    }
    assert "mfu" not in filled().rates(flops=ToyTask().flops, peak_flops=None)


@pytest.mark.parametrize("rows", [6, 5], ids=["whole", "last of an epoch"])
def test_report_has_rates_and_few_metric_names(tmp_path: Path, rows: int) -> None:
    """Azure allows 50 metrics; BERT adds four in training and four in validation."""
    loop = make_loop(ToyTask(rows=rows), tmp_path, steps=4, log_every=2, max_grad_norm=1e9)
    loop.policy = replace(loop.policy, peak_flops=1e9)
    norms: list[float] = []
    step = loop._step

    def record_step() -> bool:
        finite = step()
        norms.append(l2_norms([loop.gradients.flat]).item())
        return finite

    loop._step = record_step  # type: ignore[method-assign]
    run(loop)
    reports = [(report["step"], report["metrics"]) for _, report in read_reports(tmp_path / "metrics.jsonl")]
    training = [(step, metrics) for step, metrics in reports if "train_loss" in metrics]
    assert [step for step, _ in training] == [2, 4]
    for number, (_, metrics) in enumerate(training):
        assert metrics["gradient_norm"] == pytest.approx(sum(norms[2 * number : 2 * number + 2]) / 2, rel=1e-5)
        assert metrics["tokens_per_second"] == pytest.approx(metrics["sequences_per_second"])  # a row is one token
        assert metrics["mfu"] == pytest.approx(metrics["sequences_per_second"] * (200 + 128) / 1e9)
        assert 0 < metrics["data_wait_share"] < 1
        assert metrics["peak_memory_gb"] == pytest.approx(memory_bytes(ALONE.device) / 1e9, rel=0.2)
    assert len({name for _, metrics in reports for name in metrics}) + 8 < 30


def test_peak_memory_covers_all_processes() -> None:
    one, four = (peak_flops(World(rank=0, local_rank=0, size=size, device=ALONE.device), "fp32") for size in (1, 4))
    assert one is not None
    assert four is not None
    assert 1e9 < one < 1e13
    assert four == 4 * one


@pytest.mark.parametrize(("seconds", "sides"), [(0.001, [256, 512, 1024]), (0.1, [256])])
def test_slow_cpu_multiplies_no_larger_matrices(
    monkeypatch: pytest.MonkeyPatch, seconds: float, sides: list[int]
) -> None:
    """Products of bf16 matrices that a CPU emulates take seconds; each process measures its CPU once."""
    measured: list[int] = []

    def repeat(multiply: Callable[[], torch.Tensor], **_: int) -> list[float]:
        measured.append(len(multiply()))
        return [seconds, 2 * seconds]

    monkeypatch.setattr(devices, "_measured_flops", cache(devices._measured_flops.__wrapped__))
    monkeypatch.setattr("timeit.repeat", repeat)
    assert {peak_flops(ALONE, "fp32") for _ in range(3)} == {2 * sides[-1] ** 3 / seconds}
    assert measured == sides


def test_gpu_is_recognised_by_whole_words() -> None:
    names = (
        "NVIDIA H200",
        "NVIDIA H100 PCIe",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA A100-SXM4-80GB",
        "Tesla V100-SXM2-32GB",
        "NVIDIA L40",
        "NVIDIA RTX A6000",
        "NVIDIA GeForce RTX 4090",
    )
    assert [data_sheet(name) for name in names] == [
        (989e12, 67e12),
        (756e12, 51e12),
        (989e12, 67e12),
        (312e12, 19.5e12),
        (125e12, 15.7e12),
        (181e12, 90.5e12),
        (154.8e12, 38.7e12),
        (165.2e12, 82.6e12),
    ]
    others = ("NVIDIA A10G", "NVIDIA T400 4GB", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA RTX 6000 Ada Generation")
    assert [data_sheet(name) for name in others] == [None] * len(others)


def test_part_of_a_gpu_has_no_data_sheet() -> None:
    """The peak of the whole GPU would make the utilisation of a seventh of it seven times too low."""
    parts = ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA A10-4Q", "GRID A100-10C", "NVIDIA A100-1-5CME", "GRID T4-2B")
    assert [data_sheet(name) for name in parts] == [None] * len(parts)


def test_progress_line_shows_utilisation_if_known() -> None:
    metrics = {"train_loss": 1.0, "learning_rate": 1e-3, "sequences_per_second": 10.0}
    out = io.StringIO()
    progress = ProgressLine(9, out)
    progress.step(1, metrics, seconds_left=60)
    progress.step(2, {**metrics, "mfu": 0.414}, seconds_left=60)
    assert out.getvalue().splitlines() == [
        "step 1/9  loss 1.0000  lr 1.00e-03  10.0 sequences/s  eta 1:00",
        "step 2/9  loss 1.0000  lr 1.00e-03  10.0 sequences/s  MFU 41%  eta 1:00",
    ]


def test_tokens_are_counted_over_all_rows() -> None:
    batch, _ = ToyTask().train_batch({})
    assert batch.tokens == len(batch)
