"""Memory of a process and size of a checkpoint, by formula. Estimates: allocators and libraries add to them.

Notation as in `train_jobs.config.arithmetic`; e bytes of an activation (2 for bf16 and fp16, 4 for fp32), N parameters.
"""

from __future__ import annotations

from train_jobs.config import ModelConfig, PretrainConfig
from train_jobs.config.pretrain import LONGEST_PLAIN_ATTENTION

FP32 = 4
LIBRARIES = 600_000_000  # resident size of a process with torch and MLflow, CPU build, that trains a very small model
MOMENTS = 2  # AdamW and LAMB keep the same two


def state_bytes(parameters: int, *, activation_bytes: int, with_moments: int) -> int:
    """Weights and gradients in fp32, 8 N, and 8 for each parameter that the process keeps the moments of.

    In 16 bit, also the weights' copy that autocast makes: 2 N.
    """
    autocast = activation_bytes if activation_bytes < FP32 else 0
    return parameters * (FP32 * (1 + 1) + autocast) + with_moments * FP32 * MOMENTS


def with_moments(parameters: int, *, largest: int, sharded_over: int) -> int:
    """Parameters whose moments the fullest process keeps, where whole tensors are dealt out to so many processes.

    An even part, or the largest tensor, which is the embedding table, if that is more.
    """
    return parameters if sharded_over == 1 else max(-(-parameters // sharded_over), largest)


def layer_activation_bytes(model: ModelConfig, *, activation_bytes: int) -> int:
    """What one layer keeps of each token for the backward pass, in bytes: e (8 H + 2 I), and 2 H of dropout masks.

    Korthikanti et al. 2022, arXiv 2205.05198, section 4.1 (34 H for e = 2 and I = 4 H), without its term for attention
    probabilities, which a fused attention does not keep.
    """
    masks = 2 * model.hidden_size if model.hidden_dropout_prob > 0 else 0
    return activation_bytes * (8 * model.hidden_size + 2 * model.intermediate_size) + masks


def plain_attention_bytes(model: ModelConfig, *, sequence_length: int, activation_bytes: int) -> int:
    """What attention without a fused kernel keeps besides, of each token and layer: e (A S + H) for A heads.

    The probabilities and the scaled queries; with dropout also its mask and what it left of the probabilities.
    """
    copies = 3 if model.attention_probs_dropout_prob > 0 else 1
    return activation_bytes * (copies * model.num_attention_heads * sequence_length + model.hidden_size)


def encoder_activation_bytes(
    model: ModelConfig, *, sequences: int, length: int, activation_bytes: int, on_cpu: bool
) -> int:
    """What the encoder keeps of a micro batch for the backward pass, in bytes: layers, the embeddings' sum (e H)."""
    per_layer = layer_activation_bytes(model, activation_bytes=activation_bytes)
    if on_cpu and length <= LONGEST_PLAIN_ATTENTION:
        per_layer += plain_attention_bytes(model, sequence_length=length, activation_bytes=activation_bytes)
    return sequences * length * (model.num_hidden_layers * per_layer + activation_bytes * model.hidden_size)


def activation_memory(
    job: PretrainConfig, vocab_size: int, *, micro_batch_size: int, activation_bytes: int, on_cpu: bool
) -> int:
    """What a micro batch keeps for the backward pass, in bytes.

    The encoder's; for each predicted position the logits, once in e bytes, and in fp32 their log-probabilities and
    gradients.
    """
    encoder = encoder_activation_bytes(
        job.model,
        sequences=micro_batch_size,
        length=job.data.sequence_length,
        activation_bytes=activation_bytes,
        on_cpu=on_cpu,
    )
    logits = job.model.padded_vocab_size(vocab_size) * (activation_bytes + 2 * FP32)
    return encoder + micro_batch_size * job.max_predictions * logits


def activation_width(precision: str, device: str) -> int:
    """Bytes of an activation: `auto` is taken for 16 bit on a GPU, for fp32, the larger, on a CPU."""
    if precision == "auto":
        return 2 if device == "gpu" else 4
    return 4 if precision == "fp32" else 2


def checkpoint_bytes(parameters: int) -> int:
    """One checkpoint, on the disk or as the copy that it is written from: weights and moments in fp32 (12 N)."""
    return parameters * FP32 * (1 + MOMENTS)
