"""Settings that have no effect, or not the whole of it, beside others of the same spec: each of them is a warning."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator

from orchestrator.specs.job import JobSpec
from orchestrator.specs.site import Rule, Site, site_of
from train_jobs.config import TextConfig
from train_jobs.config.own import is_own
from train_jobs.config.pretrain import OptimizerConfig, ScheduleConfig

DECAYS = (
    ("power", "polynomial"),
    ("continuous", "polynomial"),
    ("decay_rate", "exponential"),
    ("decay_steps", "exponential"),
)  # keys of `schedule` that one of its shapes has
OF_FOLDER = ("largest_file_mb", "largest_total_mb", "allow_secrets")  # keys of `code` that are about `code.folder`


def ignored_settings(
    job: JobSpec, changed: Container[str], rules: Iterable[Rule], own: Collection[str] = ()
) -> list[str]:
    """Return a warning for each key that the user changed and that `job` does not use in full.

    Args:
        job: the spec.
        changed: dotted paths that the user wrote.
        rules: of the kind of job.
        own: keys that name a class of the user's own.
    """
    code = job.code
    ours = code.entry.startswith("train_jobs.") and not own
    site = site_of(job.backend)
    shared = [
        *site.ignored(job),
        *_of_other_sites(job, site),
        ("code.folder", ours, f"{code.entry} runs, and no section names a class of it"),
        *((f"code.{key}", code.folder is None, "there is no code.folder") for key in OF_FOLDER),
    ]
    return [f"{key} has no effect: {why}" for key, applies, why in [*rules, *shared] if applies and key in changed]


def engine_rules(optimizer: OptimizerConfig, schedule: ScheduleConfig, world_size: int) -> list[Rule]:
    """Return the rules about settings of training that depend on each other."""
    return [
        ("optimizer.sharded", world_size == 1, "there is one process"),
        ("optimizer.trust_ratio", optimizer.name == "adamw", "adamw has none"),
        *(
            (
                f"schedule.{key}",
                schedule.name != shape and not is_own(schedule.name),
                f"it is of {shape} decay, schedule.name is {schedule.name}",
            )
            for key, shape in DECAYS
        ),
    ]


def vocabulary_rule(data: TextConfig) -> Rule:
    """Return the rule about the size of a vocabulary that is not trained."""
    return ("data.vocab_size", data.vocabulary is not None, "data.vocabulary has its own size")


def _of_other_sites(job: JobSpec, site: Site) -> Iterator[Rule]:
    """Yield keys that other sites than the job's have."""
    for other in (site_of(name) for name in job.sections if name != job.backend):
        keys = [f"compute.{key}" for key in other.compute_keys if key not in site.compute_keys]
        keys += [f"{other.name}.{key}" for key in type(getattr(job, other.name)).model_fields]
        why = f"it is for the {other.name} backend, and the run goes to {job.backend}"
        yield from ((key, True, why) for key in keys)
