"""The code that goes with a run, by content: the installed `train_jobs`, and beside it the user's own.

    snapshot = take_snapshot(code=CodeSpec(folder=Path("/home/me/project")))
    snapshot.digest                # changes with any byte of any file
    snapshot.write(run_folder)     # run_folder/train_jobs/..., run_folder/my_pretrain.py

`train_jobs` is read from where it is installed, so a wheel does as well as a checkout.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import train_jobs.config
from orchestrator.snapshot.entries import LeftOut, SnapshotFile
from orchestrator.snapshot.git import GitFacts, git_facts
from orchestrator.specs.sections import PACKAGES, CodeSpec
from orchestrator.support.errors import ConflictError, SpecError, StorageError
from train_jobs.artifacts.layers import MAX_LISTED
from train_jobs.config.base import Config
from train_jobs.config.names import did_you_mean

PACKAGE = "train_jobs"
LARGEST_SHOWN = 5


class Snapshot(Config):
    """The files that run, where they are read from, and what is known of them; the digest is of the files alone."""

    root: Path
    """Folder of the installed package itself."""
    files: tuple[SnapshotFile, ...]
    """Sorted by path."""
    folder: Path | None = None
    """The user's own code."""
    ignore_files: tuple[str, ...] = ()
    """Ignore files that were read, by their paths in the user's folder, the outermost first."""
    left_out: tuple[LeftOut, ...] = ()
    """What is not shipped of the user's folder."""
    folder_git: GitFacts | None = None
    """State of the user's folder; None: it is in no repository."""
    package_git: GitFacts | None = None
    """State of the package; None: it is installed, not checked out."""

    @property
    def git(self) -> GitFacts | None:
        """State of the code that changes from run to run: the user's, or without such the package."""
        return self.folder_git if self.folder else self.package_git

    @property
    def total_bytes(self) -> int:
        """Size of all files together."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 over (path, size, hash) of every file: the same code has the same digest wherever it lies."""
        manifest = "".join(f"{file.path}\0{file.size}\0{file.sha256}\n" for file in self.files)
        return hashlib.sha256(manifest.encode()).hexdigest()

    @property
    def largest(self) -> list[SnapshotFile]:
        """The five largest files, the largest first."""
        return sorted(self.files, key=lambda file: (-file.size, file.path))[:LARGEST_SHOWN]

    @property
    def most_left_out(self) -> list[LeftOut]:
        """The five entries of most files that are not shipped, of two with as many the folder first."""
        return sorted(self.left_out, key=lambda out: (-out.files, out.path[-1] != "/", out.path))[:LARGEST_SHOWN]

    def summary(self) -> dict[str, Any]:
        """Counts, bytes, digest, the largest files, what is left out and what git says, as JSON has it."""
        return {
            "files": len(self.files),
            "total_bytes": self.total_bytes,
            "digest": self.digest,
            "largest": [{"path": file.path, "size": file.size} for file in self.largest],
            "folder": str(self.folder) if self.folder else None,
            "ignore_files": list(self.ignore_files),
            "left_out": {
                "files": sum(entry.files for entry in self.left_out),
                "counted": all(entry.counted for entry in self.left_out),
                "most": [entry.model_dump() for entry in self.most_left_out],
            },
            "git": self.git.summary() if self.git else None,
            "package_git": self.package_git.summary() if self.package_git else None,
        }

    def write(self, folder: Path) -> None:
        """Copies every file to below `folder`, and sees that it is the one that was hashed.

        Raises:
            ConflictError: a file changed or went away since the snapshot was taken.
            StorageError: the folder cannot be written.
        """
        made: set[str] = set()
        for file in self.files:
            content = self._read(file)
            target = folder / file.path
            try:
                if (parent := file.path.rpartition("/")[0]) not in made:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    made.add(parent)
                target.write_bytes(content)
            except OSError as problem:
                raise StorageError(f"cannot write the code to {target}", facts={"why": problem.strerror}) from problem

    def check_entry(self, entry: str, where: str) -> None:
        """Sees that there is a module to run.

        Args:
            entry: its dotted name.
            where: the place where it was written.

        Raises:
            SpecError: there is none of that name.
        """
        path = entry.replace(".", "/")
        paths = {file.path for file in self.files}
        if paths & {f"{path}.py", f"{path}/__main__.py"}:
            return
        modules = [
            name.removesuffix(".py").removesuffix("/__main__").replace("/", ".")
            for name in paths
            if name.endswith(".py") and not name.endswith("__init__.py")
        ]
        own = sorted(module for module in modules if not module.startswith(f"{PACKAGE}."))
        facts = {"where": where}
        if behind := next((out for out in self.left_out if _covers(out.path, f"{path}.py")), None):
            facts["left out"] = f"{behind.path} ({behind.why})"
        if len(own) < MAX_LISTED:
            facts["known"] = ", ".join([*own, f"{PACKAGE}.pretrain"])
        raise SpecError(
            f"code.entry: there is no module {entry}{did_you_mean(entry, modules)}",
            facts=facts,
            fix=f"--code DIR with {path}.py in it" if self.folder is None else f"write {self.folder / path}.py",
        )

    def missing_modules(self, named: Mapping[str, str], origins: Mapping[str, str]) -> list[str]:
        """A problem for each class of the user's own whose module is not among the files; nothing is imported.

        One whose package is neither of the snapshot is another package's: that is here, or is one that a job has.

        Args:
            named: dotted key -> MODULE:NAME.
            origins: dotted key -> where it was written.
        """
        paths = {file.path for file in self.files}
        modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in paths}
        tops = {module.partition(".")[0] for module in modules}
        problems = []
        for key, name in named.items():
            module = name.partition(":")[0]
            top = module.partition(".")[0]
            if module in modules or (top not in tops and _is_installed(top)):
                continue
            own = [known for known in modules if not known.startswith(f"{PACKAGE}.") and known != PACKAGE]
            where = f"in {self.folder}" if self.folder else "and no --code DIR that could hold it"
            problems.append(f"{origins.get(key, key)}: {key}: no module {module} {where}{did_you_mean(module, own)}")
        return problems

    def _read(self, file: SnapshotFile) -> bytes:
        source = self._source(file.path)
        try:
            content = source.read_bytes()
        except FileNotFoundError:
            content = None
        if content is None or SnapshotFile.of(file.path, content) != file:
            raise ConflictError(f"{source} changed while the run was being made", fix="the same command again")
        return content

    def _source(self, path: str) -> Path:
        top, _, below = path.partition("/")
        if self.folder is not None and top != PACKAGE:
            return self.folder / path
        return self.root / below


def take_snapshot(
    package: Path | None = None, *, code: CodeSpec | None = None, apart: Mapping[Path, str] | None = None
) -> Snapshot:
    """Reads and hashes the code.

    Args:
        package: folder of the package. None: the one that is installed.
        code: the user's own, with its limits. None, or one without a folder: there is none.
        apart: absolute path -> kind of what in the user's folder is no code, whatever its ignore files say.

    Raises:
        SpecError: the user's folder holds what must not leave it; see `read_code`.
    """
    root = package or Path(train_jobs.config.__file__).resolve().parent.parent
    names = [path.relative_to(root).as_posix() for path in _sources(root)]
    files = [SnapshotFile.of(f"{PACKAGE}/{name}", (root / name).read_bytes()) for name in names]
    package_git = git_facts(root, names, guest=True)
    if code is None or code.folder is None:
        return Snapshot(root=root, files=_sorted(files), package_git=package_git)
    from orchestrator.snapshot.user import read_code  # 10 ms that a plan without code of one's own need not pay

    user = read_code(code, code.folder, apart or {}, taken=frozenset({PACKAGE, f"{PACKAGE}.py"}))
    return Snapshot(
        root=root,
        files=_sorted([*files, *user.files]),
        folder=code.folder,
        ignore_files=user.ignore_files,
        left_out=user.left_out,
        folder_git=git_facts(code.folder, [file.path for file in user.files]),
        package_git=package_git,
    )


def _covers(left_out: str, path: str) -> bool:
    return path == left_out or (left_out.endswith("/") and path.startswith(left_out))


def _sorted(files: list[SnapshotFile]) -> tuple[SnapshotFile, ...]:
    return tuple(sorted(files, key=lambda file: file.path))


def _sources(root: Path) -> Iterator[Path]:
    """Files of a package, but for bytecode and whatever is hidden."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name != "__pycache__" and not name.startswith(".")]
        yield from (Path(folder, name) for name in names if not name.startswith(".") and not name.endswith(".pyc"))


def _is_installed(package: str) -> bool:
    """Whether a package is one that a job has, or is installed here; what only lies in the current folder is not."""
    if package in PACKAGES:
        return True
    found = find_spec(package)
    if found is None:
        return False
    places = [found.origin] if found.origin else [f"{place}/." for place in found.submodule_search_locations or ()]
    here = Path.cwd()
    return not any(here in (Path(place).parent, Path(place).parent.parent) for place in places)
