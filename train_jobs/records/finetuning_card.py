"""The model card of a fine-tuned model: on which task, from which model, with which scores; from its lineage alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from train_jobs.artifacts.lineage import FinetuneFacts, Lineage, Link, TablesFacts
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.config.tasks import SENTENCES, SPANS, TASKS, WORDS, SentenceTask
from train_jobs.records.markdown import (
    DIGITS,
    NOT_STATED,
    counted,
    escaped,
    fenced,
    hardware_rows,
    lineage_section,
    plain,
    reproduce_section,
    table,
)

APART = ("loss", "collapsed", "score")  # no metrics of the Hub
SHOWN_LABELS = 20
USE = {
    SENTENCES.pipeline: """\
from transformers import pipeline

classify = pipeline("text-classification", model=".")  # this folder, or the model's name on the Hub
print(classify("A text."))""",
    SPANS.pipeline: """\
from transformers import pipeline

answer = pipeline("question-answering", model=".")  # this folder, or the model's name on the Hub
print(answer(question="What is asked?", context="A text that holds the answer."))""",
    WORDS.pipeline: """\
from transformers import pipeline

tag = pipeline("token-classification", model=".", aggregation_strategy="simple")  # this folder, or a name on the Hub
print(tag("A text with names in it."))""",
}
LIMITS = (
    "Its scores are those of one dev set, by which its best checkpoint was chosen, so that on other text of the same"
    " kind it will do a little worse. It was evaluated on nothing else, and neither for bias nor for safety."
)


class Card:
    """What the sections of a card are written from.

    Args:
        lineage: of a fine-tuning that is complete.
    """

    def __init__(self, lineage: Lineage) -> None:
        self.lineage = lineage
        self.name = plain(lineage.head.name)
        self.run = FinetuneFacts.model_validate(lineage.head.facts)
        parents = lineage.parents(lineage.head)
        (tables,) = [link for link in parents if link.kind == "tables"]
        self.tables, self.data = tables, TablesFacts.model_validate(tables.facts)
        self.base: Link = next(link for link in parents if link.kind != "tables")
        self.task = TASKS.get(self.run.task)
        self.kind = (self.task.kind if self.task else SENTENCES).pipeline
        self.dataset = self.task.dataset if self.task else None


def tuned_card(lineage: Lineage) -> str:
    """The card of the fine-tuned model at the head of a lineage."""
    card = Card(lineage)
    header = yaml.safe_dump(front_matter(card), sort_keys=False, allow_unicode=True)
    sections = [
        f"---\n{header}---",
        f"# {escaped(card.name)}",
        f"{escaped(card.base.name)}, fine-tuned on {_task(card)} ({card.run.parameters:,} parameters).",
        f"Licence of the model: {NOT_STATED}; that of {escaped(card.base.name)} and of the data hold for it as well.",
        "## Use",
        fenced(USE[card.kind], "python"),
        "## Results",
        table(_result_rows(card), header=("Dev set", *(("", "") if card.run.over_seeds else ("",)))),
        "## Data",
        table(_data_rows(card)),
        "## Training",
        table(_training_rows(card)),
        "## Limits",
        LIMITS,
        *reproduce_section(card.run),
        *lineage_section(lineage),
    ]
    return "\n\n".join(sections) + "\n"


def front_matter(card: Card) -> dict[str, Any]:
    """Metadata: what is not known is left out."""
    results = _model_index(card)
    known = {
        "library_name": "transformers",
        "pipeline_tag": card.kind,
        "tags": ["bert", "fine-tuned"],
        "datasets": [card.dataset] if card.dataset else None,
        "base_model": plain(card.base.name),
        "model-index": [{"name": card.name, "results": results}] if results else None,
    }
    return {key: value for key, value in known.items() if value}


def _model_index(card: Card) -> list[dict[str, Any]]:
    metrics = [
        {"type": name, "value": round(value, 6), "name": name}
        for name, value in (card.run.metrics or {}).items()
        if value is not None and name not in APART
    ]
    task = {"type": card.kind, "name": card.kind.replace("-", " ").capitalize()}
    dataset = {"type": card.dataset or "table", "name": _plain_task(card), "split": "validation"}
    return [{"task": task, "dataset": dataset, "metrics": metrics}] if metrics else []


def _plain_task(card: Card) -> str:
    """Built-in tasks by their names; tables of one's own by those of their files."""
    if card.task is not None:
        suite = card.task.suite if isinstance(card.task, SentenceTask) else ""
        return f"{suite} {card.run.task}".strip()
    return ", ".join(plain(source.name) for source in card.data.sources) or plain(card.tables.name)


def _task(card: Card) -> str:
    return escaped(_plain_task(card))


def _result_rows(card: Card) -> Iterator[tuple[str, ...]]:
    run = card.run
    for name, value in (run.metrics or {}).items():
        if name == "collapsed":
            continue
        shown = f"{value:.4f}" if value is not None else "not finite"
        if run.over_seeds is None:
            yield escaped(name), shown
            continue
        found = run.over_seeds[name]
        yield escaped(name), shown, f"{found['mean']:.4f} +- {found['sd']:.4f} over {run.seeds} seeds"
    if run.collapsed:
        cells = ("Runs that learned nothing", f"{run.collapsed} of {run.seeds}")
        yield (*cells, "") if run.over_seeds else cells


def _data_rows(card: Card) -> Iterator[tuple[str, str]]:
    for source in card.data.sources:
        yield escaped(source.name), f"{source.total_bytes:,} bytes, SHA-256 `{source.sha256[:DIGITS]}`"
    labels = card.run.labels
    if labels:
        more = f" and {len(labels) - SHOWN_LABELS:,} more" if len(labels) > SHOWN_LABELS else ""
        yield "Labels", ", ".join(escaped(label) for label in labels[:SHOWN_LABELS]) + more


def _training_rows(card: Card) -> Iterator[tuple[str, str]]:
    run, config = card.run, FinetuneConfig.model_validate(card.run.config)
    train, optimizer = config.train, config.optimizer
    epochs = counted(train.epochs, "epoch")
    yield (
        "Steps",
        f"{run.steps or 0:,} of {train.global_batch_size:,} rows, {epochs}; saved after {run.best_step or 0:,}",
    )
    yield "Sequence length", f"{config.max_length} tokens at most"
    clip = f"gradients clipped at {optimizer.max_grad_norm:g}" if optimizer.max_grad_norm else "gradients not clipped"
    yield "Optimizer", f"{optimizer.name}, weight decay {optimizer.weight_decay:g}, {clip}"
    yield "Learning rate", config.schedule.text(optimizer.learning_rate)
    yield "Seed", str(run.seed) + (f", the best of {run.seeds}" if run.seeds > 1 else "")
    yield from hardware_rows(run)
    if run.absent:
        yield "Drawn, for the base model lacks them", ", ".join(f"`{name}`" for name in run.absent)
