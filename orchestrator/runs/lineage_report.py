"""A lineage held against what lies on this machine, and the chain for humans."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from orchestrator.runs.results import APART
from orchestrator.support.formatting import WIDTH, fact_lines
from train_jobs.artifacts.lineage import Lineage, Link
from train_jobs.config.base import Config

LABEL = 11
DIGITS = 8  # of a hash, where all of it has no room


class Verdict(StrEnum):
    """What lies here of a link."""

    VERIFIED = "verified"
    CHANGED = "changed"
    ABSENT = "absent"
    OPEN = "open"


MEANING = {Verdict.ABSENT: "not on this machine", Verdict.OPEN: "the run has not completed"}


class Check(Config):
    """How a link fared."""

    verdict: Verdict
    """What was found."""
    where: str | None = None
    """Folder of the token store or of the model, where there is one."""
    why: str | None = None
    """What is not as the link says."""


class CheckedLineage(Config):
    """A lineage whose links verify by themselves, and what lies here of each."""

    lineage: Lineage
    """The document."""
    checks: dict[str, Check]
    """Hash of a link -> how it fared."""

    def as_dict(self) -> dict[str, Any]:
        """The document as it was written, with the checks beside it."""
        checks = {name: check.model_dump(mode="json") for name, check in self.checks.items()}
        return {**self.lineage.model_dump(mode="json"), "checks": checks}


def lineage_text(checked: CheckedLineage) -> str:
    """The chain from its beginning down to the run, in lines of at most 80 columns."""
    blocks = []
    for link in checked.lineage.links:
        head = textwrap.wrap(f"{link.kind} {link.name}", WIDTH, break_on_hyphens=False)
        blocks.append("\n".join([*head, *fact_lines(_rows(link, checked.checks[link.hash]), label=LABEL)]))
    return "\n\n".join(blocks)


def _rows(link: Link, check: Check) -> Iterator[tuple[str, str]]:
    """What a link says; facts that it does not know of, or that are not known yet, are left out."""
    yield "hash", link.hash[:DIGITS]
    if link.inputs:
        yield "from", ", ".join(parent[:DIGITS] for parent in link.inputs)
    rows = {"data": _data, "tables": _tables, "pretrain": _pretrain, "finetune": _finetune}
    yield from rows.get(link.kind, _nothing)(link.facts)
    if link.weights:
        yield "weights", link.weights[:DIGITS]
    yield "here", MEANING.get(check.verdict, check.verdict) + (f": {check.why}" if check.why else "")


def _data(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    files = sum(source["files"] for source in facts["sources"])
    counted = f"{files:,} file{'s' if files != 1 else ''}"
    yield "text", f"{counted}, sha256 {facts['text'][:DIGITS]}, licence {facts['license'] or 'not stated'}"
    documents, tokens = sum(facts["documents"].values()), sum(facts["tokens"].values())
    case = "lower case" if facts["lowercase"] else "cased"
    yield "tokens", f"{tokens:,} in {documents:,} documents, {facts['vocab_size']:,} pieces, {case}"
    yield "store", facts["store"]


def _pretrain(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if phase := facts.get("phase"):
        yield "phase", f"after step {phase['step']:,}: weights {phase['weights'][:8]}, moments {phase['moments'][:8]}"
    last, steps = facts["attempts"][-1], facts["steps"]
    done = f"{steps:,} steps, {facts['sequences']:,} sequences" if steps is not None else f"begun {last['started']}"
    yield "trained", f"{done}, {last['precision']}, {last['processes']} x {last['device']}"
    loss = (facts["metrics"] or {}).get("mlm_loss")
    if loss is not None:
        yield "result", f"validation MLM loss {loss:.4f}"
    yield from _code(facts)


def _code(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if facts.get("sweep"):
        yield "sweep", facts["sweep"]
    commit = f", commit {facts['commit'][:DIGITS]}" if facts["commit"] else ""
    if facts["snapshot"]:
        yield "code", f"snapshot {facts['snapshot'][:DIGITS]}{commit}{' and changes' if facts['dirty'] else ''}"


def _tables(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for source in facts["sources"]:
        yield "file", f"{source['name']}, {source['total_bytes']:,} bytes, sha256 {source['sha256'][:DIGITS]}"


def _finetune(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    last, steps = facts["attempts"][-1], facts["steps"]
    done = f"{steps:,} steps, saved after {facts['best_step']:,}" if steps is not None else f"begun {last['started']}"
    yield "trained", f"{done}, seed {facts['seed']}, {last['precision']}, {last['processes']} x {last['device']}"
    scores = {name: value for name, value in (facts["metrics"] or {}).items() if name not in APART}
    if scores:
        figures = [f"{name} {value:.4f}" for name, value in scores.items() if value is not None]
        yield "result", f"{facts['task']}: {', '.join(figures)}"
    yield from _code(facts)


def _nothing(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield from ()
