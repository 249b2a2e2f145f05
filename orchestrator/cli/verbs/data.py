"""data: what runs are fed with."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, TextIO

PUBLISHED = ("glue", "squad", "wikipedia")
SECONDS_BETWEEN = 0.2  # progress on a terminal, in place
SECONDS_BETWEEN_LINES = 30.0  # elsewhere, a line each
WORTH_SHOWING = 2.0  # seconds that a file may take without a word


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the parser."""
    from orchestrator.cli import stores
    from orchestrator.cli.ui.arguments import add_group

    actions = add_group(
        verbs,
        "data",
        summary="fetch data, look at prepared text",
        description="Get hold of data that runs are fed with, and look at it.",
        example="data fetch glue:MRPC",
    )
    _add_fetch(actions)
    stores.add_actions(actions)


def _add_fetch(actions: Any) -> None:
    from orchestrator.cli.ui import completers
    from orchestrator.cli.ui.arguments import add_output, add_verb

    fetch = add_verb(
        actions,
        "fetch",
        run_fetch,
        summary="fetch Wikipedia, GLUE, SQuAD or a model",
        description="Fetch data from where it is published: whole and checked, or not at all. Interrupted, the same"
        " command goes on from where it stopped; what is there already is checked and left alone. Prints the paths."
        " Proxies are taken from HTTPS_PROXY; where to look, from mirrors.yaml in the orchestrator's folder.",
        example="data fetch wikipedia:de --to dumps/",
    )
    what = fetch.add_argument(
        "what",
        metavar="NAME",
        help="wikipedia[:LANGUAGE], glue[:TASK], squad[:VERSION], or a model on the Hugging Face Hub",
    )
    completers.attach(what, lambda **_: list(PUBLISHED))
    fetch.add_argument("--to", type=Path, metavar="DIR", help="where to (default: data/NAME; a model: the Hub's cache)")
    fetch.add_argument(
        "--mirror",
        dest="mirrors",
        action="append",
        default=[],
        metavar="URL",
        help="look here instead of at the configured places; may be repeated",
    )
    fetch.add_argument("--date", default="latest", metavar="YYYYMMDD", help="of a Wikipedia dump (default: the newest)")
    add_output(fetch)


def run_fetch(arguments: argparse.Namespace) -> int:
    """Fetches, prints where to."""
    import os

    from orchestrator.cli.ui.render import hint, print_document
    from orchestrator.fetch import fetch
    from orchestrator.support.home import home_folder

    progress = TransferLine(sys.stderr)

    def notice(sentence: str) -> None:
        progress.end()
        hint(sentence)

    try:
        found = fetch(
            arguments.what,
            to=arguments.to,
            mirrors=arguments.mirrors,
            home=home_folder(os.environ),
            date=arguments.date,
            progress=progress,
            notice=notice,
        )
    except KeyboardInterrupt:
        progress.end()
        hint("what has come is kept: the same command goes on from there")
        raise
    finally:
        progress.end()
    if arguments.output != "text":
        files = [
            {"path": str(file.path), "bytes": file.bytes, "new": file.new, "checked": file.checked} for file in found
        ]
        print_document({"name": arguments.what, "files": files}, arguments.output)
        return 0
    print("\n".join(str(file.path) for file in found))
    for file in found:
        hint(f"{file.path.name}: {'fetched' if file.new else 'was there'}, checked: {file.checked}")
    return 0


class TransferLine:
    """How far a file is, how fast it comes, when it will be there: in place on a terminal, else a line now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._name = ""
        self._began = self._last = 0.0
        self._before = 0  # bytes that were there when it began
        self._open = False

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """Shows a file's state, unless that was done a moment ago."""
        now = time.monotonic()
        if name != self._name or done < self._before:
            self.end()
            self._name, self._before, self._began, self._last = name, done, now, now
        often = SECONDS_BETWEEN if self._live else SECONDS_BETWEEN_LINES
        if now - self._began < WORTH_SHOWING or (now - self._last < often and done != total):
            return
        self._last = now
        text = self._text(done, total, now - self._began)
        self._stream.write(f"\r\x1b[K{text}" if self._live else f"{text}\n")
        self._stream.flush()
        self._open = self._live

    def end(self) -> None:
        """Ends a line that is shown in place."""
        if self._open:
            self._stream.write("\n")
            self._stream.flush()
            self._open = False

    def _text(self, done: int, total: int | None, seconds: float) -> str:
        from orchestrator.cli.ui.render import duration
        from orchestrator.support.formatting import bytes_text

        speed = (done - self._before) / seconds
        amount = bytes_text(done) + (f" of {bytes_text(total)}" if total else "")
        text = f"{self._name}: {amount}, {speed / 1e6:.1f} MB/s"
        return f"{text}, {duration((total - done) / speed)} left" if total and speed > 0 else text
