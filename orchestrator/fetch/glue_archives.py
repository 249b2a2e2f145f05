"""GLUE: the archives of its tasks, unpacked to one folder of TSV files each, every row counted."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.fetch.http import Client
from orchestrator.fetch.remote_file import Checksum, Fetched, Remote, conflict_at, new_folder
from orchestrator.support.errors import DataError, UsageError
from train_jobs.config.errors import did_you_mean, in_shell
from train_jobs.config.tasks import GLUE_SUITE

ARCHIVES = ".archives"  # in the target folder: an interrupted unpacking need not download them again
MRPC_HEADER = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
HEADERS = {
    (name, Path(file.paths[0]).name): file.header
    for name, task in GLUE_SUITE.items()
    for file in task.files.values()
    if file.header
}
"""Task and file -> columns, of files whose first line is a row."""


@dataclass(frozen=True)
class TaskArchive:
    """The files that a task of GLUE is published as."""

    name: str
    files: tuple[Remote, ...]
    rows: Mapping[str, int]
    """File -> complete rows; the archive of QQP has a few incomplete ones."""


def _remote(path: str, size: int, sha256: str) -> Remote:
    return Remote(path, Checksum("sha256", sha256), size)


# Sizes and hashes of huggingface/datasets, datasets/glue/dataset_infos.json.
_PUBLISHED = {
    "CoLA": (
        _remote("glue/data/CoLA.zip", 376_971, "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"),
    ),
    "SST-2": (
        _remote("glue/data/SST-2.zip", 7_439_277, "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"),
    ),
    "MRPC": (
        _remote(
            "senteval/senteval_data/msr_paraphrase_train.txt",
            1_047_044,
            "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89",
        ),
        _remote(
            "senteval/senteval_data/msr_paraphrase_test.txt",
            441_275,
            "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784",
        ),
        _remote("glue/data/mrpc_dev_ids.tsv", 6222, "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7"),
    ),
    "STS-B": (
        _remote("glue/data/STS-B.zip", 802_872, "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85"),
    ),
    "QQP": (
        _remote(
            "glue/data/QQP-clean.zip",
            41_696_084,
            "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
        ),
    ),
    "MNLI": (
        _remote("glue/data/MNLI.zip", 312_783_507, "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633"),
    ),
    "QNLI": (
        _remote("glue/data/QNLIv2.zip", 10_627_589, "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5"),
    ),
    "RTE": (_remote("glue/data/RTE.zip", 697_150, "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee"),),
    "WNLI": (
        _remote("glue/data/WNLI.zip", 28_999, "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46"),
    ),
    "AX": (_remote("glue/data/AX.tsv", 222_257, "0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd"),),
}
TASKS = {
    name: TaskArchive(
        name, files, {Path(file.paths[-1]).name: file.rows or 0 for file in GLUE_SUITE[name].files.values()}
    )
    for name, files in _PUBLISHED.items()
}


def fetch_glue(client: Client, folder: Path, name: str) -> list[Fetched]:
    """Fetch one task, or all of them and the diagnostic set.

    Args:
        client: of the mirrors.
        folder: gets a folder for each task.
        name: of the task, such as MRPC; empty: all.

    Raises:
        UsageError: unknown task.
        UserError: see `Client.get`; or an archive lacks a file, or a file has another number of rows.
    """
    if name and name not in TASKS:
        raise UsageError(
            f"unknown task {name!r} of GLUE{did_you_mean(name, TASKS)}",
            facts={"known": ", ".join(TASKS)},
            fix="orchestrator data fetch glue:MRPC",
        )
    return [_fetch(client, folder, task) for task in ([TASKS[name]] if name else TASKS.values())]


def _fetch(client: Client, folder: Path, task: TaskArchive) -> Fetched:
    place = folder / task.name
    archives = folder / ARCHIVES
    if place.exists():
        try:
            found = _fetched(task, place, new=False)
        except DataError as problem:
            raise conflict_at(place, problem) from None
        _delete_archives(task, archives)  # of a process that was killed after it had unpacked them
        return found
    sources = [client.get(remote, archives / remote.name).path for remote in task.files]
    with new_folder(place) as building:
        if task.name == "MRPC":
            _build_mrpc(sources, building)
        elif sources[0].suffix == ".zip":
            _unpack(sources[0], task, building)
        else:
            shutil.copy(sources[0], building)
        _count_all(task, building)
    _delete_archives(task, archives)
    return _fetched(task, place, new=True)


def _delete_archives(task: TaskArchive, archives: Path) -> None:
    for remote in task.files:
        (archives / remote.name).unlink(missing_ok=True)
    with suppress(OSError):  # it has other files, or does not exist
        archives.rmdir()


def _unpack(archive: Path, task: TaskArchive, building: Path) -> None:
    """Unpack only the task's files, from the only folder of the archive.

    Some archives contain more, such as a folder `original`. Members are written under known names, never under the
    paths in the archive, which could lead out of the folder.
    """
    try:
        with zipfile.ZipFile(archive) as packed:
            members = {Path(name).name: name for name in packed.namelist() if name.count("/") == 1}
            for name in task.rows:
                if name not in members:
                    raise DataError(f"{archive.name} has no file {name}", facts={"file": archive})
                with packed.open(members[name]) as source, (building / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    except zipfile.BadZipFile as problem:
        raise DataError(f"cannot unpack {archive}: {problem}", fix=f"rm {in_shell(archive)}") from None


def _build_mrpc(sources: list[Path], building: Path) -> None:
    """Split Microsoft's pairs as GLUE does: those with listed ids are the development set."""
    train, test, dev_ids = map(_rows, sources)
    held_out = {tuple(row) for row in dev_ids}
    for name, wanted in (("train.tsv", False), ("dev.tsv", True)):
        chosen = [row for row in train[1:] if ((row[1], row[2]) in held_out) is wanted]
        _write(building / name, [MRPC_HEADER, *chosen])
    tested = [[str(number), *row[1:]] for number, row in enumerate(test[1:])]
    _write(building / "test.tsv", [("index", *MRPC_HEADER[1:]), *tested])


def _rows(path: Path) -> list[list[str]]:
    """Return the columns of the lines that are not empty; only a newline ends a line.

    `splitlines` would also break sentences at characters such as U+2028.
    """
    return [line.split("\t") for line in path.read_text(encoding="utf-8-sig").split("\n") if line]


def _write(path: Path, rows: Sequence[Sequence[str]]) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def _fetched(task: TaskArchive, place: Path, *, new: bool) -> Fetched:
    rows = _count_all(task, place)
    size = sum(path.stat().st_size for path in place.iterdir())
    return Fetched(place, size, new, f"{'sha256, ' if new else ''}{rows} rows")


def _count_all(task: TaskArchive, place: Path) -> int:
    """Return the number of rows of all files of a task.

    A row is complete if it has all columns, which the first line names if HEADERS does not. A quote is a character like
    any other, and a row ends where its line does.

    Raises:
        DataError: a file is missing, or has another number of complete rows.
    """
    for name, need in task.rows.items():
        path = place / name
        if not path.is_file():
            raise DataError(f"{task.name} has no file {name}", facts={"folder": place})
        header = HEADERS.get((task.name, name))
        with path.open(encoding="utf-8-sig") as stream:
            columns = len(header) if header else stream.readline().count("\t") + 1
            have = sum(line.count("\t") + 1 >= columns for line in stream)
        if have != need:
            raise DataError(f"{task.name}'s {name} has the wrong number of rows", facts={"need": need, "have": have})
    return sum(task.rows.values())
