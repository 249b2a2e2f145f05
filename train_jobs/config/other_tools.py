"""Keys of other tools and the keys that stand for them here: hints for those who come from there.

The tools are Hugging Face's Trainer and example scripts, NVIDIA's DeepLearningExamples, google-research/bert,
AzureML-BERT, Optuna and Azure ML's sweeps. docs/migration.md has all of their flags.
"""

from __future__ import annotations

from collections.abc import Callable

_BATCH, _PRECISION = ("train.global_batch_size",), ("train.precision",)
_EPOCHS = ("train.epochs", "train.steps")  # pretraining counts steps
_LENGTH, _STEPS, _SEED = ("data.sequence_length", "data.max_length"), ("train.steps",), ("train.seed", "seeds")
_MASKED, _WARMUP = ("objective.masked_lm_probability",), ("schedule.warmup_fraction",)
_MODEL, _TRIALS, _CONCURRENT = ("init_from", "model"), ("limits.trials",), ("limits.concurrent",)
OURS = {
    "amp": _PRECISION,
    "batch_size": _BATCH,
    "bert_model": _MODEL,
    "bf16": _PRECISION,
    "do_lower_case": ("data.lowercase",),
    "dropout": ("model.hidden_dropout_prob",),
    "early_stopping_patience": ("evaluation.patience",),
    "epochs": _EPOCHS,
    "eval_steps": ("validation.every", "evaluation.every"),
    "fp16": _PRECISION,
    "heads": ("model.num_attention_heads",),
    "init_checkpoint": _MODEL,
    "layers": ("model.num_hidden_layers",),
    "logging_steps": ("train.log_every",),
    "lr": ("optimizer.learning_rate",),
    "lr_scheduler_type": ("schedule.name",),
    "masked_lm_prob": _MASKED,
    "max_concurrent_trials": _CONCURRENT,
    "max_predictions_per_seq": ("objective.max_predictions",),
    "max_seq_length": _LENGTH,
    "max_steps": _STEPS,
    "max_total_trials": _TRIALS,
    "max_trials": _TRIALS,
    "mlm_probability": _MASKED,
    "model_name_or_path": _MODEL,
    "n_jobs": _CONCURRENT,
    "n_trials": _TRIALS,
    "num_epochs": _EPOCHS,
    "num_train_epochs": _EPOCHS,
    "num_train_steps": _STEPS,
    "optim": ("optimizer.name",),
    "per_device_train_batch_size": ("train.micro_batch_size",),
    "random_seed": _SEED,
    "save_steps": ("checkpoint.every",),
    "save_total_limit": ("checkpoint.keep_last",),
    "seed": _SEED,
    "steps": _STEPS,
    "test_file": ("data.test",),
    "torch_compile": ("train.compile",),
    "train_batch_size": _BATCH,
    "train_file": ("data.text", "data.train"),
    "validation_file": ("data.validation",),
    "vocab_file": ("data.vocabulary",),
    "warmup": _WARMUP,
    "warmup_proportion": _WARMUP,
    "warmup_ratio": _WARMUP,
    "warmup_steps": _WARMUP,
}
"""Key of another tool -> ours; the first that a kind of job has is meant."""


def our_key(word: str, is_known: Callable[[str], bool]) -> str | None:
    """Return our key for one of another tool; None: the kind of job has none.

    Args:
        word: the key of the other tool.
        is_known: whether the kind of job has a dotted key.
    """
    return next(filter(is_known, OURS.get(word, ())), None)
