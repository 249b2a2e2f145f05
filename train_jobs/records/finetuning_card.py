"""The model card of a fine-tuned model: its task, base model and scores, from its lineage alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from train_jobs.artifacts.lineage import FinetuneFacts, Lineage, Link, TablesFacts
from train_jobs.config import FinetuneConfig
from train_jobs.config.tasks import SENTENCES, SPANS, TASKS, WORDS, SentenceTask
from train_jobs.records.markdown import (
    DIGITS,
    NOT_STATED,
    absent_rows,
    card_text,
    counted,
    escaped,
    fenced,
    hardware_rows,
    model_index,
    optimizer_row,
    plain,
    table,
)

NOT_HUB_METRICS = ("loss", "collapsed", "score")  # not metrics of the Hub
SHOWN_LABELS = 20
USE = {
    SENTENCES.pipeline: """\
from transformers import pipeline

classify = pipeline("text-classification", model=".")  # this folder, or the model's name on the Hub
print(classify("A text."))""",
    SPANS.pipeline: """\
from transformers import pipeline

answer = pipeline("question-answering", model=".")  # this folder, or the model's name on the Hub
print(answer(question="Which drug helped?", context="A text that holds the answer."))""",
    WORDS.pipeline: """\
from transformers import pipeline

tag = pipeline("token-classification", model=".", aggregation_strategy="simple")  # this folder, or a name on the Hub
print(tag("A text with names in it."))""",
}
LIMITS = (
    "Its scores are those of the dev set that selected its best checkpoint, so expect slightly lower ones on other text"
    " of the same kind. It was not evaluated on other data, for bias, or for safety."
)


class FinetuningCard:
    """Facts of a lineage that the sections of a card use.

    Args:
        lineage: lineage of a complete fine-tuning.
    """

    def __init__(self, lineage: Lineage) -> None:
        self.lineage = lineage
        self.run = FinetuneFacts.model_validate(lineage.head.facts)
        parents = lineage.parents(lineage.head)
        (tables,) = [link for link in parents if link.kind == "tables"]
        self.tables, self.data = tables, TablesFacts.model_validate(tables.facts)
        self.base: Link = next(link for link in parents if link.kind != "tables")
        self.task = TASKS.get(self.run.task)
        self.kind = (self.task.kind if self.task else SENTENCES).pipeline
        self.dataset = self.task.dataset if self.task else None

    @property
    def task_name(self) -> str:
        """Name of a built-in task; of the user's own tables, the names of their files."""
        if self.task is not None:
            suite = self.task.suite if isinstance(self.task, SentenceTask) else ""
            return f"{suite} {self.run.task}".strip()
        return ", ".join(plain(source.name) for source in self.data.sources) or plain(self.tables.name)


def finetuning_card(lineage: Lineage) -> str:
    """Return the card of the fine-tuned model at the head of a lineage."""
    card = FinetuningCard(lineage)
    base = escaped(card.base.name)
    sections = [
        f"{base}, fine-tuned on {escaped(card.task_name)} ({card.run.parameters:,} parameters).",
        f"Licence of the model: {NOT_STATED}; that of {base} and of the data hold for it as well.",
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
    ]
    return card_text(lineage, card.run, front_matter(card), sections)


def front_matter(card: FinetuningCard) -> dict[str, Any]:
    """Return the metadata of a card; empty values are unknown."""
    # The Hub shows every metric of the front matter as an evaluation result; loss and collapsed are not results.
    metrics = {(name, name): value for name, value in (card.run.metrics or {}).items() if name not in NOT_HUB_METRICS}
    task = {"type": card.kind, "name": card.kind.replace("-", " ").capitalize()}
    dataset = {"type": card.dataset or "table", "name": card.task_name}
    return {
        "library_name": "transformers",
        "pipeline_tag": card.kind,
        "tags": ["bert", "fine-tuned"],
        "datasets": [card.dataset] if card.dataset else None,
        "base_model": plain(card.base.name),
        "model-index": model_index(plain(card.lineage.head.name), task, dataset, metrics),
    }


def _result_rows(card: FinetuningCard) -> Iterator[tuple[str, ...]]:
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


def _data_rows(card: FinetuningCard) -> Iterator[tuple[str, str]]:
    for source in card.data.sources:
        yield escaped(source.name), f"{source.total_bytes:,} bytes, SHA-256 `{source.sha256[:DIGITS]}`"
    labels = card.run.labels
    if labels:
        more = f" and {len(labels) - SHOWN_LABELS:,} more" if len(labels) > SHOWN_LABELS else ""
        yield "Labels", ", ".join(escaped(label) for label in labels[:SHOWN_LABELS]) + more


def _training_rows(card: FinetuningCard) -> Iterator[tuple[str, str]]:
    run, config = card.run, FinetuneConfig.model_validate(card.run.config)
    train, optimizer = config.train, config.optimizer
    epochs = counted(train.epochs, "epoch")
    yield (
        "Steps",
        f"{run.steps or 0:,} of {train.global_batch_size:,} rows, {epochs}; saved after {run.best_step or 0:,}",
    )
    yield "Sequence length", f"{config.max_length} tokens at most"
    if config.stretch_positions is not None:
        yield "Positions", f"the trained ones of the base model interpolated to cover {config.stretch_positions}"
    yield optimizer_row(optimizer.name, optimizer)
    yield "Learning rate", config.schedule.text(optimizer.learning_rate)
    yield "Seed", str(run.seed) + (f", the best of {run.seeds}" if run.seeds > 1 else "")
    yield from hardware_rows(run)
    yield from absent_rows(run)
