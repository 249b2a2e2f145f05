"""A step of BERT-large on 1 to 8 nodes of 8 GPUs, by a model. Nothing here is measured.

    python -m benchmarks.scaling_model

A step is three parts, one after the other: forward and backward passes of the largest share, the sum of gradients over
all GPUs, LAMB. They do not overlap: the engine reduces once, after the last micro batch.

    passes     = ceil(B / N) F / (peak utilisation)
    reduction  = 2 (N - 1) / N bytes / (share of line x slowest link)        ring (Patarasuk and Yuan 2009)
    LAMB       = passes over the weights x 4 P / memory rate

for B sequences a step, N GPUs, F model FLOPs of a sequence forward and backward, P parameters, 4 P bytes of fp32
gradients. Rings run through all GPUs of a node before they leave it, as many as the node has adapters: the
slowest link is the lesser of the link between two GPUs and the whole network of the VM.

Left out: latency (2 (N - 1) hops of some 10 us, 1 ms on 64 GPUs), stragglers, data (read during training), checkpoints
(written during training), reports and validation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from train_jobs.artifacts.layers import merge, read_preset
from train_jobs.config import ModelConfig
from train_jobs.config.arithmetic import flops_per_token, parameter_count

GPUS = 8  # of a VM
VOCABULARY, LENGTH, PREDICTIONS, BATCH = 30_522, 128, 20, 65_536  # NVIDIA's phase 1
LINE_SHARE = 0.88  # of a link's rate that a collective gets: 11 of ND40rs_v2's 12.5 GB/s; an H200's 450 become 396
LAMB_PASSES = 32  # over fp32 weights: 9 ms on an H200; measured there: 6.5 ms
NODES = (1, 2, 4, 6, 8)


@dataclass(frozen=True)
class Cluster:
    """VMs of 8 GPUs. Rates of data sheets, in bytes per second and direction."""

    vm: str
    gpu: str
    peak: float
    """FLOP/s of a GPU's 16-bit matrix products, dense."""
    utilisation: float
    """Model FLOPs of the passes, share of the peak."""
    source: str
    """Of the utilisation."""
    micro_batch: int
    link: float
    """From a GPU to the others of its VM."""
    network: float
    """Of a VM, all adapters."""
    memory: float
    """Of a GPU's memory."""


# rates: data sheets of V100-SXM2, A100-SXM4-80GB and H200-SXM, Azure's pages of the VM sizes
CLUSTERS = (
    Cluster(
        *("ND40rs_v2", "V100", 125e12, 0.43, "NVIDIA DeepLearningExamples: 224 sequences/s on one GPU, fp16", 64),
        *(150e9, 12.5e9, 0.9e12),
    ),
    Cluster(
        *(
            "ND96amsr_A100_v4",
            "A100",
            312e12,
            0.447,
            "NVIDIA DeepLearningExamples: 580 sequences/s on one GPU, fp16",
            256,
        ),
        *(300e9, 200e9, 2.039e12),
    ),
    Cluster(
        *("ND96isr_H200_v5", "H200", 989e12, 0.44, "this project's goal of 1,800 sequences/s on one GPU", 256),
        *(450e9, 400e9, 4.8e12),
    ),
)
# NVIDIA DeepLearningExamples, PyTorch BERT, A100, phase 1, strong scaling: nodes -> sequences/s
PUBLISHED = {1: 4553, 2: 9191, 4: 18_119, 8: 35_774, 16: 70_555, 32: 138_294}


@dataclass(frozen=True)
class Work:
    """The training job."""

    sequences: int
    """Of a step."""
    flops: float
    """Of a sequence, forward and backward."""
    parameters: int
    largest: int
    """Parameters of the largest tensor: a sharded optimizer deals out whole tensors."""

    @property
    def bytes(self) -> int:
        """Bytes of the gradients, fp32."""
        return 4 * self.parameters


@dataclass(frozen=True)
class Step:
    """Seconds of an optimizer step."""

    passes: float
    reduction: float
    optimizer: float

    @property
    def seconds(self) -> float:
        """Sum of the parts, which do not overlap."""
        return self.passes + self.reduction + self.optimizer


def bert_large() -> Work:
    """Return the work of BERT-large at length 128 in batches of 65,536."""
    model = ModelConfig.model_validate(merge(read_preset("large-nvidia-phase1")).tree["model"])
    flops = LENGTH * flops_per_token(model, VOCABULARY, sequence_length=LENGTH, max_predictions=PREDICTIONS)
    table = model.padded_vocab_size(VOCABULARY) * model.hidden_size
    return Work(BATCH, flops, parameter_count(model, VOCABULARY), largest=table)


def share(work: Work, nodes: int) -> int:
    """Return the sequences of the GPU with the most; shares differ by at most one."""
    return math.ceil(work.sequences / (GPUS * nodes))


def step(cluster: Cluster, work: Work, nodes: int, *, sharded: bool = False, reductions: int = 1) -> Step:
    """Return the seconds of one optimizer step.

    Args:
        sharded: each GPU updates its tensors, and the weights then go around the ring once.
        reductions: of a step; the engine's is 1, whatever the number of micro batches.
    """
    gpus = GPUS * nodes
    # Within a node the ring uses the links between GPUs; across nodes the slower of link and network limits it.
    rate = LINE_SHARE * (cluster.link if nodes == 1 else min(cluster.link, cluster.network))
    once_around = (gpus - 1) / gpus * work.bytes / rate
    update = LAMB_PASSES * work.bytes / cluster.memory
    # The embedding table is one tensor, so the process that owns it has at least that much to update.
    part = max(1 / gpus, work.largest / work.parameters)
    return Step(
        passes=share(work, nodes) * work.flops / (cluster.peak * cluster.utilisation),
        reduction=2 * once_around * reductions,
        optimizer=update * part + once_around if sharded else update,
    )


def speedup(
    cluster: Cluster, work: Work, nodes: int, *, sharded: bool = False, each_micro_batch: bool = False
) -> float:
    """Return the rate relative to one node that reduces once and is not sharded."""
    reductions = math.ceil(share(work, nodes) / cluster.micro_batch) if each_micro_batch else 1
    one = step(cluster, work, 1)
    return one.seconds / step(cluster, work, nodes, sharded=sharded, reductions=reductions).seconds


def table(cluster: Cluster, work: Work) -> str:
    """Return a table with a row for each number of nodes."""
    lines = [
        "| nodes x GPUs | sequences a GPU | passes, s | reduction, ms | LAMB, ms | sequences/s | efficiency"
        " | sharded | reduced each micro batch |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for nodes in NODES:
        made = step(cluster, work, nodes)
        kinds = ({}, {"sharded": True}, {"each_micro_batch": True})
        cells = [
            f"{nodes} x {GPUS}",
            f"{share(work, nodes):,}",
            f"{made.passes:.2f}",
            f"{made.reduction * 1e3:.1f}",
            f"{made.optimizer * 1e3:.0f}",
            f"{work.sequences / made.seconds:,.0f}",
            *(f"{speedup(cluster, work, nodes, **kind) / nodes:.1%}" for kind in kinds),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def published(work: Work) -> str:
    """Return a table of the model and NVIDIA's figures for A100s."""
    lines = ["| nodes | published sequences/s | efficiency | model | efficiency |", "|---|---|---|---|---|"]
    cluster = CLUSTERS[1]
    for nodes, rate in PUBLISHED.items():
        found = work.sequences / step(cluster, work, nodes).seconds
        cells = [
            str(nodes),
            f"{rate:,}",
            f"{rate / PUBLISHED[1] / nodes:.1%}",
            f"{found:,.0f} ({found / rate - 1:+.1%})",
            f"{speedup(cluster, work, nodes) / nodes:.1%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print assumptions and tables."""
    work = bert_large()
    print(
        f"A model, not measured. BERT-large: {work.parameters / 1e6:.1f} M parameters, length {LENGTH}, {BATCH:,}"
        f" sequences a step, {work.flops / 1e9:.1f} GFLOP each;\nfp32 gradients, {work.bytes / 1e9:.3f} GB, in one ring"
        f" all-reduce after the last micro batch, no overlap, {LINE_SHARE:.0%} of the line;\nLAMB {LAMB_PASSES} passes"
        " over fp32 weights. Efficiency: of one node's rate, times nodes.\n"
    )
    for cluster in CLUSTERS:
        print(
            f"{cluster.vm}, {cluster.gpu}: {cluster.peak / 1e12:.0f} TFLOP/s x {cluster.utilisation:.1%}"
            f" ({cluster.source}), micro batch {cluster.micro_batch}, {cluster.link / 1e9:.0f} GB/s between GPUs,"
            f" {cluster.network / 1e9:g} GB/s a VM, memory {cluster.memory / 1e12:.2f} TB/s\n\n{table(cluster, work)}\n"
        )
    print(f"Compared with published figures, A100:\n\n{published(work)}")


if __name__ == "__main__":
    main()
