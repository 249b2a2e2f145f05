"""Files of a new project (`orchestrator init`), and the reference of every key (`explain`, `init --full`).

write_project(Path("my-bert"), "pretrain")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from orchestrator.jobs.registry import all_kinds, job_kind
from orchestrator.specs.reference import explain, full_spec, keys
from orchestrator.specs.resolved import PRESETS
from orchestrator.specs.site import spec_model
from orchestrator.specs.sweep_spec import SweepSpec
from orchestrator.support.errors import ConflictError, SpecError, StorageError
from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.layers import preset_names
from train_jobs.config.errors import did_you_mean

TEMPLATES = Path(__file__).resolve().parent.parent / "presets" / "templates"
DEFAULT = "pretrain"
SWEEP = "sweep"
IGNORED = """\
# Files that are not packaged with a run's code, in the syntax of .gitignore. This file replaces .gitignore here.
.git/
.venv/
__pycache__/
*.py[co]
# Secrets.
.env*
*.pem
*.key
# Data and results: a run reads its data in place, and writes to its own folder.
/data/
*.arrow
*.bin
*.pt
*.safetensors
*.zip
"""


def template_files(kind: str, *, full: bool = False, recipe: str | None = None) -> dict[str, str]:
    """Return file name -> text of a project.

    Args:
        kind: the kind of job.
        full: write a job with every key, instead of the most important ones. A kind without a template always has all.
        recipe: with `full`, the recipe that provides the values; None: the kind's default.
    """
    folder = TEMPLATES / kind if (TEMPLATES / kind).is_dir() else TEMPLATES / DEFAULT
    found = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))}
    if full or folder.name != kind:
        found["job.yaml"] = full_job(kind, recipe)
    return {**found, ".amlignore": IGNORED}


def write_project(
    folder: Path, kind: str, *, full: bool = False, recipe: str | None = None, force: bool = False
) -> list[Path]:
    """Write the files of a project and return their paths.

    Args:
        folder: destination; created if it is missing.
        kind: the kind of job.
        full: see `template_files`.
        recipe: see `template_files`.
        force: replace existing files.

    Raises:
        SpecError: unknown kind or recipe.
        ConflictError: some of the files exist; the error lists them, and nothing is written.
        StorageError: the folder cannot be written.
    """
    files = {folder / name: text for name, text in template_files(kind, full=full, recipe=recipe).items()}
    taken = [path for path in files if path.exists()]
    if taken and not force:
        raise ConflictError(
            f"cannot write the project: {folder} already contains {len(taken)} of its files",
            facts={"existing": ", ".join(map(str, taken))},
            fix="choose another folder, or add --force to replace them",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            write_text(path, text)
    except OSError as problem:
        raise StorageError(f"cannot write to {folder}: {problem.strerror}", fix="choose another folder") from problem
    return list(files)


def explain_key(key: str, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the meanings of a key: {key, kinds, type, default, text, recipes}, once for each distinct meaning.

    Args:
        key: dotted key; the name of a section stands for all of its keys.
        kind: only the meaning in this kind of job; None: all kinds.

    Raises:
        SpecError: unknown kind or key.
    """
    kinds = spec_models(kind)
    found = explain(key, kinds)
    if not found:
        models = [kinds[key]] if key in kinds else kinds.values()  # of a kind, its sections are meant
        known = {each.name: each for model, _ in models for each in keys(model)}
        sections = [name for name, each in known.items() if each.section and "." not in name]
        similar = {} if key in kinds else known
        raise SpecError(f"unknown key {key!r}{did_you_mean(key, similar)}", facts={"sections": ", ".join(sections)})
    return found


def spec_models(kind: str | None = None) -> dict[str, tuple[type[BaseModel], Path]]:
    """Return kind -> model of its specs and folder of its recipes, of jobs and of sweeps.

    Args:
        kind: only this one; None: all.

    Raises:
        SpecError: unknown kind.
    """
    sweep: tuple[type[BaseModel], Path] = (SweepSpec, PRESETS / SWEEP)
    if kind == SWEEP:
        return {SWEEP: sweep}
    kinds = all_kinds() if kind is None else {kind: job_kind(kind)}
    found = {name: (spec_model(each.spec), each.recipes) for name, each in kinds.items()}
    return {**found, **({SWEEP: sweep} if kind is None else {})}


def full_job(kind: str, recipe: str | None) -> str:
    """Return a spec with every key, with the values of a recipe.

    Raises:
        SpecError: unknown kind or recipe.
    """
    found = job_kind(kind)
    names = preset_names(found.recipes)
    chosen = recipe or str(found.spec.model_fields["recipe"].default)
    if chosen not in names:
        raise SpecError(f"unknown recipe {chosen!r}{did_you_mean(chosen, names)}", facts={"known": ", ".join(names)})
    return full_spec(kind, spec_model(found.spec), chosen, found.recipes)
