"""The driver process over runs of milliseconds: it starts, stops and reports trials, and survives SIGKILL."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from orchestrator.cli.ui.run_list import sweep_row
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError
from orchestrator.support.formatting import score_text
from orchestrator.sweep import Sweep
from orchestrator.sweeps.design.points import draw
from orchestrator.sweeps.driver.control import DriverControl
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.sweeps.driver.sweep_status import sweep_status
from orchestrator.sweeps.driver.trials import pick_gpus, run_names
from orchestrator.sweeps.policy.termination import Decision
from tests.conftest import wait_for
from tests.unit.sweeps.quick_sweeps import (
    DRIVER_LOST,
    Sweeps,
    kill,
    kill_after_report,
    settings,
    spec_of,
    trials_with_weights,
)


def test_every_point_is_tried_once_and_reported(sweeps: Sweeps) -> None:
    folder = sweeps.run(limits={"trials": 5}, pause=120)
    trials = folder.study().trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 5
    assert settings(folder) == [draw(spec_of(folder), index) for index in range(5)]
    for trial in trials:
        rate = trial.user_attrs["settings"]["optimizer.learning_rate"]
        assert trial.value == pytest.approx(rate * 1000 + 1 / 4 + 0.002)
        assert list(trial.intermediate_values) == [1, 2, 3, 4]
    assert sweeps.starts(folder) == {run_names(folder.name, number, 1)[0]: ["1"] for number in range(5)}
    tags = json.loads(sweeps.runs(folder)[3].tags.read_text())
    assert (tags["orchestrator.sweep"], tags["orchestrator.trial"]) == (folder.name, "3")
    spans = [(trial.user_attrs["started"], trial.user_attrs["end"]["ended"]) for trial in trials]
    assert max(sum(start <= begin < end for start, end in spans) for begin, _ in spans) == 2, "concurrent trials"
    lines = [json.loads(line)["metrics"] for line in folder.metrics.read_text().splitlines()]
    assert min(line["trial"] for line in lines) == lines[-1]["best"]


@pytest.mark.long
def test_driver_stops_a_trailing_trial_and_stores_why(sweeps: Sweeps) -> None:
    space = {"optimizer.learning_rate": [1e-4, 1e-2, 1.2e-4]}
    bandit = {"policy": "bandit", "slack_factor": 0.5, "delay": 2}
    limits = {"trials": None, "concurrent": 1}
    folder = sweeps.run(space=space, sampling="grid", early_termination=bandit, limits=limits, steps=200, pause=10)
    first, second, third = folder.study().trials
    assert [first.state, second.state, third.state] == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.COMPLETE]
    assert second.user_attrs["end"]["why"] == "stopped at report 2: 10.5 > 0.602 x 1.5"
    assert second.value == pytest.approx(10.502)
    assert sweeps.runs(folder)[1].stored_state().state == RunState.CANCELLED
    decided = folder.decisions()
    assert decided[1, 2].stop
    assert not decided[2, 200].stop
    assert (1, 1) not in decided


def test_driver_stops_the_worse_of_two_simultaneous_trials(sweeps: Sweeps) -> None:
    space = {"optimizer.learning_rate": [1e-4, 1e-2]}
    bandit = {"policy": "bandit", "slack_factor": 0.5}
    slow = {"steps": 40, "pause": 50}  # enough reports to be stopped early
    folder = sweeps.run(space=space, sampling="grid", early_termination=bandit, limits={"trials": None}, **slow)
    better, worse = folder.study().trials
    assert (better.state, worse.state) == (TrialState.COMPLETE, TrialState.PRUNED)
    told = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [line["step"] for line in told] == [1, 2]  # MLflow shows the value of the last step, not the last value
    assert [line["metrics"] for line in told] == [
        {"trial": worse.value, "best": worse.value},
        {"trial": better.value, "best": better.value},
    ]


def test_replicates_are_judged_together_with_own_seeds(sweeps: Sweeps) -> None:
    folder = sweeps.run(seeds=[1, 5, 2], limits={"trials": 2})
    assert len(sweeps.runs(folder)) == 6
    seeds = [json.loads(run.config.read_text())["train"]["seed"] for run in sweeps.runs(folder)]
    assert seeds == [1, 5, 2] * 2
    for trial in folder.study().trials:
        rate = trial.user_attrs["settings"]["optimizer.learning_rate"]
        assert trial.value == pytest.approx(rate * 1000 + 1 / 4 + 0.002)  # the median of the seeds


@pytest.mark.slow
def test_driver_resumes_a_crashed_run_up_to_the_retries(sweeps: Sweeps) -> None:
    crash = {"validation": {"max_sequences": 13}}
    folder = sweeps.run(trial=crash, limits={"trials": 2})
    assert set(map(tuple, sweeps.starts(folder).values())) == {("1", "2")}
    assert [trial.state for trial in folder.study().trials] == [TrialState.COMPLETE] * 2
    folder = sweeps.run(trial=crash, limits={"trials": 2, "retries": 0}, name="other")
    assert [trial.state for trial in folder.study().trials] == [TrialState.FAIL] * 2
    assert "crashed as asked" in folder.study().trials[0].user_attrs["end"]["why"]


def test_run_lost_after_its_last_attempt_completes(sweeps: Sweeps) -> None:
    """The attempt is recorded as completed, the run is not: its supervisor was killed between the two writes."""
    folder = sweeps.run(trial={"validation": {"max_sequences": 23}}, limits={"trials": 1, "retries": 0})
    (attempts,) = sweeps.starts(folder).values()
    assert len(attempts) == 2
    assert [trial.state for trial in folder.study().trials] == [TrialState.COMPLETE]
    assert trials_with_weights(sweeps, folder) == {0: 2}


@pytest.mark.slow
def test_invalid_input_is_not_retried(sweeps: Sweeps) -> None:
    folder = sweeps.run(trial={"validation": {"max_sequences": 15}}, limits={"trials": 1, "retries": 5})
    assert list(sweeps.starts(folder).values()) == [["1"]]
    assert [trial.state for trial in folder.study().trials] == [TrialState.FAIL]


@pytest.mark.parametrize("later", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_next_driver_applies_a_stored_decision(sweeps: Sweeps, later: int) -> None:
    folder = sweeps.make(limits={"trials": 1}, steps=1000, pause=20)
    sweeps.start(folder)
    report = later + kill_after_report(folder, 0)
    folder.decide(0, Decision(True, report, "as said"))  # its last record
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED
    (trial,) = folder.study().trials
    assert trial.state == TrialState.PRUNED
    assert trial.user_attrs["end"]["why"] == f"stopped at report {report}: as said"
    assert list(trial.intermediate_values) == list(range(1, report + 1))


WORSE = {"space": {"optimizer.learning_rate": [1e-4, 1e-2]}, "sampling": "grid", "steps": 300, "pause": 10}


@pytest.mark.slow
def test_stored_decision_is_not_repeated(sweeps: Sweeps) -> None:
    bandit = {"policy": "bandit", "slack_amount": 0.1, "delay": 150}
    folder = sweeps.make(**WORSE, limits={"trials": None, "concurrent": 1}, early_termination=bandit)
    sweeps.start(folder)
    kill_after_report(folder, 1)
    for report in range(150, 160):
        folder.decide(1, Decision(False, report, "as said"))
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED
    assert folder.study().trials[1].user_attrs["end"]["why"].startswith("stopped at report 160: ")


@pytest.mark.slow
def test_next_driver_knows_seeds_of_ended_trials(sweeps: Sweeps) -> None:
    rule = {"policy": "wilcoxon", "p_value": 0.1, "delay": 150}
    limits = {"trials": None, "concurrent": 1}
    folder = sweeps.make(**WORSE, limits=limits, early_termination=rule, seeds=[1, 2, 3, 4])
    sweeps.start(folder)
    kill_after_report(folder, 1)
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED, (folder.path / "driver.log").read_text()
    why = folder.study().trials[1].user_attrs["end"]["why"]
    assert why == "stopped at report 150: p 0.0625 < 0.1 against trial 0"


@pytest.mark.slow
def test_sweep_ends_when_its_budget_is_spent(sweeps: Sweeps) -> None:
    price = {"compute": {"price_per_hour": 3600}}  # a dollar a second
    folder = sweeps.run(trial=price, limits={"trials": 50, "concurrent": 1, "cost": 1.5}, steps=40, pause=10)
    assert "limits.cost: " in str(folder.state().reason)
    costs = [trial.user_attrs["end"]["cost"] for trial in folder.study().trials]
    assert 1.5 < sum(costs) < 10
    assert len(costs) < 50


def test_diverged_trial_is_stopped_without_a_policy(sweeps: Sweeps) -> None:
    folder = sweeps.run(trial={"validation": {"max_sequences": 14}}, limits={"trials": 1}, steps=100, pause=10)
    (trial,) = folder.study().trials
    assert trial.state == TrialState.PRUNED
    end = trial.user_attrs["end"]
    assert (end["state"], end["outcome"]) == ("stopped", None)
    assert end["why"] == "stopped at report 2: validation_loss is nan"


@pytest.mark.slow
def test_time_limits_end_trials_and_the_sweep(sweeps: Sweeps) -> None:
    slow = {"steps": 1000, "pause": 20}
    folder = sweeps.run(**slow, limits={"trials": 2, "trial_hours": 0.8 / 3600})
    ends = [trial.user_attrs["end"] for trial in folder.study().trials]
    assert [end["state"] for end in ends] == ["timed out"] * 2
    assert all(end["outcome"] is not None for end in ends)
    folder = sweeps.run(**slow, limits={"trials": 9, "hours": 4 / 3600}, name="other")
    assert folder.state().reason == "limits.hours: 0.00111111 h are over"
    assert {trial.user_attrs["end"]["state"] for trial in folder.study().trials} == {"ended early"}
    assert len(folder.study().trials) == 2


@pytest.mark.long
def test_cancelled_sweep_cancels_trials_and_resumes(sweeps: Sweeps) -> None:
    folder = sweeps.make(limits={"trials": 3, "concurrent": 2}, steps=100, pause=20)
    sweeps.start(folder)
    wait_for(lambda: len(sweeps.starts(folder)) == 2)
    DriverControl(folder, sweeps.home).cancel()
    assert sweeps.end(folder) == RunState.CANCELLED
    assert {run.stored_state().state for run in sweeps.runs(folder)} == {RunState.CANCELLED}
    folder.cancel_file.unlink()
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED
    assert [trial.state for trial in folder.study().trials] == [TrialState.COMPLETE] * 3
    assert sorted(map(tuple, sweeps.starts(folder).values())) == [("1",), ("1", "2"), ("1", "2")]


@pytest.mark.slow
def test_trials_without_a_driver_are_cancelled(sweeps: Sweeps) -> None:
    folder = sweeps.make(limits={"trials": 2}, steps=1000, pause=20)
    sweeps.start(folder)
    wait_for(lambda: len(sweeps.starts(folder)) == 2)
    kill(folder)
    DriverControl(folder, sweeps.home).cancel()
    assert folder.state().state == RunState.CANCELLED
    wait_for(lambda: {run.stored_state().state for run in sweeps.runs(folder)} == {RunState.CANCELLED})


@pytest.mark.slow
def test_stopped_driver_leaves_its_trials_running(sweeps: Sweeps) -> None:
    folder = sweeps.make(limits={"trials": 2}, steps=100, pause=10)
    sweeps.start(folder)
    wait_for(lambda: len(sweeps.runs(folder)) == 2)
    os.kill(folder.stored_state().pid or 0, signal.SIGTERM)
    assert sweeps.end(folder) == RunState.PREEMPTED
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED
    assert set(map(tuple, sweeps.starts(folder).values())) == {("1",)}


@pytest.mark.slow
def test_second_driver_of_a_sweep_is_refused(sweeps: Sweeps) -> None:
    folder = sweeps.make(steps=1000, pause=20)
    sweeps.start(folder)
    with pytest.raises(Exception, match="did not start"):
        sweeps.start(folder)
    kill(folder)
    assert folder.state().reason == DRIVER_LOST


@pytest.mark.slow
def test_changed_code_ends_the_sweep_with_the_reason(sweeps: Sweeps) -> None:
    folder = sweeps.make()
    folder.write_record(folder.record().model_copy(update={"snapshot": "0" * 64}))
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.FAILED
    assert "the code changed since" in str(folder.state().reason)


def test_sweep_of_the_same_name_is_refused(sweeps: Sweeps) -> None:
    sweeps.make()
    with pytest.raises(ConflictError, match="exists"):
        sweeps.make()
    sweeps.folders.append(sweeps.make(sampling={"name": "random", "seed": 1}))


def run_with_kills(sweeps: Sweeps, kills: int, *, trials_too: bool, seed: int, **sections: Any) -> SweepFolder:
    """Run a sweep whose driver, and with `trials_too` whose runs, are killed at random moments."""
    chance = random.Random(seed)
    folder = sweeps.make(**sections)
    for _ in range(kills):
        if folder.state().state == RunState.COMPLETED:
            break
        sweeps.start(folder)
        time.sleep(chance.uniform(0.0, 1.5))
        kill(folder)
        for run in sweeps.runs(folder) if trials_too else ():
            if run.locked() and (pid := run.stored_state().pid) and chance.random() < 0.5:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    if folder.state().state != RunState.COMPLETED:
        sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED, (folder.path / "driver.log").read_text()
    return folder


def check_nothing_lost_or_repeated(sweeps: Sweeps, folder: SweepFolder) -> None:
    spec, study = spec_of(folder), folder.study()
    assert settings(folder) == [draw(spec, index) for index in range(spec.limits.trials or 0)]
    assert {trial.state for trial in study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    names = [name for trial in study.trials for name in trial.user_attrs["runs"]]
    assert [run.name for run in sweeps.runs(folder)] == names
    for name, attempts in sweeps.starts(folder).items():
        assert len(set(attempts)) == len(attempts), f"{name} had two attempts at the same time"
    for run, trial in zip(sweeps.runs(folder), study.trials, strict=True):
        steps = [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()]
        assert steps == sorted(set(steps))
        assert list(trial.intermediate_values) == list(range(1, len(trial.intermediate_values) + 1))
        stops = [
            report for (number, report), told in folder.decisions().items() if number == trial.number and told.stop
        ]
        assert stops == ([len(trial.intermediate_values)] if trial.state == TrialState.PRUNED else [])
    ends = [trial.user_attrs["end"] for trial in study.trials]
    ranked = sorted((end["state"] != "completed", end["outcome"], number) for number, end in enumerate(ends))
    assert trials_with_weights(sweeps, folder) == {number: 2 for *_, number in ranked[:3]}
    assert not [left for run in sweeps.runs(folder) for left in run.outputs.glob(".*")]


def test_only_the_best_trials_keep_weights(sweeps: Sweeps) -> None:
    space = {"optimizer.learning_rate": [3e-3, 1e-3, 4e-3, 2e-3, 1e-3]}
    folder = sweeps.run(space=space, sampling="grid", limits={"trials": None}, keep_best=2, pause=5)
    assert trials_with_weights(sweeps, folder) == {1: 2, 4: 2}, "both trials of a tie"
    for number, run in enumerate(sweeps.runs(folder)):
        assert len(run.metrics.read_text().splitlines()) == 4
        warning = run.state().warning
        assert (warning is None) == (number in {1, 4})
        assert warning is None or warning.endswith(f"sweep {folder.name} keeps those of the best 2 trials")


def test_stopped_trial_does_not_cost_the_best_model(sweeps: Sweeps) -> None:
    """A policy stopped trial 1, whose first report was the best of all: it has no model."""
    space = {"validation.max_sequences": [8, 24]}  # see quick_trial.py
    policy = {"policy": "truncation", "percentage": 50, "delay": 2}
    limits = {"trials": None, "concurrent": 1}
    folder = sweeps.run(space=space, sampling="grid", limits=limits, early_termination=policy, keep_best=1)
    rows = sweep_status(folder).rows
    assert [row.state for row in rows] == ["completed", "stopped"]
    assert rows[1].outcome is not None
    assert rows[0].outcome is not None
    assert rows[1].outcome < rows[0].outcome
    assert trials_with_weights(sweeps, folder) == {0: 2}
    assert [row.incumbent for row in rows] == [True, False]
    last = json.loads(folder.metrics.read_text().splitlines()[-1])["metrics"]
    assert last == {"trial": rows[1].outcome, "best": rows[0].outcome}, "as `sweep best`"
    assert sweep_row(Sweep(folder, sweeps.home))["SCORE"] == f"loss {score_text(rows[0].outcome)}"


def test_failed_trials_keep_checkpoints_for_a_retry(sweeps: Sweeps) -> None:
    crash = {"validation": {"max_sequences": 13}}  # see quick_trial.py
    folder = sweeps.run(trial=crash, limits={"trials": 2, "retries": 0}, keep_best=1)
    assert {trial.user_attrs["end"]["state"] for trial in folder.study().trials} == {"failed"}
    assert trials_with_weights(sweeps, folder) == {0: 2, 1: 2}
    folder.reopen_trials([0, 1])
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED
    assert len(trials_with_weights(sweeps, folder)) == 2, "both failed again"


def test_next_driver_completes_a_killed_deletion(sweeps: Sweeps) -> None:
    space = {"optimizer.learning_rate": [2e-3, 1e-3]}
    folder = sweeps.run(space=space, sampling="grid", limits={"trials": None}, keep_best=1)
    loser = sweeps.runs(folder)[0]
    (loser.outputs / ".deleted.model").mkdir()
    (loser.outputs / ".deleted.model" / "rest").touch()
    (folder.path / ".state.json.7.tmp").touch()
    # as if the driver had not written its final state
    folder.write_state(folder.stored_state().model_copy(update={"state": RunState.RUNNING}))
    sweeps.start(folder)
    assert sweeps.end(folder) == RunState.COMPLETED
    assert not [*loser.outputs.glob(".*"), *folder.path.glob(".*")]
    assert trials_with_weights(sweeps, folder) == {1: 2}


def test_driver_imports_no_module_of_the_working_folder(sweeps: Sweeps) -> None:
    Path("statistics.py").write_text("raise ImportError('the module of the user')\n")
    folder = sweeps.make(limits={"trials": 1})
    sweeps.start(folder, ("-m", "tests.unit.sweeps.quick_driver"))
    assert sweeps.end(folder) == RunState.COMPLETED


def test_sweep_that_keeps_all_deletes_nothing(sweeps: Sweeps) -> None:
    folder = sweeps.run(limits={"trials": 4}, keep_best="all")
    assert trials_with_weights(sweeps, folder) == dict.fromkeys(range(4), 2)


BANDIT = {"policy": "bandit", "slack_factor": 0.3, "delay": 2}


@pytest.mark.long
def test_killed_driver_loses_and_repeats_nothing(sweeps: Sweeps) -> None:
    folder = run_with_kills(
        sweeps, 3, trials_too=False, seed=1, steps=30, pause=15, early_termination=BANDIT, limits={"trials": 6}
    )
    check_nothing_lost_or_repeated(sweeps, folder)


@pytest.mark.slow
@pytest.mark.parametrize("trials_too", [False, True])
def test_driver_survives_fifty_random_kills(sweeps: Sweeps, trials_too: bool) -> None:
    folder = run_with_kills(
        *(sweeps, 25),
        trials_too=trials_too,
        seed=2,
        steps=60,
        pause=20,
        early_termination=BANDIT,
        limits={"trials": 40, "retries": 30},
    )
    check_nothing_lost_or_repeated(sweeps, folder)


def test_gpus_are_distributed_evenly() -> None:
    gpus = ["0", "1", "2"]
    assert pick_gpus([], gpus, per_gpu=1, need=1) == ["0"]
    assert pick_gpus([["0"]], gpus, per_gpu=1, need=1) == ["1"]
    assert pick_gpus([["0"], ["1"], ["2"]], gpus, per_gpu=1, need=1) is None
    assert pick_gpus([["0"], ["1"], ["2"]], gpus, per_gpu=2, need=1) == ["0"]
    assert pick_gpus([["0", "1"], ["1", "2"]], gpus, per_gpu=2, need=2) == ["0", "2"]
    assert pick_gpus([["0", "1"]], gpus, per_gpu=1, need=2) is None
