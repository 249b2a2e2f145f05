"""Non-finite gradients: training continues if the loss scale is the cause, and stops with intact weights otherwise."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from engine_toy import ToyBatch, ToyTask, make_loop, run, weights_of

from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.config import TrainingError
from train_jobs.engine.runtime.stop import Preempted, StopRequest

Trouble = Callable[[int, torch.Tensor], torch.Tensor]


SMALL = 0.25  # targets whose gradients fit fp16 at the initial scale


def bad_losses(*numbers: int, value: float = float("nan")) -> Trouble:
    """Set the loss of these global batches, and so their gradients, to `value`."""
    return lambda batch, loss: loss * value if batch in numbers else loss


def train_reports(folder: Path) -> list[tuple[int, dict[str, float]]]:
    found = [(report["step"], report["metrics"]) for _, report in read_reports(folder / "metrics.jsonl")]
    return [(step, metrics) for step, metrics in found if "train_loss" in metrics]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_loss_stops_training_before_weights_change(tmp_path: Path, precision: str, value: float) -> None:
    good = make_loop(ToyTask(), tmp_path / "good", precision=precision, steps=3, validate_every=100)
    run(good)
    loop = make_loop(ToyTask(trouble=bad_losses(3, value=value)), tmp_path / "bad", precision=precision)
    with pytest.raises(TrainingError, match="step 4 is not finite") as caught:
        run(loop)
    assert caught.value.facts["last checkpoint"] == tmp_path / "bad" / "checkpoints" / "step-00000002"
    assert caught.value.facts["precision"] == precision
    torch.testing.assert_close(weights_of(loop), weights_of(good), rtol=0, atol=0)
    assert loop.state.step == 3
    assert [step for step, _ in train_reports(tmp_path / "bad")] == [2]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_bad_loss_with_finite_gradient_is_detected(tmp_path: Path, precision: str) -> None:
    """An infinite loss without effect on gradients; fp16 skips the batch once because the scale may be the cause."""
    task = ToyTask(stretch=SMALL, trouble=lambda batch, loss: loss + math.inf if batch == 3 else loss)
    loop = make_loop(task, tmp_path, precision=precision)
    if precision == "fp16":
        run(loop)
        assert (loop.state.skipped, loop.state.cursor) == (1, {"batch": 7})
        return
    with pytest.raises(TrainingError, match="the loss of step 4 is not finite") as caught:
        run(loop)
    assert caught.value.facts["loss"] == math.inf
    assert math.isfinite(caught.value.facts["gradient norm"])


def test_bad_loss_error_without_checkpoint_states_it(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="step 1 is not finite") as caught:
        run(make_loop(ToyTask(trouble=bad_losses(0)), tmp_path))
    assert caught.value.facts["last checkpoint"] == "none"


def test_bad_loss_error_fix_is_possible(tmp_path: Path) -> None:
    """A run cannot be resumed with another learning rate or precision: pretrain refuses that."""
    with pytest.raises(TrainingError) as caught:
        run(make_loop(ToyTask(trouble=bad_losses(0)), tmp_path))
    assert caught.value.fix is not None
    assert "resume" not in caught.value.fix
    assert "--set optimizer.learning_rate" in caught.value.fix


def test_fp16_skipped_batch_changes_only_scale(tmp_path: Path) -> None:
    """Weights, moments and learning rate are unchanged; the batch is consumed and the scale halved."""
    without = make_loop(ToyTask(stretch=SMALL, skip=frozenset({3})), tmp_path / "without", precision="fp16")
    run(without)
    task = ToyTask(stretch=SMALL, trouble=bad_losses(3, value=float("inf")))
    loop = make_loop(task, tmp_path / "with", precision="fp16")
    run(loop)
    torch.testing.assert_close(weights_of(loop), weights_of(without), rtol=0, atol=0)
    torch.testing.assert_close(loop.optimizer.state_dict()["state"], without.optimizer.state_dict()["state"])
    assert (loop.state.step, loop.state.skipped, loop.state.cursor) == (6, 1, {"batch": 7})
    assert (without.scaler.scale, loop.scaler.scale) == (2.0**16, 2.0**15)
    rates = [metrics["learning_rate"] for _, metrics in train_reports(tmp_path / "with")]
    assert rates == [metrics["learning_rate"] for _, metrics in train_reports(tmp_path / "without")]


def test_loss_scale_does_not_change_update(tmp_path: Path) -> None:
    """Without clipping and with plain SGD: LAMB and clipping would hide a gradient with a wrong norm."""
    weights = {}
    for precision in ("fp16", "fp32"):
        loop = make_loop(ToyTask(stretch=SMALL), tmp_path / precision, precision=precision, max_grad_norm=None)
        loop.optimizer = torch.optim.SGD(loop.task.model.parameters())
        run(loop)
        assert loop.state.skipped == 0
        weights[precision] = weights_of(loop)
    torch.testing.assert_close(weights["fp16"], weights["fp32"], rtol=0, atol=2e-3)
    assert (weights["fp16"]["0.weight"] - ToyTask().model[0].weight).abs().max() > 0.02


def test_skipped_step_not_reported_or_validated_again(tmp_path: Path) -> None:
    task = ToyTask(stretch=SMALL, trouble=bad_losses(2, 3, value=float("inf")))
    run(make_loop(task, tmp_path, precision="fp16", steps=4, log_every=1, validate_every=2))
    found = train_reports(tmp_path)
    assert [step for step, _ in found] == [1, 2, 3, 4]
    assert task.validations == 2
    assert [metrics["skipped_steps"] for _, metrics in found] == [0, 0, 2, 2]
    assert [metrics["loss_scale"] for _, metrics in found] == [2.0**16, 2.0**16, 2.0**14, 2.0**14]


def test_fp16_finds_its_scale_before_first_step(tmp_path: Path) -> None:
    """Large targets: gradients times 2^16 overflow fp16, so the first batches are skipped."""
    loop = make_loop(ToyTask(stretch=100.0), tmp_path, precision="fp16", log_every=1)
    run(loop)
    assert loop.state.skipped > 0
    assert loop.scaler.scale == 2.0 ** (16 - loop.state.skipped)
    assert [step for step, _ in train_reports(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert not (tmp_path / "checkpoints" / "step-00000000").exists()


def test_skipped_batch_excluded_from_reported_loss(tmp_path: Path) -> None:
    class Overflowing(ToyTask):
        def loss(self, batch: ToyBatch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            loss, sums = super().loss(batch, totals)
            return (loss * torch.inf, sums * torch.inf) if self.number == 1 else (loss, sums)

    run(make_loop(Overflowing(stretch=SMALL), tmp_path / "with", precision="fp16"))
    run(make_loop(ToyTask(stretch=SMALL, skip=frozenset({1})), tmp_path / "without", precision="fp16"))
    with_it, without = ([m["train_loss"] for _, m in train_reports(tmp_path / name)] for name in ("with", "without"))
    assert with_it == without


def test_consecutive_skips_stop_training(tmp_path: Path) -> None:
    trouble = bad_losses(1, 2, 4, 5, 6, value=float("inf"))
    loop = make_loop(ToyTask(stretch=SMALL, trouble=trouble), tmp_path, precision="fp16", max_consecutive_skips=3)
    with pytest.raises(TrainingError, match="step 3 is not finite") as caught:
        run(loop)
    assert caught.value.facts["skipped in a row"] == 3
    assert loop.state.step == 2, "two skips in a row are none too many"
    assert (loop.state.skipped, loop.task.number) == (5, 6)  # type: ignore[attr-defined]


def test_bad_loss_at_minimum_scale_stops_training(tmp_path: Path) -> None:
    loop = make_loop(ToyTask(trouble=bad_losses(*range(100))), tmp_path, precision="fp16")
    with pytest.raises(TrainingError) as caught:
        run(loop)
    assert caught.value.facts["loss scale"] == 1.0
    assert caught.value.facts["skipped in a row"] == 17


def test_stop_after_skip_resumes_bit_exact(tmp_path: Path) -> None:
    """A stop right after a skip that followed a checkpoint: the resumed run repeats the skip."""
    stop = StopRequest()

    def trouble(batch: int, loss: torch.Tensor) -> torch.Tensor:
        stop.requested = batch == 2
        return bad_losses(2, value=float("inf"))(batch, loss)

    def task(trouble: Trouble) -> ToyTask:
        return ToyTask(dropout=0.3, stretch=SMALL, trouble=trouble)

    with pytest.raises(Preempted):
        run(make_loop(task(trouble), tmp_path / "stopped", precision="fp16", stop=stop))
    uninterrupted = make_loop(task(bad_losses(2, value=float("inf"))), tmp_path / "uninterrupted", precision="fp16")
    run(uninterrupted)
    resumed = make_loop(task(bad_losses(2, value=float("inf"))), tmp_path / "stopped", precision="fp16")
    checkpoint = resumed.services.checkpoints.newest()
    assert checkpoint is not None
    resumed.restore(checkpoint)
    run(resumed)
    torch.testing.assert_close(weights_of(resumed), weights_of(uninterrupted), rtol=0, atol=0)
    assert resumed.state == uninterrupted.state


def test_loss_scale_of_other_precision_is_not_restored(tmp_path: Path) -> None:
    """Precision auto: saved in bf16 on hardware that supports it, resumed on hardware with fp16 only."""
    run(make_loop(ToyTask(), tmp_path, precision="bf16"))
    resumed = make_loop(ToyTask(), tmp_path, precision="fp16", steps=8)
    checkpoint = resumed.services.checkpoints.newest()
    assert checkpoint is not None
    resumed.restore(checkpoint)
    assert resumed.scaler.scale == 2.0**16
    run(resumed)


def test_sigterm_requests_stop() -> None:
    stop = StopRequest()
    stop.listen()
    assert not stop.requested
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.requested
