"""The spec of a pretraining, and the warnings about it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, Literal

from pydantic import Field

from orchestrator.specs.compute import ResolvedCompute
from orchestrator.specs.job import JobSpec
from orchestrator.specs.paths import PathKeys
from orchestrator.specs.resolved import DECAYS, engine_rules, vocabulary_rule
from orchestrator.specs.site import Rule, Site
from train_jobs.artifacts import start_model, start_phase
from train_jobs.artifacts.layers import dotted
from train_jobs.artifacts.model_trust import SETTING
from train_jobs.config import PretrainConfig
from train_jobs.config.fields import is_user_code
from train_jobs.config.prepare import EXECUTOR_PATHS

UNUSED_BY_OWN_CLASSES = (
    ("objective", "next_sentence"),
    ("objective", "sequences"),
    *(("optimizer", key) for key in ("betas", "eps", "bias_correction", "trust_ratio")),
    *(("schedule", key) for key in ("warmup_fraction", *(key for key, _ in DECAYS))),
)  # settings of built-in classes; a class of the user's own receives `options` instead
STORE_KEYS = (
    "vocab_size",
    "lowercase",
    "strip_accents",
    "split_unspaced",
    "validation_fraction",
    "workers",
    "executor",
)  # keys of `data` that a store fixes

_STARTS = (start_model.KEY, start_phase.KEY)
PATHS = PathKeys(
    starts=_STARTS,
    folders=(*_STARTS, "data.store"),
    files=("data.vocabulary", SETTING),
    unchecked=("data.add_tokens", *EXECUTOR_PATHS),
    sources=("data.text",),
)


class PretrainSpec(PretrainConfig, JobSpec):
    """A pretraining job: every section of `PretrainConfig` at top level."""

    kind: Literal["pretrain"] = "pretrain"
    """Kind of the job."""
    recipe: str = "tiny"
    """Recipe: tiny, small, base, large or a published one. The sections of the job override its values."""
    earlier: dict[str, Any] = Field(default={})
    """With a recipe that continues another one, such as base-512: values for the earlier phase alone, by section, such
    as {train: {steps: 900000}}. All other values apply to both phases, except keys that differ between the recipes."""

    def job_config(self) -> PretrainConfig:
        """Return the part that the job itself reads."""
        return self.part(PretrainConfig)


def ignored(job: PretrainSpec, compute: ResolvedCompute, site: Site) -> list[Rule]:
    """Return the rules about settings that have no effect because of others."""
    return [
        *engine_rules(job.optimizer, job.schedule, compute.world_size),
        *((f"data.{key}", job.data.store is not None, "data.store has its own") for key in STORE_KEYS),
        (
            "train.loss_normalization",
            # On GPUs this micro batch is the default with this key too.
            isinstance(micro := job.train.on_device(on_cpu=True).micro_batch_size, int)
            and micro >= job.train.global_batch_size,
            "a global batch is one micro batch",
        ),
        *(
            (
                f"{section}.{key}",
                is_user_code(getattr(job, section).name),
                f"{getattr(job, section).name} has {section}.options",
            )
            for section, key in UNUSED_BY_OWN_CLASSES
        ),
        (
            "data.short_sequence_probability",
            not (job.objective.next_sentence or job.objective.own),
            "without objective.next_sentence sequences are as long as they can be",
        ),
        (
            "objective.sequences",
            job.objective.next_sentence and not job.objective.own,
            "pairs of next-sentence prediction take its place",
        ),
        ("train.global_batch_size", job.train.batch_tokens is not None, "train.batch_tokens takes its place"),
        ("data.text", site.remote_data(job) is not None, f"{dotted(site.data_key)} takes its place"),
        ("profile.start", job.profile.steps == 0, "profile.steps is 0"),
        ("train.overlap_all_reduce", compute.world_size == 1, "there is one process"),
        ("train.cuda_graphs", compute.device == "cpu", "the job runs on CPUs"),
        ("train.max_consecutive_skips", job.train.precision != "fp16", "only fp16 skips steps"),
        vocabulary_rule(job.data),
    ]


def warnings(job: PretrainSpec, changed: Container[str], site: Site) -> Iterator[str]:
    """Yield a warning about predictions that a fixed limit cuts off, and about embedded text on another machine."""
    requested = round(job.data.sequence_length * job.objective.masked_lm_probability)
    decide = ("objective.masked_lm_probability", "data.sequence_length")
    if requested > job.max_predictions and any(key in changed for key in decide):
        yield (
            f"objective.max_predictions={job.max_predictions} limits each sequence to fewer than the {requested} "
            f"predictions of {' x '.join(decide)}; null removes the limit"
        )
    if not (site.this_python or job.data.text or site.remote_data(job)):
        yield "the job reads the embedded text of its own Python, which may differ from the planned text"
