"""torch.compile of the layers: the same model with other kernels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from train_jobs.config import ModelConfig, SpecError
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise
from train_jobs.tasks.pretraining import compile_layers

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
        compile_layers(made)
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


def test_missing_compiler_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SpecError, match=r"train\.compile needs a C\+\+ compiler"):
        model(dropout=0.0, compiled=True)
