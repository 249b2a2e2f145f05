"""Sentence pairs, against cases computed by hand with the original algorithm."""

from __future__ import annotations

import numpy as np
import pytest

from train_jobs.config import ObjectiveConfig
from train_jobs.corpus.examples.epoch_order import generator
from train_jobs.corpus.examples.pairs import plan_block
from train_jobs.corpus.store.token_store import Block


class Script:
    """A fake for numpy's generator: returns the given draws in order and never shuffles."""

    def __init__(self, *draws: float) -> None:
        self.draws = draws

    def random(self, size: int) -> np.ndarray:
        return np.array([*self.draws, *[np.nan] * size])  # an excess draw would be NaN

    def permutation(self, size: int) -> np.ndarray:
        return np.arange(size)


def make_block(*documents: list[int]) -> Block:
    """Return a block of documents, given the lengths of their sentences."""
    lengths = [length for document in documents for length in document]
    return Block(
        tokens=np.arange(sum(lengths), dtype=np.uint32),
        sentence_offsets=np.cumsum([0, *lengths], dtype=np.int32),
        document_offsets=np.cumsum([0, *map(len, documents)], dtype=np.int32),
    )


PAIRS = ObjectiveConfig()
FULL = ObjectiveConfig(next_sentence=False)
OF_ONE_DOCUMENT = ObjectiveConfig(next_sentence=False, sequences="doc-sentences")
SEPARATOR = 1_000_000


def plan(
    block: Block, rng: object, *, length: int = 13, short: float = 0.0, objective: ObjectiveConfig = PAIRS
) -> list[list[int]]:
    return plan_block(
        block,
        objective=objective,
        sequence_length=length,
        short_sequence_probability=short,
        rng=rng,  # type: ignore[arg-type]
    ).tolist()


def test_pairs_match_manual_example() -> None:
    # 13 tokens hold 10 of text. Sentences 0-2 are tokens 0-3, 3-7, 7-12; sentences 3-4 are 12-14, 14-20.
    block = make_block([3, 4, 5], [2, 6])
    script = Script(
        0.9,  # document 0: not short
        0.0,  # 12 tokens of 3 sentences: A is the first 1 + int(0.0 * 2) = 1
        0.9,  # B is the following text: 3 + 9 tokens, 2 too many, both removed from B
        0.3,  # int(0.3 * 4) = 0b01: one from its front, one from its back
        0.9,  # document 1: not short
        0.7,  # 8 tokens of 2 sentences: A is the first
        0.2,  # B is random: 10 - 2 = 8 tokens are needed
        0.9,  # document 1 again: no
        0.1,  # document 0
        0.4,  # from its sentence int(0.4 * 3) = 1 on: 4 + 5 tokens, 1 too many
        0.6,  # int(0.6 * 2) = 1: from the front. Sentence 4 is returned and now single: random without a draw
        0.0,  # document 0; 4 tokens are needed
        0.99,  # its sentence 2: 6 + 5 tokens, 1 too many, removed from A
        0.4,  # int(0.4 * 2) = 0: from the back
    )
    assert plan(block, script) == [[0, 3, 4, 11, 0], [12, 14, 4, 12, 1], [14, 19, 7, 12, 1]]


def test_short_target_applies_to_whole_document() -> None:
    # 2 + int(0.5 * 9) = 6 tokens: sentences 0-1 (8 tokens), then 2-3.
    script = Script(0.05, 0.5, 0.0, 0.9, 0.0, 0.9)
    assert plan(make_block([4, 4, 4, 4]), script, short=0.1) == [[0, 4, 4, 8, 0], [8, 12, 12, 16, 0]]


def test_random_pair_stays_random_for_single_document() -> None:
    script = Script(0.9, *[0.5] * 10, 0.0)  # ten documents, then its sentence 0
    assert plan(make_block([4]), script) == [[0, 4, 0, 4, 1]]


def test_tenth_document_draw_is_accepted() -> None:
    script = Script(0.9, *[0.0] * 9, 0.9, 0.0, 0.9, 0.0, 0.0)
    assert plan(make_block([4], [5]), script) == [[0, 4, 4, 9, 1], [4, 9, 0, 4, 1]]


def test_equal_segments_lose_tokens_in_turn_b_first() -> None:
    # 4 + 4 tokens where 5 fit: B loses 2 (both at its front), A 1 (at its back).
    script = Script(0.9, 0.0, 0.9, 0.0, 0.9)
    assert plan(make_block([4, 4]), script, length=8) == [[0, 3, 6, 8, 0]]


@pytest.fixture(scope="module")
def big() -> Block:
    draw = np.random.default_rng(0)
    return make_block(*[draw.integers(1, 40, size=draw.integers(1, 60)).tolist() for _ in range(400)])


def test_pairs_of_large_block_have_expected_properties(big: Block) -> None:
    rows = np.array(plan(big, generator(1), length=128, short=0.1))
    a_start, a_end, b_start, b_end, is_random = rows.T
    document = np.searchsorted(big.sentence_offsets[big.document_offsets], np.array([a_start, b_start]), "right")
    lengths = a_end - a_start + b_end - b_start
    assert (a_end > a_start).all()
    assert (b_end > b_start).all()
    assert lengths.max() == 125
    assert (document[0] != document[1])[is_random == 1].all()
    assert (document[0] == document[1])[is_random == 0].all()
    assert (b_start >= a_end)[is_random == 0].all()
    assert 0.5 < is_random.mean() < 0.6  # half, and every remaining single sentence
    assert (lengths > 110).mean() > 0.6


def test_half_of_all_cuttable_chunks_are_random() -> None:
    rows = np.array(plan(make_block(*[[10] * 2000] * 2), generator(2), length=128))
    assert abs(rows[:, 4].mean() - 0.5) < 0.05


def test_each_sentence_is_in_some_pair(big: Block) -> None:
    rows = np.array(plan(make_block(*[[5] * 37] * 20), generator(3), length=128))
    seen = np.zeros(5 * 37 * 20, bool)
    for a_start, a_end, b_start, b_end, is_random in rows:
        seen[a_start:a_end] = True
        if not is_random:
            seen[b_start:b_end] = True
    assert seen.reshape(-1, 5).any(axis=1).all()


@pytest.mark.parametrize("length", [8, 66, 512])
@pytest.mark.parametrize("objective", [FULL, OF_ONE_DOCUMENT])
def test_single_sequences_contain_each_token_once(big: Block, length: int, objective: ObjectiveConfig) -> None:
    block = big.separated(SEPARATOR) if objective.spans_documents else big
    rows = np.array(plan(block, generator(4), length=length, short=0.1, objective=objective))
    assert (rows[:, 2] == rows[:, 3]).all()
    assert not rows[:, 4].any()
    assert (rows[:, 1] - rows[:, 0]).max() == length - 2
    text = np.concatenate([block.tokens[start:end] for start, end, *_ in rows[np.argsort(rows[:, 0])]])
    np.testing.assert_array_equal(text[text != SEPARATOR], big.tokens)


@pytest.mark.parametrize("length", [64, 128, 512])
def test_full_sequences_are_full(big: Block, length: int) -> None:
    block = big.separated(SEPARATOR)
    rows = np.array(plan(block, generator(4), length=length, objective=FULL))
    used = rows[:, 1] - rows[:, 0] + 2
    assert used.sum() / (len(rows) * length) >= 0.97
    # But for the first and the last, at most 3% are empty and both ends may have lost a separator.
    assert (used >= 0.97 * length - 2).sum() >= len(rows) - 2
    starts, ends = block.tokens[rows[:, 0]], block.tokens[rows[:, 1] - 1]
    assert not (starts == SEPARATOR).any()
    assert not (ends == SEPARATOR).any()
    inside = sum(np.count_nonzero(block.tokens[start:end] == SEPARATOR) for start, end, *_ in rows)
    assert inside > 0.8 * len(big.document_offsets) - 2  # most documents end within a sequence, followed by [SEP]


def test_full_sequences_begin_elsewhere_in_each_pass(big: Block) -> None:
    block = big.separated(SEPARATOR)
    first, second = ({row[0] for row in plan(block, generator(seed), objective=FULL, length=64)} for seed in (1, 2))
    assert len(first & second) < 0.5 * len(first)


def test_sequences_of_one_document_match_manual_example() -> None:
    # 102 tokens hold 100 of text, of which 3 may stay empty. Tokens 0-97 are one sentence; 97-150 are cut at 197.
    rows = plan(make_block([97, 90, 63], [1]), generator(0), length=102, objective=OF_ONE_DOCUMENT)
    assert sorted(row[:2] for row in rows) == [[0, 97], [97, 197], [197, 250], [250, 251]]
    rows = plan(make_block([96, 90, 64], [1]), generator(0), length=102, objective=OF_ONE_DOCUMENT)
    assert sorted(row[:2] for row in rows) == [[0, 100], [100, 200], [200, 250], [250, 251]]


def test_rows_are_shuffled_by_generator_only(big: Block) -> None:
    first, again, other = (plan(big, generator(seed), length=128) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first != sorted(first)
