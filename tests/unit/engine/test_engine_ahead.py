"""Prefetching batches some steps ahead does not change them."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest
import torch
from engine_toy import ToyTask, make_loop, reports_in, run, weights_of

from train_jobs.engine.loop.task import Prefetcher


def test_prefetching_run_is_bit_exact(tmp_path: Path) -> None:
    found = []
    for prefetch in (False, True):
        folder = tmp_path / str(prefetch)
        loop = make_loop(ToyTask(dropout=0.2), folder, prefetch=prefetch)
        run(loop)
        found.append((weights_of(loop), reports_in(folder)))
    assert all(torch.equal(value, found[1][0][name]) for name, value in found[0][0].items())
    assert found[0][1] == found[1][1]


def test_prefetcher_prepares_next_batches_in_background() -> None:
    made: list[int] = []
    enough, more = threading.Event(), threading.Event()

    def make(cursor: dict[str, int]) -> tuple[str, dict[str, int]]:
        made.append(cursor["at"])
        if cursor["at"] == 3:
            enough.set()
        if cursor["at"] == 4:
            more.set()
        return f"batch {cursor['at']}", {"at": cursor["at"] + 1}

    with Prefetcher(make, depth=3) as ahead:
        assert ahead({"at": 0}) == ("batch 0", {"at": 1})
        assert enough.wait(10)  # before they are requested
        assert made == [0, 1, 2, 3]  # and no more than the depth
        assert ahead({"at": 1}) == ("batch 1", {"at": 2})
        assert more.wait(10)
        assert ahead({"at": 7}) == ("batch 7", {"at": 8})  # not a prefetched batch
        assert ahead({"at": 8}) == ("batch 8", {"at": 9})
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_prefetcher_error_raised_when_batch_is_requested() -> None:
    failures = iter([True, False])

    def make(cursor: dict[str, int]) -> tuple[str, dict[str, int]]:
        if cursor["at"] == 2 and next(failures, False):
            raise ValueError("no more")
        return f"batch {cursor['at']}", {"at": cursor["at"] + 1}

    with Prefetcher(make) as ahead:
        ahead({"at": 0})
        ahead({"at": 1})
        with pytest.raises(ValueError, match="no more"):
            ahead({"at": 2})
        assert ahead({"at": 2})[0] == "batch 2"  # a second call tries again


def test_prefetch_thread_ends_with_run_in_all_cases(tmp_path: Path) -> None:
    losses = count()  # not the number of the batch: the thread may already have made the next one
    task = ToyTask(trouble=lambda _number, loss: loss * float("nan") if next(losses) == 10 else loss)
    loop = make_loop(task, tmp_path, prefetch=True)
    with pytest.raises(Exception, match="not finite"):
        run(loop)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]
