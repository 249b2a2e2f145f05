"""Compiled variants of a layer over all shapes of a job: few of them, without graph breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from train_jobs.config import ModelConfig
from train_jobs.models.bert.encoder import RECOMPILE_LIMIT, BertModel, Encoder
from train_jobs.models.packing import Packing, packing_arrays

VARIANTS = 4  # most of one function in one job
SHAPE = ModelConfig(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=64
)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Yield the graphs that dynamo hands to a backend that runs them as they are."""
    made: list[object] = []

    def count(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        made.append(graph)
        return graph.forward

    compiled = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda module, **options: compiled(module, backend=count, **options)
    )
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield made
    torch._dynamo.reset()


def encode(model: BertModel, lengths: list[int], size: int) -> None:
    """Run the model on random tokens, packed as on a GPU."""
    arrays = packing_arrays(np.array(lengths), size, always=True)
    packing = Packing.from_batch({name: torch.from_numpy(array) for name, array in arrays.items()})
    ids = torch.randint(5, 60, (len(lengths), size))
    found = model(ids, torch.zeros_like(ids), None, packing)
    if found.requires_grad:
        found.sum().backward()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("sizes", [[64] * 5, [17, 40, 23, 64, 9]], ids=["one_length", "lengths_of_batches"])
def test_layer_compiles_to_few_variants(graphs: list[object], sizes: list[int]) -> None:
    """Full and half micro batches, remainders, full sequences, in training and in validation."""
    model = BertModel(SHAPE, 64)
    encoder: Encoder = model.encoder
    encoder.compile_layers()
    draw = np.random.default_rng(3)
    for training in (True, False):
        model.train(training)
        with torch.set_grad_enabled(training):
            for rows, size in zip((8, 8, 4, 3, 2), sizes, strict=True):
                encode(model, draw.integers(3, size + 1, rows).tolist(), size)
            encode(model, [sizes[0]] * 8, sizes[0])
    assert torch._dynamo.utils.counters["graph_break"] == {}
    assert 1 <= len(graphs) <= VARIANTS
    assert torch._dynamo.config.recompile_limit >= RECOMPILE_LIMIT > VARIANTS
