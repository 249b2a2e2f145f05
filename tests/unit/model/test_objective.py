"""The sums of the objective against a reference that computes one token at a time."""

from __future__ import annotations

import pytest
import torch

from train_jobs.config import ModelConfig
from train_jobs.models.bert.pretraining_heads import (
    BertForPreTraining,
    Sums,
    initialise,
    is_correct,
    length_mask,
    pretraining_sums,
)

VOCAB, LENGTH = 48, 10


@pytest.fixture
def model() -> BertForPreTraining:
    shape = ModelConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        initializer_range=0.3,
    )
    model = BertForPreTraining(shape, VOCAB)
    initialise(model, 0)
    return model.eval()


def batch(lengths: tuple[int, ...] = (10, 7, 4)) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(1, VOCAB, (3, LENGTH), generator=generator)
    return {
        "input_ids": ids * length_mask(torch.tensor(lengths), LENGTH),
        "token_type_ids": torch.zeros_like(ids),
        "lengths": torch.tensor(lengths),
        "masked_positions": torch.tensor([[1, 4, 9], [2, 6, 0], [3, 0, 0]]),
        "masked_labels": torch.tensor([[5, 6, 7], [8, 9, -100], [10, -100, -100]]),
        "next_sentence_labels": torch.tensor([0, 1, -100]),
    }


def reference(model: BertForPreTraining, data: dict[str, torch.Tensor]) -> list[float]:
    """Return the sums from single sequences without padding and the log-probability of each label."""
    mlm, nsp = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]

    def count(sums: list[float], logits: torch.Tensor, label: int) -> None:
        if label != -100:
            sums[0] -= float(logits.log_softmax(-1)[label])
            sums[1] += float(logits.argmax() == label)
            sums[2] += 1

    with torch.no_grad():
        for row, length in enumerate(data["lengths"].tolist()):
            ids = data["input_ids"][row : row + 1, :length]
            tokens, pair = model(ids, torch.zeros_like(ids))
            for place, label in zip(data["masked_positions"][row], data["masked_labels"][row], strict=True):
                count(mlm, tokens[0, place], int(label))
            count(nsp, pair[0], int(data["next_sentence_labels"][row]))
    return [*mlm, *nsp]


def test_sums_over_padded_batch_match_reference(model: BertForPreTraining) -> None:
    data = batch()
    # some labels are correct predictions, so that the number of hits is not zero
    with torch.no_grad():
        logits, _ = model(data["input_ids"][:1], data["token_type_ids"][:1])
    data["masked_labels"][0, 1] = logits[0, 4].argmax()
    expected = reference(model, data)
    sums = pretraining_sums(model, data, next_sentence=True, padded=True)
    assert [float(value.detach()) for value in sums] == pytest.approx(expected, rel=1e-5)
    assert (expected[2], expected[5]) == (6, 2)
    assert expected[1] >= 1


def test_batch_without_padding_needs_no_mask(model: BertForPreTraining) -> None:
    data = batch((LENGTH, LENGTH, LENGTH))
    masked = pretraining_sums(model, data, next_sentence=True, padded=True)
    plain = pretraining_sums(model, data, next_sentence=True, padded=False)
    assert [float(a.detach()) for a in masked] == pytest.approx([float(b.detach()) for b in plain], rel=1e-6)


def test_sums_without_next_sentence_are_zero(model: BertForPreTraining) -> None:
    sums = pretraining_sums(model, batch(), next_sentence=False, padded=True)
    (sums.mlm_loss_sum + sums.nsp_loss_sum).backward()
    assert [float(value) for value in sums[3:]] == [0.0, 0.0, 0.0]
    assert model.cls.seq_relationship.weight.grad is None
    assert model.bert.pooler.dense.weight.grad is None
    assert model.cls.predictions.transform.dense.weight.grad is not None


def test_padding_batch_adds_nothing(model: BertForPreTraining) -> None:
    data = batch()
    data["masked_labels"].fill_(-100)
    data["next_sentence_labels"].fill_(-100)
    sums = pretraining_sums(model, data, next_sentence=True, padded=True)
    (sums.mlm_loss_sum + sums.nsp_loss_sum).backward()
    assert [float(value.detach()) for value in sums] == [0.0] * 6
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_micro_batch_sums_equal_batch(model: BertForPreTraining) -> None:
    data = batch()
    gradients = []
    totals = []
    for parts in ([slice(0, 3)], [slice(0, 1), slice(1, 3)]):
        model.zero_grad()
        total = torch.zeros(6)
        for part in parts:
            micro = {name: value[part] for name, value in data.items()}
            sums = pretraining_sums(model, micro, next_sentence=True, padded=True)
            (sums.mlm_loss_sum + sums.nsp_loss_sum).backward()
            total += torch.stack([value.detach().float() for value in sums])
        gradients.append([p.grad.clone() for p in model.parameters()])
        totals.append(total)
    torch.testing.assert_close(totals[0], totals[1])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("autocast", [True, False])
def test_losses_are_fp32_in_any_precision(model: BertForPreTraining, autocast: bool) -> None:
    exact = pretraining_sums(model, batch(), next_sentence=True, padded=True)
    if not autocast:
        model.to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        sums = pretraining_sums(model, batch(), next_sentence=True, padded=True)
    assert isinstance(sums, Sums)
    assert [value.dtype for value in sums] == [torch.float32, torch.int64, torch.int64] * 2
    assert float(sums.mlm_loss_sum.detach()) == pytest.approx(float(exact.mlm_loss_sum.detach()), rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_ties_are_errors_in_every_precision(dtype: torch.dtype) -> None:
    """1.001 and 1.002 are the same number in bf16: counted as correct, such ties make bf16 look better than fp32."""
    logits = torch.tensor([[1.0, 1.0, 0.0], [2.0, 1.0, 2.0], [0.0, 3.0, 1.0], [1.0, 2.0, 1.0]], dtype=dtype)
    assert is_correct(logits, torch.tensor([0, 2, 1, 0])).tolist() == [False, False, True, False]
    close = torch.tensor([[1.001, 1.002]]).to(dtype)
    assert is_correct(close, torch.tensor([1])).tolist() == [dtype != torch.bfloat16]


def test_constant_logits_predict_no_label(model: BertForPreTraining) -> None:
    """An untrained head that gives every class the same logit is right about none."""
    for parameter in model.parameters():
        parameter.data.zero_()
    sums = pretraining_sums(model, batch(), next_sentence=True, padded=True)
    assert (sums.mlm_correct.item(), sums.nsp_correct.item()) == (0, 0)
    assert sums.mlm_count > 0
