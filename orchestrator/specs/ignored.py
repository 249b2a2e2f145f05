"""Settings that have no effect beside others of the same spec: each of them is a warning."""

from __future__ import annotations

from collections.abc import Container

from train_jobs.config import PretrainConfig


def ignored_settings(job: PretrainConfig, changed: Container[str]) -> list[str]:
    """A warning for each key that the user changed (`changed`: dotted paths) and that `job` does not use."""
    rules = (
        ("data.vocab_size", job.data.vocabulary is not None, "data.vocabulary has its own size"),
        ("optimizer.bias_correction", job.optimizer.name == "adamw", "adamw always corrects"),
        ("optimizer.trust_ratio_on_no_decay", job.optimizer.name == "adamw", "adamw has no trust ratio"),
        ("schedule.power", job.schedule.name == "constant", "a constant rate does not decay"),
        ("schedule.continuous", job.schedule.name == "constant", "a constant rate does not decay"),
        ("profile.start", job.profile.steps == 0, "profile.steps is 0"),
        ("train.max_consecutive_skips", job.train.precision != "fp16", "only fp16 skips steps"),
    )
    return [f"{key} has no effect: {why}" for key, applies, why in rules if applies and key in changed]
