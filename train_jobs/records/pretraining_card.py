"""The model card of a pretrained model: README.md of an exported folder, as the Hugging Face Hub reads it.

It depends on the model's lineage alone. Facts that the lineage lacks are reported as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from train_jobs.artifacts.fingerprints import EMBEDDED_LANGUAGE
from train_jobs.artifacts.lineage import DataFacts, Lineage, Link, PretrainFacts
from train_jobs.config import CardConfig, PretrainConfig
from train_jobs.config.fields import is_user_code
from train_jobs.config.verdict import LossVerdict, margin_text, verdict
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

METRICS = {
    "mlm_loss": ("Masked language model, loss", "{:.4f} nats"),
    "unigram_entropy": ("Unigram entropy of the same tokens", "{:.4f} nats"),
    "unigram_margin_error": ("Standard error of the difference of both", "{:.4f} nats"),
    "mlm_accuracy": ("Masked language model, accuracy", "{:.1%}"),
    "mlm_base_rate": ("Accuracy of always predicting the most frequent piece", "{:.1%}"),
    "nsp_loss": ("Next-sentence prediction, loss", "{:.4f} nats"),
    "nsp_accuracy": ("Next-sentence prediction, accuracy", "{:.1%}"),
    "nsp_base_rate": ("Accuracy of always giving the most frequent answer about pairs", "{:.1%}"),
}
USE = """\
from transformers import pipeline

fill_mask = pipeline("fill-mask", model=".")  # this folder, or the model's name on the Hub
for answer in fill_mask("This is a [MASK] of text."):
    print(f"{answer['score']:.3f}  {answer['sequence']}")"""
OPTIMIZERS = {"adamw": "AdamW", "lamb": "LAMB"}
LIMITS = (
    "It was evaluated only on held-out documents of its training text: on no downstream task, on no other text, and"
    " neither for bias nor for safety. It has learned the content and the style of that text, with their biases. For"
    " most tasks it has to be fine-tuned first."
)
LIMITS_OF_BASE = " Documents held out here may have been among those that the base model was trained on."


class PretrainingCard:
    """Facts of a lineage that the sections of a card use.

    Args:
        lineage: lineage of a complete pretraining run.
    """

    def __init__(self, lineage: Lineage) -> None:
        self.lineage = lineage
        self.run = PretrainFacts.model_validate(lineage.head.facts)
        parents = lineage.parents(lineage.head)
        (data,) = [link for link in parents if link.kind == "data"]
        self.corpus, self.data = plain(data.name), DataFacts.model_validate(data.facts)
        self.base: Link | None = next((link for link in parents if link.kind != "data"), None)
        self.words = CardConfig.model_validate(self.run.config["card"])
        self.embedded = not (self.run.config["data"]["text"] or self.run.config["data"].get("store"))


def model_card(lineage: Lineage) -> str:
    """Return the card of the model at the head of a lineage."""
    card = PretrainingCard(lineage)
    sections = [
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
    ]
    return card_text(lineage, card.run, front_matter(card), sections)


def front_matter(card: PretrainingCard) -> dict[str, Any]:
    """Return the metadata of a card; empty values are unknown."""
    kinds = {"mlm_loss": "loss", "mlm_accuracy": "accuracy"}  # the Hub has no task for next-sentence prediction
    found = card.run.metrics or {}
    metrics = {(kind, METRICS[name][0]): found.get(name) for name, kind in kinds.items()}
    task = {"type": "fill-mask", "name": "Masked language modelling"}
    return {
        "language": card.words.language or ([EMBEDDED_LANGUAGE] if card.embedded else []),
        "license": card.words.license,
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["bert", "masked-language-modeling"],
        "base_model": plain(card.base.name) if card.base else None,
        "model-index": model_index(plain(card.lineage.head.name), task, {"type": "text", "name": card.corpus}, metrics),
    }


def _summary(card: PretrainingCard) -> str:
    config = PretrainConfig.model_validate(card.run.config)
    model, objective = config.model, config.objective
    start = f"pretrained further from {escaped(card.base.name)}" if card.base else "pretrained from drawn weights"
    learned = "masked language modelling" + (" and next-sentence prediction" if objective.next_sentence else "")
    if is_user_code(objective.name):
        learned = f"the objective {escaped(objective.name)}"
    return (
        f"{'BERT' if not is_user_code(model.name) else escaped(model.name)} with"
        f" {counted(model.num_hidden_layers, 'layer')} of width {model.hidden_size} and"
        f" {counted(model.num_attention_heads, 'attention head')} ({card.run.parameters:,} parameters), {start} with"
        f" {learned} on {escaped(card.corpus)}."
    )


def _data_rows(card: PretrainingCard) -> Iterable[tuple[str, str]]:
    data = card.data
    held_out = data.documents["validation"] / sum(data.documents.values())
    yield "Text", escaped(card.corpus)
    yield "Licence of the text", escaped(card.words.data_license or data.license or NOT_STATED)
    yield (
        "Documents",
        f"{data.documents['train']:,} for training, {data.documents['validation']:,} held out ({held_out:.1%})",
    )
    yield "Tokens", f"{data.tokens['train']:,} for training, {data.tokens['validation']:,} held out"
    yield "Vocabulary", f"{data.vocab_size:,} WordPiece pieces, {data.rule.words}, SHA-256 `{data.vocabulary[:DIGITS]}`"
    for source in data.sources:
        files = counted(source.files, "file")
        yield (
            "Source",
            f"{escaped(source.name)}: {files}, {source.total_bytes:,} bytes, SHA-256 `{source.sha256[:DIGITS]}`",
        )


def _training_rows(card: PretrainingCard) -> Iterable[tuple[str, str]]:
    run, config = card.run, PretrainConfig.model_validate(card.run.config)
    train, optimizer, schedule = config.train, config.optimizer, config.schedule
    yield "Steps", f"{run.steps or 0:,} of {train.global_batch_size:,} sequences, {run.sequences or 0:,} in all"
    yield "Sequence length", f"{config.data.sequence_length} tokens"
    if run.text_use:
        yield "Sequences", run.text_use.text()
    if run.stretch:
        found = run.stretch
        yield (
            "Positions",
            f"{found.trained} trained ones interpolated to cover {found.stretched}; the held-out loss was"
            f" {found.trained_loss:.4f} nats at {found.trained} tokens before and {found.stretched_loss:.4f} at"
            f" {found.length} after, and training followed",
        )
    yield optimizer_row(_optimizer(optimizer.name), optimizer)
    rate = schedule.text(optimizer.learning_rate)
    yield "Learning rate", escaped(rate) if is_user_code(schedule.name) else rate
    yield from hardware_rows(run)
    yield "Seed", str(train.seed)
    if run.phase:
        moments = f"the moments of {_optimizer(run.phase.optimizer)} (SHA-256 `{run.phase.moments[:DIGITS]}`)"
        weights = f"weights (SHA-256 `{run.phase.weights[:DIGITS]}`)"
        yield "Resumes from", f"step {run.phase.step:,} of the base model's training: its {weights} and {moments}"
    yield from absent_rows(run)


def _optimizer(name: str) -> str:
    return OPTIMIZERS.get(name, escaped(name))


def _result_rows(card: PretrainingCard) -> Iterable[tuple[str, str]]:
    found = card.run.metrics or {}
    others = {name: (escaped(name), "{:.4f}") for name in found if name not in METRICS and name != "loss"}
    for name, (label, style) in {**METRICS, **others}.items():  # others are metrics of a user's own objective
        if name in found:
            value = found[name]
            yield f"{label}, held-out text", style.format(value) if value is not None else "not finite"


def _verdict(card: PretrainingCard) -> str:
    metrics = card.run.metrics or {}
    loss, entropy = metrics.get("mlm_loss"), metrics.get("unigram_entropy")
    # A falling loss alone proves little: down to this value a model only learns token frequencies.
    known = "the loss of a model that knows only the frequency of each piece of the vocabulary"
    if loss is None or entropy is None or not math.isfinite(loss):
        return (
            f"The loss was not compared with the unigram entropy, {known}: nothing shows that it predicts from context."
        )
    error = metrics.get("unigram_margin_error")
    margin = f"The loss is {margin_text(loss, entropy, error)}, {known}"
    match verdict(loss, entropy, error):
        case LossVerdict.LEARNED:
            return f"{margin}: this model predicts from context."
        case LossVerdict.NO_BETTER:
            return f"{margin}. Within two standard errors this is no better than word frequencies."
    return f"{margin}: worse than word frequencies; nothing shows that this model predicts from context."
