"""Largest micro batch of published recipes on Azure's GPU sizes, by the plan's formula; nothing is measured.

python -m benchmarks.micro_batches
"""

from __future__ import annotations

from orchestrator.backends.azure.sizes import SIZES, Size
from orchestrator.jobs.pretrain.estimate import estimate
from train_jobs.artifacts.layers import build, merge, read_preset
from train_jobs.config import PretrainConfig

VOCAB_SIZE = 30_522
FREE = 0.95  # of a GPU's memory; the probe of micro_batch_size: auto leaves as much
FULL = 32_768  # tokens that keep a GPU busy: as in the probe
RECIPES = ("base-google", "base-azureml", "large-nvidia-phase1", "large-nvidia-phase2")


def largest(recipe: PretrainConfig, gigabytes: int) -> int:
    """Return the largest power of two of sequences that fits; 0 if one does not."""
    fits, tried = 0, 1
    while tried * recipe.data.sequence_length <= FULL:
        changed = recipe.model_copy(update={"train": recipe.train.model_copy(update={"micro_batch_size": tried})})
        if estimate(changed, vocab_size=VOCAB_SIZE, device="gpu").process_bytes > FREE * gigabytes * 2**30:
            break
        fits, tried = tried, 2 * tried
    return fits


def main() -> None:
    """Print a table."""
    sizes: dict[tuple[str, int], list[Size]] = {}
    for size in SIZES:
        if size.gpu:
            sizes.setdefault((size.gpu, size.gpu_memory_gb), []).append(size)
    order = sorted(sizes, key=lambda kind: kind[1])
    print("| recipe | length | " + " | ".join(f"{gpu}, {memory} GB" for gpu, memory in order) + " |")
    print("| --- " * (len(order) + 2) + "|")
    for name in RECIPES:
        recipe = build(PretrainConfig, merge(read_preset(name)))
        cells = [largest(recipe, memory) for _, memory in order]
        print(f"| {name} | {recipe.data.sequence_length} | " + " | ".join(map(str, cells)) + " |")
    print("| sizes | | " + " | ".join("<br>".join(size.name for size in sizes[kind]) for kind in order) + " |")


if __name__ == "__main__":
    main()
