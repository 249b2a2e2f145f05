"""A process that makes batches returns those of the task, and the run does without it if it is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_bert import ALONE, CPU, config_with
from engine_toy import ToyTask, make_loop

from train_jobs.assembly.parts import load_parts
from train_jobs.config import PretrainConfig, UserError
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.loop import batch_process
from train_jobs.engine.loop.batch_process import BatchProcess
from train_jobs.engine.loop.gradients import split
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.pretrain import make_loop as pretraining_loop
from train_jobs.tasks.pretraining import BertPretraining
from train_jobs.tasks.pretraining_batches import Layout, PretrainingBatches

START_SECONDS = 240.0  # of an interpreter with torch, on a busy machine
CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children")
OWN_OBJECTIVE = """
from train_jobs.assembly.parts import BertObjective
from train_jobs.config import ObjectiveConfig

print("own code may print")

class Own(BertObjective):
    def __init__(self):
        super().__init__(ObjectiveConfig(next_sentence=False))
        self.labels = {"mlm": "masked_labels"}
"""


def no_warning(text: str) -> None:
    raise AssertionError(text)


@contextmanager
def ready_process(task: BertPretraining, warn: Callable[[str], None] = no_warning) -> Iterator[BatchProcess]:
    """Return a process that makes the batches of a task."""
    with BatchProcess(task, pinned=False, warn=warn) as process:
        assert process.is_ready(START_SECONDS)
        yield process


def children() -> set[int]:
    """Return the process ids of the processes that a batch process runs in."""
    found = set()
    for pid in CHILDREN.read_text().split():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if Path(f"/proc/{pid}").exists() else []
        if batch_process.__name__.encode() in words:
            found.add(int(pid))
    return found


SETTINGS: dict[str, dict[str, Any]] = {
    "pairs": {},
    "whole words of full sentences": {"objective": {"next_sentence": False, "whole_word": True}},
    "means of micro batches": {"train": {"loss_normalization": "micro_batch"}},
    "padded": {"train": {"unpad": False}},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_process_makes_batches_of_task(store: TokenStore, name: str) -> None:
    task = BertPretraining(config_with(**SETTINGS[name]), store, World(rank=1, local_rank=1, size=2, device=CPU))
    cursor: dict[str, int] = {}
    with ready_process(task) as process:
        for step in range(400):  # to a second epoch
            size = 1 + step % 3  # it changes when memory runs out
            batch, following = task.train_batch(cursor)
            made = process.make(cursor, size)
            assert made is not None
            assert made.following == following
            assert made.counts == task.counts(batch)
            assert made.batch.tokens == batch.tokens
            for key, array in batch.arrays().items():
                assert np.array_equal(made.batch.arrays()[key], array)  # type: ignore[attr-defined]
            micros = [task.arrays(micro) for micro in split(batch, size)]
            assert len(made.staged.on_host()) == len(micros)
            for views, arrays in zip(made.staged.on_host(), micros, strict=True):
                assert views.keys() == arrays.keys()
                for key, array in arrays.items():
                    assert views[key].dtype == torch.from_numpy(array).dtype
                    assert np.array_equal(views[key].numpy(), array)
            cursor = following
    assert cursor["epoch"] > 0


def test_arrays_for_gpu_and_graphs_are_the_same(store: TokenStore) -> None:
    config = config_with()
    layout = Layout(0, 1, on_gpu=True, unpad=True, graphs=True)
    here = PretrainingBatches(config, store, load_parts(config), layout)
    task = BertPretraining(config, store, ALONE)
    task._batches = here
    batch, _ = here.train_batch({})
    with ready_process(task) as process:
        made = process.make({}, 6)
    assert made is not None
    (views,), arrays = made.staged.on_host(), here.arrays(batch)
    assert any("starts" in key for key in arrays), "tokens are packed"
    assert all(np.array_equal(views[key].numpy(), array) for key, array in arrays.items())


def test_gpu_reads_micro_batches_into_pinned_memory(
    store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    empty = torch.empty  # pinned memory needs a driver

    def recorded_empty(*size: int, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        asked.append(pin_memory)
        return empty(*size, **options)

    loop = bert_loop(config_with(), store, tmp_path, separate=True)
    loop.policy = replace(loop.policy, prefetch=None, batch_process=None)
    loop.world = World(rank=0, local_rank=0, size=1, device=torch.device("cuda"))
    with loop.prefetching():
        assert loop._batch_process is not None, "a GPU has a process by default"
        assert loop._batch_process.is_ready(START_SECONDS)
        monkeypatch.setattr(batch_process.torch, "empty", recorded_empty)
        assert loop._batch_process.make({}, 6) is not None
    assert asked == [False, True], "the batch stays on the host; the arrays of micro batches are copied"


def test_process_finds_own_code_which_may_print(
    store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_objective.py").write_text(OWN_OBJECTIVE)
    monkeypatch.syspath_prepend(str(tmp_path))
    task = BertPretraining(config_with(objective={"name": "own_objective:Own"}), store, ALONE)
    with ready_process(task) as process:
        made = process.make({}, 6)
    assert made is not None
    assert made.counts == task.counts(task.train_batch({})[0])


def test_lost_process_is_reported_once(store: TokenStore) -> None:
    warnings: list[str] = []
    task = BertPretraining(config_with(), store, ALONE)
    with ready_process(task, warnings.append) as process:
        assert process.make({}, 6) is not None
        (pid,) = children()
        os.kill(pid, signal.SIGKILL)
        assert process.make({}, 6) is None
        assert process.make({}, 6) is None
    assert warnings == ["the process that makes batches ended with SIGKILL; a thread makes them now"]
    assert children() == set()


def test_process_that_cannot_start_is_no_failure(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(batch_process, "END_SECONDS", START_SECONDS)  # a busy machine unloads torch slowly
    task = BertPretraining(config_with(), store, ALONE)
    monkeypatch.setattr(task, "batch_maker", lambda: task._batches.maker()._replace(function="no_such_module:name"))
    with BatchProcess(task, pinned=False, warn=warnings.append) as process:
        until = time.monotonic() + START_SECONDS
        while not warnings:
            assert process.make({}, 6) is None
            assert time.monotonic() < until
            time.sleep(0.05)
    assert warnings == ["the process that makes batches ended with exit code 1; a thread makes them now"]


def bert_loop(config: PretrainConfig, store: TokenStore, folder: Path, *, separate: bool) -> Loop:
    loop = pretraining_loop(config, store, load_parts(config), folder, ALONE, StopRequest())
    loop.policy = replace(loop.policy, prefetch=separate, batch_process=separate)
    return loop


def recorded(make: Callable[..., Any], made: list[bool]) -> Callable[..., Any]:
    """Return `BatchProcess.make`, recording whether each call returned a batch."""

    def call(*given: Any) -> Any:
        found = make(*given)
        made.append(found is not None)
        return found

    return call


@pytest.mark.parametrize("kills", [False, True])
def test_training_is_bit_exact_with_and_without_process(
    store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: bool
) -> None:
    config = config_with(train={"steps": 12}, model={"hidden_dropout_prob": 0.1})
    weights, made = [], list[bool]()
    for separate in (False, True):
        loop = bert_loop(config, store, tmp_path / str(separate), separate=separate)
        with loop.prefetching():
            if separate:
                process = loop._batch_process
                assert process is not None
                assert process.is_ready(START_SECONDS)
                monkeypatch.setattr(process, "make", recorded(process.make, made))
            for step in range(12):
                if separate and kills and step == 5:
                    os.kill(next(iter(children())), signal.SIGKILL)
                assert loop._step()
        weights.append({name: value.clone() for name, value in loop.task.model.state_dict().items()})
    assert made[0]
    assert all(made) != kills
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert children() == set()


def test_data_error_is_raised_by_loop(store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the user's own objective is that of a run without the process."""
    (tmp_path / "bad_objective.py").write_text(
        OWN_OBJECTIVE + "    def plan(self, block, **given):\n        return 'no rows'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = config_with(objective={"name": "bad_objective:Own"})
    problems = []
    for separate in (False, True):
        loop = bert_loop(config, store, tmp_path / str(separate), separate=separate)
        with loop.prefetching():
            if separate:
                assert loop._batch_process is not None
                assert loop._batch_process.is_ready(START_SECONDS)
            with pytest.raises(UserError) as problem:
                loop._step()
        problems.append(str(problem.value))
    assert problems[0] == problems[1]
    assert "bad_objective" in problems[0]


def test_task_without_maker_uses_thread(tmp_path: Path) -> None:
    loop = make_loop(ToyTask(), tmp_path, prefetch=True)
    loop.policy = replace(loop.policy, batch_process=True)
    with loop.prefetching():
        assert loop._batch_process is None
        assert loop._step()


def test_process_ends_with_killed_parent(store: TokenStore, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys, time\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "from engine_bert import ALONE, config_with\n"
        "from train_jobs.corpus.store.token_store import TokenStore\n"
        "from train_jobs.engine.loop.batch_process import BatchProcess\n"
        "from train_jobs.tasks.pretraining import BertPretraining\n"
        "task = BertPretraining(config_with(), TokenStore.open(Path(sys.argv[1])), ALONE)\n"
        "process = BatchProcess(task, pinned=False, warn=print)\n"
        f"assert process.is_ready({START_SECONDS})\n"
        "print(process._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    words = [sys.executable, str(script), str(store.folder), str(Path(__file__).parent)]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    until = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()
    parent.stdout.close()
