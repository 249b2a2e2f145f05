"""Reads, follows and ends runs by their folders; who starts them is another's business."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import yaml

from orchestrator.backends.base import Backend, LogLine, LogQuery, Request
from orchestrator.backends.folder.checkpoints import best_checkpoint
from orchestrator.backends.folder.files import LocalState, RunFolder
from orchestrator.errors import ConflictError, NotFoundError, StorageError
from orchestrator.plan import Plan
from orchestrator.runs import Handle, RunState, RunStatus
from train_jobs.config.files import write_text
from train_jobs.config.load import did_you_mean

TAIL_BYTES = 64 * 1024
FOLLOW_SECONDS = 0.2


class FolderRequest(Request):
    """What every request says whose run is a folder."""

    nodes: int
    """Machines, or what plays them."""
    processes_per_node: int
    """Ranks on each."""
    tracking_uri: str
    """MLflow store."""

    @property
    def world_size(self) -> int:
        """Ranks of the whole job."""
        return self.nodes * self.processes_per_node


class FolderBackend(Backend):
    """Runs below one folder.

    Args:
        home: the user's orchestrator folder.
    """

    place: ClassVar[str]
    """Folder below `home` that holds the runs."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._runs = home / self.place

    def describe(self, name: str) -> RunStatus:
        """How a run stands; one whose folder is damaged has failed, and says how."""
        run = self._existing(name)
        try:
            return self._describe(run)
        except (OSError, ValueError, KeyError) as problem:
            return RunStatus(
                name=name,
                handle=str(Handle(self.name, name)),
                state=RunState.FAILED,
                reason=f"the run's folder is damaged: {type(problem).__name__}: {problem}".splitlines()[0],
                created=run.path.stat().st_mtime,
                folder=str(run.path),
                run_hash="",
            )

    def _describe(self, run: RunFolder) -> RunStatus:
        name, state, plan = run.name, run.read_state(), run.read_json("plan.json")
        last = last_report(run.metrics)
        return RunStatus(
            name=name,
            handle=str(Handle(self.name, name)),
            state=state.state,
            exit_code=state.exit_code,
            reason=state.reason,
            created=state.created,
            started=state.started,
            ended=state.ended,
            attempt=state.attempt,
            step=last.get("step"),
            steps=plan["job"]["train"]["steps"],
            ranks=state.ranks,
            folder=str(run.path),
            model=str(run.model) if run.model.is_dir() else None,
            best_checkpoint=best_checkpoint(run.outputs / "checkpoints"),
            tracking_uri=run.read_json("request.json")["tracking_uri"],
            mlflow_run_id=state.mlflow_run_id,
            run_hash=plan["run_hash"],
            tags=plan["spec"]["tags"],
            metrics=last.get("metrics", {}),
        )

    def runs(self) -> list[RunStatus]:
        """All runs, the newest first."""
        return [self.describe(name) for name in self.names()]

    def names(self) -> list[str]:
        """Names of all runs, the newest submission first."""
        if not self._runs.is_dir():
            return []
        folders = [path for path in self._runs.iterdir() if (path / "request.json").is_file() and path.name[0] != "."]
        return [path.name for path in sorted(folders, key=lambda p: (p / "request.json").stat().st_mtime_ns)[::-1]]

    def logs(self, name: str, query: LogQuery) -> Iterator[LogLine]:
        """Lines of the ranks' logs."""
        run = self._existing(name)
        request = run.read_json("request.json")
        world_size = request["nodes"] * request["processes_per_node"]
        (rank,) = query.ranks or (0,)
        if not 0 <= rank < world_size:
            raise NotFoundError(f"run {name} has no rank {rank}", facts={"ranks": f"0 to {world_size - 1}"})
        return (
            LogLine(text, rank, rank // request["processes_per_node"])
            for text in _lines(run, run.rank_log(rank), follow=query.follow)
        )

    def metrics(self, name: str) -> Iterator[dict[str, Any]]:
        """Reports from the job's own file."""
        path = self._existing(name).metrics
        if not path.exists():
            return
        with path.open(encoding="utf-8") as stream:
            for line in stream:
                with suppress(ValueError):  # a torn last line
                    yield json.loads(line)

    def plan(self, name: str) -> dict[str, Any]:
        """The plan that the run was made from."""
        return self._existing(name).read_json("plan.json")

    def result(self, name: str) -> dict[str, Any]:
        """The job's final figures."""
        run = self._existing(name)
        return run.read_json("outputs/result.json") if (run.outputs / "result.json").exists() else {}

    def cancel(self, name: str) -> None:
        """Asks the supervisor to end the job; the job saves a checkpoint first."""
        run = self._existing(name)
        if run.read_state().state.terminal:
            return
        run.cancel_file.touch()
        pid = run.read_state().pid
        if pid is not None and run.locked():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def delete(self, name: str) -> None:
        """Deletes a run that has ended; it is out of sight at once, however long its files take."""
        run = self._existing(name)
        state = run.read_state()
        if not state.state.terminal or run.locked():
            raise ConflictError(f"run {name} is {state.state}", fix=f"orchestrator cancel {name}")
        grave = self._runs / f".deleted.{name}.{os.getpid()}"
        run.path.rename(grave)
        shutil.rmtree(grave)

    def folder(self, name: str) -> Path | None:
        """The run's folder."""
        return self._existing(name).path

    def _make(self, request: FolderRequest, plan: Plan) -> RunFolder:
        """The run's folder, filled.

        Raises:
            ConflictError: the name is taken.
            StorageError: the home folder cannot be written; nothing half-made stays.
        """
        run = self._folder(request.name)
        draft = self._runs / f".{request.name}.{os.getpid()}"
        try:
            self._fill(RunFolder(draft), request, plan)
            draft.rename(run.path)
        except OSError as problem:
            shutil.rmtree(draft, ignore_errors=True)
            if run.path.exists():
                raise ConflictError(f"run {request.name} exists", fix=f"orchestrator status {request.name}") from None
            raise StorageError(
                f"cannot make the run's folder: {problem.strerror}",
                facts={"where": self._runs},
                fix="free some space, or set ORCHESTRATOR_HOME to a folder that can be written",
            ) from problem
        return run

    def _resumable(self, run: RunFolder) -> LocalState:
        """The state of a run that did not complete.

        Raises:
            ConflictError: it completed, or goes on.
        """
        state = run.read_state()
        if not state.state.resumable or run.locked():
            raise ConflictError(
                f"run {run.name} is {state.state} and cannot be resumed",
                fix=f"orchestrator {'status' if state.state.terminal else 'attach'} {run.name}",
            )
        return state

    def _requeue(self, run: RunFolder, state: LocalState) -> None:
        """Makes it ready for another attempt."""
        run.cancel_file.unlink(missing_ok=True)
        run.reserve()
        run.write_state(
            state.model_copy(
                update={
                    "state": RunState.QUEUED,
                    "attempt": state.attempt + 1,
                    "reason": None,
                    "exit_code": None,
                    "pid": None,  # a lost supervisor's, which may be anybody's by now
                }
            )
        )

    def _signal(self, name: str, what: signal.Signals) -> None:
        """Sends a signal to whoever holds the run.

        Raises:
            ConflictError: nobody does.
        """
        run = self._existing(name)
        pid = run.read_state().pid
        if pid is None or not run.locked():
            raise ConflictError(f"run {name} is not running", fix=f"orchestrator status {name}")
        with suppress(ProcessLookupError):
            os.kill(pid, what)

    def _fill(self, run: RunFolder, request: FolderRequest, plan: Plan) -> None:
        """Everything that a run needs, in a folder that nobody sees yet."""
        for folder in (run.path, run.code, run.outputs, run.logs):
            folder.mkdir(parents=True)
        plan.snapshot.write(run.code)
        spec = plan.spec.model_dump(mode="json")
        write_text(run.path / "spec.yaml", yaml.safe_dump(spec, sort_keys=False))
        write_text(run.path / "plan.json", json.dumps(plan.as_dict(), indent=1))
        write_text(run.path / "config.json", plan.job.model_dump_json(indent=1))
        write_text(run.path / "tags.json", json.dumps(_tags(plan, Handle(self.name, request.name))))
        run.reserve()
        (run.path / "lock").touch()
        run.write_state(LocalState(state=RunState.QUEUED, created=time.time()))
        write_text(run.path / "request.json", request.model_dump_json(indent=1))

    def _folder(self, name: str) -> RunFolder:
        return RunFolder(self._runs / name)

    def _existing(self, name: str) -> RunFolder:
        run = self._folder(name)
        if not (run.path / "request.json").is_file():
            raise NotFoundError(f"no run {name}{did_you_mean(name, self.names())}", fix="orchestrator list")
        return run


def last_report(path: Path) -> dict[str, Any]:
    """The last step of a metrics file and the newest value of each metric, read from its tail."""
    if not path.exists():
        return {}
    with path.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = stream.read().split(b"\n")
    step: int | None = None
    metrics: dict[str, float] = {}
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # the first may be cut, the last torn
            report = json.loads(line)
            step = report["step"]
            metrics |= {key: value for key, value in report["metrics"].items() if math.isfinite(value)}
    return {"step": step, "metrics": metrics} if step is not None else {}


def _tags(plan: Plan, handle: Handle) -> dict[str, str]:
    return {
        **plan.spec.tags,
        "orchestrator.run": handle.name,
        "orchestrator.handle": str(handle),
        "orchestrator.run_hash": plan.run_hash,
        "orchestrator.recipe": plan.spec.recipe,
        "orchestrator.snapshot": plan.snapshot.digest,
        "orchestrator.data": plan.data.sha256,
    }


def _lines(run: RunFolder, path: Path, *, follow: bool) -> Iterator[str]:
    """Lines of a growing file; with `follow`, until the run has ended and everything is read."""
    while follow and not path.exists() and not run.read_state().state.terminal:
        time.sleep(FOLLOW_SECONDS)
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as stream:
        rest = ""
        while True:
            ended = not follow or run.read_state().state.terminal
            while chunk := stream.readline():
                rest += chunk
                if rest.endswith("\n"):
                    yield rest[:-1]
                    rest = ""
            if ended:
                if rest:
                    yield rest
                return
            time.sleep(FOLLOW_SECONDS)
