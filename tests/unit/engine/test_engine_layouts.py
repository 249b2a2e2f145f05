"""Guarantees of docs/determinism.md across layouts (processes x accumulation) and on four ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from engine_toy import ToyBatch, ToyTask, make_loop, run
from safetensors.torch import load_file

from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.engine.runtime.devices import require_determinism

pytestmark = pytest.mark.long


def losses(folder: Path) -> list[float]:
    """Return the training loss of each report."""
    found = (report["metrics"].get("train_loss") for _, report in read_reports(folder / "metrics.jsonl"))
    return [loss for loss in found if loss is not None]


@pytest.mark.parametrize("other", ["2x1", "1x2"])
def test_layouts_in_fp64_train_identically(scenes: Path, other: str) -> None:
    one, found = (losses(scenes / f"fp64-{layout}") for layout in ("1x1", other))
    assert len(one) == 20
    assert found == pytest.approx(one, abs=1e-10, rel=0)
    assert found != one, "another order of additions, so other last bits"


@pytest.mark.parametrize("other", ["2x1", "1x2"])
def test_layouts_in_fp32_differ_by_rounding(scenes: Path, other: str) -> None:
    one, found = (losses(scenes / f"fp32-{layout}") for layout in ("1x1", other))
    assert found[0] == pytest.approx(one[0], abs=1e-6, rel=0)
    assert found[19] == pytest.approx(one[19], abs=1e-4, rel=0)
    assert one[19] < one[0] - 0.01, "it learns"


def test_four_stopped_ranks_end_bit_exact(scenes: Path) -> None:
    """LAMB and dropout, two micro batches per rank; stopped after step 3, between two reports."""
    whole, parts = (scenes / name / "checkpoints" / "step-00000006" for name in ("whole-4", "parts-4"))
    for file in ("model.safetensors", "optimizer.safetensors"):
        expected, found = load_file(whole / file), load_file(parts / file)
        assert [key for key in expected if not torch.equal(expected[key], found[key])] == []
    assert losses(scenes / "whole-4") == losses(scenes / "parts-4")
    assert (scenes / "parts-4" / "checkpoints" / "step-00000003").is_dir()


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Enable deterministic algorithms for one test."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    require_determinism()
    yield
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    torch.use_deterministic_algorithms(False)


def test_nondeterministic_operation_is_refused(deterministic: None) -> None:
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.are_deterministic_algorithms_enabled()
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))


def test_cost_of_determinism_measured_without_side_effects(deterministic: None, tmp_path: Path) -> None:
    seen = []

    class Watched(ToyTask):
        def loss(self, *batch_and_totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            seen.append(torch.are_deterministic_algorithms_enabled())
            return super().loss(*batch_and_totals)  # type: ignore[arg-type]

    loop = make_loop(Watched(dropout=0.3), tmp_path)
    random = torch.get_rng_state()
    cost = loop.cost_of_determinism()
    assert cost is not None
    assert min(cost) > 0
    assert seen == [True, False] * 4
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.equal(torch.get_rng_state(), random)
    assert not loop.gradients.flat.any()


def test_cost_of_determinism_survives_lack_of_memory(deterministic: None, tmp_path: Path) -> None:
    """The first step then halves the micro batch, as it does without deterministic algorithms."""
    sizes = []

    class Cramped(ToyTask):
        def loss(self, batch: ToyBatch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            sizes.append(len(batch))
            if len(batch) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().loss(batch, totals)

    loop = make_loop(Cramped(), tmp_path, micro_batch_size=4, steps=2)
    assert loop.cost_of_determinism() is None
    assert sizes == [4]
    assert torch.are_deterministic_algorithms_enabled()
    run(loop)
    assert loop.micro_batch_size == 2
