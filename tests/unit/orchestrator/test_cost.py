"""Hours, cost and repeated steps, computed by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.backends.local.backend import LocalBackend
from orchestrator.client import Orchestrator
from orchestrator.estimates.cost import price_of, repeated, run_cost
from orchestrator.runs.status import RunAttempt, RunState, attempt_seconds
from tests.run_folders import PLAN, make_run, report

PRICED = {"compute": {"nodes": 2, "processes_per_node": 2, "price_per_hour": 36.0}, "world_size": 4, "changes": {}}


def attempt(started: float, ended: float | None, step: int | None = None) -> RunAttempt:
    return RunAttempt(started=started, ended=ended, step=step, state=RunState.FAILED)


def reports(*steps_and_times: tuple[int, float]) -> list[dict[str, float]]:
    return [{"step": step, "time": time} for step, time in steps_and_times]


def lost(attempts: list[RunAttempt], reported: list[dict[str, float]]) -> tuple[int, float]:
    steps, seconds = repeated(attempts, reported)
    return steps, sum(seconds)


def test_running_attempt_counts_until_now() -> None:
    assert attempt_seconds([attempt(100, 160), attempt(200, None)], now=230) == 90
    assert attempt_seconds([attempt(200, None)], now=190) == 0  # the clock went backward


def test_without_price_there_is_no_cost() -> None:
    assert price_of(2.0, 1.5) == 3.0
    assert price_of(2.0, 0.0) == 0.0
    assert price_of(2.0, None) is None


def test_single_attempt_repeats_nothing() -> None:
    assert lost([attempt(0, 100, 50)], reports((50, 90))) == (0, 0)


def test_steps_after_the_last_checkpoint_are_repeated() -> None:
    """Killed at step 50 (100 s), resumed at 110 s from the checkpoint of step 40 (80 s)."""
    attempts = [attempt(0, 100, 50), attempt(110, 200, 90)]
    assert lost(attempts, reports((20, 40), (40, 80), (60, 150), (90, 190))) == (10, 20)


def test_attempt_with_final_checkpoint_repeats_nothing() -> None:
    attempts = [attempt(0, 100, 50), attempt(110, 200, 90)]
    assert lost(attempts, reports((40, 80), (50, 95), (90, 190))) == (0, 0)


def test_attempt_without_own_checkpoint_is_lost() -> None:
    """The second one resumed at 40, was killed at 48, and the third resumed at 40 again."""
    attempts = [attempt(0, 100, 40), attempt(110, 150, 48), attempt(160, 300, 90)]
    assert lost(attempts, reports((20, 40), (40, 80), (90, 290))) == (8, 40)


def test_attempt_without_reports_is_lost_completely() -> None:
    assert lost([attempt(0, 30), attempt(40, 100, 9)], reports((9, 90))) == (0, 30)
    assert lost([attempt(0, 100, 40), attempt(110, 130), attempt(140, 200, 60)], reports((40, 90), (60, 190))) == (
        0,
        20,
    )


def test_attempt_without_end_lasts_until_the_next() -> None:
    assert lost([attempt(0, None, 40), attempt(110, 200, 90)], reports((20, 50), (90, 190))) == (20, 60)


def test_attempts_cost_what_their_own_machines_cost() -> None:
    """One hour at 4 USD, one at the price of the plan; two machines."""
    moved = [attempt(0, 3600, 50).model_copy(update={"price_per_hour": 4.0}), attempt(3600, 7200, 90)]
    cost = run_cost("one", moved, reports((20, 1800), (90, 7000)), plan=PRICED, now=7200)
    assert (cost.cost, cost.repeated_cost, cost.price_per_hour) == (2 * (4 + 36), 2 * 0.5 * 4, 36)


def test_run_cost_has_hours_cost_and_repeated_steps() -> None:
    cost = run_cost(
        "one",
        [attempt(0, 1800, 50), attempt(2000, 3800, 90)],
        reports((20, 900), (90, 3700)),
        plan={**PRICED, "changes": {"compute.price_per_hour": {"from": "--set"}}},
        now=9999.0,
    )
    assert (cost.node_hours, cost.process_hours, cost.cost) == (2.0, 4.0, 72.0)
    assert (cost.repeated_steps, cost.repeated_node_hours, cost.repeated_cost) == (30, 0.5, 18.0)
    assert (cost.name, cost.nodes, cost.attempts, cost.price_per_hour, cost.price_origin) == (
        "one",
        2,
        2,
        36.0,
        "--set",
    )


def test_status_has_hours_and_cost(tmp_path: Path) -> None:
    make_run(tmp_path, "one", nodes=2, plan=PRICED, attempts=[attempt(0, 900, 5), attempt(1000, 1900, 9)])
    make_run(tmp_path, "unpriced", attempts=[attempt(0, 7200, 5)])
    found = {status.name: status for status in LocalBackend(tmp_path).list()}
    assert (found["one"].node_hours, found["one"].cost, found["one"].nodes) == (1.0, 36.0, 2)
    assert (found["unpriced"].node_hours, found["unpriced"].cost) == (2.0, None)
    assert [one.step for one in found["one"].attempts] == [5, 9]


def test_run_of_earlier_version_has_no_price(tmp_path: Path) -> None:
    compute = {key: value for key, value in PLAN["compute"].items() if key != "price_per_hour"}
    make_run(tmp_path, "old", plan={"compute": compute, "world_size": 2, "changes": {}})
    assert LocalBackend(tmp_path).describe("old").state == RunState.COMPLETED
    assert Orchestrator(home=tmp_path, environ={}).attach("old").cost().cost is None


def test_lost_attempt_ends_with_its_last_report(tmp_path: Path) -> None:
    going_on = RunAttempt(started=1000.0)
    run = make_run(tmp_path, "lost", RunState.RUNNING, plan=PRICED, attempts=[going_on])
    report(run, 5, at=1600.0)
    earlier = make_run(tmp_path, "earlier", RunState.RUNNING, plan=PRICED, attempts=[going_on])
    report(earlier, 5, at=900.0)  # from the previous attempt
    silent = make_run(tmp_path, "silent", RunState.RUNNING, plan=PRICED, attempts=[going_on])
    backend = LocalBackend(tmp_path)
    lost = backend.describe("lost")
    assert (lost.state, lost.ended, lost.attempts[0].ended) == (RunState.FAILED, 1600.0, 1600.0)
    assert lost.attempts[0].state == RunState.FAILED
    assert lost.node_hours == pytest.approx(1 / 6)
    assert backend.describe("silent").node_hours == 0
    assert backend.describe("earlier").attempts[0].ended == 1000.0
    assert silent.state().attempts == [going_on]  # only the supervisor writes state.json


def test_lost_command_ends_when_it_last_wrote_a_report(tmp_path: Path) -> None:
    """The short form of a report has no time: without that of the file, duration and cost would grow for ever."""
    attempts = [RunAttempt(started=1000.0)]
    run = make_run(tmp_path, "lost", RunState.RUNNING, plan=PRICED, attempts=attempts)
    run.metrics.write_text('{"step": 1, "loss": 2.5}\n')
    os.utime(run.metrics, (1600.0, 1600.0))
    lost = LocalBackend(tmp_path).describe("lost")
    assert (lost.ended, lost.attempts[0].ended) == (1600.0, 1600.0)
    pruning = Orchestrator(home=tmp_path, environ={}).pruning(older_than=3600.0)
    assert [one.name for one in pruning.runs] == ["lost"]


def test_reports_without_times_make_no_work_look_repeated(tmp_path: Path) -> None:
    run = make_run(tmp_path, "one", plan=PRICED, attempts=[attempt(0, 90, 2), attempt(100, 190, 4)])
    run.metrics.write_text("".join(f'{{"step": {step}, "loss": 2.5}}\n' for step in range(1, 5)))
    cost = Orchestrator(home=tmp_path, environ={}).attach("one").cost()
    assert (cost.repeated_steps, cost.repeated_node_hours) == (0, 0.0)


def test_cost_names_the_origin_of_the_price(tmp_path: Path) -> None:
    changes = {"compute.price_per_hour": {"value": 36.0, "from": "job.yaml:7"}}
    run = make_run(
        tmp_path, "one", nodes=2, plan={**PRICED, "changes": changes}, attempts=[attempt(0, 90, 40), attempt(100, 190)]
    )
    report(run, 20, at=60.0)
    cost = Orchestrator(home=tmp_path, environ={}).attach("one").cost()
    assert (cost.price_origin, cost.price_per_hour) == ("job.yaml:7", 36.0)
    assert cost.process_hours == pytest.approx(4 * 180 / 3600)
    assert (cost.repeated_steps, cost.repeated_node_hours) == (20, pytest.approx(2 * 30 / 3600))
