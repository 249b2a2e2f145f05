"""Settings that have no effect, or not the whole of it, beside others of the same spec: each of them is a warning."""

from __future__ import annotations

from collections.abc import Container, Iterator

from orchestrator.jobs.finetune.spec import FinetuneSpec
from orchestrator.jobs.prepare.spec import PrepareSpec
from orchestrator.jobs.pretrain.spec import PretrainSpec
from orchestrator.specs.job import JobSpec
from orchestrator.specs.site import Rule, Site, known_sites, site_of
from train_jobs.artifacts.layers import dotted
from train_jobs.config.own import is_own, own_names

DECAYS = (
    ("power", "polynomial"),
    ("continuous", "polynomial"),
    ("decay_rate", "exponential"),
    ("decay_steps", "exponential"),
)  # keys of `schedule` that one of its shapes has
NOT_FOR_OWN = (
    ("objective", "next_sentence"),
    *(("optimizer", key) for key in ("betas", "eps", "bias_correction", "trust_ratio")),
    *(("schedule", key) for key in ("warmup_fraction", *(key for key, _ in DECAYS))),
)  # keys of what we build, which a class of the user's own is not given
OF_FOLDER = ("largest_file_mb", "largest_total_mb", "allow_secrets")  # keys of `code` that are about `code.folder`

OF_STORE = ("vocab_size", "lowercase", "validation_fraction", "workers")  # keys of `data` that a store has settled


def ignored_settings(job: JobSpec, changed: Container[str], *, world_size: int) -> list[str]:
    """A warning for each key that the user changed (`changed`: dotted paths) and that `job` does not use in full."""
    code, rules, site = job.code, list[Rule](), site_of(job.backend)
    own: dict[str, str] = {}
    if isinstance(job, PretrainSpec):
        rules, own = _training(job, world_size, site), own_names(job)
    if isinstance(job, FinetuneSpec):
        rules = [*_engine(job, world_size), *((key, True, f"task is {job.task}") for key in job.ignored())]
    rules += [*site.ignored(job), *_of_other_sites(job, site)]
    if isinstance(job, PrepareSpec | PretrainSpec):
        rules.append(("data.vocab_size", job.data.vocabulary is not None, "data.vocabulary has its own size"))
    rules += [
        (
            "code.folder",
            code.entry.startswith("train_jobs.") and not own,
            f"{code.entry} runs, and no section names a class of it",
        ),
        *((f"code.{key}", code.folder is None, "there is no code.folder") for key in OF_FOLDER),
    ]
    ignored = [f"{key} has no effect: {why}" for key, applies, why in rules if applies and key in changed]
    if isinstance(job, PretrainSpec):
        ignored += _capped_predictions(job, changed)
        if not (site.this_python or job.data.text or site.remote_data(job)):
            ignored.append("the embedded text is of the job's own Python, and may differ from the one planned with")
    return [*ignored, *site.warnings(job)]


def _engine(job: PretrainSpec | FinetuneSpec, world_size: int) -> list[Rule]:
    """Keys of whatever trains."""
    return [
        ("optimizer.sharded", world_size == 1, "there is one process"),
        ("optimizer.trust_ratio", job.optimizer.name == "adamw", "adamw has none"),
        *(
            (
                f"schedule.{key}",
                job.schedule.name != shape and not is_own(job.schedule.name),
                f"it is of {shape} decay, schedule.name is {job.schedule.name}",
            )
            for key, shape in DECAYS
        ),
    ]


def _of_other_sites(job: JobSpec, site: Site) -> Iterator[Rule]:
    """Yield keys that other sites than the job's have."""
    for other in known_sites():
        keys = [f"compute.{key}" for key in other.compute_keys if key not in site.compute_keys]
        if other.options is not None and other.name != site.name:
            keys += [f"{other.name}.{key}" for key in other.options.model_fields]
        why = f"it is for the {other.name} backend, and the run goes to {job.backend}"
        yield from ((key, True, why) for key in keys)


def _training(job: PretrainSpec, world_size: int, site: Site) -> list[Rule]:
    """Keys of pretraining."""
    return [
        *_engine(job, world_size),
        *((f"data.{key}", job.data.store is not None, "data.store has its own") for key in OF_STORE),
        (
            "train.loss_normalization",
            job.train.micro_batch_size != "auto" and job.train.micro_batch_size >= job.train.global_batch_size,
            "a global batch is one micro batch",
        ),
        *(
            (
                f"{section}.{key}",
                is_own(getattr(job, section).name),
                f"{getattr(job, section).name} has {section}.options",
            )
            for section, key in NOT_FOR_OWN
        ),
        ("data.text", site.remote_data(job) is not None, f"{dotted(site.data_key)} takes its place"),
        ("profile.start", job.profile.steps == 0, "profile.steps is 0"),
        ("train.max_consecutive_skips", job.train.precision != "fp16", "only fp16 skips steps"),
    ]


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
