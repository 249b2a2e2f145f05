"""Prepares text for training: documents, vocabulary, tokens, split; a token store in the end. Reads top to bottom.

    python -m train_jobs.prepare --config uncased --set data.text=[dumps/] --set store=stores/wiki
    torchrun --nnodes 4 --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT \\
        --nproc-per-node 1 -m train_jobs.prepare --config job.yaml    # on each of 4 nodes, which share the work

--config takes a YAML or JSON file or the name of a shipped recipe: cased, uncased. Each process starts data.workers
more of its own. The same command again goes on where the last one was, whatever ended that:

    STORE/manifest.json  counts, checksums, sources; written last: a folder without it is no store
    STORE/parts/         what is done so far; goes when the store is complete, unless keep_steps
    out/metrics.jsonl    what is reported           out/result.json    final figures

Exit codes: 0 done, 75 stopped by SIGTERM, 130 by Ctrl-C, 2 wrong input, 1 anything else.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.artifacts.layers import (
    PREPARE_RECIPES,
    build,
    config_layers,
    merge,
    preset_names,
    read_assignments,
)
from train_jobs.artifacts.lineage import METRICS_FILE
from train_jobs.artifacts.text_files import require_outside
from train_jobs.config import PrepareConfig
from train_jobs.corpus.executors.freed_memory import keep_freed_memory
from train_jobs.corpus.executors.nodes import Node
from train_jobs.corpus.preparation import make_store
from train_jobs.corpus.preparation_progress import Progress
from train_jobs.corpus.steps.keys import store_key
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.reporting.metrics import MetricsLog
from train_jobs.engine.runtime import boundary, storage
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.tools.mirror import MirrorThread

KEPT = "what is done is kept, the same command goes on from there"
HASHES = "hashes.json"  # in the folder of token stores: content hashes of files read before


def prepare(config: PrepareConfig, *, output: Path, cache: Path, node: Node) -> TokenStore:
    """The whole job on this process.

    Args:
        config: validated configuration.
        output: folder of the run; the leading node writes figures to it.
        cache: folder of token stores, for content hashes, and for the store if the configuration names no place.
        node: who we are among those that share the work.

    Raises:
        UserError: input or environment that the user can mend.
    """
    started = time.monotonic()
    for place, what, fix in (
        (config.store, "the store", "--set store=PATH outside of it"),
        (output, "the output", "--output PATH outside of it"),
        (cache, "the folder of stores", "--cache PATH outside of it"),
    ):
        if place is not None:
            require_outside(config.data.text, place, what=what, fix=fix)
    storage.require_writable(output)
    found = fingerprint(config.data.text, cache / HASHES)
    folder = config.store or cache / store_key(config.data, found)
    metrics = MetricsLog(output / METRICS_FILE if node.leads else None)
    mirror = MirrorThread(output / METRICS_FILE, config)
    metrics.open(from_step=sys.maxsize)  # reports of an earlier start stay
    if node.leads:
        mirror.start()
    store: TokenStore | None = None
    try:
        progress = Progress(say, metrics.report)
        store = make_store(
            config.data,
            folder,
            found=found,
            progress=progress,
            hashes=cache / HASHES,
            node=node,
            keep_steps=config.keep_steps,
        )
        if node.leads:
            figures = result(store, seconds=time.monotonic() - started)
            metrics.report(progress.parts, {key: value for key, value in figures.items() if key != "store"})
            storage.write_json(output / "result.json", figures)
            say(f"prepared {folder}")
    finally:
        metrics.close()
        if node.leads:
            mirror.close(completed=store is not None)
    return store


def result(store: TokenStore, *, seconds: float) -> dict[str, Any]:
    """The final figures."""
    manifest = store.manifest
    text_bytes = manifest.data.total_bytes
    return {
        "store": str(store.folder),
        "documents": sum(counts.documents for counts in manifest.splits.values()),
        "sentences": sum(counts.sentences for counts in manifest.splits.values()),
        "tokens": sum(counts.tokens for counts in manifest.splits.values()),
        "dropped": sum(sum(source.dropped.values()) for source in manifest.sources),
        "bytes": text_bytes,
        "seconds": round(seconds, 1),
        "mb_per_second": text_bytes / 1e6 / max(seconds, 1e-3),
    }


def say(text: str) -> None:
    """A line for people."""
    print(text, flush=True)


def read_config(source: str, sets: list[str]) -> PrepareConfig:
    """Reads a file, or a shipped recipe by name, with `a.b=c` assignments on top.

    Raises:
        SpecError: every wrong key and value.
    """
    layers, _ = config_layers(source, PREPARE_RECIPES)
    return build(PrepareConfig, merge([*layers, read_assignments(sets, "--set")]))


def main(argv: list[str] | None = None) -> int:
    """Parses, runs, and turns what went wrong into words and an exit code."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="train_jobs.prepare",
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(preset_names(PREPARE_RECIPES))
    parser.add_argument("--config", required=True, help=f"YAML or JSON file, or one of: {names}")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="A.B=C", help="change one value")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder of the run (default: ./output)")
    parser.add_argument("--cache", type=Path, help="folder of token stores (default: OUTPUT/token-stores)")
    parser.add_argument("--device", choices=["auto", "cpu", "gpu"], default="auto", help="no effect: for launchers")
    arguments = parser.parse_args(argv)
    cache = arguments.cache or arguments.output / "token-stores"
    node = Node.from_environment(os.environ)
    keep_freed_memory()

    def job() -> None:
        stop = StopRequest()
        stop.listen()
        with stop.at_once(KEPT):
            config = read_config(arguments.config, arguments.sets)
            prepare(config, output=arguments.output, cache=cache, node=node)

    return boundary.run(job, arguments.output, kept=KEPT)


if __name__ == "__main__":
    boundary.leave(main())
