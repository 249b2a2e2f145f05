"""The training loop on a task small enough to compute by hand: arithmetic, intervals, resuming."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toy import ToyTask, make_loop, make_rows, reports_in, run, weights_of

from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.runtime.stop import Preempted, StopRequest


def steps_with(folder: Path, key: str) -> list[int]:
    return [step for step, metrics in reports_in(folder) if key in metrics]


def saved_in(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (folder / "checkpoints").iterdir())


def assert_same_bits(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize("micro", [1, 2, 4, 5, 100])
def test_micro_batch_size_does_not_change_training(tmp_path: Path, optimizer: str, micro: int) -> None:
    """Rows contain different numbers of targets and 7 rows do not divide evenly: a mean of means would differ."""
    whole = make_loop(ToyTask(rows=7), tmp_path / "whole", micro_batch_size=7, optimizer=optimizer)
    parts = make_loop(ToyTask(rows=7), tmp_path / "parts", micro_batch_size=micro, optimizer=optimizer)
    run(whole)
    run(parts)
    torch.testing.assert_close(weights_of(parts), weights_of(whole), rtol=1e-5, atol=1e-6)
    assert not torch.equal(weights_of(whole)["0.weight"], ToyTask().model[0].weight)


def halving(step: int, time_used: float = 0.0) -> float:
    return 0.5 / (1 + step)


def test_step_is_gradient_descent_on_global_mean(tmp_path: Path) -> None:
    """Reference in fp64 with plain SGD: each term over its own count, clipped to the global norm."""
    loop = make_loop(ToyTask(rows=7), tmp_path, steps=2, log_every=1, max_grad_norm=0.3, schedule=halving)
    loop.optimizer = torch.optim.SGD(loop.task.model.parameters(), lr=123.0)
    run(loop)
    model = ToyTask().model.double()
    losses = []
    for step in range(2):
        batch = make_rows(step, 7)
        targets = torch.from_numpy(batch.targets).double()
        errors = (model(torch.from_numpy(batch.inputs).double()) - targets)[~targets.isnan()]
        loss = errors.square().mean() + errors.abs().sum() / 7
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        assert norm > 0.3
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= halving(step) * gradient * 0.3 / norm
        losses.append(loss.item())
    reported = [metrics["train_loss"] for _, metrics in reports_in(tmp_path) if "train_loss" in metrics]
    assert reported == pytest.approx(losses, rel=1e-6)
    found = {name: value.double() for name, value in weights_of(loop).items()}
    torch.testing.assert_close(found, dict(model.state_dict()), rtol=1e-5, atol=1e-6)


def test_reports_validations_checkpoints_at_their_steps(tmp_path: Path) -> None:
    task = ToyTask()
    loop = make_loop(task, tmp_path, steps=7, log_every=2, validate_every=3, checkpoint={"every": 4})
    run(loop)
    assert steps_with(tmp_path, "train_loss") == [2, 4, 6, 7]
    assert steps_with(tmp_path, "validation_loss") == [3, 6, 7]
    assert task.validations == 3
    assert saved_in(tmp_path) == [4, 7]
    assert loop.last_validation == {"loss": reports_in(tmp_path)[-1][1]["validation_loss"]}


def test_last_step_on_all_intervals_is_recorded_once(tmp_path: Path) -> None:
    task = ToyTask()
    run(make_loop(task, tmp_path, steps=4))
    assert steps_with(tmp_path, "train_loss") == [2, 4]
    assert steps_with(tmp_path, "validation_loss") == [2, 4]
    assert task.validations == 2
    assert saved_in(tmp_path) == [2, 4]


def test_report_is_mean_over_steps_since_previous_one(tmp_path: Path) -> None:
    run(make_loop(ToyTask(), tmp_path / "each", steps=4, log_every=1, schedule=lambda step, time_used: 0.0))
    run(make_loop(ToyTask(), tmp_path / "all", steps=4, log_every=4, schedule=lambda step, time_used: 0.0))
    model, squares, absolutes, targets = ToyTask().model, 0.0, 0.0, 0
    for step in range(4):
        batch = make_rows(step, 6)
        wanted = torch.from_numpy(batch.targets)
        errors = (model(torch.from_numpy(batch.inputs)) - wanted)[~wanted.isnan()].double()
        squares, absolutes = squares + errors.square().sum().item(), absolutes + errors.abs().sum().item()
        targets += len(errors)
        single = errors.square().mean().item() + errors.abs().sum().item() / 6
        assert reports_in(tmp_path / "each")[{0: 0, 1: 1, 2: 3, 3: 4}[step]][1]["train_loss"] == pytest.approx(single)
    assert reports_in(tmp_path / "all")[-2][1]["train_loss"] == pytest.approx(squares / targets + absolutes / 24)


def test_reported_learning_rate_is_last_used_one(tmp_path: Path) -> None:
    loop = make_loop(ToyTask(), tmp_path, steps=4)
    run(loop)
    assert [metrics["learning_rate"] for _, metrics in reports_in(tmp_path) if "train_loss" in metrics] == [0.05, 0.025]
    assert {group["lr"] for group in loop.optimizer.param_groups} == {0.025}


def test_dropout_is_on_in_training_and_off_in_validation(tmp_path: Path) -> None:
    run(make_loop(ToyTask(dropout=0.5), tmp_path / "with", steps=1, log_every=1, validate_every=1))
    run(make_loop(ToyTask(), tmp_path / "without", steps=1, log_every=1, validate_every=1))
    losses = [reports_in(tmp_path / name)[0][1]["train_loss"] for name in ("with", "without")]
    assert losses[0] != losses[1]


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_resumed_run_is_bit_exact(tmp_path: Path, optimizer: str, precision: str) -> None:
    """The run has dropout and dies at step 5, one step after the checkpoint and one before the report.

    fp16 skips steps before the checkpoint.
    """
    how = {"optimizer": optimizer, "precision": precision, "steps": 8, "log_every": 3, "checkpoint": {"every": 4}}
    task = {"dropout": 0.3, "stretch": 100.0 if precision == "fp16" else 1.0}
    uninterrupted = make_loop(ToyTask(**task), tmp_path / "uninterrupted", **how)
    run(uninterrupted)
    died = make_loop(ToyTask(**task, trouble=fail_at(5 + uninterrupted.state.skipped)), tmp_path / "died", **how)
    with pytest.raises(ConnectionError):
        run(died)
    assert saved_in(tmp_path / "died") == [4]
    resumed = make_loop(ToyTask(**task), tmp_path / "died", **how)
    checkpoint = resumed.services.checkpoints.newest()
    assert checkpoint is not None
    resumed.restore(checkpoint)
    run(resumed)
    assert_same_bits(weights_of(resumed), weights_of(uninterrupted))
    assert_same_bits(resumed.optimizer.state_dict()["state"], uninterrupted.optimizer.state_dict()["state"])
    assert resumed.state == uninterrupted.state
    assert reports_in(tmp_path / "died") == reports_in(tmp_path / "uninterrupted")
    assert (uninterrupted.state.skipped > 0) == (precision == "fp16")


def fail_at(number: int) -> Any:
    """Return a `trouble` that fails at global batch `number`."""

    def trouble(batch: int, loss: torch.Tensor) -> torch.Tensor:
        if batch == number:
            raise ConnectionError("the machine is gone")
        return loss

    return trouble


def test_checkpoint_contains_progress_of_run(tmp_path: Path) -> None:
    loop = make_loop(ToyTask(), tmp_path, steps=2)
    run(loop)
    state = json.loads((tmp_path / "checkpoints" / "step-00000002" / "state.json").read_text())
    assert state["loop"] == {
        "micro_batch_size": 2,
        "step": 2,
        "cursor": {"batch": 2},
        "loss_scale": 1.0,
        "good_steps": 0,
        "skipped": 0,
        "best": [],
        "best_steps": [],
        "stale": 1,
        "seconds": 0.0,
        "out_of_time": False,
    }
    assert (state["world_size"], state["note"]) == (1, "toy")


def test_dropout_differs_between_seeds_and_steps(tmp_path: Path) -> None:
    def losses(name: str, **changes: Any) -> list[float]:
        """Return the losses of a model with a learning rate of zero on one repeated batch: only dropout differs."""
        task = ToyTask(dropout=0.5)
        task.train_batch = lambda cursor: (make_rows(0, 6), {"batch": 1})  # type: ignore[method-assign]
        run(make_loop(task, tmp_path / name, log_every=1, schedule=lambda step, time_used: 0.0, steps=4, **changes))
        return [metrics["train_loss"] for _, metrics in reports_in(tmp_path / name) if "train_loss" in metrics]

    first, again, other = losses("first"), losses("again"), losses("other", seed=6)
    assert first == again
    assert len({*first, *other}) == 8


def stopped_at(number: int, folder: Path, **changes: Any) -> Loop:
    """Return a loop whose process receives a stop request during global batch `number`."""
    stop = StopRequest()

    def trouble(batch: int, loss: torch.Tensor) -> torch.Tensor:
        stop.requested = stop.requested or batch == number
        return loss

    return make_loop(ToyTask(dropout=0.3, trouble=trouble), folder, stop=stop, **changes)


def test_stop_finishes_step_and_saves_it(tmp_path: Path) -> None:
    loop = stopped_at(2, tmp_path / "stopped", checkpoint={"every": 100})
    with pytest.raises(Preempted):
        run(loop)
    assert saved_in(tmp_path / "stopped") == [3]
    checkpoint = loop.services.checkpoints.newest()
    assert checkpoint is not None
    assert checkpoint.state()["loop"]["cursor"] == {"batch": 3}, "the batch that was not trained on is not used up"
    resumed = make_loop(ToyTask(dropout=0.3), tmp_path / "stopped", checkpoint={"every": 100})
    resumed.restore(checkpoint)
    run(resumed)
    uninterrupted = make_loop(ToyTask(dropout=0.3), tmp_path / "uninterrupted", checkpoint={"every": 100})
    run(uninterrupted)
    assert_same_bits(weights_of(resumed), weights_of(uninterrupted))


def test_stop_right_after_checkpoint_does_not_save_again(tmp_path: Path) -> None:
    loop = stopped_at(1, tmp_path)
    written = tmp_path / "checkpoints" / "step-00000002" / "COMMIT.json"
    loop.policy = replace(loop.policy, validate_every=100)
    with pytest.raises(Preempted):
        run(loop)
    assert saved_in(tmp_path) == [2]
    again = make_loop(ToyTask(), tmp_path, stop=StopRequest(requested=True))
    checkpoint = again.services.checkpoints.newest()
    assert checkpoint is not None
    again.restore(checkpoint)
    inode = written.stat().st_ino
    with pytest.raises(Preempted):
        run(again)
    assert written.stat().st_ino == inode


def test_run_resumed_after_last_step_reports_once(tmp_path: Path) -> None:
    done = make_loop(ToyTask(), tmp_path)
    run(done)
    before = reports_in(tmp_path)
    again = make_loop(ToyTask(), tmp_path)
    checkpoint = again.services.checkpoints.newest()
    assert checkpoint is not None
    again.restore(checkpoint)
    run(again)
    assert again.last_validation == done.last_validation
    assert reports_in(tmp_path) == before
    assert saved_in(tmp_path) == [2, 4, 6]


class WeightedToyTask(ToyTask):
    """A task whose rows have the same small weight, like rows of a common class with balanced class weights."""

    def counts(self, batch: Any) -> list[float]:
        return [count / 64 for count in super().counts(batch)]

    def loss(self, batch: Any, totals: torch.Tensor) -> Any:
        return super().loss(batch, totals * 64)


def test_small_weights_keep_mean(tmp_path: Path) -> None:
    plain, weighted = make_loop(ToyTask(), tmp_path / "plain"), make_loop(WeightedToyTask(), tmp_path / "weighted")
    for loop in (plain, weighted):
        run(loop)
    assert_same_bits(weights_of(plain), weights_of(weighted))
