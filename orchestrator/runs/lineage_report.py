"""A lineage compared with the files on this machine, and its chain of links as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from orchestrator.runs.results import NOT_METRICS
from orchestrator.support.formatting import WIDTH, fact_lines
from train_jobs.artifacts.lineage import DataFacts, Lineage, Link
from train_jobs.config.fields import Config

LABEL = 11  # columns before the text of a fact
DIGITS = 8  # of a hash, where there is no space for all of it


class Verdict(StrEnum):
    """Result of comparing a link with the files on this machine."""

    VERIFIED = "verified"
    CHANGED = "changed"
    ABSENT = "absent"
    OPEN = "open"


MEANING = {Verdict.ABSENT: "not on this machine", Verdict.OPEN: "the run has not completed"}


class Check(Config):
    """Result of the check of one link."""

    verdict: Verdict
    """The verdict."""
    where: str | None = None
    """Folder of the token store or of the model, if it exists."""
    why: str | None = None
    """What differs from the link."""


class CheckedLineage(Config):
    """A lineage whose links verify, with the check of each."""

    lineage: Lineage
    """The document."""
    checks: dict[str, Check]
    """Hash of a link -> its check."""

    def as_dict(self) -> dict[str, Any]:
        """Return the document as it was written, with the checks."""
        checks = {name: check.model_dump(mode="json") for name, check in self.checks.items()}
        return {**self.lineage.model_dump(mode="json"), "checks": checks}


def lineage_text(checked: CheckedLineage) -> str:
    """Return the chain from its beginning to the run, in lines of at most 80 columns."""
    blocks = []
    for link in checked.lineage.links:
        head = textwrap.wrap(f"{link.kind} {link.name}", WIDTH, break_on_hyphens=False)
        blocks.append("\n".join([*head, *fact_lines(_rows(link, checked.checks[link.hash]), label=LABEL)]))
    return "\n\n".join(blocks)


def _rows(link: Link, check: Check) -> Iterator[tuple[str, str]]:
    """Yield the label and text of each fact of a link; unknown facts are left out."""
    yield "hash", link.hash[:DIGITS]
    if link.inputs:
        yield "from", ", ".join(parent[:DIGITS] for parent in link.inputs)
    rows = {"data": _data, "tables": _tables, "pretrain": _trained, "finetune": _trained}
    if link.kind in rows:
        yield from rows[link.kind](link.facts)
    if link.weights:
        yield "weights", link.weights[:DIGITS]
    yield "here", MEANING.get(check.verdict, check.verdict) + (f": {check.why}" if check.why else "")


def _data(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    files = sum(source["files"] for source in facts["sources"])
    counted = f"{files:,} file{'s' if files != 1 else ''}"
    yield "text", f"{counted}, sha256 {facts['text'][:DIGITS]}, licence {facts['license'] or 'not stated'}"
    documents, tokens = sum(facts["documents"].values()), sum(facts["tokens"].values())
    words = DataFacts.model_validate(facts).rule.words
    yield "tokens", f"{tokens:,} in {documents:,} documents, {facts['vocab_size']:,} pieces, {words}"
    yield "store", facts["store"]


def _trained(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of a pretraining or of a fine-tuning, which has a task."""
    if phase := facts.get("phase"):
        yield "phase", f"after step {phase['step']:,}: weights {phase['weights'][:8]}, moments {phase['moments'][:8]}"
    last, steps, metrics = facts["attempts"][-1], facts["steps"], facts["metrics"] or {}
    done = f"begun {last['started']}" if steps is None else f"{steps:,} steps"
    if "task" in facts:
        done += "" if steps is None else f", saved after {facts['best_step']:,}"
        done += f", seed {facts['seed']}"
        figures = [
            f"{name} {value:.4f}" for name, value in metrics.items() if name not in NOT_METRICS and value is not None
        ]
        result = f"{facts['task']}: {', '.join(figures)}" if figures else ""
    else:
        done += "" if steps is None else f", {facts['sequences']:,} sequences"
        loss = metrics.get("mlm_loss")
        result = "" if loss is None else f"validation MLM loss {loss:.4f}"
    yield "trained", f"{done}, {last['precision']}, {last['processes']} x {last['device']}"
    if result:
        yield "result", result
    if facts.get("sweep"):
        yield "sweep", facts["sweep"]
    commit = f", commit {facts['commit'][:DIGITS]}" if facts["commit"] else ""
    if facts["snapshot"]:
        yield "code", f"snapshot {facts['snapshot'][:DIGITS]}{commit}{' and changes' if facts['dirty'] else ''}"


def _tables(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for source in facts["sources"]:
        yield "file", f"{source['name']}, {source['total_bytes']:,} bytes, sha256 {source['sha256'][:DIGITS]}"
