"""Dropout: rates, independence and reproducibility."""

from __future__ import annotations

import math

import pytest
import torch

from train_jobs.models.bert.primitives import Dropout, dropout

TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.85])
def test_dropout_has_rate_and_scaling(dtype: torch.dtype, probability: float) -> None:
    torch.manual_seed(1)
    out = dropout(torch.ones(701, 1001, dtype=dtype), probability)
    scale = torch.tensor(1 / (1 - probability), dtype=dtype)
    assert set(out.unique().tolist()) == {0.0, scale.item()}
    dropped = (out == 0).double().mean().item()
    deviation = math.sqrt(probability * (1 - probability) / out.numel())
    assert abs(dropped - probability) < 4 * deviation + 2**-16


def test_elements_independent_across_neighbours_and_calls() -> None:
    """Correlations over 4 million pairs: a deviation of 5 in 10,000 is one in a million."""
    torch.manual_seed(2)
    one, two = (dropout(torch.ones(4_000_037), 0.25).ne(0).double() - 0.75 for _ in range(2))
    bound = 5 / math.sqrt(one.numel())
    for lag in (1, 2, 3, 4, 5, 8, 64, 1024):
        assert abs((one[lag:] * one[:-lag]).mean() / (0.25 * 0.75)) < bound, lag
    assert abs((one * two).mean() / (0.25 * 0.75)) < bound


def test_dropout_depends_on_torch_seed() -> None:
    x = torch.ones(100, 100)
    torch.manual_seed(3)
    first, second = dropout(x, 0.3), dropout(x, 0.3)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.3), first)
    assert not torch.equal(first, second)


def test_gradient_uses_same_dropout_mask() -> None:
    x = torch.randn(50, 60, requires_grad=True)
    out = dropout(x, 0.4)
    out.backward(torch.full_like(out, 3.0))
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x.detach(), 3 * out.detach())
    assert (x.grad == 0).sum() == (out == 0).sum() > 0


def test_zero_dropout_draws_and_changes_nothing() -> None:
    x = torch.randn(5, 7)
    before = torch.get_rng_state()
    assert dropout(x, 0.0) is x
    assert Dropout(0.5).eval()(x) is x
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(Dropout(0.5).train()(x), x)
