"""Packed sequences: the same model, computed only for tokens."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from train_jobs.config import ModelConfig
from train_jobs.models.bert import attention
from train_jobs.models.bert.attention import has_packed_kernel, plain_attention
from train_jobs.models.bert.pretraining_heads import BertForPreTraining, Sums, initialise, pretraining_sums
from train_jobs.models.bert.task_heads import BertForTokenClassification
from train_jobs.models.packing import MULTIPLE, Packing, graph_multiple, longest_sequence, packing_arrays
from train_jobs.tasks.pretraining import compile_model

SHAPE = ModelConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=128
)
NO_DROPOUT = SHAPE.model_copy(update={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
VOCAB, SIZE, PREDICTIONS = 64, 64, 6
LENGTHS = [64, 3, 17, 40, 64, 9]


def model(shape: ModelConfig = NO_DROPOUT, dtype: torch.dtype = torch.float64) -> BertForPreTraining:
    made = BertForPreTraining(shape, VOCAB).to(dtype)
    initialise(made, 3)
    return made


def batch(lengths: list[int], size: int = SIZE) -> dict[str, torch.Tensor]:
    """Return random tokens with masked positions anywhere; unused positions are 0 as in the collator."""
    rng = np.random.default_rng(5)
    real = np.arange(size) < np.array(lengths)[:, None]
    positions = np.stack([np.sort(rng.integers(0, length, PREDICTIONS)) for length in lengths])
    labels = rng.integers(0, VOCAB, positions.shape)
    positions[:, -1], labels[:, -1] = 0, -100
    arrays = {
        "input_ids": np.where(real, rng.integers(5, VOCAB, real.shape), 0),
        "token_type_ids": np.where(real, rng.integers(0, 2, real.shape), 0),
        "lengths": np.array(lengths),
        "masked_positions": positions,
        "masked_labels": labels,
        "next_sentence_labels": rng.integers(0, 2, len(lengths)),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def packed(padded: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    arrays = packing_arrays(padded["lengths"].numpy(), padded["input_ids"].shape[1])
    assert arrays, "this batch is to be packed"
    return {**padded, **{name: torch.from_numpy(array) for name, array in arrays.items()}}


def sums_and_gradients(
    made: BertForPreTraining, examples: dict[str, torch.Tensor]
) -> tuple[Sums, dict[str, torch.Tensor]]:
    made.zero_grad()
    sums = pretraining_sums(made, examples, next_sentence=True, padded=True)
    (sums.mlm_loss_sum + sums.nsp_loss_sum).backward()
    return sums, {name: parameter.grad for name, parameter in made.named_parameters() if parameter.grad is not None}


def assert_equal_sums_and_gradients(
    made: BertForPreTraining, other: BertForPreTraining, lengths: list[int], tolerance: float
) -> None:
    examples = batch(lengths)
    expected, gradients = sums_and_gradients(made, examples)
    found, others = sums_and_gradients(other, packed(examples))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    assert others.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize(
    "lengths", [LENGTHS, [64, 64, 20, 3], [3, 3, 3], [1, 64, 1], [3, 60, 30, 25, 64, 2, 41, 28, 3]], ids=str
)
def test_losses_and_gradients_match_padded_model(lengths: list[int]) -> None:
    assert_equal_sums_and_gradients(model(), model(), lengths, 1e-10)


def test_joint_layout_equals_compiled_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Packing, "grouped", lambda self: self)
    assert_equal_sums_and_gradients(model(), model(), LENGTHS, 1e-10)


def test_long_sequences_match_with_other_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train_jobs.models.bert.attention.LONGEST_PLAIN_ATTENTION", SIZE - 1)
    assert_equal_sums_and_gradients(model(), model(), LENGTHS, 1e-10)


def test_contents_of_padding_are_ignored() -> None:
    examples = packed(batch(LENGTHS))
    sums, _ = sums_and_gradients(model(), examples)
    real = torch.arange(SIZE) < examples["lengths"][:, None]
    examples["input_ids"] = torch.where(real, examples["input_ids"], 7)
    again, _ = sums_and_gradients(model(), examples)
    assert all(torch.equal(*pair) for pair in zip(sums, again, strict=True))


def test_padding_is_not_computed() -> None:
    made = model()
    computed: list[torch.Size] = []
    made.bert.encoder.layer[0].intermediate.register_forward_hook(lambda *found: computed.append(found[2].shape))
    sums_and_gradients(made, packed(batch(LENGTHS)))
    tokens = -(-sum(LENGTHS) // MULTIPLE) * MULTIPLE
    assert computed == [(tokens, SHAPE.intermediate_size)]
    assert tokens < len(LENGTHS) * SIZE


@pytest.mark.parametrize("lengths", [[64, 64], [64, 63], [1]], ids=str)
def test_batch_without_benefit_is_not_packed(lengths: list[int]) -> None:
    assert packing_arrays(np.array(lengths), 64) == {}


def test_packed_sizes_are_few_and_leave_filler_token() -> None:
    for total in range(64, 6 * 64, 7):
        lengths = np.full(6, total // 6) + (np.arange(6) < total % 6)
        arrays = packing_arrays(lengths, 128)
        assert len(arrays["packing_tokens"]) % MULTIPLE == 0
        assert len(arrays["packing_tokens"]) > total
        assert arrays["packing_starts"][-1] == len(arrays["packing_tokens"])
        assert arrays["packing_starts"][-2] == total


def test_attention_groups_sequences_of_similar_length(monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out: list[tuple[int, ...]] = []

    def watched(query: torch.Tensor, *others: Any) -> torch.Tensor:
        laid_out.append(tuple(query.shape))
        return plain_attention(query, *others)

    monkeypatch.setattr("train_jobs.models.bert.attention.plain_attention", watched)
    sums_and_gradients(model(), packed(batch([3, 60, 30, 25, 64, 2, 41, 28, 3])))
    a_layer = [(2, 4, 64, 8), (3, 4, 41, 8), (1, 4, 25, 8), (3, 4, 3, 8)]  # 64 60, 41 30 28, 25, 3 3 2
    assert laid_out == a_layer * SHAPE.num_hidden_layers


def test_pack_and_unpack_are_inverse() -> None:
    examples = packed(batch(LENGTHS))
    packing = Packing.from_batch(examples)
    assert packing is not None
    real = torch.arange(SIZE) < examples["lengths"][:, None]
    ids = examples["input_ids"][..., None].double()
    tokens = packing.pack(ids)
    laid_out = packing.lay_out(tokens)
    assert torch.equal(laid_out[real], ids[real])
    assert not laid_out[~real].any()
    assert torch.equal(packing.collect(laid_out), tokens)
    assert torch.equal(packing.first(tokens)[:, 0], ids[:, 0, 0])


def test_packed_dropout_has_rate_and_depends_on_seed() -> None:
    made = model(SHAPE).train()
    examples = packed(batch(LENGTHS))

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        return sums_and_gradients(made, examples)[0].mlm_loss_sum.item()

    assert loss(1) == loss(1) != loss(2)
    assert loss(1) != sums_and_gradients(made.eval(), examples)[0].mlm_loss_sum.item()


def test_bf16_agrees_within_rounding() -> None:
    examples = batch(LENGTHS)
    made = model(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = pretraining_sums(made, examples, next_sentence=True, padded=True)
        found = pretraining_sums(made, packed(examples), next_sentence=True, padded=True)
    torch.testing.assert_close(found.mlm_loss_sum, expected.mlm_loss_sum, rtol=1e-3, atol=0)
    torch.testing.assert_close(found.nsp_loss_sum, expected.nsp_loss_sum, rtol=1e-2, atol=0)


@pytest.mark.parametrize("grouped", [True, False], ids=["groups", "one_layout"])
@pytest.mark.parametrize("lengths", [[SIZE] * 4, [SIZE, SIZE, SIZE - 1, SIZE]])
def test_batch_with_little_padding_packed_always(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], grouped: bool
) -> None:
    """On GPUs every batch is packed, even one whose filling tokens find no padded position.

    One layout for all sequences is what a GPU without a kernel for packed sequences uses.
    """
    if not grouped:
        monkeypatch.setattr(Packing, "grouped", lambda packing: packing)
    made = model(dtype=torch.float64)
    examples = batch(lengths)
    arrays = packing_arrays(np.array(lengths), SIZE, always=True)
    assert packing_arrays(np.array(lengths), SIZE) == {}
    expected, gradients = sums_and_gradients(made, examples)
    found, others = sums_and_gradients(made, {**examples, **{n: torch.from_numpy(a) for n, a in arrays.items()}})
    torch.testing.assert_close(found.mlm_loss_sum, expected.mlm_loss_sum)
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-6, atol=1e-9)


def test_token_head_on_rows_of_equal_length_matches_padded() -> None:
    """The head lays out its logits on every device, whatever the attention does."""
    torch.manual_seed(3)
    made = BertForTokenClassification(NO_DROPOUT, VOCAB, 3).double()
    ids = batch([SIZE] * 3)["input_ids"]
    arrays = packing_arrays(np.full(3, SIZE), SIZE, always=True)
    packing = Packing.from_batch({name: torch.from_numpy(array) for name, array in arrays.items()})
    weights = torch.randn(3, SIZE, 3, dtype=torch.float64)
    gradients = []
    for one in (None, packing):
        made.zero_grad()
        (made(ids, torch.zeros_like(ids), None, one) * weights).sum().backward()
        gradients.append([parameter.grad for parameter in made.parameters()])
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler here")
def test_compiled_once_for_any_number_of_tokens() -> None:
    compiled = model(dtype=torch.float32)
    compile_model(compiled)
    torch._dynamo.utils.counters.clear()
    for lengths in (LENGTHS, [64, 3, 3, 3, 3, 3], [64, 64, 30, 3, 64, 64]):
        assert_equal_sums_and_gradients(model(dtype=torch.float32), compiled, lengths, 1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_cpu_has_no_kernel_gpu_kernel_called_like_torch() -> None:
    assert not has_packed_kernel(torch.device("cpu"), torch.bfloat16, 64)
    arguments = torch.ops.aten._flash_attention_forward.default._schema.arguments
    assert [argument.name for argument in arguments[3:10]] == [
        *("cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal", "return_debug_mask"),
    ]


def test_gpu_kernel_is_told_of_the_longest_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filling tokens are a sequence too: of 64 tokens here, longer than all others."""
    told: list[tuple[Tensor, int]] = []

    def flash(joint: Tensor, starts: Tensor, longest: int, dropout: float) -> Tensor:
        told.append((starts, longest))
        return joint[:, 0]

    monkeypatch.setattr(attention, "_flash", flash)
    arrays = packing_arrays(np.array([16, 48]), 48, always=True)
    packing = Packing.from_batch({name: torch.from_numpy(array) for name, array in arrays.items()})
    assert packing is not None
    attention.attend_packed(torch.zeros(len(packing.tokens), 3, 1, 8), packing._replace(kernel=True), dropout=0.0)
    ((starts, longest),) = told
    assert longest >= starts.diff().max() > 48


@pytest.mark.parametrize(("rows", "size"), [(128, 128), (32, 128), (32, 512), (8, 512), (3, 16), (1, 64)])
def test_batches_for_graphs_have_few_shapes_and_short_fillings(rows: int, size: int) -> None:
    multiple = graph_multiple(rows, size)
    draw = np.random.default_rng(7)
    for _ in range(20):
        lengths = draw.integers(2, size + 1, rows)
        arrays = packing_arrays(lengths, size, always=True, multiple=multiple)
        starts, tokens = arrays["packing_starts"], len(arrays["packing_tokens"])
        fillings = np.diff(starts)[rows:]
        assert tokens % multiple == 0
        assert starts[-1] == tokens
        assert sum(fillings) == tokens - sum(lengths)
        assert 1 <= min(fillings) <= max(fillings) <= longest_sequence(size)
        assert len(fillings) == -(-(multiple - 1) // (longest_sequence(size) - 1))  # whatever the lengths


@pytest.mark.parametrize("lengths", [LENGTHS, [SIZE] * 4], ids=["short", "full"])
@pytest.mark.parametrize("grouped", [True, False], ids=["groups", "one_layout"])
def test_several_filling_sequences_change_nothing(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], grouped: bool
) -> None:
    if not grouped:
        monkeypatch.setattr(Packing, "grouped", lambda packing: packing)
    made = model(dtype=torch.float64)
    examples = batch(lengths)
    arrays = packing_arrays(np.array(lengths), SIZE, always=True, multiple=6 * SIZE)
    assert len(arrays["packing_starts"]) > len(lengths) + 2
    expected, gradients = sums_and_gradients(made, examples)
    found, others = sums_and_gradients(made, {**examples, **{n: torch.from_numpy(a) for n, a in arrays.items()}})
    torch.testing.assert_close(found.mlm_loss_sum, expected.mlm_loss_sum)
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_kernel_matches_padded_model() -> None:
    device = torch.device("cuda")
    assert has_packed_kernel(device, torch.bfloat16, 8) or torch.cuda.get_device_capability() < (8, 0)
    made = model(dtype=torch.float32).to(device)
    examples = {name: tensor.to(device) for name, tensor in packed(batch(LENGTHS)).items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found, gradients = sums_and_gradients(made, examples)
    padded = {name: tensor for name, tensor in examples.items() if not name.startswith("packing_")}
    expected, others = sums_and_gradients(made, padded)
    torch.testing.assert_close(found.mlm_loss_sum, expected.mlm_loss_sum, rtol=2e-3, atol=0)
    for name, gradient in gradients.items():
        assert (gradient - others[name]).norm() <= 0.05 * others[name].norm() + 1e-6, name


def test_out_of_memory_does_not_disable_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Exception] = [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("no such kernel")]

    def tried(*of: object) -> bool:
        raise answers.pop(0)

    monkeypatch.setattr(attention, "_agrees_with_plain", tried)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())  # works without a GPU
    monkeypatch.setattr(torch, "autocast", lambda kind, enabled: nullcontext())
    device = torch.device("cuda", 7)  # not probed yet
    with pytest.raises(torch.OutOfMemoryError):
        has_packed_kernel(device, torch.bfloat16, 4)
    assert not has_packed_kernel(device, torch.bfloat16, 4)
