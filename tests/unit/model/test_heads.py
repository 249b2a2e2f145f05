"""The heads, dropout and initial weights."""

from __future__ import annotations

import pytest
import torch

from train_jobs.config import ModelConfig
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, initialise

SHAPE = ModelConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=16
)
VOCAB = 64


def make_model(seed: int = 0, shape: ModelConfig = SHAPE) -> BertForPreTraining:
    model = BertForPreTraining(shape, VOCAB)
    initialise(model, seed)
    return model.eval()


def tokens(batch: int = 3, length: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(1, VOCAB, (batch, length), generator=torch.Generator().manual_seed(5))
    return ids, torch.zeros_like(ids)


def test_masked_positions_select_from_full_logits() -> None:
    model = make_model()
    positions = torch.tensor([[1, 5, 11, 0], [2, 3, 4, 4], [11, 0, 7, 0]])
    with torch.no_grad():
        every, nsp = model(*tokens())
        selected, nsp_too = model(*tokens(), masked_positions=positions)
    assert selected.shape == (3, 4, VOCAB)
    for row in range(3):
        torch.testing.assert_close(selected[row], every[row, positions[row]], rtol=0, atol=1e-6)
    assert torch.equal(nsp, nsp_too)


def test_padding_does_not_change_earlier_tokens() -> None:
    model = make_model()
    ids, types = tokens(length=8)
    padded = torch.nn.functional.pad(ids, (0, 4))
    mask = (torch.arange(12) < 8).expand(3, 12)
    with torch.no_grad():
        short, short_nsp = model(ids, types)
        long, long_nsp = model(padded, torch.zeros_like(padded), mask)
    torch.testing.assert_close(long[:, :8], short, rtol=0, atol=1e-6)
    torch.testing.assert_close(long_nsp, short_nsp, rtol=0, atol=1e-6)


def test_sequence_that_is_too_long_is_refused() -> None:
    with pytest.raises(AssertionError, match="17 in a model of 16 positions"):
        make_model()(*tokens(length=17))


@pytest.mark.parametrize("which", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_acts_only_in_training_and_by_seed(which: str) -> None:
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = make_model(shape=SHAPE.model_copy(update={**none, which: 0.1}))
    with torch.no_grad():
        still = model(*tokens())[0]
        assert torch.equal(still, model(*tokens())[0])
        model.train()
        torch.manual_seed(1)
        first = model(*tokens())[0]
        second = model(*tokens())[0]
        torch.manual_seed(1)
        again = model(*tokens())[0]
    assert not torch.allclose(first, still)
    assert not torch.allclose(first, second)
    assert torch.equal(first, again)


def test_initial_weights_depend_only_on_seed() -> None:
    torch.manual_seed(1)
    first = make_model(seed=7).state_dict()
    torch.manual_seed(2)
    again, other = make_model(seed=7).state_dict(), make_model(seed=8).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(torch.equal(first[name], other[name]) == (not matrix) for name, matrix in matrices(first).items())


def test_initialising_does_not_use_global_generator() -> None:
    model = make_model()
    before = torch.get_rng_state()
    initialise(model, 1)
    assert torch.equal(before, torch.get_rng_state())


def test_initial_weights_have_bert_distribution() -> None:
    shape = SHAPE.model_copy(update={"hidden_size": 256, "intermediate_size": 512, "initializer_range": 0.05})
    model = make_model(shape=shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(100.0)  # no previous values may remain
    initialise(model, 0)
    state = model.state_dict()
    for name, matrix in matrices(state).items():
        value = state[name]
        if matrix and value.numel() > 10_000:
            assert value.std().item() == pytest.approx(0.05, rel=0.05), name
            assert abs(value.mean().item()) < 0.002, name
        elif not matrix:
            assert torch.all(value == (1.0 if name.endswith("LayerNorm.weight") else 0.0)), name
    table = state["bert.embeddings.word_embeddings.weight"]
    assert torch.all(table[0] == 0)
    assert torch.all(table[1:].norm(dim=1) > 0)  # including padding rows of the vocabulary


def test_next_sentence_can_be_frozen() -> None:
    model = make_model()
    model.freeze_next_sentence()
    mlm, nsp = model(*tokens())
    (mlm.sum() + nsp.sum()).backward()
    untouched = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert untouched == {f"{head}.{kind}" for head in ("bert.pooler.dense", "cls.seq_relationship") for kind in KINDS}


KINDS = ("weight", "bias")


def matrices(state: dict[str, torch.Tensor]) -> dict[str, bool]:
    """Return for each tensor whether it is initialised at random."""
    return {name: not name.endswith("bias") and "LayerNorm" not in name for name in state}
