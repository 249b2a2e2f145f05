"""Best checkpoints by validation score, early stopping, and learning rates per parameter group."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toy import ToyTask, make_loop, reports_in, run

from train_jobs.engine.checkpoint.checkpoints import CheckpointStore
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.reporting.metrics import ProgressLine


class Scored(ToyTask):
    """A toy task whose validations return the given scores in order."""

    def __init__(self, *scores: float) -> None:
        super().__init__()
        self.scores = scores

    def validate(self, micro_batch_size: int) -> dict[str, float]:
        found = super().validate(micro_batch_size)
        return {**found, "score": self.scores[min(self.validations, len(self.scores)) - 1]}


def scored_loop(folder: Path, *scores: float, **checkpoint: Any) -> Loop:
    loop = make_loop(Scored(*scores), folder, steps=8, checkpoint={"keep_best": 1, **checkpoint})
    loop.policy = replace(loop.policy, best_by=lambda found: -found["score"])
    return loop


def test_best_checkpoint_has_best_score_ties_earliest(tmp_path: Path) -> None:
    loop = scored_loop(tmp_path, 0.5, 0.8, 0.8, 0.7, keep_last=1)
    run(loop)
    best = loop.services.checkpoints.best()
    assert best is not None
    assert best.step == 4
    assert (loop.state.step, loop.state.stale) == (8, 2)


@pytest.mark.parametrize("name", ["COMMIT.json", "model.safetensors", "state.json"])
def test_resume_needs_the_earliest_of_equal_checkpoints(tmp_path: Path, name: str) -> None:
    """A later one of the same score is not the result of an undisturbed run."""
    loop = scored_loop(tmp_path, 0.5, 0.8, 0.8, 0.7, keep_last=9)
    run(loop)
    (tmp_path / "checkpoints" / "step-00000004" / name).write_bytes(b"torn")
    store = CheckpointStore(tmp_path / "checkpoints", keep_last=9, keep_best=1, best_is_result=True)
    newest = store.newest()
    assert newest is not None
    assert newest.step == 2


def test_best_ignores_incomplete_checkpoint(tmp_path: Path) -> None:
    loop = scored_loop(tmp_path, 0.5, 0.8, 0.6, 0.7, keep_last=9)
    run(loop)
    (tmp_path / "checkpoints" / "step-00000004" / "model.safetensors").write_bytes(b"torn")
    best = loop.services.checkpoints.best()
    assert best is not None
    assert best.step == 8


def test_best_without_validation_is_none(tmp_path: Path) -> None:
    assert make_loop(ToyTask(), tmp_path).services.checkpoints.best() is None


@pytest.mark.parametrize(
    ("patience", "scores", "steps"),
    [(1, (0.5, 0.6, 0.6, 0.9), 6), (2, (0.5, 0.4, 0.6, 0.5, 0.5), 8), (None, (0.5, 0.4, 0.3, 0.2), 8)],
)
def test_patience_ends_training(tmp_path: Path, patience: int | None, scores: tuple[float, ...], steps: int) -> None:
    loop = scored_loop(tmp_path, *scores)
    loop.policy = replace(loop.policy, patience=patience)
    run(loop)
    assert loop.state.step == steps
    newest = loop.services.checkpoints.newest()
    assert newest is not None
    assert newest.step == steps


def test_end_by_patience_is_reported_with_its_last_loss(tmp_path: Path) -> None:
    lines, loop = io.StringIO(), scored_loop(tmp_path, 0.5, 0.6, 0.6)
    loop.policy = replace(loop.policy, patience=1, config=loop.policy.config.model_copy(update={"log_every": 5}))
    loop.services = replace(loop.services, progress=ProgressLine(8, lines))
    run(loop)
    assert "training ends at step 6 of 8: evaluation.patience=1 is used up" in lines.getvalue()
    assert [step for step, metrics in reports_in(tmp_path) if "train_loss" in metrics] == [5, 6]


def test_run_stopped_by_patience_stays_stopped_on_resume(tmp_path: Path) -> None:
    loop = scored_loop(tmp_path, 0.5, 0.4)
    loop.policy = replace(loop.policy, patience=1)
    run(loop)
    again = scored_loop(tmp_path, 0.5, 0.9)
    again.policy = replace(again.policy, patience=1)
    newest = again.services.checkpoints.newest()
    assert newest is not None
    again.restore(newest)
    assert again.ended
    run(again)
    assert again.state.step == 4


def test_deletion_of_checkpoints_goes_on_after_a_kill(tmp_path: Path) -> None:
    """A process killed after its last commit leaves checkpoints that no rule keeps, of several GB each."""
    run(make_loop(ToyTask(), tmp_path, steps=4, checkpoint={"keep_last": 9}))
    again = make_loop(ToyTask(), tmp_path, steps=4, checkpoint={"keep_last": 1})
    assert again.services.checkpoints.steps() == [2, 4]
    newest = again.services.checkpoints.newest()
    assert newest is not None
    again.restore(newest)
    run(again)
    assert again.services.checkpoints.steps() == [4]


def test_parameter_group_scales_learning_rate(tmp_path: Path) -> None:
    loop = make_loop(ToyTask(), tmp_path, steps=3, schedule=lambda step, time_used: 0.5 / (1 + step))
    first, second = list(loop.task.model.parameters())[:2]
    groups = [{"params": [first], "lr_scale": 0.25}, {"params": [second]}]
    loop.optimizer = torch.optim.SGD(groups, lr=9.0)
    run(loop)
    assert [group["lr"] for group in loop.optimizer.param_groups] == pytest.approx([0.25 * 0.5 / 3, 0.5 / 3])
