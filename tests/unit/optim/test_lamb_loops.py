"""LAMB's compiled loop for CPUs: equal to torch's operations, and to itself for any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from train_jobs.optim import lamb
from train_jobs.optim.lamb import Lamb
from train_jobs.optim.lamb_loops import BLOCK

SHAPES = ((300, 70), (3 * BLOCK + 5,), (BLOCK,), (1,))


@pytest.fixture(autouse=True)
def compiles_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile the loop for few weights too."""
    monkeypatch.setattr(lamb, "COMPILE_FROM", 0)


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def train(dtype: torch.dtype, *, trust_ratio: bool = True) -> tuple[list[torch.nn.Parameter], Lamb]:
    """Return weights after five steps, and their optimizer."""
    draw = torch.Generator().manual_seed(1)
    weights = [torch.nn.Parameter((torch.randn(shape, generator=draw) / 50).to(dtype)) for shape in SHAPES]
    optimizer = Lamb(weights, lr=1e-2, trust_ratio=trust_ratio)
    for _ in range(5):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=draw).to(dtype) / 100
        optimizer.step()
    return weights, optimizer


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("trust_ratio", [True, False])
def test_compiled_loop_matches_torch(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, close: float, trust_ratio: bool
) -> None:
    pytest.importorskip("numba")
    assert lamb.compiled_update() is not None
    found, ours = train(dtype, trust_ratio=trust_ratio)
    monkeypatch.setattr(lamb, "compiled_update", lambda: None)
    expected, theirs = train(dtype, trust_ratio=trust_ratio)
    for weight, other in zip(found, expected, strict=True):
        torch.testing.assert_close(weight, other, rtol=close, atol=close / 10)
        for moment in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(ours.state[weight][moment], theirs.state[other][moment], rtol=close, atol=1e-12)


def test_number_of_threads_changes_no_bit(threads: None) -> None:
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(train(torch.float32)[0])
    assert all(torch.equal(one, other) for some in found[1:] for one, other in zip(found[0], some, strict=True))


def test_weights_that_are_no_vector_are_updated_too() -> None:
    """A transposed weight has no one-dimensional view: torch's operations update it."""
    plain = torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))
    turned = torch.nn.Parameter(plain.detach().t().contiguous().t())
    for weight in (plain, turned):
        weight.grad = torch.linspace(0, 1, 12).reshape(3, 4)
        Lamb([weight], lr=0.1).step()
    assert not turned.is_contiguous()
    torch.testing.assert_close(turned, plain)
