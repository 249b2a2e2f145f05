"""Names of the metrics that a job reports, so that a sweep with an unknown metric is rejected before it starts.

Metrics that only some machines or steps report are left out: mfu, loss_scale, checkpoint_seconds and similar ones.
"""

from __future__ import annotations

from train_jobs.config.fields import is_user_code
from train_jobs.config.finetune import FinetuneConfig
from train_jobs.config.pretrain import PretrainConfig
from train_jobs.config.tasks import NUMBER_METRICS, OWN, TASKS, ClassMetrics, SentenceTask, own_metrics

CORRELATIONS = frozenset({"matthews", "pearson", "spearman"})  # from -1 to 1; all other metrics are 0 or more
RATES = ("gradient_norm", "sequences_per_second", "tokens_per_second", "data_wait_share")
TRAINING = ("learning_rate", *RATES, "peak_memory_gb")


def reported_metrics(config: object) -> tuple[str, ...] | None:
    """Return the names of the metrics that a job reports, or None if they are unknown.

    A name that ends in * is a prefix.

    Args:
        config: configuration of a job.
    """
    if isinstance(config, PretrainConfig) and not is_user_code(config.objective.name):
        return _pretraining(config)
    if isinstance(config, FinetuneConfig) and (config.task == OWN or config.task in TASKS):
        return _fine_tuning(config)
    return None


def may_be_negative(config: object, metric: str) -> bool | None:
    """Return whether a metric that a job reports can be below 0, as a correlation can; None: unknown.

    Args:
        config: see `reported_metrics`.
        metric: name of the metric.
    """
    known = reported_metrics(config)
    if known is None or not any(metric == name or (name[-1] == "*" and metric.startswith(name[:-1])) for name in known):
        return None
    if metric.endswith("score"):  # the mean of the task's metrics
        return isinstance(config, FinetuneConfig) and not CORRELATIONS.isdisjoint(_scored(config))
    return metric.removeprefix("validation_") in CORRELATIONS


def _pretraining(config: PretrainConfig) -> tuple[str, ...]:
    heads = ("mlm", "nsp") if config.objective.next_sentence else ("mlm",)
    both = ("loss", *(f"{head}_{what}" for head in heads for what in ("loss", "accuracy")))
    return (
        *_named("validation", (*both, *(f"{head}_base_rate" for head in heads))),
        *_named("validation", ("unigram_entropy", "unigram_margin_error")),
        *_named("train", both),
        *TRAINING,
    )


def _fine_tuning(config: FinetuneConfig) -> tuple[str, ...]:
    entry = TASKS.get(config.task)
    splits = entry.dev_splits if isinstance(entry, SentenceTask) and config.data.validation is None else ()
    sets = [f"{name}_score" for name in splits if len(splits) > 1]
    validation = _named("validation", ("score", "loss", *_task_metrics(config), "collapsed", *sets))
    return validation if len(config.seeds) > 1 else (*validation, "train_loss", *TRAINING)  # one report per seed


def _task_metrics(config: FinetuneConfig) -> tuple[str, ...]:
    """Return the names of a task's metrics on the dev set."""
    return tuple(dict.fromkeys((*_scored(config), *(() if config.task in TASKS else _own(config).reported))))


def _scored(config: FinetuneConfig) -> tuple[str, ...]:
    """Return the names of the metrics whose mean is a task's score."""
    return TASKS[config.task].metrics if config.task in TASKS else _own(config).scored


def _own(config: FinetuneConfig) -> ClassMetrics:
    """Return the metrics of own tables. Their number of classes is unknown here: those of two classes, the most."""
    positive = config.data.positive_label
    return NUMBER_METRICS if config.data.regression else own_metrics((positive or "", ""), positive)


def _named(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{prefix}_{name}" for name in names)
