"""Records of a run in MLflow in addition to its metrics: standard tags, links, parameters and a description.

records = RunRecords(...)             # read from the run's folder
records.tags(), records.parameters(), records.description()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.runs.results import read_results
from orchestrator.runs.status import Handle, RunState
from orchestrator.support.formatting import bytes_text, counted
from orchestrator.support.redact import redact
from train_jobs.artifacts.lineage import Lineage, Link, PhaseFacts
from train_jobs.artifacts.tracking.mlflow_copy import as_parameter, flatten

LOCAL_BACKENDS = ("local", "debug")
PHASE_TAG = "orchestrator.phase_from"
"""Tag with the handle or the name of the earlier phase that a run continues, with its moments."""
SOURCE_LOCAL, SOURCE_JOB = "LOCAL", "JOB"  # types of a source that MLflow knows
FROM_SPACE = "space"  # origin of a setting that a sweep varies
HEADLINES = (
    ("validation_mlm_loss", "Held-out MLM loss"),
    ("validation_mlm_accuracy", "Held-out MLM accuracy"),
    ("validation_unigram_entropy", "Unigram entropy of the same tokens"),
    ("documents", "Documents"),
    ("sentences", "Sentences"),
    ("tokens", "Tokens"),
    ("rows", "Rows"),
)  # figures of result.json in a description
FENCE = "```"


@dataclass(frozen=True)
class RunRecords:
    """The records of a run."""

    name: str
    """Name of the run."""
    handle: str
    """Its handle."""
    user: str
    """User who submitted it."""
    state: RunState
    """Its state."""
    plan: Mapping[str, Any]
    """Its plan.json."""
    config: Mapping[str, Any]
    """Configuration of its job."""
    result: Mapping[str, Any]
    """Final figures of its job; empty until it has completed."""
    lineage: Lineage | None
    """Its lineage; None: it trains nothing, or has not begun to."""
    reason: str | None = None
    """Reason of its state."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """What -> command for its result."""

    @property
    def kind(self) -> str:
        """Kind of its job."""
        return str(self.plan.get("spec", {}).get("kind", "pretrain"))

    @property
    def git(self) -> Mapping[str, Any]:
        """Facts of git about its code; empty without a repository."""
        return (self.plan.get("snapshot") or {}).get("git") or {}

    def tags(self) -> dict[str, str]:
        """Return the standard tags, the kind of job, and the phase that it continues."""
        spec, git, parent = self.plan.get("spec", {}), self.git, self.parent
        found = {
            "mlflow.user": self.user,
            "mlflow.source.name": (spec.get("code") or {}).get("entry"),
            "mlflow.source.type": SOURCE_LOCAL if Handle.parse(self.handle).backend in LOCAL_BACKENDS else SOURCE_JOB,
            "mlflow.source.git.commit": git.get("commit"),
            "mlflow.source.git.branch": git.get("branch"),
            "mlflow.source.git.repoURL": git.get("remote"),
            "mlflow.source.git.dirty": None if git.get("dirty") is None else str(git["dirty"]).lower(),
            "orchestrator.kind": self.kind,
            PHASE_TAG: None if self._phase is None or parent is None else parent.facts.get("run") or parent.name,
        }
        return {name: str(value) for name, value in found.items() if value is not None}

    def parameters(self) -> dict[str, str]:
        """Return the job's configuration, and what a sweep varied beyond it, under the names that a sweep uses."""
        found = flatten(self.config)
        changes = self.plan.get("changes") or {}
        varied = {key: change["value"] for key, change in changes.items() if change.get("from") == FROM_SPACE}
        found |= {key: as_parameter(value) for key, value in varied.items() if key not in found}
        return {name: redact(value) for name, value in found.items()}

    def description(self) -> str:
        """Return what the run is, its data, its result and the commands for it, in Markdown."""
        blocks = [self._subject(), *self._results(), self._commands()]
        return "\n\n".join(block for block in blocks if block) + "\n"

    @property
    def parent(self) -> Link | None:
        """The model or run that it started from; None: from random weights."""
        found = self.plan.get("parent")
        return Link.model_validate(found) if found else None

    @property
    def _phase(self) -> PhaseFacts | None:
        found = self.plan.get("phase")
        return PhaseFacts.model_validate(found) if found else None

    def _subject(self) -> str:
        spec, data, parent = self.plan.get("spec", {}), self.plan.get("data"), self.parent
        text = f"**{self.kind}**"
        if spec.get("recipe"):
            text += f" with recipe {_code(spec['recipe'])}"
        if data:
            names = ", ".join(_code(name.rpartition("/")[2]) for name in str(data["name"]).split(", "))
            text += f" on {names} ({counted(data['files'], 'file')}, {bytes_text(data['total_bytes'])}"
            text += f", SHA-256 {_code(data['sha256'][:8])})"
        if parent is not None:
            text += f", from {_code(parent.name)}"
            text += f" after its step {self._phase.step:,}" if self._phase is not None else ""
        return f"{text}."

    def _results(self) -> Iterator[str]:
        if self.state.terminal and self.state != RunState.COMPLETED:
            reason = f": {(self.reason or '').splitlines()[0]}" if self.reason else ""
            yield redact(f"It was {self.state}{reason}" if self.state != RunState.FAILED else f"It failed{reason}")
        rows = [(label, _number(self.result[key])) for key, label in HEADLINES if key in self.result]
        if scores := read_results(self.result):
            rows += scores.rows
        if rows:
            lines = [f"| {_cell(label)} | {_cell(text)} |" for label, text in rows]
            yield "\n".join(["| Result | |", "| --- | --- |", *lines])

    def _commands(self) -> str:
        commands = {"status": f"orchestrator status {self.name}"}
        if self.state.resumable:
            commands["resume"] = f"orchestrator resume {self.name}"
        if self.state == RunState.COMPLETED:
            commands |= self.commands
        return "\n".join([f"{FENCE}console", *commands.values(), FENCE])


def owner(path: Path) -> str:
    """Return the name of the owner of a folder, who submitted it: another user may copy it."""
    try:
        return path.owner()
    except KeyError:  # a container has ids without names
        return str(path.stat().st_uid)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _code(text: str) -> str:
    return f"`{text.replace('`', '')}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
