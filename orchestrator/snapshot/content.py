"""Snapshots: the code of a run by content, the installed `train_jobs` and with it the user's own.

    snapshot = take_snapshot(code=CodeSpec(folder=Path("/home/me/project")))
    snapshot.digest                # changes with any byte of any file
    snapshot.write(run_folder)     # run_folder/train_jobs/..., run_folder/my_pretrain.py

`train_jobs` is read from its place of installation, a wheel or a checkout.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import train_jobs.config
from orchestrator.snapshot.git import GitFacts, git_facts
from orchestrator.snapshot.walk import AML_IGNORE, LeftOut, SnapshotFile
from orchestrator.specs.job import PACKAGES, CodeSpec
from orchestrator.support.errors import ConflictError, SpecError
from train_jobs.artifacts.layers import MAX_LISTED
from train_jobs.artifacts.mounts import write_error
from train_jobs.config import Config, did_you_mean

PACKAGE = "train_jobs"
LARGEST_SHOWN = 5


class Snapshot(Config):
    """The files that run, and their origin; the digest is of the files alone."""

    root: Path
    """Folder of the installed package."""
    files: tuple[SnapshotFile, ...]
    """Sorted by path."""
    folder: Path | None = None
    """The user's own code."""
    ignore_files: tuple[str, ...] = ()
    """Ignore files that were read, by their paths in the user's folder, the outermost first."""
    left_out: tuple[LeftOut, ...] = ()
    """Entries of the user's folder that are not shipped."""
    folder_git: GitFacts | None = None
    """State of the user's folder; None: it is not in a repository."""
    package_git: GitFacts | None = None
    """State of the package; None: it is installed, not checked out."""

    @property
    def git(self) -> GitFacts | None:
        """State of the code that changes from run to run: the user's own or, without any, the package."""
        return self.folder_git if self.folder else self.package_git

    @property
    def total_bytes(self) -> int:
        """Size of all files together."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """SHA-256 over (path, size, hash) of every file: the same code has the same digest everywhere."""
        # Only names and content: with times or modes, a second checkout of the same commit would be another snapshot,
        # and its runs would get other names. NUL cannot occur in a path, so no two lists give the same text.
        manifest = "".join(f"{file.path}\0{file.size}\0{file.sha256}\n" for file in self.files)
        return hashlib.sha256(manifest.encode()).hexdigest()

    @property
    def largest(self) -> list[SnapshotFile]:
        """The five largest files, the largest first."""
        return sorted(self.files, key=lambda file: (-file.size, file.path))[:LARGEST_SHOWN]

    @property
    def most_left_out(self) -> list[LeftOut]:
        """The five left-out entries with the most files; in a tie, folders first."""
        return sorted(self.left_out, key=lambda out: (-out.files, out.path[-1] != "/", out.path))[:LARGEST_SHOWN]

    def summary(self) -> dict[str, Any]:
        """Return counts, bytes, digest, the largest files, left-out files and the facts of git, for JSON."""
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
        """Copy every file to below `folder`, and verify its hash.

        Raises:
            ConflictError: a file changed or disappeared since the snapshot was taken.
            StorageError: the folder cannot be written.
        """
        made: set[str] = set()  # parents that exist: one mkdir for each file costs more than writing it
        for file in self.files:
            content = self._read(file)
            target = folder / file.path
            try:
                if (parent := file.path.rpartition("/")[0]) not in made:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    made.add(parent)
                target.write_bytes(content)
            except OSError as problem:
                raise write_error(
                    f"cannot write the code to {target}", problem, folder, fix="free some space"
                ) from problem

    def check_entry(self, entry: str, where: str) -> None:
        """Check that a module to run exists.

        Args:
            entry: its dotted name.
            where: file and line, or flag, that named it.

        Raises:
            SpecError: it does not exist.
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
        # the file may exist and be ignored, itself or with a folder above it: then the ignore line is what to change
        module_file = f"{path}.py/"
        if ignored := next((out for out in self.left_out if module_file.startswith(f"{out.path.rstrip('/')}/")), None):
            facts["left out"] = f"{ignored.path} ({ignored.why})"
        if len(own) < MAX_LISTED:
            facts["known"] = ", ".join([*own, f"{PACKAGE}.pretrain"])
        raise SpecError(
            f"code.entry: no module {entry}{did_you_mean(entry, modules)}",
            facts=facts,
            fix=f"--code DIR with {path}.py in it" if self.folder is None else f"write {self.folder / path}.py",
        )

    def missing_modules(self, named: Mapping[str, str], origins: Mapping[str, str]) -> list[str]:
        """Return a problem for each class of the user's own whose module is not among the files; nothing is imported.

        A class of another package is no problem if that package is installed here, or on the machines that train.

        Args:
            named: dotted key -> MODULE:NAME.
            origins: dotted key -> file and line, or flag, that set it.
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
        top, _, below = file.path.partition("/")
        source = self.root / below if self.folder is None or top == PACKAGE else self.folder / file.path
        # The plan shows the digest of the files as they were then: a file that was edited since must not be shipped
        # under that digest.
        with suppress(FileNotFoundError):
            content = source.read_bytes()
            if SnapshotFile.from_content(file.path, content) == file:
                return content
        fix = "run the same command again"
        if self.folder is not None and top != PACKAGE:
            ignore = next(iter(self.ignore_files), AML_IGNORE)
            fix += f"; if a program is writing the file, add it to {ignore} or write it outside {self.folder}"
        raise ConflictError(f"cannot copy {source}: it changed while the run was being made", fix=fix)


def take_snapshot(
    package: Path | None = None,
    *,
    code: CodeSpec | None = None,
    excluded: Mapping[Path, str] | None = None,
    declared: Mapping[str, tuple[bytes, ...]] | None = None,
) -> Snapshot:
    """Read and hash the code.

    Args:
        package: folder of the package. None: the installed one.
        code: the user's own, with its limits. None, or one without a folder: the package alone.
        excluded: absolute path -> kind of things in the user's folder that are not code, ignored or not.
        declared: name of a secret of the run -> forms of its value; no file of the user's folder may contain them.

    Raises:
        SpecError: the user's folder contains something that must not leave the machine; see `read_code`.
    """
    root = package or Path(train_jobs.config.__file__).resolve().parent.parent
    names = [path.relative_to(root).as_posix() for path in _sources(root)]
    files = [SnapshotFile.from_content(f"{PACKAGE}/{name}", (root / name).read_bytes()) for name in names]
    own: dict[str, Any] = {}
    if code is not None and code.folder is not None:
        from orchestrator.snapshot.user import read_code  # takes 10 ms, which a plan without own code need not wait for

        reserved = frozenset({PACKAGE, f"{PACKAGE}.py"})
        user = read_code(code, code.folder, excluded or {}, reserved=reserved, declared=declared)
        files += user.files
        own = {
            "folder": code.folder,
            "ignore_files": user.ignore_files,
            "left_out": user.left_out,
            "folder_git": git_facts(code.folder, [file.path for file in user.files]),
        }
    ordered = tuple(sorted(files, key=lambda file: file.path))
    return Snapshot(root=root, files=ordered, package_git=git_facts(root, names, guest=True), **own)


def _sources(root: Path) -> Iterator[Path]:
    """Yield the files of a package, without bytecode and hidden files."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name != "__pycache__" and not name.startswith(".")]
        yield from (Path(folder, name) for name in names if not name.startswith(".") and not name.endswith(".pyc"))


def _is_installed(package: str) -> bool:
    """Return whether a package is installed, here or on the machines that train.

    The current folder does not count: a package in it is importable here, but is not shipped.
    """
    if package in PACKAGES:
        return True
    found = find_spec(package)
    if found is None:
        return False
    places = [found.origin] if found.origin else [f"{place}/." for place in found.submodule_search_locations or ()]
    here = Path.cwd()
    return not any(here in (Path(place).parent, Path(place).parent.parent) for place in places)
