"""Find the start of a job by name: the model or the outputs of a run, a model on the Hugging Face Hub or in MLflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from orchestrator.runs.status import RunState, RunStatus
from orchestrator.support.errors import ConflictError, NotFoundError
from train_jobs.artifacts.start_model import CONFIG
from train_jobs.artifacts.tracking.model_registry import Registry, is_registry_name, registry_folder
from train_jobs.config.tasks import GLUE_TASKS


class StartRun(Protocol):
    """A run that a job starts from, as far as this module uses it."""

    @property
    def folder(self) -> Path | None:
        """Its folder; None: not on this machine."""
        ...

    def status(self) -> RunStatus:
        """Return its status."""
        ...


Attach = Callable[[str], StartRun]


def model_of(
    name: str, attach: Attach, registry: Callable[[str | None], Registry], tracking_uri: str | None = None
) -> Path:
    """Return the folder of the model to start from: one that a run exported, or a model on the Hub or in MLflow.

    Args:
        name: name of a run or of a model on the Hub; RUN/TASK is the model of one task in a run over all of GLUE;
            models:/NAME@ALIAS and models:/NAME/VERSION are versions in an MLflow registry.
        attach: function that finds a run.
        registry: function that returns the MLflow registry, given the tracking URI of the spec.
        tracking_uri: that of the spec; None: it sets none.

    Raises:
        NotFoundError: the name is unknown, or the run's model is not on this machine.
        ConflictError: the run did not complete.
        SpecError: the MLflow registry has no such version, or does not answer.
    """
    if is_registry_name(name):
        return registry_folder(name, registry(tracking_uri))
    of_run, task = _with_task(name)
    try:
        run = attach(of_run)
    except NotFoundError as problem:
        return _hub_model(name, problem)
    status = run.status()
    if status.state != RunState.COMPLETED:
        raise ConflictError(
            f"cannot start from run {status.name}: it is {status.state}",
            fix=f"orchestrator {'resume' if status.state.resumable else 'wait'} {status.name}",
        )
    if task is not None or status.model is None:
        return _model_of_task(run, status, task)
    return Path(status.model)


def _with_task(name: str) -> tuple[str, str | None]:
    """Split RUN/TASK; return any other name unchanged."""
    run, _, task = name.rpartition("/")
    return (run, task) if run and task in GLUE_TASKS else (name, None)


def _model_of_task(run: StartRun, status: RunStatus, task: str | None) -> Path:
    """Return the model of one of several tasks.

    Raises:
        NotFoundError: it is missing, or the task is not given.
    """
    outputs = Path() if run.folder is None else run.folder / "outputs"
    available = [name for name in GLUE_TASKS if (outputs / name / "model" / CONFIG).is_file()]
    if task in available:
        return outputs / task / "model"
    if available:
        which = (
            f"run {status.name} has a model for each task"
            if task is None
            else f"run {status.name} has no model of {task}"
        )
        raise NotFoundError(which, facts={"have": ", ".join(available)}, fix=f"--model {status.name}/{available[0]}")
    what = "model" if task is None else f"model of {task}"
    raise NotFoundError(f"the {what} of run {status.name} is missing", fix=f"orchestrator download {status.name}")


def outputs_of(name: str, attach: Attach) -> Path:
    """Return the folder of outputs of the run of an earlier phase.

    Args:
        name: name of the run.
        attach: function that finds a run.

    Raises:
        NotFoundError: no such run exists, or its folder is not on this machine.
        ConflictError: it has not finished; a live run may delete its newest checkpoint at any time.
    """
    try:
        run = attach(name)
    except NotFoundError as problem:
        problem.facts |= {"where": "--phase-from, phase_from: a run, a folder of outputs, or a checkpoint"}
        raise
    status = run.status()
    if not status.state.terminal:
        raise ConflictError(
            f"cannot start the next phase of run {status.name}: it is {status.state}",
            fix=f"orchestrator wait {status.name}",
        )
    if run.folder is None:
        raise NotFoundError(f"the folder of run {status.name} is not on this machine")
    return run.folder / "outputs"


def _hub_model(name: str, no_run: NotFoundError) -> Path:
    """Return the folder of a model on the Hub.

    Raises:
        NotFoundError: no such model exists.
    """
    from train_jobs.artifacts.hub import PREFIX, hub_folder, is_hub_name
    from train_jobs.config.errors import SpecError, in_shell

    no_run.facts |= {
        "where": "--model, --from: a run, a folder with a model, a name on the Hugging Face Hub, or models:/NAME@ALIAS"
    }
    if not is_hub_name(name):
        if no_run.fix == "orchestrator list" and "/" not in name and "did you mean" not in no_run.message:
            no_run.fix = f"orchestrator list; a model on the Hub: --model {in_shell(PREFIX + name)}"
        raise no_run
    try:
        return hub_folder(name)
    except SpecError as failure:
        no_run.facts |= {"hub": failure.message, **failure.facts}
        no_run.fix = f"{no_run.fix}; {failure.fix}"
        raise no_run from None
