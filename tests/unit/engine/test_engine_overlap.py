"""Sums of gradients during the last backward pass: the same weights, on two and four ranks."""

from __future__ import annotations

import json
from pathlib import Path

import overlap_scenes
import pytest
import torch
from engine_scenes import play
from engine_toy import ALONE, ToyTask, make_loop, run, weights_of
from safetensors.torch import load_file

from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.config import TrainConfig
from train_jobs.engine.loop.overlap import make_buckets

FILES = ("model.safetensors", "optimizer.safetensors")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all scenes and return their folder."""
    return play(tmp_path_factory.mktemp("overlap"), Path(overlap_scenes.__file__))


def state(folder: Path, run_name: str) -> dict[str, torch.Tensor]:
    """Return weights and moments of the last checkpoint of a run."""
    checkpoint = folder / run_name / "checkpoints" / "step-00000006"
    return {f"{file}/{key}": value for file in FILES for key, value in load_file(checkpoint / file).items()}


def different(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of the tensors that are not bit-equal."""
    assert expected.keys() == found.keys()
    return [key for key in expected if not torch.equal(expected[key], found[key])]


def test_two_ranks_are_bit_equal_to_one_collective(played: Path) -> None:
    """Six steps of LAMB with dropout, two micro batches for each rank."""
    assert different(state(played, "plain-2"), state(played, "overlap-2")) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_buckets_start_during_backward_pass(played: Path, rank: int) -> None:
    found = json.loads((played / f"buckets-{rank}.json").read_text())
    assert found["buckets"] >= 4
    assert found["started"] == [found["buckets"]] * 6


def test_four_ranks_differ_by_rounding(played: Path) -> None:
    expected, found = state(played, "plain-4"), state(played, "overlap-4")
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-6)


def test_four_stopped_ranks_end_bit_exact(played: Path) -> None:
    assert different(state(played, "overlap-4"), state(played, "parts-4")) == []
    losses = [
        [report["metrics"] for _, report in read_reports(played / name / "metrics.jsonl")][-1]["validation_loss"]
        for name in ("overlap-4", "parts-4")
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("scene", ["cramped", "sharded"])
def test_memory_error_and_sharding_change_no_bit(played: Path, scene: str, rank: int) -> None:
    """Rank 1 runs out of memory in the last backward pass, when rank 0 has started its sums already."""
    expected, found = (load_file(played / f"{scene}-{kind}-{rank}.safetensors") for kind in (False, True))
    assert different(expected, found) == []


def test_one_process_trains_as_without(tmp_path: Path) -> None:
    plain, overlap = (
        make_loop(ToyTask(dropout=0.3), tmp_path / str(setting), overlap_all_reduce=setting)
        for setting in (False, True)
    )
    for loop in (plain, overlap):
        run(loop)
    assert ALONE.size == 1
    assert different(weights_of(plain), weights_of(overlap)) == []


@pytest.mark.parametrize(
    ("bucket_bytes", "expected"),
    [(1, [(3,), (2,), (1,), (0,)]), (24, [(3, 2), (1,), (0,)]), (10**6, [(3, 2, 1, 0)])],
)
def test_buckets_are_consecutive_from_the_last(bucket_bytes: int, expected: list[tuple[int, ...]]) -> None:
    flat = torch.arange(16.0)
    views = flat.split([3, 7, 2, 4])
    buckets = make_buckets(views, flat, bucket_bytes)
    assert [bucket.parameters for bucket in buckets] == expected
    assert torch.equal(torch.cat([bucket.flat for bucket in reversed(buckets)]), flat)


def test_default_leaves_stored_configurations_alone() -> None:
    assert "overlap_all_reduce" not in TrainConfig().model_dump()
    assert TrainConfig(overlap_all_reduce=True).model_dump()["overlap_all_reduce"] is True
