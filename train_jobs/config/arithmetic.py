"""Number of parameters and FLOPs of a BERT, by formula, and peak FLOP/s of GPUs.

Notation: V rows of the embedding table, H hidden_size, I intermediate_size, L num_hidden_layers, S sequence_length,
p share of a sequence's positions that are predicted.
"""

from __future__ import annotations

import re

from train_jobs.config import ModelConfig

# Peak FLOP/s of dense matrix products from NVIDIA's data sheets: (16 bit with fp32 accumulation, fp32 without TF32).
# A key matches if CUDA's name of the device contains all of its words; the first match is used.
_PEAKS = {
    "H200": (989e12, 67e12),
    "H100 PCIe": (756e12, 51e12),
    "H100 NVL": (835e12, 60e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "A10": (125e12, 31.2e12),
    "L40S": (362e12, 91.6e12),
    "L40": (181e12, 90.5e12),
    "L4": (121e12, 30.3e12),
    "RTX A6000": (154.8e12, 38.7e12),
    "V100": (125e12, 15.7e12),
    "T4": (65e12, 8.1e12),
}
# A suffix (`Ti`, `D`, `Laptop GPU`) is another card, so these must match the complete name.
_CARDS = {
    "NVIDIA GeForce RTX 3090": (71e12, 35.6e12),
    "NVIDIA GeForce RTX 4090": (165.2e12, 82.6e12),
}
# A vGPU has its profile at the end: the GB of its memory and its kind of licence, `A10-4Q` or `A100-1-5CME`.
_VGPU = re.compile(r"-\d+(?:[ABQ]|C(?:ME)?)$")


def parameter_count(model: ModelConfig, vocab_size: int) -> int:
    """Return the number of trainable parameters with both pretraining heads; the decoder shares the embedding table.

    BERT-base with 30,522 pieces and no rounding has 110,106,428, as Hugging Face's BertForPreTraining.

    Args:
        model: shape of the model.
        vocab_size: pieces of the vocabulary; the table is rounded up to `pad_vocab_to_multiple_of`.
    """
    hidden, rows = model.hidden_size, model.padded_vocab_size(vocab_size)
    layer_norm = 2 * hidden
    masked_lm = hidden * hidden + hidden + layer_norm + rows
    next_sentence = 2 * hidden + 2
    return encoder_parameters(model, vocab_size) + masked_lm + next_sentence


def encoder_parameters(model: ModelConfig, vocab_size: int) -> int:
    """Return the number of trainable parameters without a head: embeddings, layers, pooler.

    BERT-base with 30,522 pieces and no rounding has 109,482,240, as Hugging Face's BertModel.

    Args:
        model: shape of the model.
        vocab_size: pieces of the vocabulary; the table is rounded up to `pad_vocab_to_multiple_of`.
    """
    hidden, intermediate = model.hidden_size, model.intermediate_size
    rows = model.padded_vocab_size(vocab_size)
    layer_norm = 2 * hidden
    dense = hidden * hidden + hidden
    embeddings = (rows + model.max_position_embeddings + model.type_vocab_size) * hidden + layer_norm
    attention = 4 * dense + layer_norm
    feed_forward = 2 * hidden * intermediate + intermediate + hidden + layer_norm
    return embeddings + model.num_hidden_layers * (attention + feed_forward) + dense


def flops_per_token(model: ModelConfig, vocab_size: int, *, sequence_length: float, max_predictions: int) -> float:
    """Return the floating-point operations of a forward and a backward pass, per token of a sequence.

    6 L (4 H^2 + 2 H I) + 12 L H S + 6 p (H^2 + H V) + 6 H^2 / S: matrices, attention, masked-LM head at the predicted
    positions only, pooler. A multiply-add counts as two operations, the backward pass as two forward passes (Kaplan et
    al. 2020, arXiv 2001.08361, section 2.1). Attention is counted for every pair of positions.

    Args:
        model: shape of the model.
        vocab_size: pieces of the vocabulary, before rounding.
        sequence_length: S, in tokens.
        max_predictions: positions predicted in a sequence; p = max_predictions / S.
    """
    hidden, layers = model.hidden_size, model.num_hidden_layers
    rows = model.padded_vocab_size(vocab_size)
    matrices = 6 * layers * (4 * hidden**2 + 2 * hidden * model.intermediate_size)
    attention = 12 * layers * hidden * sequence_length
    head = 6 * (max_predictions / sequence_length) * (hidden**2 + hidden * rows)
    pooler = 6 * hidden**2 / sequence_length
    return matrices + attention + head + pooler


def data_sheet(name: str) -> tuple[float, float] | None:
    """Return the peak FLOP/s of a GPU in 16 bit and in fp32; None for an unknown one.

    Args:
        name: name of the device, as `torch.cuda.get_device_name` returns it.
    """
    known = gpu_model(name)
    return _CARDS.get(name) or (_PEAKS[known] if known else None)


def gpu_model(name: str) -> str | None:
    """Return the short name of a GPU, such as `A100` or `H100 NVL`; None for an unknown one or a part of one."""
    words = set(re.split(r"[\s-]+", name))  # complete words: an L40S is not an L40
    if "MIG" in words or _VGPU.search(name):
        return None
    return next((known for known in _PEAKS if words.issuperset(known.split())), None)
