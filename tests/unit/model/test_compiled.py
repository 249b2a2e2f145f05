"""torch.compile of the layers: the same model with other kernels."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from train_jobs.config import ModelConfig, SpecError, TrainConfig
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise, pretraining_sums
from train_jobs.models.packing import packing_arrays
from train_jobs.tasks.pretraining import compile_model, compiles_together

pytestmark = [  # internal warnings of torch
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]
SHAPE = ModelConfig(
    hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64, max_position_embeddings=16
)
IDS = torch.arange(48).view(3, 16)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler here")


def model(*, dropout: float, compiled: bool) -> BertForPreTraining:
    made = BertForPreTraining(
        SHAPE.model_copy(update={"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}), 64
    )
    initialise(made, 3)
    if compiled:
        compile_model(made)
    return made.train()


def trained(made: BertForPreTraining) -> list[torch.Tensor]:
    """Return the logits and all gradients of their sum of squares."""
    torch.manual_seed(1)
    made.zero_grad()
    mlm, nsp = made(IDS, torch.zeros_like(IDS))
    (mlm.square().sum() + nsp.square().sum()).backward()
    return [mlm.detach(), nsp.detach(), *(p.grad for p in made.parameters() if p.grad is not None)]


@needs_compiler
@pytest.mark.slow
def test_compiled_logits_and_gradients_match_eager() -> None:
    made = model(dropout=0.0, compiled=True)
    assert made.state_dict().keys() == model(dropout=0.0, compiled=False).state_dict().keys()
    for ours, expected in zip(trained(made), trained(model(dropout=0.0, compiled=False)), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@needs_compiler
@pytest.mark.slow
def test_compiled_dropout_is_bit_exact_for_seed() -> None:
    made = model(dropout=0.2, compiled=True)
    first, second = trained(made), [tensor.clone() for tensor in trained(made)]
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    assert not torch.equal(first[0], trained(model(dropout=0.0, compiled=False))[0])


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    ("together", "graphs"), [(False, False), (True, False), (True, True)], ids=["each_layer", "together", "graphs"]
)
@pytest.mark.parametrize("lengths", [[16, 9, 3], [16, 16, 16]], ids=["short", "full"])
def test_compiled_heads_and_losses_match_eager(lengths: list[int], together: bool, graphs: bool) -> None:
    """All parts, as on a GPU: layers, sum of embeddings, heads and losses; packed sequences. A CPU records no graph."""
    packing = packing_arrays(np.array(lengths), 16, always=True)
    examples = {
        "input_ids": IDS,
        "token_type_ids": torch.zeros_like(IDS),
        "lengths": torch.tensor(lengths),
        "masked_positions": torch.tensor([[1, 2]] * 3),
        "masked_labels": torch.tensor([[7, -100], [9, 3], [5, 5]]),
        "next_sentence_labels": torch.tensor([0, 1, -100]),
        **{name: torch.from_numpy(array) for name, array in packing.items()},
    }
    found = []
    for compiled in (True, False):
        made = model(dropout=0.0, compiled=False)
        if compiled:
            made.compile_parts(layers_only=False, together=together, graphs=graphs)
        sums = pretraining_sums(made, examples, next_sentence=True, padded=True)
        (sums.mlm_loss_sum + sums.nsp_loss_sum).backward()
        found.append([*sums, *(parameter.grad for parameter in made.parameters())])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_gpu_gets_all_layers_as_one_function_unless_sums_overlap() -> None:
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    assert compiles_together(gpu, TrainConfig())
    assert not compiles_together(gpu, TrainConfig(overlap_all_reduce=True))
    assert not compiles_together(cpu, TrainConfig())


def test_missing_compiler_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SpecError, match=r"train\.compile needs a C\+\+ compiler"):
        model(dropout=0.0, compiled=True)
