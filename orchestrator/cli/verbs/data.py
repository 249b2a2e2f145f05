"""data: what runs are fed with."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.cli.ui import completers
from orchestrator.cli.ui.arguments import add_group, add_output, add_verb
from orchestrator.cli.ui.terminal import hint, print_document, print_result, table
from orchestrator.support.formatting import bytes_text
from orchestrator.support.home import home_folder

BAR = 40
SHORT = 100  # characters of a sentence

PUBLISHED = ("glue", "squad", "wikipedia")


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the parser."""
    actions = add_group(
        verbs,
        "data",
        summary="fetch data, look at prepared text",
        description="Get hold of data that runs are fed with, and look at it.",
        example="data fetch glue:MRPC",
    )
    _add_fetch(actions)
    add_actions(actions)


def _add_fetch(actions: Any) -> None:
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

    from orchestrator.cli.ui.transfer import TransferLine
    from orchestrator.fetch import fetch

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


def add_actions(actions: Any) -> None:
    """Adds the actions to the verb group."""
    show = add_verb(
        actions,
        "show",
        run_show,
        summary="what is in a token store",
        description="What is in a token store: its sources, how long sentences and documents are, some documents, and"
        " an example as training sees it.",
        example="data show stores/wiki --png lengths.png",
    )
    show.add_argument("store", type=Path, metavar="STORE", help="folder of a token store")
    show.add_argument("--png", type=Path, metavar="FILE", help="write the lengths as a picture too")
    show.add_argument("--samples", type=int, default=3, metavar="N", help="documents to show (default: 3)")
    show.add_argument("--sequence-length", type=int, default=64, metavar="N", help="of the example (default: 64)")
    add_output(show)
    verify = add_verb(
        actions,
        "verify",
        run_verify,
        summary="check a token store",
        description="Check every byte of a token store: checksums, counts, offsets, ids, vocabulary. Names whatever is"
        " not as it was written; the exit code is then 1.",
        example="data verify stores/wiki",
    )
    verify.add_argument("store", type=Path, metavar="STORE", help="folder of a token store")
    add_output(verify)


def run_show(arguments: argparse.Namespace) -> int:
    """Prints what is in it."""
    words = ["--samples", str(arguments.samples), "--sequence-length", str(arguments.sequence_length)]
    found = _ask("show", *words, str(arguments.store))
    if arguments.png:
        from orchestrator.reports.pages.length_chart import draw_lengths

        draw_lengths(found["lengths"], arguments.png)
    print_result(arguments.output, found, lambda: "\n".join(_lines(found)))
    if arguments.png:
        hint(f"written: {arguments.png}")
    return 0


def run_verify(arguments: argparse.Namespace) -> int:
    """Prints what is wrong with it."""
    found = _ask("verify", str(arguments.store))
    if arguments.output != "text":
        print_document(found, arguments.output)
    elif found["valid"]:
        print(f"valid: {found['folder']}")
    else:
        print("\n".join(found["problems"]))
        fix = f"rm -r {shlex.quote(found['folder'])}, and prepare it again"
        hint(f"\n{found['folder']} is not as it was written\n  fix  {fix}")
    return 0 if found["valid"] else 1


def _ask(*words: str) -> Any:
    """What `python -m train_jobs.tools.stores` says.

    Raises:
        UserError: what it met.
    """
    from orchestrator.support.errors import ServiceError
    from train_jobs.config import errors

    command = [sys.executable, "-m", "train_jobs.tools.stores", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.splitlines()[-1:] or ["nothing"]
        raise ServiceError("cannot look into the store", facts={"says": last[0]}, fix=shlex.join(command)) from None
    if "error" not in found:
        return found
    error = found["error"]
    kinds = {kind.kind: kind for kind in (errors.DataError, errors.StorageError, errors.SpecError)}
    raise kinds.get(error["kind"], errors.DataError)(error["message"], facts=error["facts"], fix=error["fix"])


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """All of it for people."""
    manifest = found["manifest"]
    size = sum(shard["size"] for shard in manifest["shards"])
    yield found["folder"]
    yield f"  key         {manifest['key']}, text sha256 {manifest['data']['sha256'][:8]}"
    yield f"  shards      {len(manifest['shards'])}, {bytes_text(size)}"
    case = "lower case" if manifest["lowercase"] else "cased"
    yield f"  vocabulary  {manifest['vocab_size']:,} pieces, {case}, sha256 {manifest['vocab_sha256'][:8]}"
    yield f"  entropy     {manifest['validation_unigram_entropy']:.4f} nats (of validation's single tokens)"
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
