"""Dense layers and embeddings on CPU in 16 bits: same results as autograd."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_jobs.engine.loop.gradients import FlatGradients
from train_jobs.models.bert.primitives import PIECE, Linear, embedding, gradients_in_place, joint_linear, linear

TOKENS = 2 * PIECE + 300  # two full chunks and a partial one
Product = Callable[[Tensor, list[nn.Linear]], Tensor]


def layers(count: int, *, bias: bool = True) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [Linear(24, size, bias=bias) for size in (16, 8, 40)[:count]]


def gradients(product: Product, linears: list[nn.Linear], *, shape: tuple[int, ...] = (TOKENS, 24)) -> list[Tensor]:
    """Return the output and the gradients of the input and all parameters in bf16 arithmetic."""
    torch.manual_seed(1)
    x = torch.randn(shape, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = product(x, linears)
    assert out.dtype == torch.bfloat16
    torch.manual_seed(2)
    out.backward(torch.randn(out.shape, dtype=out.dtype))
    assert x.grad is not None
    return [
        out.detach(),
        x.grad,
        *(p.grad.clone() for layer in linears for p in layer.parameters() if p.grad is not None),
    ]


def plain_linear(x: Tensor, linears: list[nn.Linear]) -> Tensor:
    return torch.cat([F.linear(x, layer.weight, layer.bias) for layer in linears], dim=-1)


def close(ours: list[Tensor], expected: list[Tensor], *, times: float = 1.0) -> None:
    """Assert that each tensor agrees to 1% of its norm: bf16 has 8 bits."""
    assert len(ours) == len(expected)
    for mine, other in zip(ours, expected, strict=True):
        assert (mine.float() - times * other.float()).norm() < 0.01 * times * other.float().norm()


@pytest.mark.parametrize("accumulating", [False, True])
def test_shared_input_layers_match_autograd(accumulating: bool) -> None:
    linears = layers(3)
    if accumulating:
        FlatGradients([p for layer in linears for p in layer.parameters()])
    with gradients_in_place() if accumulating else nullcontext():
        ours = gradients(joint_linear, linears)
    close(ours, gradients(plain_linear, layers(3)))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(TOKENS, 24), (3, 50, 24), (2, 24)])
def test_single_layer_matches_autograd(shape: tuple[int, ...], bias: bool) -> None:
    ours = gradients(lambda x, linears: linears[0](x), layers(1, bias=bias), shape=shape)
    close(ours, gradients(plain_linear, layers(1, bias=bias), shape=shape))


def test_gradients_accumulate_in_engine_buffer() -> None:
    linears = layers(2)
    flat = FlatGradients([p for layer in linears for p in layer.parameters()])
    with gradients_in_place():
        once = [tensor.clone() for tensor in gradients(joint_linear, linears)[2:]]
        twice = gradients(joint_linear, linears)[2:]
    close(twice, once, times=2.0)
    close([flat.flat], [torch.cat([tensor.flatten() for tensor in twice])])
    flat.zero_()
    assert all((p.grad == 0).all() for layer in linears for p in layer.parameters() if p.grad is not None)


def test_frozen_layer_only_passes_gradients() -> None:
    (layer,) = layers(1)
    layer.requires_grad_(False)
    ours, expected = gradients(lambda x, linears: linears[0](x), [layer]), gradients(plain_linear, layers(1))
    close(ours, expected[:2])
    assert layer.weight.grad is None


def test_shared_casts_use_weights_of_current_step() -> None:
    """Weights are cast once while shared; the next block uses the changes of the optimizer."""
    (layer,) = layers(1)
    x = torch.ones(4, 24)

    def run() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x).detach()

    with gradients_in_place():
        first = run()
        with torch.no_grad():
            layer.weight.mul_(2)
        assert torch.equal(run(), first)
    with gradients_in_place():
        assert not torch.equal(run(), first)


def test_other_dtypes_and_devices_use_torch_linear() -> None:
    (layer,) = layers(1)
    x = torch.randn(5, 24)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))  # fp32: bit-exact
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear(x, layer.weight, None), F.linear(x, layer.weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding_gradients_go_to_used_rows(dtype: torch.dtype) -> None:
    ids = torch.tensor([[3, 0, 5], [3, 3, 1]])
    upstream = torch.randn(2, 3, 4).to(dtype)
    found = []
    for accumulating in (True, False):
        table = nn.Parameter(torch.arange(24, dtype=torch.float32).view(6, 4))
        flat = FlatGradients([table]) if accumulating else None
        for _ in range(2):
            with gradients_in_place() if accumulating else nullcontext():
                out = embedding(ids, table, padding=0)
                out.to(dtype).backward(upstream)
        assert torch.equal(out, F.embedding(ids, table))
        found.append(flat.flat.view(6, 4) if flat else table.grad)
    torch.testing.assert_close(found[0], found[1])
    assert found[0] is not None
    assert (found[0][[0, 2, 4]] == 0).all()
    assert (found[0][[1, 3, 5]] != 0).all()


def test_gradients_outside_accumulation_use_autograd() -> None:
    """`torch.autograd.grad` returns them and leaves `.grad` unchanged."""
    (layer,) = layers(1)
    table = nn.Parameter(torch.randn(6, 24))
    flat = FlatGradients([table, *layer.parameters()])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(embedding(torch.tensor([1, 2, 2]), table, padding=0))
    found = torch.autograd.grad(out.float().sum(), [table, layer.weight])
    assert all((gradient != 0).any() for gradient in found)
    assert (flat.flat == 0).all()
