"""Runs that are folders of this machine: their status, logs, outputs and end; derived backends start them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.backends.base import (
    CONFIG,
    PLAN,
    REQUEST,
    RESULT,
    SPEC,
    SUBMITTED,
    TAGS,
    Backend,
    Progress,
    Submission,
)
from orchestrator.backends.capabilities import CopiesToMlflow, Deletes, DeletesWeights, Inspects, Registers
from orchestrator.backends.folder.log_files import choose_sources, read_logs
from orchestrator.backends.folder.mlflow_sync import behind_warning, is_behind, sync_run
from orchestrator.backends.folder.outputs import best_checkpoint, damaged_warning, delete_weights, download
from orchestrator.backends.folder.run_folder import FolderRequest, LocalState, RunFolder
from orchestrator.backends.folder.run_index import RunIndex
from orchestrator.backends.folder.run_processes import end_survivors, survivors, survivors_warning
from orchestrator.backends.folder.served_models import delete, deploy
from orchestrator.backends.folder.stacks import ranks_stacks
from orchestrator.backends.log_query import LogBlock, LogQuery
from orchestrator.backends.run_progress import Target, last_report
from orchestrator.estimates.cost import HOUR, price_of
from orchestrator.jobs.registry import DEFAULT, run_kind
from orchestrator.runs.hidden_folders import abandoned, delete_abandoned, delete_folder
from orchestrator.runs.results import read_results
from orchestrator.runs.run_documents import reporting_run_damage
from orchestrator.runs.status import Handle, RunState, RunStatus, attempt_seconds
from orchestrator.runs.tracked_run import Synced
from orchestrator.support.access import process_owner
from orchestrator.support.errors import ConflictError, NotFoundError, StorageError, UsageError
from orchestrator.support.home import run_names, similar_run
from orchestrator.support.secret_sources import look_up
from train_jobs.artifacts.files import read_object
from train_jobs.artifacts.host import RunClock
from train_jobs.artifacts.mounts import reporting_write_errors, write_error
from train_jobs.config.errors import in_shell

if TYPE_CHECKING:
    from orchestrator.jobs.base import Plan
    from train_jobs.config.fields import Config


class FolderBackend(Backend, Inspects, Deletes, DeletesWeights, Registers, CopiesToMlflow):
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
        """Return the status of a run; a run whose folder is damaged has failed.

        Raises:
            NotFoundError: the run does not exist.
        """
        run = self._existing(name)
        try:
            return self._describe(run)
        except (OSError, ValueError, KeyError) as problem:
            if not run.path.is_dir():  # deleted meanwhile
                raise NotFoundError(f"unknown run {name!r}", fix="orchestrator list") from None
            plan = read_object(run.path / PLAN) or {}
            # a status, not an error: one damaged folder must not hide all other runs from `list`
            return RunStatus(
                name=name,
                handle=str(Handle(self.name, name)),
                kind=plan.get("spec", {}).get("kind", DEFAULT),
                state=RunState.FAILED,
                reason=f"the run's folder is damaged: {type(problem).__name__}: {problem}".splitlines()[0],
                created=run.path.stat().st_mtime,
                folder=str(run.path),
                run_hash="",
            )

    def _describe(self, run: RunFolder) -> RunStatus:
        state, result = run.state(), self.result(run.name)
        plan, request = run.read_json(PLAN), run.read_json(REQUEST)
        last, target = last_report(run.metrics), Target.from_plan(plan)
        attempts, kind = state.closed_attempts(last), run_kind(plan["spec"].get("kind", DEFAULT))
        now = state.now()
        node_hours = request["nodes"] * attempt_seconds(attempts, now) / HOUR
        return RunStatus(
            name=run.name,
            handle=str(Handle(self.name, run.name)),
            kind=kind.name,
            state=state.state,
            exit_code=state.exit_code,
            reason=state.reason,
            created=state.created,
            started=state.started,
            ended=state.last_end(attempts),
            attempt=state.attempt,
            warning=_warning(run, state),
            attempts=attempts,
            nodes=request["nodes"],
            node_hours=node_hours,
            cost=price_of(node_hours, plan["compute"].get("price_per_hour")),
            observed=None if state.state.terminal else now,
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
            mlflow_run_id=run.mlflow_run_id or state.mlflow_run_id,
            run_hash=plan["run_hash"],
            tags=plan["spec"]["tags"],
            metrics=last.get("metrics", {}),
        )

    def list(self) -> Iterator[RunStatus]:
        """Yield all runs, the newest first; what killed submissions and deletions left is deleted."""
        delete_abandoned(self._runs)
        index = RunIndex(self._home / "cache" / f"{self.place}.tsv", self._runs)
        return index.statuses(self.names(), self.describe, self._ended)

    def _ended(self, name: str) -> bool:
        """Return whether a run has recorded its end."""
        try:
            return self._folder(name).stored_state().state.terminal
        except (OSError, ValueError):
            return False

    def names(self) -> Sequence[str]:
        """Return the names of all runs, the newest submission first."""
        return run_names(self._runs)

    def has(self, name: str) -> bool:
        """Return whether there is a run of exactly this name."""
        try:
            return Path(name).name == name and not name.startswith(".") and (self._runs / name / REQUEST).is_file()
        except OSError:  # longer than a file's name may be
            return False

    def logs(self, name: str, query: LogQuery) -> Iterator[LogBlock]:
        """Yield lines of the logs, in blocks."""
        run = self._existing(name)
        return read_logs(run, choose_sources(run, query), query)

    def read(self, name: str, document: str) -> bytes:
        """Return a document of the run's folder or of its outputs; empty if it does not exist (yet).

        Raises:
            NotFoundError: the run does not exist.
            StorageError: the document cannot be read.
        """
        run = self._existing(name)
        path = (run.path if document in SUBMITTED else run.outputs) / document
        try:
            return _at_present(run, document, path.read_bytes())
        except FileNotFoundError:
            return b""
        except OSError as problem:
            where = {"where": path, "reason": problem.strerror}
            message, fix = f"cannot read {document} of run {name}", f"orchestrator status {name}"
            raise StorageError(message, facts=where, fix=fix) from problem

    def cancel(self, name: str) -> None:
        """Ask the supervisor to end the job; the job saves a checkpoint first.

        Processes that outlived a killed supervisor are ended here, within 10 s.
        """
        run = self._existing(name)
        try:
            ended = run.state().state.terminal
        except (OSError, ValueError):  # damaged: only the lock shows whether a supervisor lives
            ended = not run.locked()
        if ended:
            end_survivors(run)
            return
        # First the file, then the signal: a supervisor that is only starting has no pid to signal, and looks for the
        # file before it starts the job.
        run.cancel_file.touch()
        # it has no supervisor, none yet, one of a damaged state, or another user's: each reads the file
        with suppress(ConflictError, StorageError):
            self._signal(name, signal.SIGTERM)

    def stacks(self, name: str) -> dict[int, str]:
        """Return the Python stacks of each rank, see `ranks_stacks`.

        Raises:
            ConflictError: the run is not running.
            NotFoundError: it does not exist.
            StorageError: its folder is damaged.
        """
        run = self._existing(name)
        if not survivors(run) and (state := run.known_state().state) != RunState.RUNNING:
            left = sorted(run.stacks.glob("hang-rank-*.txt"))
            raise ConflictError(
                f"cannot show the stacks of run {name}: it is {state}",
                facts={"last hang": ", ".join(map(str, left))} if left else None,
                fix=f"less {in_shell(left[0])}" if left else f"orchestrator status {name}",
            )
        with reporting_run_damage(name, run.path, REQUEST):
            request = run.read_json(REQUEST)
            ranks = range(request["nodes"] * request["processes_per_node"])
        return ranks_stacks(run, ranks)

    def delete(self, name: str) -> None:
        """Delete a finished run with all its files; processes that outlived its supervisor are ended first.

        Raises:
            ConflictError: it has not finished, or a process of it cannot be ended.
            NotFoundError: it does not exist.
            StorageError: it cannot be deleted.
        """
        # The folder is renamed first: deleting checkpoints takes seconds, during which `list` would show half a run.
        # `leftovers` finds the hidden folder of a deletion that was killed.
        run = self._existing(name)
        with run.changing("delete"):
            state = self.describe(name).state
            if not state.terminal or run.locked():
                raise ConflictError(f"cannot delete run {name}: it is {state}", fix=f"orchestrator cancel {name}")
            end_survivors(run)
            try:
                delete_folder(run.path)
            except OSError as problem:
                fix = f"chmod u+w {in_shell(self._runs)}"
                raise write_error(f"cannot delete run {name}", problem, run.path, fix=fix) from problem

    def delete_weights(self, name: str, why: str) -> bool:
        """Delete checkpoints and models of a finished run."""
        return delete_weights(self._existing(name), why)

    def register_model(
        self, name: str, model: str | None = None, *, alias: str | None = None, checkpoints: bool = False
    ) -> dict[str, Any]:
        """Register the model in the registry of the run's MLflow store.

        Raises:
            StorageError: the run's folder or the store's cannot be written; further errors: see `register`.
        """
        # it reads models and configurations, which no other command of a run needs
        from orchestrator.backends.folder.registered_models import register

        run, status, plan = self._existing(name), self.describe(name), self.plan(name)
        message = f"cannot register the model of run {name}"
        with reporting_write_errors(message, run.path):
            return register(run, status, plan, model, alias, checkpoints=checkpoints)

    def sync_mlflow(self, name: str, to: str | None = None) -> Synced:
        """Make the MLflow run of a run equal to its folder.

        Args:
            name: name of the run.
            to: tracking URI. None: the run's own.

        Raises:
            NotFoundError: the run does not exist.
            ServiceError: MLflow or its store refused.
            StorageError: the run's folder is damaged, or cannot be read or written.
        """
        run = self._existing(name)
        message = f"cannot sync run {name}"
        with reporting_write_errors(message, run.path):
            try:
                return sync_run(run, to)
            except (FileNotFoundError, ValueError, KeyError) as problem:
                self._existing(name)  # not deleted meanwhile
                reason = f"{type(problem).__name__}: {problem}".splitlines()[0]
                facts = {"where": run.path, "reason": reason}
                raise StorageError(f"cannot sync run {name}: its folder is damaged", facts=facts) from problem

    def behind(self, known: Callable[[str], frozenset[str] | None]) -> Iterator[str]:
        """Yield the names of ended runs that MLflow does not have in full."""
        for name in self.names():
            run = self._folder(name)
            with suppress(OSError, ValueError, KeyError):  # damaged, or deleted meanwhile
                if is_behind(run, known(run.read_json(REQUEST)["tracking_uri"])):
                    yield name

    def deploy_model(
        self, name: str, endpoint: str, *, sku: str | None = None, traffic: int | None = None, key: Path | None = None
    ) -> dict[str, Any]:
        """Start a server on the loopback interface, with the requests and responses of an endpoint on Azure.

        `sku` has no effect: the server runs on this machine.
        """
        if traffic is not None:
            raise UsageError(
                f"invalid --traffic {traffic}: an endpoint on this machine has one server", fix="leave out --traffic"
            )
        return deploy(self._home, self.describe(name), endpoint, key)

    def delete_endpoint(self, endpoint: str) -> None:
        """Stop the server."""
        delete(self._home, endpoint)

    def leftovers(self, older_than: float = 3600.0) -> Sequence[Path]:
        """Return the drafts and deletions of killed processes, see `abandoned`.

        Creating a run takes a second and deleting one minutes at most: after an hour both were interrupted, whatever
        is known of their processes.
        """
        return abandoned(self._runs, older_than=older_than)

    def fetch(
        self, name: str, outputs: Sequence[str], to: Path, *, force: bool = False, progress: Progress | None = None
    ) -> Sequence[Path]:
        """Copy outputs, all of them or none."""
        return download(self._existing(name), outputs, to, force=force, progress=progress)

    def folder(self, name: str) -> Path | None:
        """Return the run's folder."""
        return self._existing(name).path

    def _submission(self, plan: Plan, request: FolderRequest, command: Sequence[str]) -> Submission:
        """Return the submission of a request, with the documents of the run's folder."""
        import yaml

        from train_jobs.artifacts.yaml_values import SpecDumper

        documents = {
            SPEC: yaml.dump(plan.spec.model_dump(mode="json"), Dumper=SpecDumper, sort_keys=False),
            PLAN: json.dumps(plan.as_dict(), indent=1),
            CONFIG: self._job(request.name, plan).model_dump_json(indent=1),
            TAGS: json.dumps(_tags(plan, Handle(self.name, request.name))),
            REQUEST: request.model_dump_json(indent=1),
        }
        return Submission(self.name, plan, request, tuple(command), request.variables, documents)

    def _make(self, submission: Submission) -> RunFolder:
        """Create the run's folder with everything that the run needs.

        Raises:
            ConflictError: the name is taken.
            StorageError: the home folder cannot be written; nothing half-made stays.
            UsageError: the environment has no address for the notifications, or a secret is not to be had.
        """
        plan = submission.plan
        assert plan is not None
        submission.request.notify.check(os.environ)
        look_up(submission.request.secrets, os.environ)  # before the folder exists; the supervisor looks them up again
        run = self._folder(submission.run)
        # A draft: the run appears under its name only when it is complete, so that a killed submission leaves no run
        # that can neither start nor be resumed.
        with run.draft() as draft:
            for folder in (draft.code, draft.outputs, draft.logs):
                folder.mkdir()
            plan.snapshot.write(draft.code)
            for one in plan.needs.inputs:
                for below, content in one.list_files().items() if one.inline else ():
                    (draft.path / below).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
            draft.reserve()
            state = LocalState(state=RunState.QUEUED, created=time.time(), clock=RunClock.start())
            documents = {**submission.documents, draft.state_file.name: state.model_dump_json(indent=1)}
            for name, text in documents.items():
                (draft.path / name).write_text(text, encoding="utf-8")
        return run

    def _resumable(self, run: RunFolder) -> LocalState:
        """Return the state of a run that can be resumed.

        Raises:
            ConflictError: it completed, or is still running.
            StorageError: its state or its request is damaged.
            UsageError: a secret of the run is not to be had.
        """
        self._existing(run.name)  # not deleted meanwhile
        state = run.known_state()
        if not state.state.resumable or run.locked():
            raise ConflictError(
                f"cannot resume run {run.name}: it is {state.state}",
                fix=f"orchestrator {'status' if state.state.terminal else 'attach'} {run.name}",
            )
        with reporting_run_damage(run.name, run.path, REQUEST):
            secrets = run.read_json(REQUEST).get("secrets", {})
        look_up(secrets, os.environ)
        return state

    def _requeue(self, run: RunFolder, state: LocalState, request: FolderRequest | None = None) -> None:
        """Prepare a run for another attempt.

        Args:
            run: its folder.
            state: its state so far.
            request: new request; None: the one it has.

        Raises:
            StorageError: its folder cannot be written.
        """
        queued = {
            "state": RunState.QUEUED,
            "attempt": state.attempt + 1,
            "ended": None,
            "reason": None,
            "exit_code": None,
            "ranks": {},
            # the last attempt of a supervisor that was killed has no end yet, and would seem to run for ever
            "attempts": state.closed_attempts(last_report(run.metrics)),
            "pid": None,  # a lost supervisor's: another process may have it by now
            "clock": RunClock.start(),
        }
        try:
            run.write_moved()
            if request is not None:
                run.rewrite(REQUEST, request.model_dump_json(indent=1))
            run.cancel_file.unlink(missing_ok=True)
            for stale in run.stacks.glob("rank-*.json"):  # in a copy they name live processes of the original
                stale.unlink()
            with suppress(OSError):  # on an almost full disk the run starts without a reserve
                run.reserve()
            # last: once the state is `queued`, the supervisor may start, and reads the files above
            run.write_state(state.model_copy(update=queued), free_reserve=False)
        except OSError as problem:
            raise write_error(
                f"cannot resume run {run.name}",
                problem,
                run.path,
                fix="free some space, or make the folder writable",
                then="; then run the same command again",
            ) from problem

    def _signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the supervisor of a run.

        Raises:
            ConflictError: it has none, or another user's.
            StorageError: its state is damaged.
        """
        run = self._existing(name)
        pid = run.known_state().pid
        # the lock proves that the pid is the supervisor's: that of a dead one may belong to any other process
        if pid is None or not run.locked():
            raise ConflictError(f"cannot preempt run {name}: it is not running", fix=f"orchestrator status {name}")
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            owner = process_owner(pid)
            raise ConflictError(
                f"cannot preempt run {name}: its processes belong to user {owner}", fix=f"ask {owner} to do it"
            ) from None

    def _job(self, name: str, plan: Plan) -> Config:
        """Return the job's configuration, with the run's own copies of small inputs: they outlive the originals."""
        from orchestrator.jobs.inputs import At

        inline = {one.name for one in plan.needs.inputs if one.inline}
        job = plan.job
        for key, value in plan.needs.placed.items():
            if isinstance(value, At) and value.name in inline:
                job = _replaced(job, key.split("."), self._folder(name).path / value.below)
        return job

    def _folder(self, name: str) -> RunFolder:
        return RunFolder(self._runs / name)

    def _existing(self, name: str) -> RunFolder:
        run = self._folder(name)
        if not (run.path / REQUEST).is_file():
            raise NotFoundError(f"unknown run {name!r}{similar_run(name, self.names())}", fix="orchestrator list")
        return run


def _at_present(run: RunFolder, document: str, content: bytes) -> bytes:
    """Return a document with the present paths of a moved or copied home; one that is verified by a hash as it is."""
    name = document.rpartition("/")[2]
    if not content or name not in {PLAN, REQUEST, CONFIG, RESULT} or (moved := run.moved_home()) is None:
        return content
    try:
        return json.dumps(moved.follow(json.loads(content)), indent=1).encode()
    except ValueError:  # damaged: the caller reports it
        return content


def _warning(run: RunFolder, state: LocalState) -> str | None:
    """Return what the user should know: processes that survived, the supervisor's warning, damage, a copy behind."""
    behind = behind_warning(run, state)
    first = survivors_warning(run, state) or state.warning or damaged_warning(run.outputs / "checkpoints")
    return "; ".join(filter(None, (first, behind))) or None


def _tags(plan: Plan, handle: Handle) -> dict[str, str]:
    """Return the tags by which MLflow and the lineage identify a run; the user's own come first."""
    tags: dict[str, Any] = {
        "orchestrator.parent": plan.parent and (plan.parent.facts.get("run") or plan.parent.name),
        "orchestrator.parent_lineage": plan.parent and plan.parent.hash,
        "orchestrator.run": handle.name,
        "orchestrator.handle": str(handle),
        "orchestrator.run_hash": plan.run_hash,
        "orchestrator.recipe": plan.spec.recipe,
        "orchestrator.snapshot": plan.snapshot.digest,
        "orchestrator.data": plan.data.sha256,
        "orchestrator.commit": plan.snapshot.git and plan.snapshot.git.label,
    }
    return {**plan.spec.tags, **{name: value for name, value in tags.items() if value is not None}}


def _replaced(config: Config, keys: Sequence[str], value: Any) -> Config:
    """Return a configuration with another value of one key."""
    key, *rest = keys
    return config.model_copy(update={key: _replaced(getattr(config, key), rest, value) if rest else value})
