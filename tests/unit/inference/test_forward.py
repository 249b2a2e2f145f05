"""Batched forward passes over sequences."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from train_jobs.inference import forward as forwarding
from train_jobs.inference.forward import DTYPES, Forward, OrderedLinear, can_be_ordered, prepare_model
from train_jobs.inference.model_folder import read_folder
from train_jobs.tasks.sequences import Tokens


def make_forward(saved, **more):
    folder = read_folder(saved("BertModel"))
    return Forward(prepare_model(folder.model(), precision="fp32", device=torch.device("cpu")), **more)


def sequences(*lengths):
    return [Tokens(np.full(length, 5 + number, np.int64), length) for number, length in enumerate(lengths)]


def test_batches_group_lengths_up_to_token_limit(saved):
    seen = []

    def compute(batch):
        seen.append((batch.lengths.tolist(), batch.rows))
        return [int(ids[0]) for ids in batch.input_ids]

    found = make_forward(saved, batch_tokens=20).map(sequences(3, 12, 9, 4, 30, 5, 8), compute)
    assert found == [5, 6, 7, 8, 9, 10, 11]
    assert seen == [([30], [4]), ([12], [1]), ([9, 8], [2, 6]), ([5, 4, 3], [5, 3, 0])]


def test_padded_batches_are_packed_or_masked(saved):
    forward = make_forward(saved)
    even, little, much = (forward.batch(sequences(*lengths), []) for lengths in ((9, 9), (9, 8), (30, 2, 2, 2, 2, 2)))
    assert (even.packing, even.attention_mask) == (None, None)
    assert little.packing is None
    assert little.attention_mask.tolist() == [[True] * 9, [True] * 8 + [False]]
    assert much.attention_mask is None
    assert much.packing.starts.tolist()[:4] == [0, 30, 32, 34]


def test_forward_allows_gradients_for_kernel_probe(saved):
    def compute(batch):
        with torch.enable_grad():
            one = torch.ones(1, requires_grad=True)
            return [torch.autograd.grad((one * one).sum(), one)[0].item()]

    assert make_forward(saved).map(sequences(5), compute) == [2.0]


def test_layers_with_ordered_weights_give_same_results(saved):
    folder, tokens = read_folder(saved("BertModel")), sequences(9, 3, 12)
    found = []
    for precision in ("bf16", "fp32"):
        model = prepare_model(folder.model(), precision=precision, device=torch.device("cpu"))
        kinds = {type(layer) for layer in model.bert.encoder.modules() if isinstance(layer, OrderedLinear | nn.Linear)}
        assert (OrderedLinear in kinds) == (precision == "bf16" and can_be_ordered())
        assert kinds == {OrderedLinear} or OrderedLinear not in kinds
        forward = Forward(model)
        batch = forward.batch(tokens, [])
        with torch.no_grad():
            hidden = model.bert(batch.input_ids, batch.token_type_ids, batch.attention_mask, batch.packing)
        laid_out = hidden if batch.packing is None else batch.packing.lay_out(hidden)
        found.append(torch.cat([row[:length] for row, length in zip(laid_out, batch.lengths, strict=True)]).float())
    assert (found[0] - found[1]).abs().max() < 0.05 * found[1].abs().max()


def test_weights_stay_if_torch_cannot_order_them(monkeypatch):
    layers = nn.Sequential(nn.Linear(8, 8)).bfloat16()
    monkeypatch.setattr(forwarding, "can_be_ordered", lambda: False)
    forwarding.order_weights(layers)
    assert isinstance(layers[0], nn.Linear)


def test_last_layer_computes_in_fp32(saved):
    folder, tokens = read_folder(saved("BertForSequenceClassification", num_labels=1)), sequences(9, 3, 12, 7, 5, 20)
    found = []
    for precision in ("bf16", "fp32"):
        model = prepare_model(folder.model(), precision=precision, device=torch.device("cpu"))
        assert model.bert.pooler.dense.weight.dtype == DTYPES[precision]
        forward = Forward(model)
        batch = forward.batch(tokens, [])
        with torch.no_grad():
            found.append(model(batch.input_ids, batch.token_type_ids, batch.attention_mask, batch.packing)[:, 0])
    coarse, fine = found
    assert coarse.dtype == torch.float32
    assert (coarse != coarse.bfloat16().float()).any(), "they lie between bf16's numbers"
    assert (coarse - fine).abs().max() < 0.05 * fine.abs().max()
