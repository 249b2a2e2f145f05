"""Clipping by the global norm, and the norms themselves."""

from __future__ import annotations

import math

import pytest
import torch

from train_jobs.optim.lamb import clip_by_global_norm_, l2_norms


def test_norm_is_over_all_tensors() -> None:
    grads = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    norm = clip_by_global_norm_(grads, 1.0)
    assert norm.item() == 5.0
    torch.testing.assert_close(grads[0], torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(grads[1], torch.tensor([[0.8]]))


def test_clip_with_bound_other_than_one() -> None:
    grads = [torch.tensor([3.0, 4.0])]
    assert clip_by_global_norm_(grads, 2.5).item() == 5.0
    assert grads[0].tolist() == [1.5, 2.0]


@pytest.mark.parametrize("bound", [5.0, 7.0, math.inf])
def test_gradients_within_bound_are_unchanged(bound: float) -> None:
    grads = [torch.tensor([3.0, 4.0])]
    assert clip_by_global_norm_(grads, bound).item() == 5.0
    assert grads[0].tolist() == [3.0, 4.0]


def test_zero_gradients_stay_zero() -> None:
    grads = [torch.zeros(3)]
    assert clip_by_global_norm_(grads, 1.0).item() == 0.0
    assert grads[0].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("bound", [1.0, math.inf])
def test_non_finite_gradient_gives_non_finite_norm(bad: float, bound: float) -> None:
    grads = [torch.ones(2), torch.tensor([1.0, bad])]
    assert not clip_by_global_norm_(grads, bound).isfinite()


def test_clip_works_on_views_of_one_buffer() -> None:
    flat = torch.tensor([3.0, 0.0, 0.0, 4.0])
    clip_by_global_norm_([flat[:2], flat[2:].view(1, 2)], 1.0)
    torch.testing.assert_close(flat, torch.tensor([0.6, 0.0, 0.0, 0.8]))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (1023,), (1024,), (1025,), (33, 32), (4096, 1024)])
def test_norms_match_fp64(shape: tuple[int, ...]) -> None:
    """4 M elements: a single fp32 sum would give a norm that is too small by more than the tolerance."""
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    expected = tensor.double().pow(2).sum().sqrt().item()
    assert l2_norms([tensor]).tolist() == pytest.approx([expected], rel=5e-7)


def test_norms_are_per_tensor_in_order() -> None:
    assert l2_norms([torch.full((4,), 2.0), torch.tensor(-3.0), torch.zeros(2, 2)]).tolist() == [4.0, 3.0, 0.0]
