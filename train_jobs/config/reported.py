"""Names of the metrics that a job reports, so that a sweep by any other metric is refused before it starts.

Metrics of only some machines or steps are left out: mfu, loss_scale, checkpoint_seconds and similar ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from train_jobs.config.fields import is_own
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.config.pretrain import PretrainConfig
from train_jobs.config.tasks import OWN, TASKS, SentenceTask

MOST_PARAMETERS = 100  # MLflow takes no more in one request
LONGEST_VALUE = 6000

RATES = ("gradient_norm", "sequences_per_second", "tokens_per_second", "data_wait_share")
TRAINING = ("learning_rate", *RATES, "peak_memory_gb")


def reported_metrics(config: object) -> tuple[str, ...] | None:
    """Return the metrics that a job reports; a name that ends in * is a prefix. None: unknown.

    Args:
        config: a `PretrainConfig`, a `FinetuneConfig`, or another job's.
    """
    if isinstance(config, PretrainConfig) and not is_own(config.objective.name):
        return _pretraining(config)
    if isinstance(config, FinetuneConfig) and (config.task == OWN or config.task in TASKS):
        return _fine_tuning(config)
    return None


def _pretraining(config: PretrainConfig) -> tuple[str, ...]:
    heads = ("mlm", "nsp") if config.objective.next_sentence else ("mlm",)
    both = ("loss", *(f"{head}_{what}" for head in heads for what in ("loss", "accuracy")))
    return (
        *_named("validation", (*both, "unigram_entropy", "unigram_margin_error")),
        *_named("train", both),
        *TRAINING,
    )


def _fine_tuning(config: FinetuneConfig) -> tuple[str, ...]:
    entry = TASKS.get(config.task)
    own = ("pearson", "spearman") if config.data.regression else ("accuracy", "f1")  # F1 of two classes
    splits = entry.dev_splits if isinstance(entry, SentenceTask) and config.data.validation is None else ()
    sets = [f"{name}_score" for name in splits if len(splits) > 1]
    metrics = entry.metrics if entry else own
    validation = _named("validation", ("score", "loss", *metrics, "collapsed", *sets))
    return validation if len(config.seeds) > 1 else (*validation, "train_loss", *TRAINING)  # one report per seed


def _named(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{prefix}_{name}" for name in names)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a nested mapping as dotted names with text values."""
    found: dict[str, str] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flatten(value, f"{name}.")
        else:
            found[name] = str(value)[:LONGEST_VALUE]
    return found


def batches(parameters: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the parameters in groups that fit one request."""
    items = list(parameters.items())
    for start in range(0, len(items), MOST_PARAMETERS):
        yield dict(items[start : start + MOST_PARAMETERS])
