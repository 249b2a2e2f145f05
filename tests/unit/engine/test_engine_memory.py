"""Memory that runs out in the middle of a run: micro batches become smaller, and nothing else changes."""

from __future__ import annotations

import gc
import io
import json
import weakref
from pathlib import Path

import pytest
import torch
from engine_toy import ALONE, Cramped, ToyBatch, ToyTask, make_loop, reports_in, run, weights_of
from safetensors.torch import load_file

from train_jobs.config import OutOfMemoryError
from train_jobs.engine.checkpoint.checkpoints import Checkpoint
from train_jobs.engine.reporting.metrics import ProgressLine
from train_jobs.engine.runtime.devices import explain_memory_error, is_out_of_memory, micro_batch_error

ON_CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried")


def cramped(*, at: int = 2, fits: int = 2, error: Exception = ON_CPU, **more: object) -> Cramped:
    return Cramped(ALONE, at=frozenset({at}), fits=fits, error=error, rows=9, **more)


def state_at(folder: Path, step: int) -> dict[str, object]:
    document = json.loads((folder / "checkpoints" / f"step-{step:08d}" / "state.json").read_text())
    state: dict[str, object] = document["loop"]
    return state


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_redo_step_with_smaller_micro_batch(scenes: Path, rank: int) -> None:
    """With dropout, which goes by the random numbers of the step."""
    found, expected = (load_file(scenes / f"{name}-{rank}.safetensors") for name in ("cramped", "changed"))
    assert [key for key in expected if not torch.equal(expected[key], found[key])] == []
    assert reports_in(scenes / "cramped") == reports_in(scenes / "changed")


def test_the_smaller_micro_batch_stays_on_resume_too(tmp_path: Path) -> None:
    shown = io.StringIO()
    loop = make_loop(cramped(fits=1, dropout=0.3), tmp_path, micro_batch_size=4, progress=ProgressLine(6, shown))
    run(loop)
    assert [line for line in shown.getvalue().splitlines() if line.startswith("warning: ")] == [
        f"warning: out of memory in step 3 with micro batches of {before} sequences; continuing with {after}"
        for before, after in ((4, 2), (2, 1))
    ]
    assert [state_at(tmp_path, step)["micro_batch_size"] for step in (2, 4, 6)] == [4, 1, 1]
    again = make_loop(cramped(dropout=0.3), tmp_path, micro_batch_size=4)
    checkpoint = again.services.checkpoints.at(4)
    assert checkpoint is not None
    again.restore(checkpoint)
    run(again)
    assert again.task.sizes == [1] * 9  # type: ignore[attr-defined]
    torch.testing.assert_close(weights_of(again), weights_of(loop), rtol=0, atol=0)


def test_old_checkpoint_without_number_resumes(tmp_path: Path) -> None:
    run(make_loop(ToyTask(), tmp_path, steps=2))
    folder = tmp_path / "checkpoints" / "step-00000002"
    document = json.loads((folder / "state.json").read_text())
    del document["loop"]["micro_batch_size"]
    (folder / "state.json").write_text(json.dumps(document))
    loop = make_loop(ToyTask(), tmp_path, micro_batch_size=3)
    loop.restore(Checkpoint(folder, 2))
    assert (loop.state.step, loop.micro_batch_size) == (2, 3)


def test_half_of_an_odd_micro_batch_is_rounded_up(tmp_path: Path) -> None:
    loop = make_loop(cramped(), tmp_path, micro_batch_size=3)
    run(loop)
    assert loop.state.micro_batch_size == 2
    assert loop.task.sizes == [2, 2, 2, 2, 1]  # type: ignore[attr-defined]


def test_one_sequence_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    loop = make_loop(cramped(fits=0), tmp_path, micro_batch_size=2)
    with pytest.raises(OutOfMemoryError, match="out of memory in step 3") as caught:
        run(loop)
    assert caught.value.facts["need"] == "more memory for a micro batch of 1"
    assert caught.value.fix == "start a new run with a shorter data.sequence_length or a smaller model"
    assert loop.state.step == 2


def test_a_recipe_of_micro_batches_is_not_changed(tmp_path: Path) -> None:
    loop = make_loop(cramped(fits=1), tmp_path, micro_batch_size=3, loss_normalization="micro_batch")
    with pytest.raises(OutOfMemoryError, match="step 3") as caught:
        run(loop)
    assert "change the recipe" in caught.value.facts["why"]
    assert caught.value.fix is not None
    assert "--set train.micro_batch_size=2 or --set train.loss_normalization=global" in caught.value.fix
    assert loop.state.micro_batch_size == 3


def test_what_frees_memory_and_goes_on_is_named_first() -> None:
    told = micro_batch_error(1, step=3, device=ALONE.device, can_shard=True)
    assert told.fix is not None
    assert told.fix.startswith("resume with --set optimizer.sharded=true, or start")


def test_other_errors_are_not_tried_again(tmp_path: Path) -> None:
    task = cramped(error=RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        run(make_loop(task, tmp_path, micro_batch_size=4))
    assert task.sizes == [4, 4]


def test_a_failed_attempt_holds_no_memory(tmp_path: Path) -> None:
    """Nothing of it is left once the next one begins: not its losses, not what they keep for the backward pass."""
    held: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    class Watched(Cramped):
        def loss(self, batch: ToyBatch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            if self.number == 2 and len(batch) == 2 and not alive:
                alive.append(sum(reference() is not None for reference in held))
            loss, sums = super().loss(batch, totals)
            if self.number == 2:
                held.append(weakref.ref(loss))
            return loss, sums

    gc.disable()
    try:
        run(make_loop(Watched(ALONE, at=frozenset({2}), fits=2, error=ON_CPU, rows=9), tmp_path, micro_batch_size=4))
    finally:
        gc.enable()
    assert alive == [0]
    assert len(held) > 2


def test_what_allocators_say_is_understood() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_memory_that_runs_out_elsewhere_is_told_as_such() -> None:
    told = explain_memory_error(torch.OutOfMemoryError("CUDA out of memory.\nTried"))
    assert told is not None
    assert (told.kind, told.exit_code) == ("memory", 1)
    assert told.facts["says"] == "CUDA out of memory."
    assert explain_memory_error(MemoryError()).facts["says"] == "MemoryError"  # type: ignore[union-attr]
    assert explain_memory_error(RuntimeError("shapes differ")) is None


def test_what_travels_beside_the_gradients_is_none_of_them(tmp_path: Path) -> None:
    """Neither the clip nor the optimizer sees the loss and the element that tells of failures."""
    gradients = make_loop(ToyTask(), tmp_path).gradients
    gradients.flat.fill_(1e-6)
    assert gradients.reduce_(ALONE, None) is None
    assert gradients.reduce_(ALONE, torch.tensor(3.0)) == 3.0
    assert gradients.clip_(None).item() == pytest.approx(1e-6 * 84**0.5)
