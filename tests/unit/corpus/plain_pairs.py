"""The planning of sequences in plain Python, one draw after the other: the reference for the compiled loops."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from train_jobs.config.pretrain import ObjectiveConfig
from train_jobs.corpus.store.token_store import Block

Plan = np.ndarray
Row = tuple[int, int, int, int, int]

DRAWS_AT_ONCE = 4096
OTHER_DOCUMENT_DRAWS = 10
SPECIALS_OF_PAIR = 3
SPECIALS_OF_ONE = 2
MOST_EMPTY = 0.03


def plain_plan(
    block: Block,
    *,
    objective: ObjectiveConfig,
    sequence_length: int,
    short_sequence_probability: float,
    rng: np.random.Generator,
) -> Plan:
    """Return all examples of a block, shuffled; a pure function of the arguments and the generator's state.

    Args:
        block: complete documents. Where the objective spans documents, each ends with a separator, see
            `Block.separated`.
        objective: next_sentence and sequences are used.
        sequence_length: tokens of a sequence, [CLS] and [SEP] included.
        short_sequence_probability: share of documents with a random shorter target length; without next_sentence,
            sequences are as long as they can be.
        rng: source of all draws.

    Returns:
        int64 [examples, 5], see the module.
    """
    if objective.next_sentence:
        plan = _plan_pairs(block, sequence_length, short_sequence_probability, rng)
    else:
        plan = _plan_consecutive(block, sequence_length, rng, spans_documents=objective.spans_documents)
    return plan[rng.permutation(len(plan))]


def _plan_pairs(
    block: Block, sequence_length: int, short_sequence_probability: float, rng: np.random.Generator
) -> Plan:
    draws = _Draws(rng)
    # Lists, because reading single elements of a numpy array from Python is several times slower.
    offsets, documents = block.sentence_offsets.tolist(), block.document_offsets.tolist()
    longest = sequence_length - SPECIALS_OF_PAIR
    rows: list[Row] = []
    for document in range(len(documents) - 1):
        target = longest
        if draws.uniform() < short_sequence_probability:
            target = draws.integer(2, longest)
        rows += _pairs(document, offsets, documents, target=target, longest=longest, draws=draws)
    return _as_plan(rows)


def _plan_consecutive(block: Block, sequence_length: int, rng: np.random.Generator, *, spans_documents: bool) -> Plan:
    offsets, documents = block.sentence_offsets.tolist(), block.document_offsets.tolist()
    longest = sequence_length - SPECIALS_OF_ONE
    if not spans_documents:
        return _as_plan([row for part in pairwise(documents) for row in _rows(offsets, *part, longest=longest)])
    # The length of the first sequence is random, so that sequences begin elsewhere in each pass.
    first_length = int(rng.integers(1, longest + 1))
    plan = _as_plan(list(_rows(offsets, 0, len(offsets) - 1, longest=longest, first_length=first_length)))
    # no sequence starts or ends with a separator
    ends = block.sentence_offsets[block.document_offsets[1:]]
    plan[:, 0] += np.isin(plan[:, 0], ends - 1)
    plan[:, 1:4] -= np.isin(plan[:, 1], ends)[:, None]
    return plan[plan[:, 0] < plan[:, 1]]


def _as_plan(rows: list[Row]) -> Plan:
    return np.array(rows, np.int64).reshape(-1, 5)


class _Draws:
    """Single random numbers; the generator is called in bulk, since a call per number would dominate the run time."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._next = self._stream().__next__
        self.uniform = self._next

    def integer(self, low: int, high: int) -> int:
        """Draw uniformly from low ... high, both included."""
        return low + int(self._next() * (high - low + 1))

    def heads(self, tosses: int) -> int:
        """Count heads among coin tosses: each bit of a uniform number is a toss."""
        count = 0
        while tosses > 0:
            count += int(self._next() * (1 << min(tosses, 52))).bit_count()
            tosses -= 52
        return count

    def _stream(self) -> Iterator[float]:
        while True:
            yield from self._rng.random(DRAWS_AT_ONCE).tolist()


def _pairs(
    document: int, offsets: list[int], documents: list[int], *, target: int, longest: int, draws: _Draws
) -> Iterator[Row]:
    first, last = documents[document], documents[document + 1]
    while first < last:
        end = _end_of_sentences(offsets, first, last, target)
        cut = first + 1 if end - first == 1 else first + draws.integer(1, end - first - 1)
        is_random = end - first == 1 or draws.uniform() < 0.5
        if is_random:
            wanted = target - (offsets[cut] - offsets[first])
            b_first, b_last = _draw_other_document(document, offsets, documents, wanted=wanted, draws=draws)
            following = cut  # the sentences after the cut are put back, as in the original
        else:
            b_first, b_last = cut, end
            following = end
        a, b = _truncate_pair(
            (offsets[first], offsets[cut]), (offsets[b_first], offsets[b_last]), longest=longest, draws=draws
        )
        yield (*a, *b, int(is_random))
        first = following


def _end_of_sentences(offsets: list[int], first: int, last: int, tokens: int) -> int:
    """Return the end of the shortest run of sentences from `first` that has `tokens` tokens, else `last`."""
    return min(bisect_left(offsets, offsets[first] + tokens, first + 1, last), last)


def _draw_other_document(
    document: int, offsets: list[int], documents: list[int], *, wanted: int, draws: _Draws
) -> tuple[int, int]:
    """Draw sentences of another document; as in the original, ten unlucky draws use the same one as if random."""
    for _ in range(OTHER_DOCUMENT_DRAWS):
        other = draws.integer(0, len(documents) - 2)
        if other != document:
            break
    start = draws.integer(documents[other], documents[other + 1] - 1)
    return start, _end_of_sentences(offsets, start, documents[other + 1], wanted)


def _truncate_pair(
    a: tuple[int, int], b: tuple[int, int], *, longest: int, draws: _Draws
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Remove tokens from the longer segment (B in a tie), each at front or back by even chance, until both fit."""
    # The original removes one token per iteration. Only the counts matter, so they are computed, and all coins of a
    # segment are tossed together.
    a_length, b_length = a[1] - a[0], b[1] - b[0]
    excess = a_length + b_length - longest
    if excess <= 0:
        return a, b
    ahead = min(excess, abs(a_length - b_length))  # these all come from the longer one
    alternate = excess - ahead  # then both are equal: B, A, B, ...
    from_a = alternate // 2 + (ahead if a_length > b_length else 0)
    return _truncate_segment(a, from_a, draws), _truncate_segment(b, excess - from_a, draws)


def _truncate_segment(segment: tuple[int, int], tokens: int, draws: _Draws) -> tuple[int, int]:
    front = draws.heads(tokens)
    return segment[0] + front, segment[1] - (tokens - front)


def _rows(offsets: list[int], first: int, last: int, *, longest: int, first_length: int | None = None) -> Iterator[Row]:
    """Yield consecutive text in which each token occurs once.

    Args:
        offsets: offsets of sentences.
        first: first sentence.
        last: sentence to stop before.
        longest: most tokens of a row.
        first_length: most tokens of the first row. None: `longest`.
    """
    start, end, most = offsets[first], offsets[last], first_length or longest
    while start < end:
        # the end of a sentence, if it leaves little room; else the next row continues the sentence
        stop = offsets[bisect_right(offsets, start + most, first, last + 1) - 1]
        if stop < end and stop < start + most - int(MOST_EMPTY * longest):
            stop = start + most
        yield start, stop, stop, stop, 0
        start, most = stop, longest
