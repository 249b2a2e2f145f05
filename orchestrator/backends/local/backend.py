"""The local backend: the same plan, snapshot, launcher and outputs as on a cluster, on this machine."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from orchestrator.backends.local.files import LocalState, RunFolder
from orchestrator.backends.local.launch import LocalRequest, check_port
from orchestrator.errors import ConflictError, NotFoundError, ServiceError, StorageError, UsageError
from orchestrator.plan import Plan
from orchestrator.runs import Handle, RunState, RunStatus
from orchestrator.tracking import default_uri
from train_jobs.config.files import write_text
from train_jobs.config.load import did_you_mean

TAIL_BYTES = 64 * 1024
FOLLOW_SECONDS = 0.2


class LocalBackend:
    """Runs below HOME/runs.

    Args:
        home: the user's orchestrator folder.
    """

    name = "local"

    def __init__(self, home: Path) -> None:
        self._home = home
        self._runs = home / "runs"

    def request(self, plan: Plan, run_name: str) -> LocalRequest:
        """What will run, as one object: pure."""
        compute = plan.compute
        if compute.nodes != 1:
            raise UsageError(
                f"the local backend runs on one machine, not {compute.nodes} nodes",
                fix=f"--set compute.nodes=1 --set compute.processes_per_node={compute.world_size}",
            )
        stores, run = self._home / "token-stores", self._folder(run_name)
        return LocalRequest(
            name=run_name,
            command=[
                *(sys.executable, "-m", "train_jobs.pretrain", "--config", str(run.config)),
                *("--output", str(run.outputs), "--cache", str(stores), "--device", compute.device),
            ],
            processes=compute.processes_per_node,
            threads=compute.threads_per_process,
            device=compute.device,
            master_port=compute.master_port,
            max_restarts=plan.spec.max_restarts,
            variables=dict(plan.spec.environment.variables),
            snapshot=plan.snapshot.digest,
            tracking_uri=plan.spec.tracking.uri or default_uri(self._home),
            experiment=plan.spec.tracking.experiment,
            token_stores=str(stores),
        )

    def schedule(self, request: LocalRequest, plan: Plan) -> Handle:
        """Makes the run's folder and starts its supervisor.

        Raises:
            ConflictError: the name or the port is taken.
            StorageError: the home folder cannot be written; nothing half-made stays.
        """
        check_port(request.master_port)
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
        self._supervise(run)
        return Handle(self.name, request.name)

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

    def logs(self, name: str, *, follow: bool = False, rank: int = 0) -> Iterator[str]:
        """Lines of a rank's log."""
        run = self._existing(name)
        processes = run.read_json("request.json")["processes"]
        if not 0 <= rank < processes:
            raise NotFoundError(f"run {name} has no rank {rank}", facts={"ranks": f"0 to {processes - 1}"})
        return _lines(run, run.rank_log(rank), follow=follow)

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

    def preempt(self, name: str) -> None:
        """Takes the machine away, as a cloud does: SIGTERM without a request to cancel; the job saves and stops."""
        run = self._existing(name)
        pid = run.read_state().pid
        if pid is None or not run.locked():
            raise ConflictError(f"run {name} is not running", fix=f"orchestrator status {name}")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)

    def resume(self, name: str) -> Handle:
        """Another attempt in the same folder."""
        run = self._existing(name)
        state = run.read_state()
        if not state.state.resumable or run.locked():
            raise ConflictError(
                f"run {name} is {state.state} and cannot be resumed",
                fix=f"orchestrator {'status' if state.state.terminal else 'attach'} {name}",
            )
        request = LocalRequest.model_validate(run.read_json("request.json"))
        check_port(request.master_port)
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
        self._supervise(run)
        return Handle(self.name, name)

    def folder(self, name: str) -> Path | None:
        """The run's folder."""
        return self._existing(name).path

    def _fill(self, run: RunFolder, request: LocalRequest, plan: Plan) -> None:
        """Everything that a run needs, in a folder that nobody sees yet."""
        for folder in (run.path, run.code, run.outputs, run.logs):
            folder.mkdir(parents=True)
        plan.snapshot.write(run.code)
        spec = plan.spec.model_dump(mode="json")
        write_text(run.path / "spec.yaml", yaml.safe_dump(spec, sort_keys=False))
        write_text(run.path / "plan.json", json.dumps(plan.as_dict(), indent=1))
        write_text(run.path / "config.json", plan.job.model_dump_json(indent=1))
        write_text(run.path / "tags.json", json.dumps(_tags(plan, request)))
        run.reserve()
        (run.path / "lock").touch()
        run.write_state(LocalState(state=RunState.QUEUED, created=time.time()))
        write_text(run.path / "request.json", request.model_dump_json(indent=1))

    def _supervise(self, run: RunFolder) -> None:
        """Starts the supervisor and waits until it holds the run."""
        ready, told = os.pipe()
        with (run.logs / "supervisor.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.backends.local.supervisor", str(run.path), str(told)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[told],
                cwd="/",
            )
        os.close(told)
        with os.fdopen(ready, "rb") as stream:
            answer = stream.read(5)
        if answer != b"ready":
            words = (run.logs / "supervisor.log").read_text(errors="replace").strip().splitlines()
            raise ServiceError(
                f"the supervisor of run {run.name} did not start",
                facts={"exit code": process.wait(), "says": words[-1] if words else "nothing"},
                fix=f"orchestrator resume {run.name}",
            )
        process.returncode = 0  # ours no longer: it is watched by its lock, not by its parent

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


def _tags(plan: Plan, request: LocalRequest) -> dict[str, str]:
    return {
        **plan.spec.tags,
        "orchestrator.run": request.name,
        "orchestrator.handle": str(Handle("local", request.name)),
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
