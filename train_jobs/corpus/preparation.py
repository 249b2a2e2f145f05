"""A token store where there was none: found, or made in its place, once for a text whatever is trained on it later."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from train_jobs.artifacts.file_lock import hold
from train_jobs.artifacts.files import write_text
from train_jobs.artifacts.fingerprints import DataFingerprint, fingerprint
from train_jobs.artifacts.store_manifest import MANIFEST_FILE, PARTS, StoreManifest, read_manifest, store_content
from train_jobs.config.errors import ConflictError, DataError, StorageError
from train_jobs.config.names import in_shell
from train_jobs.config.prepare import TextConfig
from train_jobs.corpus.executors.crew import usable_cores
from train_jobs.corpus.executors.nodes import ALONE, Node
from train_jobs.corpus.pipeline import Preparation
from train_jobs.corpus.preparation_progress import Progress, Report
from train_jobs.corpus.steps.keys import reading, store_key
from train_jobs.corpus.store.token_store import BLOCK_TOKENS, TokenStore
from train_jobs.corpus.tokenize.vocabulary import VOCABULARY_FILE, read_vocabulary
from train_jobs.engine.runtime.storage import storage_errors

SHARDS = "shard-*.arrow"
TORN = (f".{MANIFEST_FILE}.*.tmp",)
OWN_FILES = (SHARDS, VOCABULARY_FILE, MANIFEST_FILE, *TORN, PARTS)
DOING = "making the token store"


def equal_store(data: TextConfig, found: DataFingerprint, cache: Path) -> TokenStore | None:
    """A store of this text by this very vocabulary that the cache holds under another key, or None.

    A vocabulary that one run trained on the text is given to the next one as a file, to a second phase above all: the
    text need not be tokenised again.

    Args:
        data: what a store is needed for.
        found: fingerprint of `data.text`.
        cache: folder of token stores.
    """
    if data.vocabulary is None or data.add_tokens:
        return None
    wanted = store_content(
        text=found.sha256,
        reading=reading(data),
        vocabulary=hashlib.sha256(read_vocabulary(data.vocabulary)).hexdigest(),
        lowercase=data.lowercase,
        validation_fraction=data.validation_fraction,
    )
    for path in sorted(cache.glob(f"*/{MANIFEST_FILE}")):
        manifest = read_manifest(path.parent)
        if manifest is not None and manifest.content == wanted:
            return TokenStore(path.parent, manifest)
    return None


def prepare_store(
    data: TextConfig,
    folder: Path,
    *,
    progress: Report,
    found: DataFingerprint | None = None,
    hashes: Path | None = None,
    node: Node = ALONE,
) -> TokenStore:
    """Opens the token store in `folder`, or makes it there if it is missing or of other text or settings.

    Of several processes on one machine one builds and the others wait. One that ends on the way leaves what the next
    one goes on from, unless the text is of no use.

    Args:
        data: what to read and how.
        folder: where the store is or shall be.
        progress: called with a line of text at each stage.
        found: fingerprint of `data.text`, where it is known already; else the text is read for it once more.
        hashes: remembers content hashes, as `cache` of `sources.content_hashes`.
        node: who we are among several machines that see the folder, and share the work.

    Raises:
        DataError: text or vocabulary that cannot be used; the message says why.
        StorageError: the folder cannot be written, or holds something else.
        PeerError: another node is gone.
    """
    found = found or fingerprint(data.text, hashes)
    return make_store(
        data,
        folder,
        found=found,
        progress=Progress(progress),
        hashes=hashes,
        node=node,
        replace=True,
        keep_unfinished=False,
    )


def make_store(
    data: TextConfig,
    folder: Path,
    *,
    found: DataFingerprint,
    progress: Progress,
    hashes: Path | None = None,
    node: Node = ALONE,
    replace: bool = False,
    keep_steps: bool = False,
    keep_unfinished: bool = True,
) -> TokenStore:
    """The token store in `folder`, made if it is not there; on each of several nodes, which share the work.

    Args:
        data: what to read and how.
        folder: where the store is or shall be, seen by all nodes.
        found: fingerprint of `data.text`.
        progress: told how far it is.
        hashes: as of `prepare_store`.
        node: who we are.
        replace: a store of other text or settings makes room.
        keep_steps: keep what the steps left.
        keep_unfinished: keep what is done even of text that turns out to be of no use.

    Raises:
        DataError: text or vocabulary that cannot be used; the message says why.
        StorageError: the folder cannot be written, or holds something else.
        ConflictError: it holds a store of other text or settings.
        PeerError: another node is gone.
    """
    key = store_key(data, found)
    if (store := TokenStore.find(folder, key)) is not None:
        return _swept(store, node, keep_steps=keep_steps)
    workers = max(1, usable_cores() // node.local_size) if data.workers == "auto" else data.workers
    with storage_errors(folder, DOING), _alone(folder, node, progress):
        if (store := TokenStore.find(folder, key)) is not None:  # made while we waited
            return _swept(store, node, keep_steps=keep_steps)
        if node.leads:
            _make_room(folder, replace=replace)
        making = Preparation(
            data, found, folder, key, workers, progress, node=node, hashes=hashes, block_tokens=BLOCK_TOKENS
        )
        try:
            _complete(making, keep_steps=keep_steps)
        except DataError:
            if not keep_unfinished and node.size == 1 and not (folder / MANIFEST_FILE).exists():
                shutil.rmtree(folder, ignore_errors=True)  # here, where nobody else makes it meanwhile
            raise
    return TokenStore.open(folder)


def _complete(making: Preparation, *, keep_steps: bool) -> None:
    """All steps, and the manifest; a node that does not lead waits for that."""
    folder, key = making.store, making.key
    try:
        manifest = making.make()
    except Exception:  # StoreComplete, or that a file of a step is gone
        if making.node.leads or not making.is_complete():
            raise
        return  # of little text the others may be done before this node looks
    if manifest is None:
        making.peers.wait("the manifest", 0, lambda: TokenStore.find(folder, key))
        return
    _sweep(folder, manifest)
    write_text(folder / MANIFEST_FILE, manifest.model_dump_json(indent=2))
    if not keep_steps:
        making.clear()
    making.progress.say(told(manifest))


def told(manifest: StoreManifest) -> str:
    """A store in a line."""
    return ", ".join(
        f"{split}: {counts.documents} documents, {counts.tokens} tokens" for split, counts in manifest.splits.items()
    )


@contextmanager
def _alone(folder: Path, node: Node, progress: Progress) -> Iterator[None]:
    """No other preparation of the same folder meanwhile; each node has a lock of its own, since not all disks share."""
    place = folder if node.leads else folder.with_name(f"{folder.name}.node-{node.rank}")
    place.parent.mkdir(parents=True, exist_ok=True)
    waiting = partial(progress.say, f"another process prepares {folder}: waiting")
    with hold(place.with_name(f".{place.name}.lock"), waiting=waiting):
        yield


def _swept(store: TokenStore, node: Node, *, keep_steps: bool) -> TokenStore:
    """A store that is complete, without what a death between its manifest and the end left."""
    if node.leads and not keep_steps:
        shutil.rmtree(store.folder / PARTS, ignore_errors=True)
    return store


def _sweep(folder: Path, manifest: StoreManifest) -> None:
    """Removes shards of an earlier text, and what deaths in the middle of writing left."""
    listed = {shard.file for shard in manifest.shards}
    for path in (found for own in (SHARDS, *TORN) for found in folder.glob(own)):
        if path.name not in listed:
            path.unlink()


def _make_room(folder: Path, *, replace: bool) -> None:
    """What lies there may make room if it is nothing but an older store, or one half-made.

    Raises:
        StorageError: there is something else.
        ConflictError: there is another store, and it shall stay.
    """
    if strangers := _strangers(folder):
        raise StorageError(
            f"{folder} is no token store and not empty",
            facts={"holds": ", ".join(strangers[:5])},
            fix="choose another folder with --cache PATH" if replace else "choose another folder with --store PATH",
        )
    if not (folder / MANIFEST_FILE).exists():
        return
    if not replace and not (folder / PARTS).is_dir():
        raise ConflictError(
            f"{folder} holds a token store of other text or settings",
            facts={"look": f"orchestrator data show {folder}"},
            fix=f"another --store, or without it: rm -r {in_shell(folder)}",
        )
    (folder / MANIFEST_FILE).unlink()  # from here on it is no store


def _strangers(folder: Path) -> list[str]:
    found = [folder] if folder.is_file() else sorted(folder.glob("*"))
    return [path.name for path in found if not any(path.match(own) for own in OWN_FILES)]
