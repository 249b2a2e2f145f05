"""Settings that have no effect beside others of the same spec: each of them is a warning."""

from __future__ import annotations

from collections.abc import Container

from orchestrator.specs.job import PretrainSpec

DECAYS = (
    ("power", "polynomial"),
    ("continuous", "polynomial"),
    ("decay_rate", "exponential"),
    ("decay_steps", "exponential"),
)  # keys of `schedule` that one of its shapes has
OF_FOLDER = ("largest_file_mb", "largest_total_mb", "allow_secrets")  # keys of `code` that are about `code.folder`


def ignored_settings(job: PretrainSpec, changed: Container[str]) -> list[str]:
    """A warning for each key that the user changed (`changed`: dotted paths) and that `job` does not use."""
    code = job.code
    rules = (
        (
            "code.folder",
            code.entry.startswith("train_jobs."),
            f"{code.entry} runs, and uses none of it",
        ),
        *((f"code.{key}", code.folder is None, "there is no code.folder") for key in OF_FOLDER),
        ("data.vocab_size", job.data.vocabulary is not None, "data.vocabulary has its own size"),
        ("optimizer.trust_ratio", job.optimizer.name == "adamw", "adamw has none"),
        *(
            (
                f"schedule.{key}",
                job.schedule.name != shape,
                f"it is of {shape} decay, schedule.name is {job.schedule.name}",
            )
            for key, shape in DECAYS
        ),
        ("profile.start", job.profile.steps == 0, "profile.steps is 0"),
        ("train.max_consecutive_skips", job.train.precision != "fp16", "only fp16 skips steps"),
    )
    return [f"{key} has no effect: {why}" for key, applies, why in rules if applies and key in changed]
