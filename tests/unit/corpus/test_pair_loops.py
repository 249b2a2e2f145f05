"""Planning is bit-exact to plain Python that takes one draw after the other; compiled or not."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest
from plain_pairs import plain_plan

from train_jobs.config import ObjectiveConfig
from train_jobs.corpus.examples import pair_loops, pairs
from train_jobs.corpus.examples.epoch_order import generator
from train_jobs.corpus.examples.pairs import plan_block
from train_jobs.corpus.store.token_store import Block

OBJECTIVES = {
    "pairs": ObjectiveConfig(),
    "full": ObjectiveConfig(next_sentence=False),
    "document": ObjectiveConfig(next_sentence=False, sequences="doc-sentences"),
}


def random_block(seed: int, *, documents: int, longest: int) -> Block:
    """Return a block of random documents, some of one sentence, with sentences of up to `longest` tokens."""
    draw = np.random.default_rng(seed)
    counts = draw.integers(1, 40, documents)
    lengths = draw.integers(1, longest + 1, int(counts.sum()))
    return Block(
        tokens=np.zeros(int(lengths.sum()), np.uint16),
        sentence_offsets=np.cumsum([0, *lengths], dtype=np.int32),
        document_offsets=np.cumsum([0, *counts], dtype=np.int32),
    )


@pytest.fixture(params=["compiled", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Plan every block with the compiled loops, or every block without Numba."""
    monkeypatch.setattr(pairs, "COMPILE_FROM", 0)
    if request.param == "compiled":
        pytest.importorskip("numba")
        yield request.param
        return
    monkeypatch.setitem(sys.modules, "numba", None)
    pair_loops.compiled.cache_clear()
    yield request.param
    pair_loops.compiled.cache_clear()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_plan_equals_plain_python(way: str, name: str) -> None:
    objective = OBJECTIVES[name]
    for seed, (documents, longest, length, short) in enumerate(
        [(1, 3, 8, 0.5), (2, 9, 16, 0.0), (300, 50, 128, 0.1), (60, 700, 128, 1.0), (400, 60, 512, 0.3)]
    ):
        block = random_block(seed, documents=documents, longest=longest)
        if objective.spans_documents:
            block = block.separated(5)
        ours, plain = generator(7, seed), generator(7, seed)
        settings = {"objective": objective, "sequence_length": length, "short_sequence_probability": short}
        found = plan_block(block, rng=ours, **settings)  # type: ignore[arg-type]
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, plain_plan(block, rng=plain, **settings))  # type: ignore[arg-type]
        # what is drawn later does not change either
        assert ours.bit_generator.state == plain.bit_generator.state


def test_block_of_usual_size_is_compiled() -> None:
    pytest.importorskip("numba")
    large, small = random_block(0, documents=1500, longest=60), random_block(0, documents=3, longest=60)
    assert len(large.tokens) >= pair_loops.COMPILE_FROM
    loops = [pairs._loop(pair_loops.plan_pairs, block)[0] for block in (large, small)]
    assert loops[0] is pair_loops.compiled(pair_loops.plan_pairs)
    assert loops[1] is pair_loops.plan_pairs
