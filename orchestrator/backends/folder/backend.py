"""Reads, follows and ends runs by their folders; who starts them is another's business."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.backends.base import (
    CONFIG,
    PLAN,
    REQUEST,
    SPEC,
    SUBMITTED,
    TAGS,
    Backend,
    Progress,
    Submission,
)
from orchestrator.backends.capabilities import Deletes, DeletesWeights, Inspects, Registers
from orchestrator.backends.folder.logs.selection import choose_sources, read_logs
from orchestrator.backends.folder.run_checkpoints import best_checkpoint
from orchestrator.backends.folder.run_folder import LocalState, RunFolder
from orchestrator.backends.folder.stacks import hang_files, ranks_stacks
from orchestrator.backends.folder.submission import FolderRequest
from orchestrator.backends.log_query import LogBlock, LogQuery
from orchestrator.backends.run_progress import Target, last_report
from orchestrator.estimates.cost import HOUR, price_of
from orchestrator.jobs.registry import DEFAULT, run_kind
from orchestrator.runs.results import read_results
from orchestrator.runs.status import Attempt, Handle, RunState, RunStatus, attempt_seconds
from orchestrator.support.errors import ConflictError, NotFoundError, StorageError
from orchestrator.support.home import run_names
from train_jobs.artifacts.files import write_draft
from train_jobs.config.names import in_shell

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan
    from train_jobs.config.base import Config

LEFT_SECONDS = 3600.0  # making a run folder takes a second, deleting one seconds to minutes


class FolderBackend(Backend, Inspects, Deletes, DeletesWeights, Registers):
    """Runs below one folder.

    Args:
        home: the user's orchestrator folder.
    """

    place: ClassVar[str]
    """Folder below `home` that holds the runs."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._runs = home / self.place

    def describe(self, name: str) -> RunStatus:
        """How a run stands; one whose folder is damaged has failed, and says how."""
        run = self._existing(name)
        try:
            return self._describe(run)
        except (OSError, ValueError, KeyError) as problem:
            if not run.path.is_dir():  # deleted while it was looked at
                raise NotFoundError(f"no run {name}", fix="orchestrator list") from None
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
        name, state = run.name, run.read_state()
        plan, request = run.read_json("plan.json"), run.read_json("request.json")
        last, target = last_report(run.metrics), Target.of(plan)
        attempts, kind = _attempts(state, last), run_kind(plan["spec"].get("kind", DEFAULT))
        result = self.result(name)
        node_hours = request["nodes"] * attempt_seconds(attempts, time.time()) / HOUR
        return RunStatus(
            name=name,
            handle=str(Handle(self.name, name)),
            kind=kind.name,
            state=state.state,
            exit_code=state.exit_code,
            reason=state.reason,
            created=state.created,
            started=state.started,
            ended=state.ended or (attempts[-1].ended if attempts and state.state.terminal else None),
            attempt=state.attempt,
            warning=state.warning,
            attempts=attempts,
            nodes=request["nodes"],
            node_hours=node_hours,
            cost=price_of(node_hours, plan["compute"].get("price_per_hour")),
            eta=target.eta(last) if state.state == RunState.RUNNING else None,
            step=last.get("step"),
            steps=target.steps,
            counts=target.counts,
            ranks=state.ranks,
            folder=str(run.path),
            model=str(run.model) if run.model.is_dir() else None,
            store=result.get("store") if kind.makes_store else None,
            results=read_results(result) if kind.scored else None,
            trace=str(run.trace) if run.trace.is_file() else None,
            tensorboard=str(run.tensorboard) if run.tensorboard.is_dir() else None,
            best_checkpoint=best_checkpoint(run.outputs / "checkpoints", scored=kind.scored),
            tracking_uri=request["tracking_uri"],
            mlflow_run_id=state.mlflow_run_id,
            run_hash=plan["run_hash"],
            tags=plan["spec"]["tags"],
            metrics=last.get("metrics", {}),
        )

    def list(self) -> Iterator[RunStatus]:
        """Yield all runs, the newest first."""
        for name in self.names():
            with suppress(NotFoundError):  # deleted in the meantime
                yield self.describe(name)

    def names(self) -> Sequence[str]:
        """Return the names of all runs, the newest submission first."""
        return run_names(self._runs)

    def logs(self, name: str, query: LogQuery) -> Iterator[LogBlock]:
        """Yield lines of the logs, in blocks."""
        run = self._existing(name)
        return read_logs(run, choose_sources(run, query), query)

    def read(self, name: str, document: str) -> bytes:
        """Return a document of the run's folder or of its outputs."""
        run = self._existing(name)
        path = (run.path if document in SUBMITTED else run.outputs) / document
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as problem:
            where = {"where": path, "says": problem.strerror}
            raise StorageError(f"run {name} is damaged", facts=where, fix=f"orchestrator status {name}") from problem

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

    def stacks(self, name: str) -> dict[int, str]:
        """Asks every rank where it stands."""
        run = self._existing(name)
        state = run.read_state().state
        if state != RunState.RUNNING:
            left = hang_files(run)
            raise ConflictError(
                f"run {name} is {state}: its ranks cannot be asked where they stand",
                facts={"last hang": ", ".join(str(path) for path in left)} if left else None,
                fix=f"less {in_shell(left[0])}" if left else f"orchestrator status {name}",
            )
        request = run.read_json("request.json")
        return ranks_stacks(run, range(request["nodes"] * request["processes_per_node"]))

    def delete(self, name: str) -> None:
        """Deletes a run that has ended; it is out of sight at once, however long its files take."""
        run, state = self._existing(name), self.describe(name).state
        if not state.terminal or run.locked():
            raise ConflictError(f"run {name} is {state}", fix=f"orchestrator cancel {name}")
        grave = self._runs / f".deleted.{name}.{os.getpid()}"
        try:
            run.path.rename(grave)
            shutil.rmtree(grave)
        except OSError as problem:
            raise StorageError(f"cannot delete run {name}: {problem.strerror}", facts={"where": run.path}) from problem

    def delete_weights(self, name: str, why: str) -> bool:
        """Deletes checkpoints and models of a run that has ended."""
        from orchestrator.backends.folder.run_checkpoints import delete_weights

        return delete_weights(self._existing(name), why)

    def register_model(self, name: str, model: str | None = None) -> dict[str, Any]:
        """Into the registry of the run's MLflow store."""
        from orchestrator.backends.folder.models import register

        return register(self._existing(name), self.describe(name), self.plan(name), model)

    def deploy_model(self, name: str, endpoint: str, *, sku: str | None = None) -> dict[str, Any]:
        """A server on the loopback interface, with the requests and answers of an endpoint on Azure."""
        from orchestrator.backends.folder.models import deploy

        return deploy(self._home, self.describe(name), endpoint)

    def delete_endpoint(self, endpoint: str) -> None:
        """Ends the server."""
        from orchestrator.backends.folder.models import delete

        delete(self._home, endpoint)

    def leftovers(self) -> Sequence[Path]:
        """Return hidden folders beside the runs that nothing has touched for an hour."""
        if not self._runs.is_dir():
            return []
        before = time.time() - LEFT_SECONDS
        return sorted(path for path in self._runs.glob(".*") if path.is_dir() and path.stat().st_ctime < before)

    def fetch(
        self, name: str, outputs: Sequence[str], to: Path, *, force: bool = False, progress: Progress | None = None
    ) -> Sequence[Path]:
        """Copy outputs, all of them or none."""
        from orchestrator.backends.folder.outputs import download

        return download(self._existing(name), outputs, to, force=force, progress=progress)

    def folder(self, name: str) -> Path | None:
        """The run's folder."""
        return self._existing(name).path

    def _submission(self, plan: Plan, request: FolderRequest, command: Sequence[str]) -> Submission:
        """Return the submission of a request, with the documents of the run's folder."""
        import yaml

        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml's takes a tenth of the time
        documents = {
            SPEC: yaml.dump(plan.spec.model_dump(mode="json"), Dumper=dumper, sort_keys=False),
            PLAN: json.dumps(plan.as_dict(), indent=1),
            CONFIG: self._job(request.name, plan).model_dump_json(indent=1),
            TAGS: json.dumps(_tags(plan, Handle(self.name, request.name))),
            REQUEST: request.model_dump_json(indent=1),
        }
        return Submission(self.name, plan, request, tuple(command), request.variables, documents)

    def _make(self, submission: Submission) -> RunFolder:
        """Create the run's folder.

        Raises:
            ConflictError: the name is taken.
            StorageError: the home folder cannot be written; nothing half-made stays.
            UsageError: a webhook is wanted, and no address is given.
        """
        submission.request.notify.check(os.environ)
        run = self._folder(submission.run)
        draft = self._runs / f".{run.name}.{os.getpid()}"
        try:
            _fill(RunFolder(draft), submission)
            draft.rename(run.path)
        except OSError as problem:
            shutil.rmtree(draft, ignore_errors=True)
            if run.path.exists():
                raise ConflictError(f"run {run.name} exists", fix=f"orchestrator status {run.name}") from None
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
        """Makes it ready for another attempt.

        Raises:
            StorageError: its folder cannot be written.
        """
        queued = {
            "state": RunState.QUEUED,
            "attempt": state.attempt + 1,
            "reason": None,
            "exit_code": None,
            "pid": None,  # a lost supervisor's, which may be anybody's by now
        }
        with writable(run):
            run.cancel_file.unlink(missing_ok=True)
            with suppress(OSError):  # on a disk that is nearly full it goes on without
                run.reserve()
            run.write_state(state.model_copy(update=queued))

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

    def _job(self, name: str, plan: Plan) -> Config:
        """What the job reads, with the run's own copies of small inputs: they outlive the originals."""
        from orchestrator.jobs.inputs import At

        inline = {one.name for one in plan.needs.inputs if one.inline}
        job = plan.job
        for key, value in plan.needs.placed.items():
            if isinstance(value, At) and value.name in inline:
                job = _with(job, key.split("."), self._folder(name).path / value.below)
        return job

    def _folder(self, name: str) -> RunFolder:
        return RunFolder(self._runs / name)

    def _existing(self, name: str) -> RunFolder:
        run = self._folder(name)
        if not (run.path / "request.json").is_file():
            from train_jobs.config.names import did_you_mean

            raise NotFoundError(f"no run {name}{did_you_mean(name, self.names())}", fix="orchestrator list")
        return run


def _fill(run: RunFolder, submission: Submission) -> None:
    """Write all that a run needs into a folder that is not visible yet."""
    plan = submission.plan
    assert plan is not None
    for folder in (run.path, run.code, run.outputs, run.logs):
        folder.mkdir(parents=True)
    plan.snapshot.write(run.code)
    for one in plan.needs.inputs:
        for below, content in one.list_files().items() if one.inline else ():
            (run.path / below).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    run.reserve()
    (run.path / "lock").touch()
    state = LocalState(state=RunState.QUEUED, created=time.time())
    documents = {**submission.documents, "state.json": state.model_dump_json(indent=1)}
    write_draft({run.path / name: text for name, text in documents.items()})


@contextmanager
def writable(run: RunFolder) -> Iterator[None]:
    """Inside, a run is made ready for another attempt.

    Raises:
        StorageError: its folder cannot be written.
    """
    try:
        yield
    except OSError as problem:
        raise StorageError(
            f"cannot resume run {run.name}: {problem.strerror}",
            facts={"where": run.path},
            fix="free some space, or make the folder writable; then the same command again",
        ) from problem


def _attempts(state: LocalState, last: dict[str, Any]) -> list[Attempt]:
    """The run's attempts; one that lost its supervisor ended with its last report, as far as anybody knows."""
    if not state.attempts or not state.state.terminal or state.attempts[-1].ended is not None:
        return state.attempts
    lost = state.attempts[-1]
    ending = {"state": state.state, "reason": state.reason, "ended": max(lost.started, last.get("time", lost.started))}
    return [*state.attempts[:-1], lost.model_copy(update=ending)]


def _tags(plan: Plan, handle: Handle) -> dict[str, str]:
    commit = plan.snapshot.git.label if plan.snapshot.git else None
    parent = plan.parent
    return {
        **plan.spec.tags,
        **({"orchestrator.parent": parent.facts.get("run") or parent.name} if parent else {}),
        **({"orchestrator.parent_lineage": parent.hash} if parent else {}),
        "orchestrator.run": handle.name,
        "orchestrator.handle": str(handle),
        "orchestrator.run_hash": plan.run_hash,
        "orchestrator.recipe": plan.spec.recipe,
        "orchestrator.snapshot": plan.snapshot.digest,
        "orchestrator.data": plan.data.sha256,
        **({"orchestrator.commit": commit} if commit else {}),
    }


def _with(config: Config, keys: Sequence[str], value: Any) -> Config:
    """A configuration with another value of a key."""
    key, *rest = keys
    return config.model_copy(update={key: _with(getattr(config, key), rest, value) if rest else value})
