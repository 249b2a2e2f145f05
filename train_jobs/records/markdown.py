"""Markdown of model cards: tables, code, escaped text, and the metadata and sections that all cards have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import yaml

from train_jobs.artifacts.lineage import LINEAGE_FILE, Lineage, RunFacts
from train_jobs.config.pretrain import OptimizerConfig
from train_jobs.config.trust import SIGNATURE

CARD_FILE = "README.md"
UNKNOWN = "unknown"
NOT_STATED = "not stated"
DIGITS = 12  # of a hash


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 step`, `2 steps`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def code(value: str | None) -> str:
    """Return a hash or a name as code; unknown without one."""
    # Tags come from outside: without other characters nothing can end the code span and inject Markdown or HTML.
    return f"`{re.sub(r'[^0-9A-Za-z._+-]', '', value)[:40]}`" if value else UNKNOWN


def command(words: Sequence[str]) -> str:
    """Return a shell command with each flag on a separate line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(plain(word)))
    return " \\\n    ".join(" ".join(line) for line in lines)


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = ("", "")) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])


def fenced(text: str, language: str) -> str:
    """Return a block of code; its fence is longer than any run of backticks in it."""
    fence = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def plain(text: str) -> str:
    """Return the printable characters of a text, in one line."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def escaped(text: str) -> str:
    """Return a text that Markdown shows literally, in a paragraph or in a cell of a table."""
    # Names of files and classes are the user's: without escapes they could break a table or add links to the card.
    line = re.sub(r"([\\`*_{}\[\]<>|~&#$!])", r"\\\1", plain(text))
    return re.sub(r"^(\d*)([-+=.)])", r"\1\\\2", line)


def _hash(value: str) -> str:
    return f"`{value[:DIGITS]}`"


def card_text(lineage: Lineage, run: RunFacts, metadata: Mapping[str, Any], sections: Iterable[str]) -> str:
    """Return a model card: metadata, title, the sections of its kind, and those that all cards have.

    Args:
        lineage: lineage of the model.
        run: facts of the run that made it.
        metadata: front matter as the Hugging Face Hub reads it; empty values are left out.
        sections: Markdown behind the title.
    """
    known = {key: value for key, value in metadata.items() if value}
    parts = [
        f"---\n{yaml.safe_dump(known, sort_keys=False, allow_unicode=True)}---",
        f"# {escaped(lineage.head.name)}",
        *sections,
        *weights_section(lineage),
        *reproduce_section(run),
        *lineage_section(lineage),
    ]
    return "\n\n".join(parts) + "\n"


def model_index(
    name: str, task: Mapping[str, str], dataset: Mapping[str, str], metrics: Mapping[tuple[str, str], float | None]
) -> list[dict[str, Any]]:
    """Return evaluation results as the Hub reads them; none without metrics.

    Args:
        name: name of the model.
        task, dataset: type and name of each.
        metrics: type and name of each -> its value; None is left out.
    """
    known = [
        {"type": kind, "value": round(value, 6), "name": label}
        for (kind, label), value in metrics.items()
        if value is not None
    ]
    results = [{"task": dict(task), "dataset": {**dataset, "split": "validation"}, "metrics": known}]
    return [{"name": name, "results": results}] if known else []


def optimizer_row(name: str, optimizer: OptimizerConfig) -> tuple[str, str]:
    """Return the row of an optimizer."""
    clip = f"gradients clipped at {optimizer.max_grad_norm:g}" if optimizer.max_grad_norm else "gradients not clipped"
    return "Optimizer", f"{name}, weight decay {optimizer.weight_decay:g}, {clip}"


def absent_rows(run: RunFacts) -> Iterator[tuple[str, str]]:
    """Yield the row of tensors that the base model lacks, if any."""
    if run.absent:
        yield "Drawn, for the base model lacks them", ", ".join(f"`{name}`" for name in run.absent)


def weights_section(lineage: Lineage) -> list[str]:
    """Return the digest of the exported weights, as a section of a card; empty without weights."""
    if lineage.head.weights is None:
        return []
    return [
        "## Weights",
        f"SHA-256 of model.safetensors: `{lineage.head.weights}`. A signature, if there is one, is in {SIGNATURE}:"
        " `orchestrator model verify FOLDER --key KEY` checks every file.",
    ]


def lineage_section(lineage: Lineage) -> list[str]:
    """Return the chain of links, as the last section of a card."""
    rows = [
        (link.kind, escaped(link.name), _hash(link.hash), ", ".join(map(_hash, link.inputs))) for link in lineage.links
    ]
    return [
        "## Lineage",
        f"Every link is named by the SHA-256 of its content and of its parents; [{LINEAGE_FILE}]({LINEAGE_FILE}) holds"
        " all of it.",
        table(rows, header=("Kind", "Name", "Hash", "From")),
    ]


def reproduce_section(run: RunFacts) -> list[str]:
    """Return code, packages and commands that repeat the run, as a section of a card."""
    state = {True: ", with changes that are not in it", False: "", None: ""}[run.dirty]
    packages = ", ".join(f"{name} {version}" for name, version in run.packages.items())
    return [
        "## Reproduce",
        f"Code: commit {code(run.commit)}{state}, snapshot {code(run.snapshot)}. Packages: {escaped(packages)}.\n"
        "Names of files and folders stand for wherever you keep them. Through the orchestrator, or plain torchrun:",
        *(fenced(command(words), "shell") for words in run.commands.values()),
    ]


def hardware_rows(run: RunFacts) -> Iterator[tuple[str, str]]:
    """Yield precision, machines and time of a run."""
    last = run.attempts[-1]
    yield "Precision", last.precision
    processes = counted(last.processes, "process", "processes")
    nodes = f"{last.nodes} nodes with " if last.nodes > 1 else ""
    yield "Hardware", f"{processes} on {nodes}{escaped(last.hardware)}"
    yield "Time", _time(run)


def _time(run: RunFacts) -> str:
    first, last = run.attempts[0], run.attempts[-1]
    if run.ended is None:
        return f"from {first.started}"
    seconds = (datetime.fromisoformat(run.ended) - datetime.fromisoformat(first.started)).total_seconds()
    resumed = f", started {len(run.attempts)} times, the last at step {last.step:,}" if last is not first else ""
    return f"{seconds:,.0f} s from {first.started} to {run.ended}{resumed}"
