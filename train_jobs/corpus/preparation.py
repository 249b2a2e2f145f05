"""Open the token store of a text, or make it. One store serves every training on the same text."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from train_jobs.artifacts.files import hold
from train_jobs.artifacts.fingerprints import DataFingerprint, fingerprint
from train_jobs.artifacts.store_manifest import (
    DAMAGED_FILE,
    MANIFEST_FILE,
    PARTS,
    damaged_store,
    read_manifest,
    reason_unreadable,
    store_content,
    stored_manifest,
    write_manifest,
)
from train_jobs.artifacts.store_places import StorePath, remove_folder
from train_jobs.artifacts.vocabulary_file import VOCABULARY_FILE, given_rule, read_vocabulary
from train_jobs.config.errors import ConflictError, DataError, StorageError, in_shell
from train_jobs.config.prepare import MIN_BYTES_FOR_WORKERS, TextConfig
from train_jobs.corpus.executors.base import Executor, usable_cores
from train_jobs.corpus.executors.node import ALONE, Node
from train_jobs.corpus.executors.worker_pool import WorkerPool
from train_jobs.corpus.pipeline import Preparation, PreparationProgress, Report
from train_jobs.corpus.sources.text_parts import plan_parts
from train_jobs.corpus.steps.manifest import TOKENS_METHOD, source_names
from train_jobs.corpus.steps.records import PreparationSetting, reading, store_key
from train_jobs.corpus.steps.tokenisation import given_vocabulary
from train_jobs.corpus.store.token_store import BLOCK_TOKENS, TokenStore
from train_jobs.engine.runtime.storage import storage_errors

POLL_SECONDS = 0.2
POLL_SECONDS_AT_URL = 5.0
SHARDS = "shard-*.arrow"
TORN = (f".{MANIFEST_FILE}.*.tmp", f".{SHARDS}.tmp", f".{DAMAGED_FILE}.*.tmp")
OWN_FILES = (SHARDS, VOCABULARY_FILE, MANIFEST_FILE, DAMAGED_FILE, *TORN, PARTS)


@dataclass(frozen=True)
class StoreOptions:
    """Options of making a token store."""

    replace: bool = False
    """Overwrite a store of other text or settings."""
    keep_steps: bool = False
    """Keep the files of the steps when the store is complete."""
    is_preparation: bool = False
    """The job prepares this store: of a finished one, compare the content with its hashes, as jobs that read it do, and
    delete the files of the steps unless they are kept."""
    keep_unfinished: bool = True
    """Keep what was made even if the text is unusable."""
    block_tokens: int = BLOCK_TOKENS
    """Tokens at which a block is closed, see `token_store.StoreWriter`."""
    min_worker_bytes: int = MIN_BYTES_FOR_WORKERS
    """Bytes of text above which worker processes are started."""


def equal_store(data: TextConfig, found: DataFingerprint, cache: Path) -> TokenStore | None:
    """Return a store of the same text and vocabulary that is in the cache under another key, or None.

    A first run trains a vocabulary on the text. A second run, often phase 2, receives that vocabulary as a file: its
    key differs, but the text does not have to be tokenised again.

    Args:
        data: text and settings of the store that is needed.
        found: fingerprint of `data.text`.
        cache: folder of token stores.

    Raises:
        DataError: the vocabulary file cannot be read.
    """
    if data.vocabulary is None or data.add_tokens or (rule := given_rule(data)) is None:
        return None
    wanted = store_content(
        text=found.sha256,
        reading=reading(data),
        vocabulary=hashlib.sha256(read_vocabulary(data.vocabulary)).hexdigest(),
        rule=rule,
        validation_fraction=data.validation_fraction,
        method=TOKENS_METHOD,
    )
    for folder in (path.parent for path in sorted(cache.glob(f"*/{MANIFEST_FILE}"))):
        manifest = read_manifest(folder)
        if manifest is not None and manifest.content == wanted:
            return TokenStore(folder, manifest)
    return None


def prepare_store(
    data: TextConfig,
    folder: StorePath,
    *,
    progress: Report,
    found: DataFingerprint | None = None,
    hashes: Path | None = None,
    node: Node = ALONE,
) -> TokenStore:
    """Open the token store in `folder`; make it if it is missing or has another text or other settings.

    Of several processes on one machine, one makes the store and the others wait. If it is interrupted, the next one
    resumes from its files, unless the text is unusable.

    Args:
        data: sources, cleaning rules and vocabulary.
        folder: folder of the store.
        progress: called with lines of text.
        found: fingerprint of `data.text`. None: the text is read to compute it.
        hashes: JSON file that caches content hashes, see `fingerprints.content_hashes`. None: no cache.
        node: this process among several machines that see the folder and share the work.

    Returns:
        The store, opened for reading.

    Raises:
        DataError: text or vocabulary cannot be used; the message gives the reason.
        StorageError: the folder cannot be written, or contains other files.
        PeerError: another node was lost.
    """
    return make_store(
        data,
        folder,
        found=found or fingerprint(data.text, hashes),
        progress=PreparationProgress(progress),
        hashes=hashes,
        node=node,
        options=StoreOptions(replace=True, keep_unfinished=False),
    )


def make_store(
    data: TextConfig,
    folder: StorePath,
    *,
    found: DataFingerprint,
    progress: PreparationProgress,
    hashes: Path | None = None,
    node: Node = ALONE,
    options: StoreOptions = StoreOptions(),
) -> TokenStore:
    """Return the token store in `folder`; make it together with the other nodes if it is missing.

    Args:
        data: sources, cleaning rules and vocabulary.
        folder: folder of the store, visible to all nodes.
        found: fingerprint of `data.text`.
        progress: receives lines and figures.
        hashes: see `prepare_store`.
        node: this process among the nodes.
        options: files to overwrite and to keep.

    Returns:
        The store, opened for reading.

    Raises:
        DataError: text or vocabulary cannot be used; the message gives the reason.
        StorageError: the folder cannot be written, or contains other files, or only the next start can make it again.
        ConflictError: the folder contains a store with another text or other settings.
        PeerError: another node was lost.
    """
    key = store_key(data, found)
    find = partial(TokenStore.find, folder, key)
    if options.is_preparation and node.leads and (store := find()) is not None:
        _check_content(store, node)
    if find() is None:
        given_vocabulary(data)  # refuse it now: it is used only after all text was read
        with storage_errors(_disk_of(folder), "the token store"), _exclusive(folder, node, hashes, progress):
            if find() is None:  # else another process made it while this one waited
                if node.leads:
                    if damaged := (old := stored_manifest(folder)) is not None and old.key == key:
                        progress.log(f"{reason_unreadable(folder)}: the token store in {folder} is made again")
                    _clear_folder(folder, replace=options.replace or damaged)
                    _lead(data, folder, found, progress, hashes, node, options)
                else:
                    _serve(data, folder, key, found, node, options)
    else:
        _remove_leftovers(folder, node, hashes, options)
    return TokenStore.open(folder).with_names(source_names(data))  # the key of a store leaves names out


def _check_content(store: TokenStore, node: Node) -> None:
    """Mark a damaged store, which is then made again: by this start, if no other node has found the store too.

    Raises:
        StorageError: the next start makes it again, or its disk cannot be read.
        DataError: it cannot be marked.
    """
    folder = store.folder
    if not isinstance(folder, Path):
        return  # a service compares hashes itself, and reading from it takes long
    with storage_errors(folder, "the token store"):
        damage = store.find_damage()
    is_marked = not TokenStore.exists(folder)
    if damage is not None and (node.size > 1 or not is_marked):
        raise damaged_store(folder, damage, is_remade=is_marked)


def _remove_leftovers(folder: StorePath, node: Node, hashes: Path | None, options: StoreOptions) -> None:
    """Delete what a process left that died after it wrote the manifest: the files of its steps, and its lock."""

    def remove_steps() -> None:
        if node.leads and not options.keep_steps:
            remove_folder(folder / PARTS)

    lock = _lock_file(folder, node, hashes)
    if lock is not None and lock.exists():
        with suppress(OSError), hold(lock, seconds=0, remove=True):  # held by another process, or read-only
            remove_steps()
    elif options.is_preparation:  # an earlier one may have kept them on purpose, and this one does not
        remove_steps()


def _lead(
    data: TextConfig,
    folder: StorePath,
    found: DataFingerprint,
    progress: PreparationProgress,
    hashes: Path | None,
    node: Node,
    options: StoreOptions,
) -> None:
    """Run all steps and write the manifest."""
    setting = PreparationSetting(data=data, store=folder, folder=folder / PARTS, block_tokens=options.block_tokens)
    setting.folder.mkdir(parents=True, exist_ok=True)
    key, parts = store_key(data, found), plan_parts(data.text)
    try:
        with _executor(setting, key, found, node, options, progress) as executor:
            manifest = Preparation(setting, found, key, parts, executor, progress, hashes).make()
    except DataError:
        if not options.keep_unfinished and not (folder / MANIFEST_FILE).exists():
            remove_folder(folder)  # under the lock: no other process is writing here
        raise
    listed = {shard.file for shard in manifest.shards}
    for path in [path for pattern in (SHARDS, DAMAGED_FILE, *TORN) for path in folder.glob(pattern)]:
        if path.name not in listed:
            path.unlink()  # of an earlier text or a damaged store, or from a process that died while writing
    # Last of all: a reader accepts the folder as soon as the manifest exists.
    write_manifest(folder, manifest)
    if not options.keep_steps:
        remove_folder(folder / PARTS)
    counts = manifest.splits.items()
    progress.log(", ".join(f"{split}: {count.documents} documents, {count.tokens} tokens" for split, count in counts))


def _executor(
    setting: PreparationSetting,
    key: str,
    found: DataFingerprint,
    node: Node,
    options: StoreOptions,
    progress: PreparationProgress,
) -> Executor:
    """Return what runs the tasks.

    Args:
        setting: settings of the tasks; the folders exist.
        key: key of the store.
        found: fingerprint of the text.
        node: this process; it leads.
        options: options of making the store.
        progress: receives lines of text.
    """
    config, workers = setting.data.executor, _workers(setting.data, node)
    # Imported here, because Dask takes most of a second to import, and most preparations do without it.
    if config.is_existing:
        from train_jobs.corpus.executors.dask_cluster import ExistingCluster
        from train_jobs.corpus.executors.dask_executor import DaskExecutor

        return DaskExecutor(setting, ExistingCluster(config), progress.log)
    least = options.min_worker_bytes
    if isinstance(setting.folder, Path) and config.starts_cluster(node.size, found.total_bytes, at_least=least):
        from train_jobs.corpus.executors.dask_cluster import OwnCluster
        from train_jobs.corpus.executors.dask_executor import DaskExecutor

        cluster = OwnCluster(setting.folder, node, key, workers, config.dashboard)
        return DaskExecutor(setting, cluster, progress.log)
    return WorkerPool(setting, workers, min_bytes=least)


def _serve(
    data: TextConfig, folder: StorePath, key: str, found: DataFingerprint, node: Node, options: StoreOptions
) -> None:
    """Wait until the node that leads has completed the store, and run workers for it if they share the work."""

    def complete() -> bool:
        return TokenStore.find(folder, key) is not None

    least = options.min_worker_bytes
    if isinstance(folder, Path) and data.executor.starts_cluster(node.size, found.total_bytes, at_least=least):
        from train_jobs.corpus.executors.dask_cluster import serve

        serve(folder / PARTS, node, key, _workers(data, node), complete)
    while not complete():  # the launcher ends this process if the node that leads dies
        time.sleep(POLL_SECONDS if isinstance(folder, Path) else POLL_SECONDS_AT_URL)


def _workers(data: TextConfig, node: Node) -> int:
    """Return the number of workers of this process."""
    return max(1, usable_cores() // node.local_size) if data.workers == "auto" else data.workers


@contextmanager
def _exclusive(folder: StorePath, node: Node, hashes: Path | None, progress: PreparationProgress) -> Iterator[None]:
    """Exclude other preparations of the folder on this machine; of a store by URL, those with the same cache."""
    if (lock := _lock_file(folder, node, hashes)) is None:
        yield
        return
    lock.parent.mkdir(parents=True, exist_ok=True)
    waiting = partial(progress.log, f"waiting: another process prepares {folder}")
    with hold(lock, waiting=waiting, remove=True):
        yield


def _lock_file(folder: StorePath, node: Node, hashes: Path | None) -> Path | None:
    """Return the lock file of a node; each has its own, because not every shared disk supports locks.

    Args:
        folder: folder of the store.
        node: this process among the nodes.
        hashes: see `prepare_store`. A store by URL has its lock in the same folder, and without it none: in a folder
            for temporary files, any user could hold it.
    """
    if isinstance(folder, Path):
        place = folder
    elif hashes is None:
        return None
    else:
        place = hashes.with_name(f"prepare-{hashlib.sha256(folder.url.encode()).hexdigest()[:16]}")
    # next to the folder, which may be removed while the lock is held
    return place.with_name(f".{place.name}.lock" if node.leads else f".{place.name}.node-{node.rank}.lock")


def _disk_of(folder: StorePath) -> Path:
    """Return the folder on a disk that the preparation writes to: the store, or of a store by URL temporary files."""
    return folder if isinstance(folder, Path) else Path(tempfile.gettempdir())


def _clear_folder(folder: StorePath, *, replace: bool) -> None:
    """Make room for a new store: only an older or unfinished store may be in the folder.

    Raises:
        StorageError: the folder contains other files.
        ConflictError: the folder contains another store, and `replace` is off.
    """
    # Shards are deleted when the new store is complete. A mistyped path must not cost the user other files.
    existing: list[StorePath] = [folder] if folder.is_file() else list(folder.glob("*"))
    if others := [path.name for path in existing if not any(path.match(own) for own in OWN_FILES)]:
        raise StorageError(
            f"cannot make a token store in {folder}: it contains other files",
            facts={"holds": ", ".join(sorted(others)[:5])},
            fix="give another folder: --cache PATH" if replace else "give another folder: --store PATH",
        )
    if not (folder / MANIFEST_FILE).exists():
        return
    if not replace and not (folder / PARTS).is_dir():
        fix = f"choose another --store, or delete this one: rm -r {in_shell(folder)}"
        if read_manifest(folder) is None:
            raise ConflictError(
                f"{folder} contains a token store that cannot be read",
                facts={"why": reason_unreadable(folder)},
                fix=fix,
            )
        raise ConflictError(
            f"{folder} contains a token store with another text or other settings",
            facts={"content": f"orchestrator data show {in_shell(folder)}"},
            fix=fix,
        )
    (folder / MANIFEST_FILE).unlink()  # first of all: without it, no reader opens shards that are being replaced
