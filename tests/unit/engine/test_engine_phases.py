"""A second phase that starts from another run: the state that is kept and the state that is reset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_toy import ToyTask, make_loop, run, weights_of
from safetensors.torch import load_file

from train_jobs.engine.checkpoint.checkpoints import Checkpoint
from train_jobs.engine.checkpoint.serialization import transfer_state
from train_jobs.engine.loop.loop import Loop, LoopState


def first_phase(folder: Path, **changes: Any) -> Checkpoint:
    """Train six steps and return the last checkpoint."""
    loop = make_loop(ToyTask(), folder, **changes)
    run(loop)
    found = loop.services.checkpoints.newest()
    assert found is not None
    return found


def second_phase(folder: Path, checkpoint: Checkpoint | None, **changes: Any) -> Loop:
    """Return a loop with its own batches and schedule."""
    changes = {"steps": 3, "schedule": lambda step, time_used: 0.01 * (step + 1), **changes}
    loop = make_loop(ToyTask(rows=9), folder, **changes)
    if checkpoint is not None:
        loop.begin_phase(checkpoint)
    return loop


def state_by_name(loop: Loop) -> dict[str, dict[str, torch.Tensor]]:
    names = {parameter: name for name, parameter in loop.task.model.named_parameters()}
    return {names[parameter]: state for parameter, state in loop.optimizer.state.items()}


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_phase_keeps_weights_and_moments_only(tmp_path: Path, optimizer: str) -> None:
    checkpoint = first_phase(tmp_path / "first", optimizer=optimizer)
    loop = second_phase(tmp_path / "second", checkpoint, optimizer=optimizer)
    torch.testing.assert_close(weights_of(loop), checkpoint.weights(), rtol=0, atol=0)
    moments = load_file(checkpoint.folder / "optimizer.safetensors")
    for name, state in state_by_name(loop).items():
        for key in ("exp_avg", "exp_avg_sq"):
            assert moments[f"{name}.{key}"].count_nonzero()
            assert torch.equal(state[key], moments[f"{name}.{key}"])
        assert moments[f"{name}.step"] == 6
        assert state["step"] == 0
    assert len(state_by_name(loop)) == len(weights_of(loop))
    assert loop.state == LoopState(micro_batch_size=loop.policy.config.micro_batch_size)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_phase_equals_manual_copy_of_weights_and_moments(tmp_path: Path, optimizer: str) -> None:
    """The learning rate starts at step 0 of the new schedule and bias correction restarts, as in NVIDIA's scripts."""
    checkpoint = first_phase(tmp_path / "first", optimizer=optimizer)
    moments = load_file(checkpoint.folder / "optimizer.safetensors")
    found, by_hand, other = (second_phase(tmp_path / name, None, optimizer=optimizer) for name in "abc")
    found.begin_phase(checkpoint)
    for loop, step in ((by_hand, 0.0), (other, 6.0)):
        loop.task.model.load_state_dict(checkpoint.weights())
        for name, parameter in loop.task.model.named_parameters():
            loop.optimizer.state[parameter] = {
                "step": torch.tensor(step),
                **{key: moments[f"{name}.{key}"].clone() for key in ("exp_avg", "exp_avg_sq")},
            }
    for loop in (found, by_hand, other):
        run(loop)
    torch.testing.assert_close(weights_of(found), weights_of(by_hand), rtol=0, atol=0)
    assert not torch.equal(weights_of(found)["0.weight"], weights_of(other)["0.weight"])
    assert found.state.step == 3
    assert found.optimizer.param_groups[0]["lr"] == 0.01 * 3


def test_phase_uses_its_own_optimizer_options(tmp_path: Path) -> None:
    checkpoint = first_phase(tmp_path / "first")
    loop = second_phase(tmp_path / "second", None)
    for group in loop.optimizer.param_groups:
        group |= {"betas": (0.5, 0.6), "weight_decay": 0.25}
    loop.begin_phase(checkpoint)
    found = [(group["betas"], group["weight_decay"]) for group in loop.optimizer.param_groups]
    assert found == [((0.5, 0.6), 0.25)] * 2


def test_phase_resets_loss_scale(tmp_path: Path) -> None:
    checkpoint = first_phase(tmp_path / "first", precision="fp16", stretch=1.0)
    initial = make_loop(ToyTask(), tmp_path / "fresh", precision="fp16").scaler
    stored = checkpoint.state()["loop"]
    assert (stored["loss_scale"], stored["good_steps"]) != (initial.scale, initial.good_steps)
    loop = second_phase(tmp_path / "second", checkpoint, precision="fp16")
    assert (loop.scaler.scale, loop.scaler.good_steps) == (initial.scale, initial.good_steps)


def test_phase_accepts_parameter_frozen_in_one_phase() -> None:
    """A head is frozen in one phase: its moments are ignored, or created when it is trained."""
    earlier = {
        "state": {
            0: {"step": 7, "momentum": torch.ones(2)},
            1: {"step": torch.tensor(7.0), "momentum": torch.zeros(2)},
        },
        "param_groups": [{"params": [0, 1], "param_names": ["a", "b"], "lr": 1.0}],
    }
    own = {"state": {}, "param_groups": [{"params": [0, 1], "param_names": ["b", "c"], "lr": 2.0}]}
    found = transfer_state(earlier, own)
    assert found["param_groups"] == own["param_groups"]
    assert found["state"].keys() == {0}
    assert (found["state"][0]["step"].item(), found["state"][0]["momentum"].tolist()) == (0.0, [0.0, 0.0])
    both = {"state": {}, "param_groups": [{"params": [0], "param_names": ["a"], "lr": 2.0}]}
    assert transfer_state(earlier, both)["state"][0]["step"] == 0
