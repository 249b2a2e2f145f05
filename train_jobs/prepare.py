"""Prepare text for training: extract documents, train a vocabulary, tokenise, split, and write a token store.

    python -m train_jobs.prepare --config uncased --set data.text=[dumps/] --set store=stores/wiki
    torchrun --nnodes 4 --node-rank $NODE_RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT \\
        --nproc-per-node 1 -m train_jobs.prepare --config job.yaml    # on each of 4 nodes, which share the work

--config takes a YAML or JSON file or the name of a shipped recipe: cased, uncased. Each process starts data.workers
worker processes. On several nodes they are those of a Dask cluster, whose scheduler the first node runs. With
--set data.executor=dask one node runs such a cluster too, and data.executor.scheduler names an existing one. The same
command again resumes an interrupted preparation:

    STORE/manifest.json  counts, checksums, sources; written last: a folder without it is not a store
    STORE/parts/         finished steps; removed when the store is complete, unless keep_steps is set
    out/metrics.jsonl    metrics                    out/result.json    final figures

Exit codes: 0 done, 75 stopped by SIGTERM, 130 by Ctrl-C, 2 invalid input, 8 this machine cannot run it, 1 any
other error.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.artifacts.layers import (
    PREPARE_RECIPES,
    build,
    config_layers,
    preset_names,
    read_assignments,
)
from train_jobs.artifacts.lineage import METRICS_FILE
from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.artifacts.source_mixture import held_out_warnings
from train_jobs.artifacts.start_model import merge_with_words
from train_jobs.artifacts.store_manifest import store_warnings, sum_counts
from train_jobs.artifacts.store_places import store_path
from train_jobs.artifacts.text_files import require_outside
from train_jobs.config import PrepareConfig, SpecError
from train_jobs.corpus.executors.node import Node
from train_jobs.corpus.pipeline import PreparationProgress
from train_jobs.corpus.preparation import StoreOptions, make_store
from train_jobs.corpus.steps.records import store_key
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.reporting.metrics import MetricsLog
from train_jobs.engine.reporting.system_metrics import SystemMonitor
from train_jobs.engine.runtime import boundary, storage
from train_jobs.engine.runtime.allocator import keep_freed_arrays
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.tools.mirror import MirrorThread

KEPT = "finished parts are kept, the same command resumes"
SHOWN_LENGTHS = (128, 512)
HASHES = "hashes.json"  # in the folder of token stores: content hashes of files


def prepare(config: PrepareConfig, *, output: Path, cache: Path, node: Node) -> TokenStore:
    """Run the complete job in this process and return the store.

    Args:
        config: validated configuration.
        output: folder of the run; the leading node writes figures to it.
        cache: folder of token stores, with content hashes, and with the store unless the configuration names a folder.
        node: this process among those that share the work.

    Raises:
        UserError: input or environment that the user can fix.
    """
    started = time.monotonic()
    _require_outside_of_text(config, output, cache)
    storage.require_writable(output)
    found = fingerprint(config.data.text, cache / HASHES)
    folder = store_path(config.store or cache / store_key(config.data, found))
    metrics = MetricsLog(output / METRICS_FILE if node.leads else None)
    mirror = MirrorThread(output / METRICS_FILE, config)
    metrics.open(from_step=sys.maxsize)  # keep the reports of earlier starts
    if node.leads:
        mirror.start()
    store: TokenStore | None = None
    try:
        reports = [report for _, report in read_reports(output / METRICS_FILE)] if node.leads else []
        before = max((report["metrics"].get("seconds", 0.0) for report in reports), default=0.0)

        def report_part(parts: int, figures: Mapping[str, float]) -> None:
            # with the time of all starts: the next start continues from the last one
            metrics.report(parts, {**figures, "seconds": before + time.monotonic() - started})

        progress = PreparationProgress(log, report_part)
        local = node.local_size
        with SystemMonitor(output, node=node.rank // local, nodes=node.size // local, on=node.rank % local == 0):
            store = make_store(
                config.data,
                folder,
                found=found,
                progress=progress,
                hashes=cache / HASHES,
                node=node,
                # a folder that is named by its content can only have an older version of it, or a damaged one
                options=StoreOptions(replace=config.store is None, keep_steps=config.keep_steps, is_preparation=True),
            )
        if node.leads:
            # else a start was killed before it could end
            reported = any("dropped" in report["metrics"] for report in reports)
            figures = result(store, seconds=before if reported else before + time.monotonic() - started)
            if (slowest := progress.slowest_source()) is not None:
                figures["slowest_source"], figures["slowest_source_mb_per_second"] = slowest[0], slowest[1] / 1e6
            if not reported:
                # A start that finds the finished store counts no part: the step is that of the last one counted.
                step = max([progress.parts, *(report["step"] for report in reports)])
                metrics.report(step, {key: value for key, value in figures.items() if not isinstance(value, str)})
            storage.write_json(output / "result.json", figures)
            for line in text_use(store):
                log(line)
            log(f"prepared {folder}")
    finally:
        metrics.close()
        if node.leads:
            mirror.close(completed=store is not None)
    return store


def _require_outside_of_text(config: PrepareConfig, output: Path, cache: Path) -> None:
    """Refuse folders of results below a folder of the text, which would read them as text."""
    for place, what, fix in (
        (config.store, "the store", "--set store=PATH outside of it"),
        (output, "the output", "--output PATH outside of it"),
        (cache, "the folder of stores", "--cache PATH outside of it"),
    ):
        if place is not None:
            require_outside(config.data.text, place, what=what, fix=fix)


def result(store: TokenStore, *, seconds: float) -> dict[str, Any]:
    """Return the figures of result.json.

    Args:
        store: the finished store.
        seconds: duration of the job, over all of its starts.
    """
    manifest = store.manifest
    counts, text_bytes = sum_counts(manifest.splits.values()), manifest.data.total_bytes
    return {
        "store": str(store.folder),
        **counts.model_dump(include={"documents", "sentences", "tokens"}),
        "dropped": sum(sum(source.dropped.values()) for source in manifest.sources),
        "bytes": text_bytes,
        "seconds": round(seconds, 1),
        "mb_per_second": text_bytes / 1e6 / max(seconds, 1e-3),
    }


def text_use(store: TokenStore) -> Iterator[str]:
    """Yield lines for the log: how BERT's sentence pairs use the text, and warnings."""
    for one in store.manifest.sequences:
        if one.layout == "pairs" and one.sequence_length in SHOWN_LENGTHS:
            yield f"sentence pairs: {one.text()}"
    warnings = *held_out_warnings(store.manifest), *store_warnings(store.manifest)
    yield from (f"warning: {warning}" for warning in warnings)


def log(text: str) -> None:
    """Print a line and flush it, since stdout of a job is usually a file or a pipe."""
    print(text, flush=True)


def read_config(source: str, sets: list[str]) -> PrepareConfig:
    """Read a file or a shipped recipe; `a.b=c` assignments override it.

    Args:
        source: path of a YAML or JSON file, or name of a recipe.
        sets: assignments.

    Raises:
        SpecError: keys or values are invalid; the error lists all of them.
    """
    layers, _ = config_layers(source, PREPARE_RECIPES)
    found = merge_with_words(layers, [read_assignments(sets, "--set")])
    if found.problems:
        raise SpecError("cannot read the words to add", problems=list(found.problems))
    return build(PrepareConfig, found.merged)


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the job and return an exit code."""
    recipes = preset_names(PREPARE_RECIPES)
    parser = boundary.job_parser("prepare", __doc__, recipes=recipes, device="no effect: for launchers")
    parser.add_argument("--cache", type=Path, help="folder of token stores (default: OUTPUT/token-stores)")
    arguments = parser.parse_args(argv)
    cache = arguments.cache or arguments.output / "token-stores"
    node = Node.from_environment(os.environ)
    keep_freed_arrays()

    def job() -> None:
        stop = StopRequest()
        stop.listen()
        with stop.interruptible(KEPT):
            prepare(read_config(arguments.config, arguments.sets), output=arguments.output, cache=cache, node=node)

    return boundary.run(job, arguments.output, resume_hint=KEPT)


if __name__ == "__main__":
    boundary.exit_process(main())
