"""The model card: README.md of an exported folder, as the Hugging Face Hub reads it.

It is a function of the model's lineage alone. What the lineage does not say is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from train_jobs.artifacts.fingerprints import EMBEDDED_LANGUAGE
from train_jobs.artifacts.lineage import DataFacts, Lineage, Link, PretrainFacts
from train_jobs.config import CardConfig, PretrainConfig
from train_jobs.config.own import is_own
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

METRICS = {
    "mlm_loss": ("Masked language model, loss", "{:.4f} nats"),
    "unigram_entropy": ("Unigram entropy of the same tokens", "{:.4f} nats"),
    "mlm_accuracy": ("Masked language model, accuracy", "{:.1%}"),
    "nsp_loss": ("Next-sentence prediction, loss", "{:.4f} nats"),
    "nsp_accuracy": ("Next-sentence prediction, accuracy", "{:.1%}"),
}
USE = """\
from transformers import pipeline

fill_mask = pipeline("fill-mask", model=".")  # this folder, or the model's name on the Hub
for answer in fill_mask("This is a [MASK] of text."):
    print(f"{answer['score']:.3f}  {answer['sequence']}")"""
OPTIMIZERS = {"adamw": "AdamW", "lamb": "LAMB"}
LIMITS = (
    "It was evaluated on nothing but held-out documents of the text that it was trained on: on no downstream task, on"
    " no other text, and neither for bias nor for safety. What that text says and how it says it, the model has"
    " learned. For most tasks it has to be fine-tuned first."
)
LIMITS_OF_BASE = " Documents held out here may have been among those that the base model was trained on."


class Card:
    """What the sections of a card are written from.

    Args:
        lineage: of a pretraining run that is complete.
    """

    def __init__(self, lineage: Lineage) -> None:
        self.lineage = lineage
        self.name = plain(lineage.head.name)
        self.run = PretrainFacts.model_validate(lineage.head.facts)
        parents = lineage.parents(lineage.head)
        (data,) = [link for link in parents if link.kind == "data"]
        self.corpus, self.data = plain(data.name), DataFacts.model_validate(data.facts)
        self.base: Link | None = next((link for link in parents if link.kind != "data"), None)
        self.words = CardConfig.model_validate(self.run.config["card"])
        self.embedded = not (self.run.config["data"]["text"] or self.run.config["data"].get("store"))


def model_card(lineage: Lineage) -> str:
    """The card of the model at the head of a lineage."""
    card = Card(lineage)
    header = yaml.safe_dump(front_matter(card), sort_keys=False, allow_unicode=True)
    sections = [
        f"---\n{header}---",
        f"# {escaped(card.name)}",
        _summary(card),
        *([escaped(card.words.description)] if card.words.description else []),
        f"Licence of the model: {escaped(card.words.license or NOT_STATED)}.",
        "## Use",
        fenced(USE, "python"),
        "## Data",
        table(_data_rows(card)),
        "## Training",
        table(_training_rows(card)),
        "## Results",
        table(_result_rows(card)),
        _verdict(card),
        "## Limits",
        LIMITS + (LIMITS_OF_BASE if card.base else ""),
        *reproduce_section(card.run),
        *lineage_section(card.lineage),
    ]
    return "\n\n".join(sections) + "\n"


def front_matter(card: Card) -> dict[str, Any]:
    """Metadata: what is not known is left out."""
    language = card.words.language or ([EMBEDDED_LANGUAGE] if card.embedded else [])
    results = _model_index(card)
    known = {
        "language": language,
        "license": card.words.license,
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["bert", "masked-language-modeling"],
        "base_model": plain(card.base.name) if card.base else None,
        "model-index": [{"name": card.name, "results": results}] if results else None,
    }
    return {key: value for key, value in known.items() if value}


def _model_index(card: Card) -> list[dict[str, Any]]:
    """Results of the task that the Hub knows; next-sentence prediction is none of its tasks."""
    kinds = {"mlm_loss": "loss", "mlm_accuracy": "accuracy"}
    found = card.run.metrics or {}
    metrics = [
        {"type": kind, "value": round(value, 6), "name": METRICS[name][0]}
        for name, kind in kinds.items()
        if (value := found.get(name)) is not None
    ]
    task = {"type": "fill-mask", "name": "Masked language modelling"}
    dataset = {"type": "text", "name": card.corpus, "split": "validation"}
    return [{"task": task, "dataset": dataset, "metrics": metrics}] if metrics else []


def _summary(card: Card) -> str:
    config = PretrainConfig.model_validate(card.run.config)
    model, objective = config.model, config.objective
    start = f"pretrained further from {escaped(card.base.name)}" if card.base else "pretrained from drawn weights"
    learned = "masked language modelling" + (" and next-sentence prediction" if objective.next_sentence else "")
    if is_own(objective.name):
        learned = f"the objective {escaped(objective.name)}"
    return (
        f"{'BERT' if not is_own(model.name) else escaped(model.name)} with"
        f" {counted(model.num_hidden_layers, 'layer')} of width {model.hidden_size} and"
        f" {counted(model.num_attention_heads, 'attention head')} ({card.run.parameters:,} parameters), {start} with"
        f" {learned} on {escaped(card.corpus)}."
    )


def _data_rows(card: Card) -> Iterable[tuple[str, str]]:
    data = card.data
    held_out = data.documents["validation"] / sum(data.documents.values())
    yield "Text", escaped(card.corpus)
    yield "Licence of the text", escaped(card.words.data_license or data.license or NOT_STATED)
    yield (
        "Documents",
        f"{data.documents['train']:,} for training, {data.documents['validation']:,} held out ({held_out:.1%})",
    )
    yield "Tokens", f"{data.tokens['train']:,} for training, {data.tokens['validation']:,} held out"
    case = "lower-cased, accents stripped" if data.lowercase else "cased"
    yield "Vocabulary", f"{data.vocab_size:,} WordPiece pieces, {case}, SHA-256 `{data.vocabulary[:DIGITS]}`"
    for source in data.sources:
        files = counted(source.files, "file")
        yield (
            "Source",
            f"{escaped(source.name)}: {files}, {source.total_bytes:,} bytes, SHA-256 `{source.sha256[:DIGITS]}`",
        )


def _training_rows(card: Card) -> Iterable[tuple[str, str]]:
    run, config = card.run, PretrainConfig.model_validate(card.run.config)
    train, optimizer, schedule = config.train, config.optimizer, config.schedule
    yield "Steps", f"{run.steps or 0:,} of {train.global_batch_size:,} sequences, {run.sequences or 0:,} in all"
    yield "Sequence length", f"{config.data.sequence_length} tokens"
    clip = f"gradients clipped at {optimizer.max_grad_norm:g}" if optimizer.max_grad_norm else "gradients not clipped"
    yield "Optimizer", f"{_optimizer(optimizer.name)}, weight decay {optimizer.weight_decay:g}, {clip}"
    rate = schedule.text(optimizer.learning_rate)
    yield "Learning rate", escaped(rate) if is_own(schedule.name) else rate
    yield from hardware_rows(run)
    yield "Seed", str(train.seed)
    if run.phase:
        moments = f"the moments of {_optimizer(run.phase.optimizer)} (SHA-256 `{run.phase.moments[:DIGITS]}`)"
        weights = f"weights (SHA-256 `{run.phase.weights[:DIGITS]}`)"
        yield "Goes on from", f"step {run.phase.step:,} of the base model's training: its {weights} and {moments}"
    if run.absent:
        yield "Drawn, for the base model lacks them", ", ".join(f"`{name}`" for name in run.absent)


def _optimizer(name: str) -> str:
    return OPTIMIZERS.get(name, escaped(name))


def _result_rows(card: Card) -> Iterable[tuple[str, str]]:
    for name, (label, style) in METRICS.items():
        if name in (card.run.metrics or {}):
            value = (card.run.metrics or {})[name]
            yield f"{label}, held-out text", style.format(value) if value is not None else "not finite"
    for name, value in (card.run.metrics or {}).items():  # of an objective that is not ours
        if name not in METRICS and name != "loss":
            yield f"{escaped(name)}, held-out text", f"{value:.4f}" if value is not None else "not finite"


def _verdict(card: Card) -> str:
    metrics = card.run.metrics or {}
    loss, entropy = metrics.get("mlm_loss"), metrics.get("unigram_entropy")
    known = "which is what a model reaches that knows nothing but how often each piece of the vocabulary occurs"
    if loss is None or entropy is None or loss >= entropy:
        return f"The loss is not below the unigram entropy, {known}: nothing shows that this one predicts from context."
    return f"The loss is {entropy - loss:.4f} nats below the unigram entropy, {known}: this one predicts from context."
