"""Names of the metrics that a job reports, so that a sweep by one that no trial ever reports is refused beforehand.

Left out are those that only some machines or some steps have: mfu, loss_scale, checkpoint_seconds and the like.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from train_jobs.config.finetune import FinetuneConfig
from train_jobs.config.own import is_own
from train_jobs.config.pretrain import PretrainConfig
from train_jobs.config.tasks import OWN, TASKS, SentenceTask

MOST_PARAMETERS = 100  # MLflow takes no more in one request
LONGEST_VALUE = 6000

RATES = ("gradient_norm", "sequences_per_second", "tokens_per_second", "data_wait_share")
TRAINING = ("learning_rate", *RATES, "peak_memory_gb")


def reported_metrics(config: object) -> tuple[str, ...] | None:
    """What a job of this configuration reports; a name that ends in * begins some. None: nobody here knows.

    Args:
        config: a `PretrainConfig`, a `FinetuneConfig`, or another job's.
    """
    if isinstance(config, PretrainConfig):
        return _pretraining(config)
    if isinstance(config, FinetuneConfig):
        return _fine_tuning(config)
    return None


def _pretraining(config: PretrainConfig) -> tuple[str, ...] | None:
    if is_own(config.objective.name):
        return None
    heads = ("mlm", "nsp") if config.objective.next_sentence else ("mlm",)
    both = ("loss", *(f"{head}_{what}" for head in heads for what in ("loss", "accuracy")))
    validation = (*both, "unigram_entropy")
    return (*_named("validation", validation), *_named("train", both), *TRAINING)


def _fine_tuning(config: FinetuneConfig) -> tuple[str, ...] | None:
    entry = TASKS.get(config.task)
    if entry is None and config.task != OWN:
        return None
    metrics: tuple[str, ...]
    sets: tuple[str, ...] = ()
    if entry is None:
        metrics = ("pearson", "spearman") if config.data.regression else ("accuracy", "f1")  # F1 of two classes
    else:
        metrics = entry.metrics
        if isinstance(entry, SentenceTask) and len(entry.dev_splits) > 1 and config.data.validation is None:
            sets = entry.dev_splits
    validation = ("score", "loss", *metrics, "collapsed", *(f"{name}_score" for name in sets))
    if len(config.seeds) > 1:
        return _named("validation", validation)  # one report a seed
    return (*_named("validation", validation), "train_loss", *TRAINING)


def _named(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{prefix}_{name}" for name in names)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A nested mapping as dotted names with text values."""
    found: dict[str, str] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flatten(value, f"{name}.")
        else:
            found[name] = str(value)[:LONGEST_VALUE]
    return found


def batches(parameters: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """As many at a time as one request takes."""
    items = list(parameters.items())
    for start in range(0, len(items), MOST_PARAMETERS):
        yield dict(items[start : start + MOST_PARAMETERS])
