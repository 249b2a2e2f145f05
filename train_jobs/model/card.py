"""The model card: README.md of an exported folder, as the Hugging Face Hub reads it.

It is a function of the model's lineage alone. What the lineage does not say is said to be unknown.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import yaml

from train_jobs.config import CardConfig, PretrainConfig
from train_jobs.config.lineage import LINEAGE_FILE, DataFacts, Lineage, Link, PretrainFacts
from train_jobs.config.own import is_own
from train_jobs.config.sources import EMBEDDED_LANGUAGE

CARD_FILE = "README.md"
UNKNOWN = "unknown"
NOT_STATED = "not stated"
DIGITS = 12  # of a hash
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
        _fenced(USE, "python"),
        "## Data",
        _table(_data_rows(card)),
        "## Training",
        _table(_training_rows(card)),
        "## Results",
        _table(_result_rows(card)),
        _verdict(card),
        "## Limits",
        LIMITS + (LIMITS_OF_BASE if card.base else ""),
        "## Reproduce",
        _reproduce(card),
        *(_fenced(_command(words), "shell") for words in card.run.commands.values()),
        "## Lineage",
        _lineage(card),
        _table(_link_rows(card), header=("Kind", "Name", "Hash", "From")),
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
        f" {_counted(model.num_hidden_layers, 'layer')} of width {model.hidden_size} and"
        f" {_counted(model.num_attention_heads, 'attention head')} ({card.run.parameters:,} parameters), {start} with"
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
        files = _counted(source.files, "file")
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
    last = run.attempts[-1]
    yield "Precision", last.precision
    processes = _counted(last.processes, "process", "processes")
    nodes = f"{last.nodes} nodes with " if last.nodes > 1 else ""
    yield "Hardware", f"{processes} on {nodes}{escaped(last.hardware)}"
    yield "Time", _time(run)
    yield "Seed", str(train.seed)
    if run.phase:
        moments = f"the moments of {_optimizer(run.phase.optimizer)} (SHA-256 `{run.phase.moments[:DIGITS]}`)"
        weights = f"weights (SHA-256 `{run.phase.weights[:DIGITS]}`)"
        yield "Goes on from", f"step {run.phase.step:,} of the base model's training: its {weights} and {moments}"
    if run.absent:
        yield "Drawn, for the base model lacks them", ", ".join(f"`{name}`" for name in run.absent)


def _optimizer(name: str) -> str:
    return OPTIMIZERS.get(name, escaped(name))


def _time(run: PretrainFacts) -> str:
    first, last = run.attempts[0], run.attempts[-1]
    if run.ended is None:
        return f"from {first.started}"
    seconds = (datetime.fromisoformat(run.ended) - datetime.fromisoformat(first.started)).total_seconds()
    resumed = f", started {len(run.attempts)} times, the last at step {last.step:,}" if last is not first else ""
    return f"{seconds:,.0f} s from {first.started} to {run.ended}{resumed}"


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


def _reproduce(card: Card) -> str:
    run = card.run
    state = {True: ", with changes that are not in it", False: "", None: ""}[run.dirty]
    packages = ", ".join(f"{name} {version}" for name, version in run.packages.items())
    return (
        f"Code: commit {_code(run.commit)}{state}, snapshot {_code(run.snapshot)}. Packages: {escaped(packages)}.\n"
        "Names of files and folders stand for wherever you keep them. Through the orchestrator, or with plain torchrun:"
    )


def _lineage(card: Card) -> str:
    return (
        f"Every link is named by the SHA-256 of its content and of its parents; [{LINEAGE_FILE}]({LINEAGE_FILE}) holds"
        " all of it."
    )


def _link_rows(card: Card) -> Iterable[tuple[str, ...]]:
    for link in card.lineage.links:
        parents = ", ".join(f"`{parent[:DIGITS]}`" for parent in link.inputs)
        yield link.kind, escaped(link.name), f"`{link.hash[:DIGITS]}`", parents


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _code(value: str | None) -> str:
    return f"`{re.sub(r'[^0-9A-Za-z._+-]', '', value)[:40]}`" if value else UNKNOWN


def _command(words: Sequence[str]) -> str:
    """A command, each of its flags on a line of its own."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(shlex.quote(plain(word)))
    return " \\\n    ".join(" ".join(line) for line in lines)


def _table(rows: Iterable[Sequence[str]], header: Sequence[str] = ("", "")) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fenced(text: str, language: str) -> str:
    """A block of code, whatever backticks it holds."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def plain(text: str) -> str:
    """One line of what can be printed."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in a paragraph or in a cell of a table."""
    line = re.sub(r"([\\`*_{}\[\]<>|~&#$!])", r"\\\1", plain(text))
    return re.sub(r"^(\d*)([-+=.)])", r"\1\\\2", line)
