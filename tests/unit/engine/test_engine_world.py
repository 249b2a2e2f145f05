"""A run that resumes with another world size: 8 sequences per step with two, then three, then one process."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest
import torch
from engine_bert import config_with
from engine_scenes import eight_sequence_config
from safetensors.torch import load_file

from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.assembly.starting_point import check_batch
from train_jobs.config import SpecError

MOVED = ("still", "fewer")
MOVES = ((2, range(2)), (3, range(2, 4)), (1, range(4, 6)))  # processes and the steps that they trained


def shares(folder: Path, step: int) -> list[list[list[int]]]:
    """Return the sequences of each process in one step."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{step}-*.json"))]


def reports(folder: Path) -> list[tuple[int, dict[str, float]]]:
    return [(report["step"], report["metrics"]) for _, report in read_reports(folder / "metrics.jsonl")]


@pytest.mark.parametrize(("processes", "steps"), MOVES)
def test_shares_differ_by_at_most_one_sequence(scenes: Path, processes: int, steps: range) -> None:
    for step in steps:
        sizes = [len(share) for share in shares(scenes / "fewer", step)]
        assert len(sizes) == processes
        assert sum(sizes) == 8
        assert max(sizes) - min(sizes) <= 1


def test_sequences_keep_their_order_across_world_sizes(scenes: Path) -> None:
    for step in range(6):
        still, fewer = (list(chain(*shares(scenes / name, step))) for name in MOVED)
        assert still == fewer
    assert shares(scenes / "still", 0) != shares(scenes / "still", 1)


def test_losses_and_rates_match_uninterrupted_run(scenes: Path) -> None:
    """Shares of 2, 3 and 3 in micro batches of 2: uneven shares and partial micro batches have no extra weight."""
    still, fewer = (reports(scenes / name) for name in MOVED)
    assert [step for step, _ in still] == [step for step, _ in fewer]
    for (_, expected), (_, found) in zip(still, fewer, strict=True):
        assert expected.keys() - found.keys() <= {"slowest_rank", "slowest_rank_ratio"}  # one process has no slowest
        assert expected.keys() >= found.keys()
        assert found.get("learning_rate") == expected.get("learning_rate")
        for name in (key for key in expected if key.endswith("loss")):
            assert found[name] == pytest.approx(expected[name], rel=2e-5), name
    weights = (load_file(scenes / name / "checkpoints" / "step-00000006" / "model.safetensors") for name in MOVED)
    torch.testing.assert_close(*weights, rtol=1e-3, atol=2e-5)


def test_first_submit_indivisible_batch_refused(scenes: Path, tmp_path: Path) -> None:
    config = eight_sequence_config(scenes)
    with pytest.raises(SpecError, match="does not divide"):
        check_batch(config, tmp_path, world_size=3, on_cpu=True)
    check_batch(config, scenes / "fewer", world_size=3, on_cpu=True)
    check_batch(config_with(train={"global_batch_size": 3}), scenes / "fewer", world_size=3, on_cpu=True)
    with pytest.raises(SpecError, match="is less than the 9 processes") as caught:
        check_batch(config, scenes / "fewer", world_size=9, on_cpu=True)
    assert caught.value.fix == "start at most 8 processes"


def test_resume_with_uneven_micro_batches_refused(scenes: Path) -> None:
    """Shares of 5, 5 and 6 in micro batches of 4 would have means of 4, 1 and 2 sequences with equal weight."""
    train = {"global_batch_size": 16, "micro_batch_size": 4, "loss_normalization": "micro_batch"}
    config = config_with(train=train)
    for possible in (1, 2, 4):
        check_batch(config, scenes / "fewer", world_size=possible, on_cpu=True)
    with pytest.raises(SpecError, match="cannot resume with 3 processes") as caught:
        check_batch(config, scenes / "fewer", world_size=3, on_cpu=True)
    assert caught.value.facts["possible"] == "1, 2, 4"
    assert caught.value.fix == "start 2 processes"
