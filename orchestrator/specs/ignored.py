"""Settings that have no effect, or not the whole of it, beside others of the same spec: each of them is a warning."""

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


def ignored_settings(job: PretrainSpec, changed: Container[str], *, world_size: int) -> list[str]:
    """A warning for each key that the user changed (`changed`: dotted paths) and that `job` does not use in full."""
    code = job.code
    rules = (
        ("code.folder", code.entry.startswith("train_jobs."), f"{code.entry} runs, and uses none of it"),
        *((f"code.{key}", code.folder is None, "there is no code.folder") for key in OF_FOLDER),
        ("data.vocab_size", job.data.vocabulary is not None, "data.vocabulary has its own size"),
        (
            "train.loss_normalization",
            job.train.micro_batch_size != "auto" and job.train.micro_batch_size >= job.train.global_batch_size,
            "a global batch is one micro batch",
        ),
        ("optimizer.sharded", world_size == 1, "there is one process"),
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
    ignored = [f"{key} has no effect: {why}" for key, applies, why in rules if applies and key in changed]
    return [*ignored, *_capped_predictions(job, changed)]


def _capped_predictions(job: PretrainSpec, changed: Container[str]) -> list[str]:
    """A warning if what the user changed asks for more predictions than a fixed `objective.max_predictions` allows."""
    asked = round(job.data.sequence_length * job.objective.masked_lm_probability)
    decide = ("objective.masked_lm_probability", "data.sequence_length")
    if asked <= job.max_predictions or not any(key in changed for key in decide):
        return []
    return [
        f"objective.max_predictions={job.max_predictions} holds whole sequences below the {asked} predictions that "
        f"{' x '.join(decide)} asks for; null follows them"
    ]
