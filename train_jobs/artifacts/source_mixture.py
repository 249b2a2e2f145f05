"""Shares of the sources of a text in every window of training examples.

The plan prints them for a token store, and the job for the store that it prepared.
"""

from __future__ import annotations

from train_jobs.artifacts.store_manifest import StoreManifest

SHOWN = 6  # sources by name; the others are summed


def mixture_text(manifest: StoreManifest) -> str | None:
    """Return the share of each source as text, the largest first; None for a store with a single source.

    A share is the source's part of an epoch: its training tokens times its weight, of all sources.
    """
    amounts = [0.0] * len(manifest.sources)
    for shard in manifest.shards:
        if shard.split == "train":
            amounts[shard.source] += sum(shard.tokens) * manifest.sources[shard.source].weight
    if sum(amount > 0 for amount in amounts) < 2:
        return None
    order = sorted(range(len(amounts)), key=lambda number: -amounts[number])
    shares = [f"{manifest.sources[number].name} {amounts[number] / sum(amounts):.1%}" for number in order[:SHOWN]]
    if rest := order[SHOWN:]:
        shares.append(f"{len(rest)} others {sum(amounts[number] for number in rest) / sum(amounts):.1%}")
    return f"mixed in every window of examples: {', '.join(shares)} (tokens x weight)"
