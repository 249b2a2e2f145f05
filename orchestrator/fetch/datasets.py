"""Data that `data fetch` can fetch: dumps of Wikipedia, GLUE, SQuAD and models of the Hugging Face Hub.

The bytes of an interrupted fetch are kept next to the target, and the same command resumes there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from orchestrator.fetch.glue_archives import fetch_glue
from orchestrator.fetch.http import Client, Transfer
from orchestrator.fetch.remote_file import PARTIAL, Checksum, Fetched, Remote, new_folder, partial_files, public_address
from orchestrator.support.errors import ConflictError, DataError, NotFoundError, UsageError
from train_jobs.artifacts.hub import hub_folder, is_hub_name
from train_jobs.artifacts.layers import build, merge, read_file
from train_jobs.config.errors import in_shell, rename_command
from train_jobs.config.fields import Config
from train_jobs.config.tasks import SQUAD_1, SQUAD_2, TASKS

LATEST = "latest"
SHIPPED = Path(__file__).with_name("mirrors.yaml")
# The index first: it is small, and with it many processes can read the dump.
DUMP_FILES = ("pages-articles-multistream-index.txt.bz2", "pages-articles-multistream.xml.bz2")
SQUAD_FILES = {
    version: tuple(TASKS[task].files.values()) for version, task in {"v1.1": SQUAD_1, "v2.0": SQUAD_2}.items()
}
HUB_ENDPOINT = "HF_ENDPOINT"
_LANGUAGE = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_DATE = re.compile(r"20\d{6}")
_SUM = re.compile(r"([0-9a-f]{40})\s+\*?(\S+)")


class Mirrors(Config):
    """mirrors.yaml, the shipped one and the user's in the home folder."""

    wikipedia: list[str] = Field(default=[], min_length=1)
    """Addresses with a folder for each wiki."""
    glue: list[str] = Field(default=[], min_length=1)
    """Addresses with GLUE's archives."""
    squad: list[str] = Field(default=[], min_length=1)
    """Addresses with SQuAD's files."""


def fetch(
    name: str,
    *,
    to: Path | None = None,
    mirrors: Sequence[str] = (),
    home: Path | None = None,
    date: str = LATEST,
    transfer: Transfer | None = None,
) -> list[Fetched]:
    """Fetch data by name; existing files that verify are kept.

    Args:
        name: `wikipedia`, `wikipedia:LANGUAGE`, `glue`, `glue:TASK`, `squad`, `squad:VERSION`, or a model on the Hub.
        to: target folder; the default is `data/NAME`, for a model the Hub's cache.
        mirrors: addresses to use instead of the configured ones, the preferred one first.
        home: the user's folder, whose mirrors.yaml precedes the shipped one.
        date: of a Wikipedia dump, YYYYMMDD. The default continues an interrupted dump, or takes the newest.
        transfer: timeouts, retries, and functions to call with progress and notices; None: the defaults.

    Raises:
        UsageError: unknown name, or a date for data without dates.
        UserError: an error of the network, the data or the disk.
    """
    what, _, part = name.partition(":")
    if date != LATEST and what != "wikipedia":
        raise UsageError(f"cannot use --date: {what} has no dates", fix=f"orchestrator data fetch {name}")
    if what not in Mirrors.model_fields:
        return [_fetch_model(name, to, mirrors)]
    folder = to or Path("data", what)
    with Client(tuple(mirrors) or mirrors_of(what, home), transfer or Transfer()) as client:
        if what == "wikipedia":
            return _fetch_wikipedia(client, folder, part or "en", date)
        return (fetch_glue if what == "glue" else _fetch_squad)(client, folder, part)


def mirrors_of(what: str, home: Path | None) -> tuple[str, ...]:
    """Return the addresses that have some data, those of the user's mirrors.yaml first.

    Raises:
        SpecError: the user's file is wrong, with file and line.
    """
    layers = [read_file(SHIPPED)]
    if home is not None and (own := home / SHIPPED.name).is_file():
        layers.append(read_file(own))
        build(Mirrors, merge(layers))
    return tuple(dict.fromkeys(address for layer in reversed(layers) for address in layer.tree.get(what, [])))


def _fetch_wikipedia(client: Client, folder: Path, language: str, date: str) -> list[Fetched]:
    """Fetch the index and the dump, and compare each with the list of SHA-1 sums that is published with them.

    Args:
        client: of the mirrors.
        folder: target folder.
        language: as in the address of that Wikipedia: `en`, `zh-min-nan`, `simple`.
        date: YYYYMMDD, or `latest`: the newest, or an older one whose fetch was interrupted.

    Raises:
        UsageError: invalid language or date.
        UserError: see `Client.get`.
    """
    if not _LANGUAGE.fullmatch(language):
        raise UsageError(f"invalid language of a Wikipedia {language!r}", fix="orchestrator data fetch wikipedia:de")
    if date != LATEST and not _DATE.fullmatch(date):
        raise UsageError(
            f"invalid --date {date!r}: not of the form YYYYMMDD", fix="--date 20260101, or none for the newest"
        )
    wiki = f"{language.replace('-', '_')}wiki"
    begun = _interrupted_date(folder, wiki) if date == LATEST else None
    remotes = _dump_files(client, wiki, date) if begun is None else _continued(client, folder, wiki, begun)
    return [client.get(remote, folder / remote.name) for remote in remotes]


def _interrupted_date(folder: Path, wiki: str) -> str | None:
    """Return the date of the newest dump whose fetch into a folder was interrupted; None: no fetch was."""
    dates = {date for path in folder.glob(f".{wiki}-*{PARTIAL}") for date in _DATE.findall(path.name)}
    return max((date for date in dates if any(map(partial_files, _dump_paths(folder, wiki, date)))), default=None)


def _dump_paths(folder: Path, wiki: str, date: str) -> list[Path]:
    return [folder / f"{wiki}-{date}-{ending}" for ending in DUMP_FILES]


def _continued(client: Client, folder: Path, wiki: str, begun: str) -> list[Remote]:
    """Return the files of an interrupted dump, or of the newest one if the mirrors do not have the former."""
    paths = _dump_paths(folder, wiki, begun)
    # An index without its dump is useless.
    unfinished = [path for path in paths if path.exists() and not paths[-1].exists()]
    delete = " ".join(map(in_shell, ["rm", *unfinished, *(file for path in paths for file in partial_files(path))]))
    try:
        remotes = _dump_files(client, wiki, begun)
    except NotFoundError:
        remotes = _dump_files(client, wiki, LATEST)
        if remotes[0].path != f"{wiki}/{begun}/{paths[0].name}":
            client.transfer.notice(f"no mirror has the interrupted dump of {begun}; delete it: {delete}")
    else:
        client.transfer.notice(
            f"continuing the interrupted dump of {begun}; for the newest, give its --date, or first: {delete}"
        )
    return remotes


def _dump_files(client: Client, wiki: str, date: str) -> list[Remote]:
    """Return the published index and dump of a wiki.

    Raises:
        UserError: no mirror has a dump of this date, or the dump is not finished.
    """
    listing = f"{wiki}/{date}/{wiki}-{date}-sha1sums.txt"
    try:
        sums = {match[2]: match[1] for match in _SUM.finditer(client.text(listing))}
    except NotFoundError as problem:
        fix = f"choose one of {public_address(client.mirrors[0])}/{wiki}/"
        raise NotFoundError(f"no dump {wiki} of {date}", facts=problem.facts, fix=fix) from problem
    found = []
    for ending in DUMP_FILES:
        # file names contain the date of the dump, even in the list of `latest`: the fetched file keeps its real date
        pattern = re.compile(rf"{re.escape(wiki)}-(20\d{{6}})-{re.escape(ending)}")
        match = next(filter(None, map(pattern.fullmatch, sums)), None)
        if match is None:
            raise DataError(
                f"{listing} does not list {wiki}-DATE-{ending}",
                facts={"lists": f"{len(sums)} files"},
                fix="the dump may not be finished yet: --date YYYYMMDD of an earlier one",
            )
        found.append(Remote(f"{wiki}/{match[1]}/{match[0]}", Checksum("sha1", sums[match[0]])))
    return found


def _fetch_squad(client: Client, folder: Path, version: str) -> list[Fetched]:
    """Fetch one version of SQuAD, or both, and count the questions.

    Raises:
        UsageError: unknown version.
        UserError: see `Client.get`; or a file has another number of questions.
    """
    if version and version not in SQUAD_FILES:
        first = next(iter(SQUAD_FILES))
        raise UsageError(f"unknown version {version!r} of SQuAD", fix=f"orchestrator data fetch squad:{first}")
    found = []
    for file in (file for known, files in SQUAD_FILES.items() if version in {"", known} for file in files):
        [name] = file.paths
        fetched = client.get(Remote(name, Checksum("sha256", file.sha256 or ""), file.size), folder / name)
        articles = json.loads(fetched.path.read_bytes())["data"]
        have = sum(len(paragraph["qas"]) for article in articles for paragraph in article["paragraphs"])
        if have != file.rows:
            facts = {"need": file.rows, "have": have}
            raise DataError(f"{fetched.path} has the wrong number of questions", facts=facts)
        found.append(Fetched(fetched.path, fetched.bytes, fetched.new, f"{fetched.checked}, {have} questions"))
    return found


def _fetch_model(name: str, to: Path | None, mirrors: Sequence[str]) -> Fetched:
    """Download a model to the Hub's cache, where every job finds it by its name; with `to`, copy it there too.

    Raises:
        UsageError: unknown name.
        SpecError: see `hub_folder`.
        ConflictError: `to` exists.
    """
    if not is_hub_name(name):
        raise UsageError(
            f"cannot fetch {name!r}: unknown name",
            fix="orchestrator data fetch wikipedia, glue, squad, or a model as OWNER/NAME",
        )
    if mirrors:
        os.environ[HUB_ENDPOINT] = mirrors[0]  # the Hub's client reads it on import, which `hub_folder` does
    if to is not None and to.exists():
        raise ConflictError(f"{to} already exists", fix=f"{rename_command(to)}, or another --to")
    place = folder = hub_folder(name)
    if to is not None:
        with new_folder(to) as building:
            shutil.copytree(folder, building, dirs_exist_ok=True)  # symlinks of the cache become files
        place = to
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    return Fetched(place, size, new=to is not None, checked="by the Hub's client")
