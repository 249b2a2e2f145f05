"""Compiled variants of each function over all shapes of a job: few of them, without graph breaks."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from train_jobs.config import ModelConfig
from train_jobs.models.bert import attention, encoder
from train_jobs.models.bert.encoder import RECOMPILE_LIMIT, BertModel, Encoder
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, pretraining_sums
from train_jobs.models.packing import Packing, packing_arrays

VARIANTS = 4  # most of one function in one job
SHAPE = ModelConfig(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=64
)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Yield the graphs that dynamo hands to a backend that runs them as they are, counted by class and function."""
    made: Counter[str] = Counter()
    compiled = torch.compile

    @functools.cache  # with a backend of its own, each layer would be compiled
    def backend_of(name: str) -> Callable[..., Any]:
        def count(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
            made[name] += 1
            return graph.forward

        return count

    def compile_and_count(function: Any, **options: Any) -> Callable[..., Any]:
        backend = backend_of(f"{type(function.__self__).__name__}.{function.__name__}")
        found: Callable[..., Any] = compiled(function, backend=backend, **options)
        return found

    monkeypatch.setattr(torch, "compile", compile_and_count)
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
@pytest.mark.parametrize("together", [False, True], ids=["each_layer", "together"])
@pytest.mark.parametrize("sizes", [[64] * 5, [17, 40, 23, 64, 9]], ids=["one_length", "lengths_of_batches"])
def test_layers_compile_to_few_variants(graphs: Counter[str], sizes: list[int], together: bool) -> None:
    """Full and half micro batches, remainders, full sequences, in training and in validation."""
    model = BertModel(SHAPE, 64)
    encoder: Encoder = model.encoder
    encoder.compile_layers(together=together)
    draw = np.random.default_rng(3)
    for training in (True, False):
        model.train(training)
        with torch.set_grad_enabled(training):
            for rows, size in zip((8, 8, 4, 3, 2), sizes, strict=True):
                encode(model, draw.integers(3, size + 1, rows).tolist(), size)
            encode(model, [sizes[0]] * 8, sizes[0])
    assert torch._dynamo.utils.counters["graph_break"] == {}
    assert set(graphs) == {"Encoder.run_layers" if together else "EncoderLayer._call_impl"}
    assert max(graphs.values()) <= VARIANTS
    assert torch._dynamo.config.recompile_limit >= RECOMPILE_LIMIT > VARIANTS


def stand_in(joint: torch.Tensor, starts: torch.Tensor, longest: int, dropout: float) -> torch.Tensor:
    """Compute something of the arguments of the kernel for packed sequences, which a CPU lacks."""
    query, key, value = joint.unbind(1)
    return (query * key).sum(-1, keepdim=True) * value / longest + starts.sum()


def sum_of(model: BertForPreTraining, rows: int, draw: np.random.Generator, *, next_sentence: bool) -> None:
    """Run the model and its losses on random sequences of up to 64 tokens, packed as on a GPU."""
    lengths = draw.integers(3, 65, rows)
    packing = {name: torch.from_numpy(array) for name, array in packing_arrays(lengths, 64, always=True).items()}
    ids = torch.randint(5, 60, (rows, 64))
    examples = {
        "input_ids": ids,
        "token_type_ids": torch.zeros_like(ids),
        "lengths": torch.from_numpy(lengths),
        "masked_positions": torch.zeros((rows, 5), dtype=torch.int64),
        "masked_labels": torch.full((rows, 5), 7),
        "next_sentence_labels": torch.ones(rows, dtype=torch.int64),
        **packing,
    }
    found = pretraining_sums(model, examples, next_sentence=next_sentence, padded=True)
    if found.mlm_loss_sum.requires_grad:
        (found.mlm_loss_sum + found.nsp_loss_sum).backward()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("together", [False, True], ids=["each_layer", "together"])
@pytest.mark.parametrize("next_sentence", [True, False])
def test_pretraining_compiles_to_few_variants(graphs: Counter[str], next_sentence: bool, together: bool) -> None:
    """Layers, sum of embeddings, heads and losses: micro batches, halves, remainders down to one, and validation."""
    model = BertForPreTraining(SHAPE, 64)
    model.compile_parts(layers_only=False, together=together)
    draw = np.random.default_rng(3)
    for training in (True, False):
        model.train(training)
        with torch.set_grad_enabled(training):
            for rows in (8, 8, 4, 3, 2, 1, 8, 5):
                sum_of(model, rows, draw, next_sentence=next_sentence)
    assert torch._dynamo.utils.counters["graph_break"] == {}
    assert set(graphs) == {
        "Encoder.run_layers" if together else "EncoderLayer._call_impl",
        "InputEmbeddings.combine",
        "BertForPreTraining.sum_head_losses",
    }
    assert max(graphs.values()) <= VARIANTS, graphs


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_finetuning_compiles_to_few_variants(graphs: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer for all and the sum of embeddings: batches of rows with 40 to 128 tokens, remainders, evaluation."""
    monkeypatch.setattr(encoder, "has_packed_kernel", lambda *_: True)
    monkeypatch.setattr(attention, "_flash", stand_in)
    model = BertModel(SHAPE.model_copy(update={"max_position_embeddings": 128}), 64)
    model.compile_parts(layers_only=False)  # as on a GPU
    draw = np.random.default_rng(3)
    for training in (True, False):
        model.train(training)
        with torch.set_grad_enabled(training):
            for longest, rows in ((40, 8), (64, 8), (96, 8), (128, 8), (77, 3), (128, 1), (50, 2)):
                encode(model, [longest, *draw.integers(3, longest + 1, rows - 1).tolist()], longest)
    assert torch._dynamo.utils.counters["graph_break"] == {}
    assert set(graphs) == {"EncoderLayer._call_impl", "InputEmbeddings.combine"}
    assert max(graphs.values()) <= VARIANTS, graphs
