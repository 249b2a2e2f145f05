"""Plans of training sequences: the instances of Google's `create_pretraining_data.py`, as ranges of a block's tokens.

A plan is an int64 array [examples, 5] of rows (a_start, a_end, b_start, b_end, is_random_next). With next-sentence
prediction it follows the original exactly (Devlin et al. 2019, A.2, and their code). Sentences of a document are
gathered up to the target length and cut in two at random. Half of the time, and always with a single sentence, the
second part is replaced by a piece of another document, and the unused sentences are put back. So more than half of the
pairs are random. Without next-sentence prediction, sequences are consecutive text, as long as they can be: those of
RoBERTa (Liu et al. 2019, section 4.2), FULL-SENTENCES over the ends of documents, DOC-SENTENCES within them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from train_jobs.config.errors import SpecError
from train_jobs.config.pretrain import ObjectiveConfig
from train_jobs.corpus.examples.pair_loops import COMPILE_FROM, compiled, plan_consecutive, plan_pairs
from train_jobs.corpus.store.token_store import Block

Plan = npt.NDArray[np.int64]

DRAWS_AT_ONCE = 4096
SPECIALS_OF_PAIR = 3  # [CLS] A [SEP] B [SEP]
SPECIALS_OF_ONE = 2  # [CLS] A [SEP]
MOST_EMPTY = 0.03  # share of a sequence that may stay empty so that it ends with a sentence


class PlanBlock(Protocol):
    """A function that plans the examples of a block, see `train_jobs.protocols.Objective.plan`."""

    def __call__(
        self, block: Block, *, sequence_length: int, short_sequence_probability: float, rng: np.random.Generator
    ) -> Plan: ...


def with_checks(plan: PlanBlock, name: str) -> PlanBlock:
    """Wrap the plan method of a user's class so that its results are checked.

    Args:
        plan: the method.
        name: name of the class, for messages.

    Returns:
        A function that raises SpecError if a plan is invalid.
    """

    def plan_and_check(
        block: Block, *, sequence_length: int, short_sequence_probability: float, rng: np.random.Generator
    ) -> Plan:
        rows = plan(
            block, sequence_length=sequence_length, short_sequence_probability=short_sequence_probability, rng=rng
        )
        if have := _plan_defect(rows, len(block.tokens), sequence_length):
            raise SpecError(
                f"objective.name: {name} plans invalid examples",
                facts={
                    "need": f"int64 [examples, 5]: ranges of {len(block.tokens)} tokens, A not empty, at most"
                    f" {sequence_length} tokens with [CLS] and [SEP]",
                    "have": have,
                },
                fix="fix its method plan, see docs/own-classes.md",
            )
        return rows

    return plan_and_check


def _plan_defect(rows: object, tokens: int, sequence_length: int) -> str | None:
    """Return the defect of a plan, or None."""
    if not isinstance(rows, np.ndarray):
        return f"a {type(rows).__name__}"
    if rows.dtype != np.int64 or rows.ndim != 2 or rows.shape[1] != 5:
        return f"{rows.dtype} {list(rows.shape)}"
    a_start, a_end, b_start, b_end = rows[:, :4].T
    inside = (a_start >= 0) & (a_start < a_end) & (a_end <= tokens) & (b_start >= 0) & (b_start <= b_end)
    specials = np.where(b_end > b_start, SPECIALS_OF_PAIR, SPECIALS_OF_ONE)
    fits = inside & (b_end <= tokens) & (a_end - a_start + b_end - b_start + specials <= sequence_length)
    return None if fits.all() else f"the row {rows[~fits][0].tolist()}"


def plan_block(
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
    longest = sequence_length - SPECIALS_OF_PAIR
    loop, as_sequence = _loop(plan_pairs, block)
    offsets, documents = as_sequence(block.sentence_offsets), as_sequence(block.document_offsets)
    rows = np.empty((len(offsets) - 1, 5), np.int64)  # each pair uses up at least one sentence
    state = np.zeros(5, np.int64)
    draws = np.empty(0)
    while not loop(offsets, documents, as_sequence(draws), state, rows, longest, float(short_sequence_probability)):
        draws = np.concatenate([draws[int(state[4]) :], rng.random(DRAWS_AT_ONCE)])
        state[4] = 0
    return rows[: int(state[3])]


def _plan_consecutive(block: Block, sequence_length: int, rng: np.random.Generator, *, spans_documents: bool) -> Plan:
    longest = sequence_length - SPECIALS_OF_ONE
    # The length of the first sequence is random, so that sequences begin elsewhere in each pass.
    first_length = int(rng.integers(1, longest + 1)) if spans_documents else longest
    loop, as_sequence = _loop(plan_consecutive, block)
    documents = block.document_offsets
    bounds = documents[[0, -1]] if spans_documents else documents
    empty = int(MOST_EMPTY * longest)
    # a row has at least longest - empty tokens, unless it is the first or the last of its range
    rows = np.empty((len(block.tokens) // (longest - empty) + 2 * len(bounds), 5), np.int64)
    lengths = as_sequence(np.array([first_length, longest, empty], np.int64))
    plan = rows[: loop(as_sequence(block.sentence_offsets), as_sequence(bounds), lengths, rows)]
    if not spans_documents:
        return plan
    # no sequence starts or ends with a separator
    ends = np.zeros(len(block.tokens) + 1, np.bool_)
    ends[block.sentence_offsets[documents[1:]]] = True
    plan[:, 0] += ends[plan[:, 0] + 1]
    plan[:, 1:4] -= ends[plan[:, 1], None]
    return plan[plan[:, 0] < plan[:, 1]]


def _loop(function: Callable[..., Any], block: Block) -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    """Return a loop over a block, compiled for a large one, and what makes its arguments of numpy arrays."""
    if len(block.tokens) >= COMPILE_FROM and (fast := compiled(function)) is not function:
        return fast, _as_contiguous
    # Lists, because reading single elements of a numpy array from Python is several times slower.
    return function, np.ndarray.tolist


def _as_contiguous(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # one dtype of integers, for which the loop is compiled once
    return np.ascontiguousarray(array, np.int64 if array.dtype.kind in "iu" else None)
