"""The newest dump of a Wikipedia, or that of a date: the articles in streams of bzip2, and their index."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.fetch.checked_file import Checksum, Fetched, Remote
from orchestrator.fetch.http import Client
from orchestrator.support.errors import DataError, NotFoundError, UsageError

NAME = "wikipedia"
LANGUAGE = "en"
LATEST = "latest"
# The index first: it is small, and with it the dump is read by many processes.
ENDS = ("pages-articles-multistream-index.txt.bz2", "pages-articles-multistream.xml.bz2")
_LANGUAGE = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_DATE = re.compile(r"20\d{6}")
_SUM = re.compile(r"([0-9a-f]{40})\s+\*?(\S+)")


def fetch_wikipedia(client: Client, folder: Path, language: str, date: str) -> list[Fetched]:
    """Fetches the index and the dump; its SHA-1 is compared with the list that is published with it.

    Args:
        client: gets files.
        folder: where to.
        language: as in the address of that Wikipedia: `en`, `zh-min-nan`, `simple`.
        date: YYYYMMDD, or `latest`.

    Raises:
        UsageError: no language, or no date.
        UserError: as of `Client.get`.
    """
    if not _LANGUAGE.fullmatch(language):
        raise UsageError(f"{language!r} is no language of a Wikipedia", fix="orchestrator data fetch wikipedia:de")
    if date != LATEST and not _DATE.fullmatch(date):
        raise UsageError(f"--date {date}: not of the form YYYYMMDD", fix="--date 20260101, or none for the newest")
    wiki = f"{language.replace('-', '_')}wiki"
    listing = f"{wiki}/{date}/{wiki}-{date}-sha1sums.txt"
    try:
        sums = {match[2]: match[1] for match in _SUM.finditer(client.text(listing))}
    except NotFoundError as problem:
        problem.message = f"there is no dump {wiki} of {date}"
        problem.args = (problem.message,)
        problem.fix = f"see which there are: {client.mirrors[0]}/{wiki}/"
        raise
    return [client.get(_remote(wiki, end, sums, listing), folder / _named(wiki, end, sums, listing)) for end in ENDS]


def _remote(wiki: str, end: str, sums: dict[str, str], listing: str) -> Remote:
    name = _named(wiki, end, sums, listing)
    date = name.split("-")[1]
    return Remote(f"{wiki}/{date}/{name}", Checksum("sha1", sums[name]))


def _named(wiki: str, end: str, sums: dict[str, str], listing: str) -> str:
    """A file's name, which has the date of the dump in it, whatever the list was asked for by."""
    pattern = re.compile(rf"{re.escape(wiki)}-20\d{{6}}-{re.escape(end)}")
    name = next(filter(pattern.fullmatch, sums), None)
    if name is None:
        raise DataError(
            f"{listing} does not list {wiki}-DATE-{end}",
            facts={"lists": f"{len(sums)} files"},
            fix="the dump may not be finished yet: --date YYYYMMDD of an earlier one",
        )
    return name
