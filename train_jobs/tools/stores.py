"""Inspect token stores: show their content, and verify every byte.

    python -m train_jobs.tools.stores show STORE
    python -m train_jobs.tools.stores verify STORE

Prints one JSON document; `orchestrator data` prints the same for people. Exit codes: 0 valid, 1 damaged, 2 no store.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from train_jobs.artifacts.store_manifest import SPLITS, Split
from train_jobs.artifacts.store_places import StorePath, store_path
from train_jobs.config import DataConfig, ObjectiveConfig, UserError
from train_jobs.corpus.examples.batches import PretrainingData
from train_jobs.corpus.examples.example_stream import Cursor
from train_jobs.corpus.examples.pairs import plan_block
from train_jobs.corpus.store.inspection import Histogram, histogram, verify
from train_jobs.corpus.store.token_store import Block, TokenStore
from train_jobs.corpus.tokenize.vocabulary import load_vocabulary

BLOCKS_READ = 32  # of each split, for lengths: 32 million tokens
SAMPLE_SENTENCES = 5
IGNORED = -100


def show(folder: StorePath, *, samples: int, sequence_length: int) -> dict[str, Any]:
    """Return manifest, histograms of lengths, some documents, and a training example, as JSON.

    Args:
        folder: folder of the store.
        samples: number of documents.
        sequence_length: tokens of the example.

    Raises:
        DataError: the folder has no store, or a shard is damaged.
    """
    store = TokenStore.open(folder)
    manifest = store.manifest
    tokenizer = load_vocabulary(store.vocabulary, **manifest.rule._asdict())
    lengths = {split: _lengths(store, split) for split in SPLITS}
    first = store.block("train", 0)
    return {
        "folder": str(folder),
        "manifest": manifest.model_dump(mode="json"),
        "lengths": {
            split: {name: found.as_dict() for name, found in of_split.items()} for split, of_split in lengths.items()
        },
        "samples": [
            _document(first, number, tokenizer) for number in range(min(samples, len(first.document_offsets) - 1))
        ],
        "example": _example(store, tokenizer, sequence_length),
    }


def _lengths(store: TokenStore, split: Split) -> dict[str, Histogram]:
    """Return histograms of sentence and document lengths, from blocks spread evenly over the split."""
    count = store.blocks(split)
    chosen = np.unique(np.linspace(0, count - 1, min(count, BLOCKS_READ)).astype(int))
    sentences: list[npt.NDArray[Any]] = []
    documents: list[npt.NDArray[Any]] = []
    for index in chosen.tolist():
        block = store.block(split, index)
        sentences.append(np.diff(block.sentence_offsets.astype(np.int64)))
        documents.append(np.diff(block.sentence_offsets.astype(np.int64)[block.document_offsets]))
    return {
        "tokens of a sentence": histogram(np.concatenate(sentences)),
        "tokens of a document": histogram(np.concatenate(documents)),
    }


def _document(block: Block, number: int, tokenizer: Tokenizer) -> list[str]:
    """Return the first sentences of a document, decoded from its tokens."""
    first, last = block.document_offsets[number : number + 2]
    bounds = block.sentence_offsets[first : min(last, first + SAMPLE_SENTENCES) + 1].tolist()
    spans = (block.tokens[start:end].tolist() for start, end in pairwise(bounds))
    return [tokenizer.decode(ids, skip_special_tokens=False) for ids in spans]


def _example(store: TokenStore, tokenizer: Tokenizer, sequence_length: int) -> dict[str, Any]:
    """Return the first training example of the first epoch of seed 42, with BERT's pairs and masks."""
    objective = ObjectiveConfig()
    data = PretrainingData(
        store,
        "train",
        data=DataConfig(sequence_length=sequence_length),
        plan=partial(plan_block, objective=objective),
        objective=objective,
        max_predictions=max(1, round(sequence_length * objective.masked_lm_probability)),
        seed=42,
    )
    batch, _ = data.batch(Cursor(), global_batch_size=1, rank=0, world_size=1)
    length = int(batch.lengths[0])
    labels = batch.masked_labels[0]
    masked = labels != IGNORED
    return {
        "text": " ".join(filter(None, map(tokenizer.id_to_token, batch.input_ids[0, :length].tolist()))),
        "predict": {
            str(position): tokenizer.id_to_token(label)
            for position, label in zip(batch.masked_positions[0][masked].tolist(), labels[masked].tolist(), strict=True)
        },
        "second_segment": "from elsewhere" if batch.next_sentence_labels[0] else "what follows",
    }


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the action, print its JSON document and return an exit code."""
    parser = argparse.ArgumentParser(prog="train_jobs.tools.stores", description="Inspect a token store.")
    actions = parser.add_subparsers(dest="action", required=True)
    showing = actions.add_parser("show", help="show manifest, lengths, documents and an example")
    showing.add_argument("--samples", type=int, default=3, metavar="N", help="documents to show (default: 3)")
    showing.add_argument(
        "--sequence-length", type=int, default=64, metavar="N", help="sequence length of the example (default: 64)"
    )
    verifying = actions.add_parser("verify", help="verify every byte")
    for action in (showing, verifying):
        action.add_argument("store", type=store_path, help="folder or URL of the store")
    given = parser.parse_args(argv)
    try:
        if given.action == "show":
            found = show(given.store, samples=given.samples, sequence_length=given.sequence_length)
        else:
            problems = verify(given.store)
            found = {"folder": str(given.store), "valid": not problems, "problems": problems}
    except UserError as problem:
        print(json.dumps(problem.as_json()))
        print(problem, file=sys.stderr)
        return problem.exit_code
    print(json.dumps(found))
    return 0 if found.get("valid", True) else 1


if __name__ == "__main__":
    sys.exit(main())
