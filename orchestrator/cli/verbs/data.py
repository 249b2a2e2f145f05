"""data fetch, show, verify: fetch data, and inspect token stores."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from orchestrator.backends import backend_with
from orchestrator.backends.stored_data import KeepsData
from orchestrator.cli.ui.terminal import TransferLine, hint, print_result, table
from orchestrator.support.errors import DataError, ServiceError, SpecError, StorageError
from orchestrator.support.formatting import bytes_text
from orchestrator.support.home import home_folder
from train_jobs.artifacts.text_rule import TextRule

if TYPE_CHECKING:
    from orchestrator.backends.stored_data import DataAssets

BAR = 40  # characters of the longest bar of a histogram
SHORT = 100  # characters of a shown sentence
KINDS = {kind.kind: kind for kind in (DataError, StorageError, SpecError)}  # errors of reading a store, by kind


def fetch_data(arguments: argparse.Namespace) -> None:
    """Fetch data, and print its paths."""
    from orchestrator.fetch import Transfer, fetch  # loads `requests`, which takes 0.1 s

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
            transfer=Transfer(progress=progress, notice=notice),
        )
    except KeyboardInterrupt:
        notice("partial files are kept; repeat the command to continue")
        raise
    finally:
        progress.end()
    files = [{"path": str(file.path), "bytes": file.bytes, "new": file.new, "checked": file.checked} for file in found]
    document = {"name": arguments.what, "files": files}
    print_result(arguments.output, document, "\n".join(str(file.path) for file in found))
    for file in found if arguments.output == "text" else ():
        hint(f"{file.path.name}: {'fetched' if file.new else 'already exists'}, checked: {file.checked}")


def show(arguments: argparse.Namespace) -> None:
    """Print the contents of a token store."""
    words = ["--samples", str(arguments.samples), "--sequence-length", str(arguments.sequence_length)]
    found = _inspect("show", *words, arguments.store)
    if arguments.png:
        from orchestrator.reports.charts.drawing import draw_lengths

        draw_lengths(found["lengths"], arguments.png)
    print_result(arguments.output, found, "\n".join(_lines(found)))
    if arguments.png:
        hint(f"written: {arguments.png}")


def list_assets(arguments: argparse.Namespace) -> None:
    """Print the data assets of a workspace."""
    rows = _assets().rows()
    cells = [(row["name"], row["version"], row["type"] or "-", row["address"] or "-") for row in rows]
    print_result(arguments.output, rows, table(cells, ("NAME", "VERSION", "TYPE", "ADDRESS")) if rows else None)
    if not rows and arguments.output == "text":
        hint("no data assets yet\n  fix  orchestrator data asset create NAME FOLDER")


def show_asset(arguments: argparse.Namespace) -> None:
    """Print one version of a data asset."""
    name, _, version = arguments.name.partition(":")
    _print_asset(_assets().row(name, version or None), arguments.output)


def create_asset(arguments: argparse.Namespace) -> None:
    """Create a data asset, and print it."""
    row = _assets().create(arguments.name, arguments.source, arguments.version)
    _print_asset(row, arguments.output)
    hint(f"  use  orchestrator submit pretrain -b azure --data {row['use']}")


def _assets() -> DataAssets:
    return backend_with(KeepsData, home_folder(os.environ)).data_assets()


def _print_asset(row: dict[str, Any], style: str) -> None:
    width = max(map(len, row))
    shown = {**row, "versions": ", ".join(row["versions"])}
    print_result(
        style, row, "\n".join(f"{key:<{width}}  {'' if value is None else value}" for key, value in shown.items())
    )


def verify(arguments: argparse.Namespace) -> int:
    """Print the problems of a token store; the exit code is 1 if it has any."""
    found = _inspect("verify", arguments.store)
    text = f"valid: {found['folder']}" if found["valid"] else "\n".join(found["problems"])
    print_result(arguments.output, found, text)
    if found["valid"]:
        return 0
    if arguments.output == "text":
        fix = f"rm -r {shlex.quote(found['folder'])}, then prepare it again"
        hint(f"\n{found['folder']} does not match its manifest\n  fix  {fix}")
    return 1


def _inspect(*words: str) -> Any:
    """Return the document that `python -m train_jobs.tools.stores` prints.

    It runs as a process: of the job's code, the orchestrator may import only its config and its file formats.

    Raises:
        UserError: the error that it printed.
        ServiceError: its output is not a document.
    """
    command = [sys.executable, "-m", "train_jobs.tools.stores", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.splitlines()[-1:] or ["nothing"]
        raise ServiceError("cannot read the token store", facts={"output": last[0]}, fix=shlex.join(command)) from None
    if "error" not in found:
        return found
    error = found["error"]
    raise KINDS.get(error["kind"], DataError)(error["message"], facts=error["facts"], fix=error["fix"])


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the contents of a token store as text."""
    manifest = found["manifest"]
    size = sum(shard["size"] for shard in manifest["shards"])
    yield found["folder"]
    yield f"  key         {manifest['key']}, text sha256 {manifest['data']['sha256'][:8]}"
    yield f"  shards      {len(manifest['shards'])}, {bytes_text(size)}"
    rule = TextRule(*(manifest[key] for key in TextRule._fields))
    yield f"  vocabulary  {manifest['vocab_size']:,} pieces, {rule.words}, sha256 {manifest['vocab_sha256'][:8]}"
    yield f"  entropy     {manifest['validation_unigram_entropy']:.4f} nats (validation unigrams)"
    for split, counts in manifest["splits"].items():
        parts = (f"{counts[name]:,} {name}" for name in ("documents", "sentences", "tokens", "blocks"))
        yield f"  {split:<10}  {', '.join(parts)}"
    yield ""
    rows = [
        [
            *(source["name"], f"{source['weight']:g}", f"{source['read']:,}", f"{source['documents']:,}"),
            *(f"{source['tokens']:,}", ", ".join(f"{why} {count:,}" for why, count in source["dropped"].items())),
        ]
        for source in manifest["sources"]
    ]
    yield table(rows, ["SOURCE", "WEIGHT", "FOUND", "KEPT", "TOKENS", "DROPPED"])
    yield ""
    yield from (f"{step['name']:<10}  {step['method']}  {json.dumps(step['settings'])}" for step in manifest["steps"])
    for split, of_split in found["lengths"].items():
        for name, lengths in of_split.items():
            yield from _histogram(f"{split}: {name}", lengths)
    for number, sentences in enumerate(found["samples"], start=1):
        yield f"\ndocument {number}"
        yield from (f"  {text[:SHORT]}{'...' if len(text) > SHORT else ''}" for text in sentences)
    example = found["example"]
    yield f"\nexample, second segment {example['second_segment']}"
    yield f"  {example['text']}"
    yield f"  to predict: {', '.join(f'{place} {piece}' for place, piece in example['predict'].items())}"


def _histogram(title: str, lengths: dict[str, Any]) -> Iterator[str]:
    shares = ", ".join(f"{share} up to {value:,}" for share, value in lengths["quantiles"].items())
    yield f"\n{title}: {lengths['mean']:.1f} on average, {shares}"
    most = max(lengths["counts"])
    for first, count in zip(lengths["edges"], lengths["counts"], strict=False):
        if count:
            yield f"  {first:>7,}-  {'#' * max(1, round(BAR * count / most)):<{BAR}}  {count:,}"
