"""Sentence pairs compared with a reference implementation of the original algorithm: the statistics agree."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from train_jobs.config import ObjectiveConfig
from train_jobs.corpus.examples.epoch_order import generator
from train_jobs.corpus.examples.pairs import plan_block
from train_jobs.corpus.store.token_store import Block

Sentence = list[int]  # token numbers, unique within a block
EPOCHS = 40
SIGMAS = 4  # tolerance between means over the epochs: one in 16,000 exceeds it by chance
SHORT = 0.1


@dataclass
class Pair:
    a: Sentence
    b: Sentence
    is_random: bool


def original_pairs(documents: list[list[Sentence]], *, length: int, draw: random.Random) -> Iterator[Pair]:
    """Yield the pairs that `create_pretraining_data.py` makes in one pass over documents (duplication factor 1)."""
    room = length - 3
    for own, document in enumerate(documents):
        target = draw.randint(2, room) if draw.random() < SHORT else room
        waiting = list(document)
        while waiting:
            chunk = [waiting.pop(0)]
            while waiting and sum(map(len, chunk)) < target:
                chunk.append(waiting.pop(0))
            cut = draw.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            a = [token for sentence in chunk[:cut] for token in sentence]
            is_random = len(chunk) == 1 or draw.random() < 0.5
            if is_random:
                b = piece_of_another(documents, own, target - len(a), draw)
                waiting = chunk[cut:] + waiting  # unused segments are returned to the queue
            else:
                b = [token for sentence in chunk[cut:] for token in sentence]
            truncate(a, b, room, draw)
            yield Pair(a, b, is_random)


def piece_of_another(documents: list[list[Sentence]], own: int, wanted: int, draw: random.Random) -> Sentence:
    for _ in range(10):
        other = draw.randrange(len(documents))
        if other != own:
            break
    piece: Sentence = []
    for sentence in documents[other][draw.randrange(len(documents[other])) :]:
        piece += sentence
        if len(piece) >= wanted:
            break
    return piece


def truncate(a: Sentence, b: Sentence, room: int, draw: random.Random) -> None:
    while len(a) + len(b) > room:
        longer = a if len(a) > len(b) else b
        del longer[0 if draw.random() < 0.5 else -1]


def our_pairs(documents: list[list[Sentence]], *, length: int, seed: int) -> Iterator[Pair]:
    sentences = [sentence for document in documents for sentence in document]
    block = Block(
        tokens=np.arange(sum(map(len, sentences)), dtype=np.uint32),
        sentence_offsets=np.cumsum([0, *map(len, sentences)], dtype=np.int32),
        document_offsets=np.cumsum([0, *map(len, documents)], dtype=np.int32),
    )
    plan = plan_block(
        block,
        sequence_length=length,
        short_sequence_probability=SHORT,
        objective=ObjectiveConfig(),
        rng=generator(seed),
    )
    for a_start, a_end, b_start, b_end, is_random in plan.tolist():
        yield Pair(list(range(a_start, a_end)), list(range(b_start, b_end)), bool(is_random))


def text(seed: int) -> list[list[Sentence]]:
    """Return 80 documents of 1 to 40 sentences with 1 to 60 tokens each, typically about 20."""
    draw, token, documents = random.Random(seed), 0, []
    for _ in range(80):
        document = []
        for _ in range(min(40, 1 + int(draw.expovariate(1 / 10)))):
            size = min(60, 1 + int(draw.gammavariate(3, 7)))
            document.append(list(range(token, token + size)))
            token += size
        documents.append(document)
    return documents


def counts(pairs: list[Pair], documents: list[list[Sentence]], room: int) -> dict[str, float]:
    starts = {sentence[0] for document in documents for sentence in document}
    ends = {sentence[-1] for document in documents for sentence in document}
    lengths = np.array([len(pair.a) + len(pair.b) for pair in pairs])
    uses = np.zeros(max(ends) + 1)
    for pair in pairs:
        uses[pair.a] += 1
        if not pair.is_random:
            uses[pair.b] += 1
    found = {
        "pairs": len(pairs),
        "random next": np.mean([pair.is_random for pair in pairs]),
        "mean length": lengths.mean(),
        "mean length of A": np.mean([len(pair.a) for pair in pairs]),
        "mean length of a random B": np.mean([len(pair.b) for pair in pairs if pair.is_random]),
        "full": (lengths == room).mean(),
        "A cut at its front": np.mean([pair.a[0] not in starts for pair in pairs]),
        "A cut at its back": np.mean([pair.a[-1] not in ends for pair in pairs]),
        "B cut at its front": np.mean([pair.b[0] not in starts for pair in pairs]),
        "B cut at its back": np.mean([pair.b[-1] not in ends for pair in pairs]),
        "a token's uses": uses.mean(),
        "tokens not used": (uses == 0).mean(),
        "tokens used again": (uses > 1).mean(),
    }
    for edge in (0.1, 0.25, 0.5, 0.75, 0.9):
        found[f"shorter than {edge:.0%}"] = (lengths < edge * room).mean()
    return found


@pytest.mark.parametrize("length", [48, 128, 512])
def test_pair_statistics_match_original_algorithm(length: int) -> None:
    documents, draw = text(length), random.Random(1)
    epochs = [
        (
            counts(list(our_pairs(documents, length=length, seed=epoch)), documents, length - 3),
            counts(list(original_pairs(documents, length=length, draw=draw)), documents, length - 3),
        )
        for epoch in range(EPOCHS)
    ]
    for name in epochs[0][0]:
        both = np.array([[ours[name], theirs[name]] for ours, theirs in epochs])
        (ours, theirs), noise = both.mean(axis=0), np.sqrt(both.var(axis=0).sum() / EPOCHS)
        assert abs(ours - theirs) <= SIGMAS * noise, name
        assert noise < max(0.04 * theirs, 0.012), name  # so that a difference is detectable
    assert np.mean([theirs["random next"] for _, theirs in epochs]) > 0.55
