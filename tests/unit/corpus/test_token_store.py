"""Reading and writing token stores."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.unit.corpus.small_corpora import encoded_as, flips_of_one_bit
from train_jobs.artifacts.files import checked_json, file_sha256, parse_checked
from train_jobs.artifacts.store_manifest import (
    DAMAGED_FILE,
    MANIFEST_FILE,
    SpecialIds,
    StoreManifest,
    read_manifest,
    reason_unreadable,
    write_manifest,
)
from train_jobs.artifacts.vocabulary_file import SPECIAL_PIECES, VOCABULARY_FILE
from train_jobs.config import DataError
from train_jobs.corpus.store.inspection import unigram_entropy
from train_jobs.corpus.store.token_store import StoreWriter, TokenStore

Sentences = list[list[int]]
DOCUMENTS: list[Sentences] = [[[1, 2, 3], [4]], [[5, 6]], [[7], [8], [9, 9, 9]], [[1]]]


def write_store(folder: Path, *, vocab_size: int = 10, block_tokens: int = 6, blocks_per_shard: int = 64) -> TokenStore:
    folder.mkdir(exist_ok=True)
    (folder / VOCABULARY_FILE).write_text("\n".join(SPECIAL_PIECES))
    writer = StoreWriter(folder, vocab_size=vocab_size, block_tokens=block_tokens, blocks_per_shard=blocks_per_shard)
    for document in DOCUMENTS:
        writer.add("train", encoded_as([document]))
    writer.add("validation", encoded_as([[[1, 1], [2, 3]]]))
    writer.close()
    manifest = StoreManifest(
        key="0" * 16,
        data={"name": "test", "files": 1, "total_bytes": 1, "sha256": ""},
        vocab_size=vocab_size,
        vocab_sha256=file_sha256(folder / VOCABULARY_FILE),
        special_ids=SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4),
        lowercase=True,
        strip_accents=True,
        split_unspaced=False,
        validation_fraction=0.1,
        validation_unigram_entropy=unigram_entropy(folder, writer.shards, vocab_size),
        reading="",
        sources=[],
        steps=[],
        packages={},
        splits=writer.splits,
        shards=writer.shards,
    )
    write_manifest(folder, manifest)
    return TokenStore.open(folder)


def read(store: TokenStore) -> list[Sentences]:
    documents = []
    for index in range(store.blocks("train")):
        block = store.block("train", index)
        bounds = block.sentence_offsets
        sentences = [block.tokens[start:end].tolist() for start, end in pairwise(bounds)]
        starts = block.document_offsets
        documents += [sentences[start:end] for start, end in pairwise(starts)]
    return documents


@pytest.mark.parametrize("blocks_per_shard", [1, 64])
def test_store_round_trip_in_blocks_of_whole_documents(tmp_path: Path, blocks_per_shard: int) -> None:
    store = write_store(tmp_path / "store", blocks_per_shard=blocks_per_shard)
    assert read(store) == DOCUMENTS
    assert [len(store.block("train", index).tokens) for index in range(2)] == [6, 6]
    counts = store.manifest.splits["train"]
    assert (counts.documents, counts.sentences, counts.tokens, counts.blocks) == (4, 7, 12, 2)
    assert [shard.split for shard in store.manifest.shards].count("train") == (2 if blocks_per_shard == 1 else 1)


def test_blocks_are_views_of_file(tmp_path: Path) -> None:
    block = write_store(tmp_path / "store").block("train", 0)
    assert not any(array.flags.owndata or array.flags.writeable for array in vars(block).values())


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_ids_use_16_bits_if_they_fit(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    assert write_store(tmp_path / "store", vocab_size=vocab_size).block("train", 0).tokens.dtype == dtype


def test_empty_sentences_and_documents_are_omitted(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, vocab_size=10)
    for document in ([], [[]], [[], [1], []]):
        writer.add("train", encoded_as([document]))
    writer.close()
    counts = writer.splits["train"]
    assert (counts.documents, counts.sentences, counts.tokens) == (1, 1, 1)


def test_entropy_is_computed_from_validation_tokens(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store")  # 1 twice, 2 and 3 once: a half, a quarter, a quarter
    assert store.manifest.validation_unigram_entropy == pytest.approx(1.5 * math.log(2), abs=1e-12)


@pytest.mark.parametrize("damage", ["no manifest", "half a manifest", "another version", "no shard", "short shard"])
def test_incomplete_folder_is_refused(tmp_path: Path, damage: str) -> None:
    folder = write_store(tmp_path / "store").folder
    manifest, shard = folder / MANIFEST_FILE, folder / "shard-00000-train.arrow"
    match damage:
        case "no manifest":
            manifest.unlink()
        case "half a manifest":
            manifest.write_bytes(manifest.read_bytes()[:100])
        case "another version":
            manifest.write_text('{"version": 2}')
        case "no shard":
            shard.unlink()
        case "short shard":
            shard.write_bytes(shard.read_bytes()[:-1])
    assert not TokenStore.exists(folder)
    reason = "the token store is damaged: .*shard-00000" if "shard" in damage else "no token store"
    with pytest.raises(DataError, match=reason):
        TokenStore.open(folder)


def test_flipped_bit_is_detected_before_training(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "store").folder
    shard = folder / "shard-00000-train.arrow"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    damaged = r"damaged: .*shard-00000-train\.arrow"
    with pytest.raises(DataError, match=damaged):
        TokenStore.open(folder).block("train", 0)
    assert (folder / DAMAGED_FILE).read_text() == f"{shard.name} has other content than was written\n"
    with pytest.raises(DataError, match=damaged) as caught:  # the next job does not begin to train
        TokenStore.open(folder)
    assert "repeat submit prepare" in str(caught.value.fix)


def test_store_that_was_made_again_is_not_marked_by_an_old_job(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "store").folder
    old = TokenStore.open(folder)
    manifest = parse_checked((folder / MANIFEST_FILE).read_bytes())
    shard = folder / manifest["shards"][0]["file"]
    shard.write_bytes(shard.read_bytes() + b"more")
    manifest["shards"][0] |= {"size": shard.stat().st_size, "sha256": file_sha256(shard)}
    (folder / MANIFEST_FILE).write_text(checked_json(manifest, indent=2))
    with pytest.raises(DataError, match="damaged"):
        old.block("train", 0)
    assert not (folder / DAMAGED_FILE).exists()
    assert read_manifest(folder) is not None


def test_bit_flips_never_change_what_manifest_says(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store")
    path = store.folder / MANIFEST_FILE
    for content in flips_of_one_bit(path.read_bytes(), 400):
        path.write_bytes(content)
        found = read_manifest(store.folder)
        assert found in (None, store.manifest), content
        assert found or reason_unreadable(store.folder).startswith("manifest.json is damaged"), content


def test_manifest_without_checksum_is_read(tmp_path: Path) -> None:
    """Earlier versions wrote none."""
    store = write_store(tmp_path / "store")
    (store.folder / MANIFEST_FILE).write_text(store.manifest.model_dump_json(indent=2))
    assert read_manifest(store.folder) == store.manifest


def test_vocabulary_that_is_a_folder_is_damage(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "store").folder
    (folder / "vocab.txt").unlink()
    (folder / "vocab.txt").mkdir()
    assert read_manifest(folder) is None


def test_reading_does_not_import_pandas(tmp_path: Path) -> None:
    """Importing pandas doubles the start-up time; pyarrow does so if it is installed and arrays are requested."""
    write_store(tmp_path / "store")
    code = (
        "import sys; from pathlib import Path; from train_jobs.corpus.store.token_store import TokenStore;"
        f"block = TokenStore.open(Path({str(tmp_path / 'store')!r})).block('train', 0);"
        "print(block.tokens.tolist(), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[1, 2, 3, 4, 5, 6] False\n"
