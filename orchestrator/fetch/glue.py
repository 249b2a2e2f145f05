"""GLUE: the archives of its tasks, unpacked to one folder of TSV files each, every row counted."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.fetch.checked_file import Checksum, Fetched, Remote
from orchestrator.fetch.http import Client
from orchestrator.support.errors import ConflictError, DataError, UsageError
from train_jobs.config.names import in_shell, set_aside
from train_jobs.config.tasks import GLUE_SUITE

NAME = "glue"
ARCHIVES = ".archives"  # in the target folder, while a task is not unpacked
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
    """A task of GLUE, and the files that it is made from."""

    name: str
    files: tuple[Remote, ...]
    rows: Mapping[str, int]
    """File -> rows that are complete; the archive of QQP has a few that are not."""


def _remote(path: str, size: int, sha256: str) -> Remote:
    return Remote(path, Checksum("sha256", sha256), size)


def _published(name: str, *files: Remote) -> TaskArchive:
    rows = {Path(file.paths[-1]).name: file.rows or 0 for file in GLUE_SUITE[name].files.values()}
    return TaskArchive(name, files, rows)


# Sizes and hashes of huggingface/datasets, datasets/glue/dataset_infos.json.
TASKS = {
    task.name: task
    for task in (
        _published(
            "CoLA",
            _remote("glue/data/CoLA.zip", 376_971, "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"),
        ),
        _published(
            "SST-2",
            _remote(
                "glue/data/SST-2.zip", 7_439_277, "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"
            ),
        ),
        _published(
            "MRPC",
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
            _remote(
                "glue/data/mrpc_dev_ids.tsv", 6222, "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7"
            ),
        ),
        _published(
            "STS-B",
            _remote("glue/data/STS-B.zip", 802_872, "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85"),
        ),
        _published(
            "QQP",
            _remote(
                "glue/data/QQP-clean.zip",
                41_696_084,
                "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
            ),
        ),
        _published(
            "MNLI",
            _remote(
                "glue/data/MNLI.zip", 312_783_507, "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633"
            ),
        ),
        _published(
            "QNLI",
            _remote(
                "glue/data/QNLIv2.zip", 10_627_589, "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5"
            ),
        ),
        _published(
            "RTE",
            _remote("glue/data/RTE.zip", 697_150, "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee"),
        ),
        _published(
            "WNLI",
            _remote("glue/data/WNLI.zip", 28_999, "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46"),
        ),
        _published(
            "AX",
            _remote("glue/data/AX.tsv", 222_257, "0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd"),
        ),
    )
}


def fetch_glue(client: Client, folder: Path, name: str) -> list[Fetched]:
    """Fetches one task, or all of them and the diagnostic set.

    Raises:
        UsageError: there is no such task.
        UserError: as of `Client.get`; or files that are missing in an archive or have other numbers of rows.
    """
    if name and name not in TASKS:
        raise UsageError(f"there is no task {name} in GLUE", facts={"known": ", ".join(TASKS)}, fix="glue:MRPC, say")
    tasks = [TASKS[name]] if name else list(TASKS.values())
    return [_fetch(client, folder, task) for task in tasks]


def _fetch(client: Client, folder: Path, task: TaskArchive) -> Fetched:
    place = folder / task.name
    if place.exists():
        try:
            return _fetched(task, place, new=False)
        except DataError as problem:
            raise ConflictError(
                f"{place} is there, and is something else",
                facts={"have": problem.message, **problem.facts},
                fix=set_aside(place),
            ) from None
    archives = folder / ARCHIVES
    sources = [client.get(remote, archives / remote.name).path for remote in task.files]
    with _placing(place) as building:
        if task.name == "MRPC":
            _build_mrpc(sources, building)
        elif sources[0].suffix == ".zip":
            _unpack(sources[0], task, building)
        else:
            shutil.copy(sources[0], building)
        _count_all(task, building)
    for source in sources:
        source.unlink()
    if not any(archives.iterdir()):
        archives.rmdir()
    return _fetched(task, place, new=True)


@contextmanager
def _placing(place: Path) -> Iterator[Path]:
    """A folder that takes its place when the block ends well."""
    building = place.with_name(f".{place.name}.{os.getpid()}.part")
    building.mkdir()
    try:
        yield building
        building.rename(place)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _unpack(archive: Path, task: TaskArchive, building: Path) -> None:
    """The task's files, out of the one folder that the archive has, without what else is in it."""
    try:
        with zipfile.ZipFile(archive) as packed:
            members = {Path(name).name: name for name in packed.namelist() if name.count("/") == 1}
            for name in task.rows:
                if name not in members:
                    raise DataError(f"{archive.name} holds no {name}", facts={"file": archive})
                with packed.open(members[name]) as source, (building / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    except zipfile.BadZipFile as problem:
        fix = f"rm {in_shell(archive)}"
        raise DataError(f"{archive} cannot be unpacked", facts={"why": problem}, fix=fix) from None


def _build_mrpc(sources: list[Path], building: Path) -> None:
    """Microsoft's pairs as GLUE has them: those with listed ids are the development set."""
    train, test, dev_ids = sources
    held_out = {tuple(line.split("\t")) for line in _lines(dev_ids)}
    rows = [line.split("\t") for line in _lines(train)[1:]]
    for name, wanted in (("train.tsv", False), ("dev.tsv", True)):
        chosen = [row for row in rows if ((row[1], row[2]) in held_out) is wanted]
        _write(building / name, [MRPC_HEADER, *chosen])
    tested = [[str(number), *line.split("\t")[1:]] for number, line in enumerate(_lines(test)[1:])]
    _write(building / "test.tsv", [("index", *MRPC_HEADER[1:]), *tested])


def _lines(path: Path) -> list[str]:
    """Lines that are not empty; only a newline ends one."""
    return [line for line in path.read_text(encoding="utf-8-sig").split("\n") if line]


def _write(path: Path, rows: list[tuple[str, ...] | list[str]]) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def _fetched(task: TaskArchive, place: Path, *, new: bool) -> Fetched:
    rows = _count_all(task, place)
    size = sum(path.stat().st_size for path in place.iterdir())
    return Fetched(place, size, new, f"{'sha256, ' if new else ''}{rows} rows")


def _count_all(task: TaskArchive, place: Path) -> int:
    """Rows of all files of a task.

    Raises:
        DataError: a file is missing, or has not the number of rows that it should have.
    """
    for name, need in task.rows.items():
        path = place / name
        if not path.is_file():
            raise DataError(f"{task.name} has no {name}", facts={"folder": place})
        have = count_rows(path, HEADERS.get((task.name, name)))
        if have != need:
            raise DataError(f"{task.name}'s {name} has the wrong number of rows", facts={"need": need, "have": have})
    return sum(task.rows.values())


def count_rows(path: Path, columns: Sequence[str] | None = None) -> int:
    """Rows with all columns, which the first line names, if nothing else does.

    A quote is a character like any other, and a row ends where its line does.
    """
    with path.open(encoding="utf-8-sig") as stream:
        need = len(columns) if columns else stream.readline().count("\t") + 1
        return sum(line.count("\t") + 1 >= need for line in stream)
