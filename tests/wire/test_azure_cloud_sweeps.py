"""A sweep of `driver: here` that a schedule of Azure takes on: no process of this machine, nothing in memory."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.backends import load_backend, require
from orchestrator.backends.azure.wire.control_plane import Wire
from orchestrator.backends.capabilities import SupervisesSweeps, UnknownError
from orchestrator.cli.main import main
from orchestrator.client import Orchestrator
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError, SpecError, UserError
from orchestrator.support.home import SWEEPS
from orchestrator.sweep import Sweep
from orchestrator.sweeps.driver import cloud
from orchestrator.sweeps.driver.control import check_secrets
from orchestrator.sweeps.driver.sweep_folder import SweepFolder
from orchestrator.testing import AzureDouble
from orchestrator.testing.jobs.job_table import PREEMPTED
from tests.conftest import SMALL_TEXT, write_spec

RATE = "optimizer.learning_rate"
TEXT = "azureml://datastores/workspaceblobstore/paths/texts/"
SPACE = {RATE: {"low": 1e-4, "high": 1e-1, "log": True}}


def write(folder: Path, limits: dict[str, int], sampling: str, **trial: Any) -> Path:
    """Write a sweep whose trials need nothing of this machine, unless `trial` changes that."""
    own = {"backend": "azure", "compute": {"cluster": "cpu", "sku": "Standard_D16s_v5", "max_nodes": 4}}
    write_spec(folder / "job.yaml", **{**own, "azure": {"supervise": "cloud", "data": TEXT}, **trial})
    document = {"trial": "job.yaml", "driver": "here", "space": SPACE, "sampling": sampling, "limits": limits}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(document))
    return folder / "sweep.yaml"


@pytest.fixture
def submit(azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_snapshot: None) -> Any:
    """Return a function that submits a sweep of three trials, two at a time, supervised by Azure."""
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.0001")  # pauses before restarts are multiples of it
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(**trial: Any) -> Sweep:
        file = write(tmp_path, limits={"trials": 3, "concurrent": 2}, sampling="tpe", **trial)
        sweeps = Orchestrator(home=tmp_path / "home", environ={}).sweeps
        return sweeps.submit(sweeps.plan(file=file))

    return run


@pytest.fixture
def step(tmp_path: Path) -> Callable[[Sweep], RunState]:
    """Return a function that does what a job of the schedule does, each time in a new empty home."""
    count = iter(range(1000))

    def take(sweep: Sweep) -> RunState:
        home = tmp_path / f"step-{next(count)}"
        return cloud.take_step(SweepFolder(home / SWEEPS / sweep.name), home, "azure", "double")

    return take


def jobs(azure: AzureDouble) -> list[str]:
    return sorted(job.name for job in azure.jobs.all())


def schedules(azure: AzureDouble) -> list[str]:
    return [one["name"] for one in azure.state.below("schedules")]


def finish(azure: AzureDouble, job: str, value: float) -> None:
    """Let a trial report its loss, and end."""
    folder = azure.folder() / "orchestrator" / "runs" / job.partition("-a")[0] / "outputs"
    folder.mkdir(parents=True, exist_ok=True)
    azure.move(job, "Running")
    line = f'{{"step": 12, "time": 9e9, "metrics": {{"validation_loss": {value}}}}}\n'
    (folder / "metrics.jsonl").write_text(line)
    azure.move(job, "Completed")


@pytest.mark.long
def test_steps_take_a_sweep_to_its_end(submit: Any, azure: AzureDouble, step: Any, tmp_path: Path) -> None:
    sweep = submit()
    assert (schedules(azure), jobs(azure)) == ([f"supervise-{sweep.name}"], [])
    trials = [f"{sweep.name}-t{number:04d}" for number in range(3)]
    assert step(sweep) == RunState.RUNNING
    assert jobs(azure) == trials[:2]
    finish(azure, trials[0], 3.0)
    azure.move(trials[1], "Running")
    azure.move(trials[1], "Failed", PREEMPTED)
    step(sweep)
    assert jobs(azure) == [*trials[:2], f"{trials[1]}-a2", trials[2]]
    finish(azure, f"{trials[1]}-a2", 2.0)
    finish(azure, trials[2], 4.0)
    assert step(sweep) == RunState.COMPLETED
    assert schedules(azure) == []
    status = sweep.status()
    assert (status.state, status.ended, [row.outcome for row in status.rows]) == (
        RunState.COMPLETED,
        3,
        [3.0, 2.0, 4.0],
    )
    assert sweep.best().runs == [trials[1]]


@pytest.mark.long
def test_steps_at_the_same_time_submit_each_trial_once(submit: Any, azure: AzureDouble, step: Any) -> None:
    sweep = submit()
    ends: list[object] = []

    def take() -> None:
        try:
            ends.append(step(sweep))
        except ConflictError as problem:
            ends.append(type(problem))

    both = [threading.Thread(target=take) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(100)
    assert set(ends) <= {RunState.RUNNING, ConflictError}
    assert len(ends) == 2
    step(sweep)
    assert jobs(azure) == [f"{sweep.name}-t0000", f"{sweep.name}-t0001"]
    settings = [row.settings[RATE] for row in sweep.status().rows]
    commands = [azure.job(name).properties["inputs"] for name in jobs(azure)]
    assert (len(settings), len(commands)) == (2, 2)


@pytest.mark.long
def test_cancel_ends_trials_and_schedule(submit: Any, azure: AzureDouble, step: Any) -> None:
    sweep = submit()
    step(sweep)
    sweep.cancel()
    assert step(sweep) == RunState.CANCELLED
    assert schedules(azure) == []
    assert {job.status for job in azure.jobs.all()} == {"Canceled"}
    sweep.resume()
    assert schedules(azure) == [f"supervise-{sweep.name}"]
    assert step(sweep) == RunState.RUNNING
    assert len(jobs(azure)) == 4


def change_snapshot(sweep: Sweep) -> None:
    """Let the sweep have started with other code, so that no step can plan a trial."""
    sweep.status()
    folder, store = sweep.folder, require(load_backend("azure", sweep.folder.path.parents[1]), SupervisesSweeps)
    folder.write_record(folder.record().model_copy(update={"snapshot": "0" * 64}))
    version = store.read_sweep("double", sweep.name)[1]
    store.write_sweep("double", sweep.name, cloud.pack(folder), version)


@pytest.mark.long
def test_lasting_conflict_fails_sweep_with_its_reason(submit: Any, azure: AzureDouble, step: Any) -> None:
    """It is not another step that was faster: each later step would end the same way."""
    sweep = submit()
    step(sweep)
    change_snapshot(sweep)
    assert step(sweep) == RunState.FAILED
    assert sweep.status().reason == f"the code changed since sweep {sweep.name} started"
    assert schedules(azure) == []
    sweep.cancel()
    assert step(sweep) == RunState.CANCELLED
    assert schedules(azure) == []
    assert {job.status for job in azure.jobs.all()} == {"Canceled"}


@pytest.mark.long
def test_cancel_works_when_trials_cannot_be_planned(submit: Any, azure: AzureDouble, step: Any) -> None:
    sweep = submit()
    step(sweep)
    change_snapshot(sweep)
    sweep.cancel()
    assert step(sweep) == RunState.CANCELLED
    assert schedules(azure) == []
    assert {job.status for job in azure.jobs.all()} == {"Canceled"}


@pytest.mark.long
def test_resume_keeps_what_a_step_wrote_meanwhile(
    submit: Any, azure: AzureDouble, step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep is resumed on another machine, and then on this one."""
    sweep = submit()
    sweep.cancel()
    assert step(sweep) == RunState.CANCELLED
    other = Sweep(SweepFolder(tmp_path / "step-0" / SWEEPS / sweep.name), tmp_path / "step-0")

    def while_resuming(record: Any) -> None:
        monkeypatch.setattr(cloud, "check_secrets", check_secrets)
        other.resume()
        step(sweep)

    monkeypatch.setattr(cloud, "check_secrets", while_resuming)
    with pytest.raises(ConflictError, match="another process has changed it"):
        sweep.resume()
    assert len(sweep.status().rows) == 2


@pytest.mark.long
def test_running_sweep_refuses_retry_and_extend(submit: Any, azure: AzureDouble, step: Any) -> None:
    """Its next step would read a folder that the command is changing."""
    sweep = submit()
    step(sweep)
    while not sweep.status().ended:
        azure.move(jobs(azure)[-1], "Running")
        azure.move(jobs(azure)[-1], "Failed")
        assert step(sweep) == RunState.RUNNING
    assert sweep.status().rows[1].state == RunState.FAILED
    before = cloud.pack(sweep.folder)
    with pytest.raises(ConflictError, match=f"sweep {sweep.name} is running"):
        sweep.retry([1])
    with pytest.raises(ConflictError, match=f"sweep {sweep.name} is running"):
        sweep.extend(2)
    sweep.status()
    assert cloud.pack(sweep.folder) == before


def test_sweep_of_local_text_is_refused(submit: Any, azure: AzureDouble, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(SMALL_TEXT)
    with pytest.raises(SpecError, match="its trials need text of this machine"):
        submit(azure={"supervise": "cloud"}, data={"text": ["corpus.txt"]})
    assert (jobs(azure), schedules(azure)) == ([], [])


def test_dry_run_refuses_what_no_schedule_can_drive(
    azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text(SMALL_TEXT)
    for sampling, trial, message in (
        ("tpe", {"azure": {"supervise": "cloud"}, "data": {"text": ["corpus.txt"]}}, "need text of this machine"),
        ("gp", {}, "its image has no torch"),
    ):
        write(tmp_path, limits={"trials": 3, "concurrent": 2}, sampling=sampling, **trial)
        assert main(["submit", "sweep", "-f", "sweep.yaml", "--dry-run"]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
        assert main(["submit", "sweep", "-f", "sweep.yaml", "--supervise", "here", "--dry-run"]) == 0
        capsys.readouterr()
    assert azure.requests("PUT *") == []


def kept(tmp_path: Path) -> list[Sweep]:
    return Orchestrator(home=tmp_path / "home", environ={}).sweeps.all()


def archives(azure: AzureDouble) -> list[Path]:
    return [*azure.folder().glob("orchestrator/sweeps/**/*.zip")]


@pytest.fixture
def lost_start(
    submit: Any, azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[bool, bool], Sweep]:
    """Return a function that submits a sweep whose archive and schedule get no answer: each arrives or does not."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)

    def run(archive: bool, schedule: bool) -> Sweep:
        put = Wire.put_schedule

        def put_schedule(wire: Wire, name: str, body: dict[str, Any]) -> None:
            azure.fail_next("GET *" if schedule else "PUT *schedules*", status=503, retry_after=0.01, times=99)
            put(wire, name, body)

        with monkeypatch.context() as patch:
            patch.setattr(Wire, "put_schedule", put_schedule)
            if not archive:
                azure.fail_next("PUT *state.zip*", status=503, times=99)
            with pytest.raises(UnknownError, match="cannot find out whether") as failure:
                submit()
        azure.faults.clear()
        (sweep,) = kept(tmp_path)
        assert failure.value.fix == f"orchestrator sweep show {sweep.name}"
        return sweep

    return run


@pytest.mark.long
@pytest.mark.parametrize(("archive", "schedule"), [(False, False), (True, False), (True, True)])
def test_unknown_start_is_completed_by_same_command(
    lost_start: Any, submit: Any, azure: AzureDouble, step: Any, archive: bool, schedule: bool
) -> None:
    sweep = lost_start(archive, schedule)
    assert (len(archives(azure)), len(schedules(azure))) == (archive, schedule)
    status = sweep.status()
    assert (status.state, status.reason is None) == (RunState.RUNNING, schedule)
    again = submit()
    assert (again.name, again.created) == (sweep.name, not schedule)
    assert schedules(azure) == [f"supervise-{sweep.name}"]
    assert sweep.status().reason is None
    assert step(sweep) == RunState.RUNNING
    assert len(jobs(azure)) == 2


@pytest.mark.long
@pytest.mark.parametrize("archive", [False, True])
def test_cancel_of_unknown_start_ends_a_late_schedule(
    lost_start: Any, azure: AzureDouble, step: Any, archive: bool
) -> None:
    sweep = lost_start(archive, False)
    sweep.cancel()
    assert sweep.status().state == RunState.CANCELLED
    store, where = cloud.CloudControl(sweep.folder, sweep.folder.path.parents[1])._store, "double"
    store.start_sweep_supervision(where, sweep.name, cloud.CloudRecord.read(sweep.folder).schedule)
    assert step(sweep) == RunState.CANCELLED
    assert (jobs(azure), schedules(azure)) == ([], [])


def test_unknown_start_leaves_a_sweep_of_others_alone(lost_start: Any, azure: AzureDouble, step: Any) -> None:
    """Another machine has started a sweep of the same name meanwhile."""
    sweep = lost_start(True, False)
    folder = sweep.folder
    folder.write_record(folder.record().model_copy(update={"created": 1.0}))
    with pytest.raises(ConflictError, match=f"the workspace has another sweep {sweep.name}"):
        sweep.cancel()
    assert step(sweep) == RunState.RUNNING


@pytest.mark.parametrize("fault", ["PUT *state.zip*", "PUT *schedules*", "GET *schedules*"])
def test_refused_start_leaves_nothing(submit: Any, azure: AzureDouble, tmp_path: Path, fault: str) -> None:
    azure.fail_next(fault, status=400, message="no such thing")
    with pytest.raises(UserError) as failure:
        submit()
    assert not isinstance(failure.value, UnknownError)
    assert (kept(tmp_path), archives(azure), schedules(azure)) == ([], [], [])
    submit()
    assert len(schedules(azure)) == 1


def test_start_refuses_the_archive_of_another_sweep(submit: Any, azure: AzureDouble, tmp_path: Path) -> None:
    sweep = submit()
    shutil.rmtree(sweep.folder.path)
    with pytest.raises(ConflictError) as failure:
        submit()
    assert failure.value.fix == "--name with another name"
    assert (kept(tmp_path), len(archives(azure)), len(schedules(azure))) == ([], 1, 1)


@pytest.mark.slow  # each step is a process that plans with the real package
def test_sweep_is_taken_on_without_the_submitters_home(
    running_azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, limits={"trials": 1}, sampling="random")
    sweeps = Orchestrator(home=tmp_path / "home", environ={}).sweeps
    name = sweeps.submit(sweeps.plan(file=file)).name
    shutil.rmtree(tmp_path / "home")
    running_azure.hold_queue(False)
    job = running_azure.trigger(f"supervise-{name}")
    assert running_azure.wait(job, seconds=400) == "Completed", running_azure.logs(job)
    assert f"sweep {name} is running" in running_azure.logs(job)["std_log.txt"]
    assert running_azure.jobs.get(f"{name}-t0000") is not None
