"""Sequences through a model in batches."""

from __future__ import annotations

import numpy as np
import torch

from train_jobs.inference.folder import read_folder
from train_jobs.inference.forward import Forward, Tokens, made_ready


def made(saved, **more):
    folder = read_folder(saved("BertModel"))
    return Forward(made_ready(folder.model(), precision="fp32", device=torch.device("cpu")), **more)


def sequences(*lengths):
    return [Tokens(np.full(length, 5 + number, np.int64), length) for number, length in enumerate(lengths)]


def test_batches_are_of_about_one_length_and_hold_so_many_tokens(saved):
    seen = []

    def compute(batch):
        seen.append((batch.lengths.tolist(), batch.rows))
        return [int(ids[0]) for ids in batch.input_ids]

    found = made(saved, batch_tokens=20).each(sequences(3, 12, 9, 4, 30, 5, 8), compute)
    assert found == [5, 6, 7, 8, 9, 10, 11]
    assert seen == [([30], [4]), ([12], [1]), ([9, 8], [2, 6]), ([5, 4, 3], [5, 3, 0])]


def test_what_is_padded_is_packed_or_masked(saved):
    forward = made(saved)
    even, little, much = (forward.batch(sequences(*lengths), []) for lengths in ((9, 9), (9, 8), (30, 2, 2, 2, 2, 2)))
    assert (even.packing, even.attention_mask) == (None, None)
    assert little.packing is None
    assert little.attention_mask.tolist() == [[True] * 9, [True] * 8 + [False]]
    assert much.attention_mask is None
    assert much.packing.starts.tolist()[:4] == [0, 30, 32, 34]


def test_a_kernel_may_be_tried_with_gradients(saved):
    def compute(batch):
        with torch.enable_grad():
            one = torch.ones(1, requires_grad=True)
            return [torch.autograd.grad((one * one).sum(), one)[0].item()]

    assert made(saved).each(sequences(5), compute) == [2.0]
