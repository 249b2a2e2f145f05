"""The files that a new project begins with: a job, the project's defaults, what stays out of the code.

write_project(Path("my-bert"), "pretrain")
"""

from __future__ import annotations

from pathlib import Path

from orchestrator.support.errors import ConflictError, StorageError
from train_jobs.artifacts.files import write_text

TEMPLATES = Path(__file__).resolve().parent.parent / "presets" / "templates"
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


def template_files(template: str) -> dict[str, str]:
    """File name -> text of a project of that kind."""
    found = {path.name: path.read_text(encoding="utf-8") for path in sorted((TEMPLATES / template).glob("*.yaml"))}
    return {**found, ".amlignore": IGNORED}


def write_project(folder: Path, template: str, *, force: bool = False) -> list[Path]:
    """Writes the files of a project; returns their paths.

    Args:
        folder: where; made if missing.
        template: a folder of `TEMPLATES`.
        force: replace files that are there.

    Raises:
        ConflictError: some of the files are there already; names all of them, and none is written.
        StorageError: the folder cannot be written.
    """
    files = {folder / name: text for name, text in template_files(template).items()}
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
