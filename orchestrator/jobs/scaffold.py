"""Files of a new project: a job, the defaults of the project, what stays out of the packaged code.

write_project(Path("my-bert"), "pretrain")
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.jobs.reference import full_job
from orchestrator.support.errors import ConflictError, StorageError
from train_jobs.artifacts.files import write_text

TEMPLATES = Path(__file__).resolve().parent.parent / "presets" / "templates"
DEFAULT = "pretrain"
IGNORED = """\
# What is not packed with a run's code. The syntax is that of .gitignore, which is not read where this file is.
.git/
.venv/
__pycache__/
*.py[co]
# Secrets.
.env*
*.pem
*.key
# Data and results: a run reads text from where it lies, and writes to its own folder.
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
        full: a job with every key in place of the few that matter first; always so for a kind without a template.
        recipe: with `full`, the recipe whose values the keys have.
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
        folder: where; made if missing.
        kind: the kind of job.
        full: see `template_files`.
        recipe: see `template_files`.
        force: replace existing files.

    Raises:
        SpecError: unknown kind or recipe.
        ConflictError: some of the files exist; the message names them, and none is written.
        StorageError: the folder cannot be written.
    """
    files = {folder / name: text for name, text in template_files(kind, full=full, recipe=recipe).items()}
    taken = [path for path in files if path.exists()]
    if taken and not force:
        raise ConflictError(
            f"{folder} has {len(taken)} of the files already",
            facts={"there": ", ".join(map(str, taken))},
            fix="another folder, or --force to replace them",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            write_text(path, text)
    except OSError as problem:
        raise StorageError(f"cannot write to {folder}: {problem.strerror}", fix="another folder") from problem
    return list(files)
