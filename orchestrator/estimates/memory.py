"""Estimates of memory and disk space by formula, and warnings if a machine has less.

Allocators and libraries need memory beyond the formulas, so an estimate leads to a warning and never to an error.

Notation as in `train_jobs.config.arithmetic`, and e bytes of an activation (2 for bf16 and fp16, 4 for fp32) and N
parameters.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.specs.compute import ResolvedCompute
from orchestrator.support.formatting import bytes_text
from train_jobs.config import CheckpointConfig, Config, FinetuneConfig, ModelConfig, PretrainConfig
from train_jobs.config.pretrain import LONGEST_PLAIN_ATTENTION, dividing

FP32 = 4
LIBRARIES = 600_000_000  # resident bytes of a process with the CPU build of torch and MLflow and a very small model
MOMENTS = 2  # per parameter, for both AdamW and LAMB


def state_bytes(parameters: int, *, activation_bytes: int, with_moments: int) -> int:
    """Return the bytes of the training state: weights and gradients in fp32 (8 N), and moments (8 per parameter).

    In 16 bit, autocast also keeps a copy of the weights (2 N).

    Args:
        parameters: N.
        activation_bytes: e.
        with_moments: number of parameters whose moments this process keeps.
    """
    autocast = activation_bytes if activation_bytes < FP32 else 0
    return parameters * (FP32 * (1 + 1) + autocast) + with_moments * FP32 * MOMENTS


def with_moments(parameters: int, *, largest: int, sharded_over: int) -> int:
    """Return the maximum number of parameters whose moments a process keeps.

    Whole tensors are sharded over processes, because LAMB needs the norm of each tensor. A process therefore keeps at
    least an even share, or the largest tensor if that is more.

    Args:
        parameters: N.
        largest: parameters of the largest tensor, the embedding table.
        sharded_over: number of processes that share the moments.
    """
    return parameters if sharded_over == 1 else max(-(-parameters // sharded_over), largest)


def layer_activation_bytes(model: ModelConfig, *, activation_bytes: int, fp32_norms: bool = False) -> int:
    """Return the activation bytes of one layer per token: e (8 H + 2 I), and 2 H of dropout masks.

    With `fp32_norms`, as under autocast on a GPU, the inputs of both LayerNorms take 4 H bytes each instead of e H.

    Source: Korthikanti et al. 2022, arXiv 2205.05198, section 4.1 (34 H for e = 2 and I = 4 H), without the term for
    attention probabilities, which a fused attention does not store.
    """
    masks = 2 * model.hidden_size if model.hidden_dropout_prob > 0 else 0
    wider = 2 * (FP32 - activation_bytes) * model.hidden_size if fp32_norms else 0
    return activation_bytes * (8 * model.hidden_size + 2 * model.intermediate_size) + wider + masks


def plain_attention_bytes(model: ModelConfig, *, sequence_length: int, activation_bytes: int) -> int:
    """Return the additional bytes of attention without a fused kernel, per token and layer: e (A S + H) for A heads.

    These are the probabilities and the scaled queries; with dropout, also its mask and the masked probabilities.
    """
    copies = 3 if model.attention_probs_dropout_prob > 0 else 1
    return activation_bytes * (copies * model.num_attention_heads * sequence_length + model.hidden_size)


def encoder_activation_bytes(
    model: ModelConfig, *, sequences: int, length: int, activation_bytes: int, on_cpu: bool
) -> int:
    """Return the activation bytes of the encoder for a micro batch: its layers, and the sum of embeddings (e H)."""
    per_layer = layer_activation_bytes(model, activation_bytes=activation_bytes, fp32_norms=not on_cpu)
    # On a CPU, the model computes short sequences without the fused kernel.
    if on_cpu and length <= LONGEST_PLAIN_ATTENTION:
        per_layer += plain_attention_bytes(model, sequence_length=length, activation_bytes=activation_bytes)
    return sequences * length * (model.num_hidden_layers * per_layer + activation_bytes * model.hidden_size)


def activation_memory(
    job: PretrainConfig, vocab_size: int, *, micro_batch_size: int, activation_bytes: int, on_cpu: bool
) -> int:
    """Return the activation bytes of a micro batch in pretraining.

    These are the encoder's, and for each predicted position the logits in e bytes, and their log-probabilities and
    gradients in fp32.
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
    """Return the bytes of an activation. `auto` counts as 16 bit on a GPU; on a CPU as fp32, the larger possibility."""
    if precision == "auto":
        return 2 if device == "gpu" else 4
    return 4 if precision == "fp32" else 2


def checkpoint_bytes(parameters: int) -> int:
    """Return the bytes of a checkpoint on disk, or of its copy in memory: weights and moments in fp32 (12 N)."""
    return parameters * FP32 * (1 + MOMENTS)


class TrainingEstimates(Config):
    """Memory of a training process and size of its files: formulas, not measurements."""

    parameters: int
    """Trainable parameters."""
    state_bytes: int
    """Weights, gradients and moments of each process; if sharded, of the fullest."""
    activation_bytes: int
    """Activations of a micro batch in each process, with every sequence at full length."""
    library_bytes: int
    """Python, torch and MLflow, which share the memory of the computation on a CPU."""
    checkpoint_bytes: int
    """Size of one checkpoint."""
    checkpoints_at_once: int
    """Maximum number of checkpoints on the disk: those kept, of all runs, and one that is being written."""
    model_bytes: int
    """Size of the exported models."""

    @property
    def process_bytes(self) -> int:
        """Memory of each process: state, activations, libraries."""
        return self.state_bytes + self.activation_bytes + self.library_bytes

    @property
    def disk_bytes(self) -> int:
        """Maximum size of checkpoints and models on the disk."""
        return self.checkpoints_at_once * self.checkpoint_bytes + self.model_bytes


def checkpoints_at_once(checkpoint: CheckpointConfig, *, steps: int) -> int:
    """Return the maximum number of checkpoints on the disk: those that are kept, and one that is being written.

    There are fewer if a checkpoint is kept for more than one reason. Checkpoints at time intervals replace each other.

    Args:
        checkpoint: settings of checkpoints.
        steps: total number of optimizer steps.
    """
    permanent = steps // checkpoint.keep_every if checkpoint.keep_every else 0
    return min(checkpoint.keep_last + checkpoint.keep_best + permanent + 1, steps)


def model_bytes(parameters: int) -> int:
    """Return the bytes of the exported model: weights in fp32 (4 N)."""
    return parameters * FP32


def disk_warnings(need: int, folder: Path, what: str) -> list[str]:
    """Return a warning if a disk has too little free space.

    Args:
        need: bytes that will be written.
        folder: a folder on the disk, which may not exist yet.
        what: the written files, for the message.
    """
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free >= need:
        return []
    amounts = f"need up to {bytes_text(need)}, have {bytes_text(free)} free at {folder}"
    return [f"the disk may fill up with {what}: {amounts}"]


def memory_warnings(need: int, compute: ResolvedCompute, advice: str) -> list[str]:
    """Return a warning if a process may need more memory than it has.

    Args:
        need: bytes of memory.
        compute: the machines.
        advice: how to reduce the need, for the message.
    """
    have = compute.memory_bytes
    if have is None or need <= have:
        return []
    owner = f"its {compute.gpu}" if compute.gpu else "its share of the machine"
    return [f"memory may run out: a process needs {bytes_text(need)}, {owner} has {bytes_text(have)}: {advice}"]


def training_warnings(
    job: PretrainConfig | FinetuneConfig,
    estimates: TrainingEstimates,
    compute: ResolvedCompute,
    sequences: int,
    *,
    fixed: bool = False,
) -> list[str]:
    """Return a warning if a training process may need more memory than it has, with the largest micro batch that fits.

    Args:
        job: the job. If its micro batch is `auto`, only one sequence has to fit.
        estimates: its estimates.
        compute: the machines.
        sequences: micro batch size of the estimates.
        fixed: whether another micro batch size would change the result, so that none is suggested.
    """
    share = -(-job.train.global_batch_size // compute.world_size)
    sizes = [] if fixed else dividing(share, sequences - 1)
    # Activations grow in proportion to the micro batch; state and libraries do not depend on it.
    held = estimates.process_bytes - estimates.activation_bytes
    needs = {size: held + size * estimates.activation_bytes // sequences for size in (1, *sizes)}
    fitting = max((size for size in sizes if needs[size] <= (compute.memory_bytes or 0)), default=None)
    finds_size = job.train.micro_batch_size == "auto"
    if fitting is not None:
        advice = f"--set train.micro_batch_size={fitting} needs {bytes_text(needs[fitting])}"
    elif compute.world_size > 1 and not job.optimizer.sharded:
        advice = f"one sequence at a time needs {bytes_text(needs[1])}, with optimizer.sharded=true less"
    else:
        advice = f"one sequence at a time needs {bytes_text(needs[1])}"
    return memory_warnings(needs[1] if finds_size else estimates.process_bytes, compute, advice)
