"""Running out of memory during a run: micro batches shrink and the results stay the same."""

from __future__ import annotations

import gc
import io
import json
import weakref
from pathlib import Path

import pytest
import torch
from engine_toy import ALONE, OutOfMemoryTask, ToyBatch, ToyTask, make_loop, reports_in, run, weights_of
from safetensors.torch import load_file

from train_jobs.config import OutOfMemoryError
from train_jobs.engine.checkpoint.checkpoints import Checkpoint
from train_jobs.engine.reporting.metrics import ProgressLine
from train_jobs.engine.runtime.devices import explain_memory_error, is_out_of_memory, micro_batch_error

ON_CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried")


def out_of_memory_task(*, at: int = 2, fits: int = 2, error: Exception = ON_CPU, **more: object) -> OutOfMemoryTask:
    return OutOfMemoryTask(ALONE, at=frozenset({at}), fits=fits, error=error, rows=9, **more)


def state_at(folder: Path, step: int) -> dict[str, object]:
    document = json.loads((folder / "checkpoints" / f"step-{step:08d}" / "state.json").read_text())
    state: dict[str, object] = document["loop"]
    return state


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_redo_step_with_smaller_micro_batch(scenes: Path, rank: int) -> None:
    """With dropout, which depends on the random numbers of the step."""
    found, expected = (load_file(scenes / f"{name}-{rank}.safetensors") for name in ("cramped", "changed"))
    assert [key for key in expected if not torch.equal(expected[key], found[key])] == []
    assert reports_in(scenes / "cramped") == reports_in(scenes / "changed")


@pytest.mark.long
def test_smaller_micro_batch_is_kept_on_resume(tmp_path: Path) -> None:
    shown = io.StringIO()
    loop = make_loop(
        out_of_memory_task(fits=1, dropout=0.3), tmp_path, micro_batch_size=4, progress=ProgressLine(6, shown)
    )
    run(loop)
    assert [line for line in shown.getvalue().splitlines() if line.startswith("warning: ")] == [
        f"warning: out of memory in step 3 with micro batches of {before} sequences; continuing with {after}"
        for before, after in ((4, 2), (2, 1))
    ]
    assert [state_at(tmp_path, step)["micro_batch_size"] for step in (2, 4, 6)] == [4, 1, 1]
    again = make_loop(out_of_memory_task(dropout=0.3), tmp_path, micro_batch_size=4)
    checkpoint = again.services.checkpoints.at(4)
    assert checkpoint is not None
    again.restore(checkpoint)
    run(again)
    assert again.task.sizes == [1] * 9  # type: ignore[attr-defined]
    torch.testing.assert_close(weights_of(again), weights_of(loop), rtol=0, atol=0)


def test_old_checkpoint_without_micro_batch_resumes(tmp_path: Path) -> None:
    run(make_loop(ToyTask(), tmp_path, steps=2))
    folder = tmp_path / "checkpoints" / "step-00000002"
    document = json.loads((folder / "state.json").read_text())
    del document["loop"]["micro_batch_size"]
    (folder / "state.json").write_text(json.dumps(document))
    loop = make_loop(ToyTask(), tmp_path, micro_batch_size=3)
    loop.restore(Checkpoint(folder, 2))
    assert (loop.state.step, loop.micro_batch_size) == (2, 3)


def test_odd_micro_batch_is_halved_rounding_up(tmp_path: Path) -> None:
    loop = make_loop(out_of_memory_task(), tmp_path, micro_batch_size=3)
    run(loop)
    assert loop.state.micro_batch_size == 2
    assert loop.task.sizes == [2, 2, 2, 2, 1]  # type: ignore[attr-defined]


@pytest.mark.long
def test_single_sequence_that_does_not_fit_raises(tmp_path: Path) -> None:
    loop = make_loop(out_of_memory_task(fits=0), tmp_path, micro_batch_size=2)
    with pytest.raises(OutOfMemoryError, match="out of memory in step 3") as caught:
        run(loop)
    assert caught.value.facts["need"] == "more memory for a micro batch of 1"
    assert caught.value.fix == "start a new run with a shorter data.sequence_length or a smaller model"
    assert loop.state.step == 2


def test_micro_batch_normalization_is_not_changed(tmp_path: Path) -> None:
    loop = make_loop(out_of_memory_task(fits=1), tmp_path, micro_batch_size=3, loss_normalization="micro_batch")
    with pytest.raises(OutOfMemoryError, match="step 3") as caught:
        run(loop)
    assert "change the recipe" in caught.value.facts["why"]
    assert caught.value.fix is not None
    assert "--set train.micro_batch_size=2 or --set train.loss_normalization=global" in caught.value.fix
    assert loop.state.micro_batch_size == 3


def test_memory_error_fix_suggests_sharding_first() -> None:
    error = micro_batch_error(1, step=3, device=ALONE.device, can_shard=True)
    assert error.fix is not None
    assert error.fix.startswith("resume with --set optimizer.sharded=true, or start")


def test_other_errors_are_not_retried(tmp_path: Path) -> None:
    task = out_of_memory_task(error=RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        run(make_loop(task, tmp_path, micro_batch_size=4))
    assert task.sizes == [4, 4]


def test_failed_attempt_frees_its_memory(tmp_path: Path) -> None:
    """Its losses and their autograd graphs are freed before the next attempt begins."""
    losses: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    class Watched(OutOfMemoryTask):
        def loss(self, batch: ToyBatch, totals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            if self.number == 2 and len(batch) == 2 and not alive:
                alive.append(sum(reference() is not None for reference in losses))
            loss, sums = super().loss(batch, totals)
            if self.number == 2:
                losses.append(weakref.ref(loss))
            return loss, sums

    gc.disable()
    try:
        run(make_loop(Watched(ALONE, at=frozenset({2}), fits=2, error=ON_CPU, rows=9), tmp_path, micro_batch_size=4))
    finally:
        gc.enable()
    assert alive == [0]
    assert len(losses) > 2


def test_out_of_memory_messages_are_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_memory_error_elsewhere_is_explained() -> None:
    error = explain_memory_error(torch.OutOfMemoryError("CUDA out of memory.\nTried"))
    assert error is not None
    assert (error.kind, error.exit_code) == ("memory", 1)
    assert error.facts["says"] == "CUDA out of memory."
    assert explain_memory_error(MemoryError()).facts["says"] == "MemoryError"  # type: ignore[union-attr]
    assert explain_memory_error(RuntimeError("shapes differ")) is None


def test_extra_buffer_elements_are_not_gradients(tmp_path: Path) -> None:
    """Neither clipping nor the optimizer sees the loss and the failure flag in the same buffer."""
    gradients = make_loop(ToyTask(), tmp_path).gradients
    gradients.flat.fill_(1e-6)
    gradients.reduce_(ALONE, None)
    assert gradients.read_figures(ALONE, gradients.clip_(None)) is None
    gradients.reduce_(ALONE, torch.tensor(3.0))
    assert gradients.read_figures(ALONE, gradients.clip_(None)) == (3.0, pytest.approx(1e-6 * 84**0.5))
