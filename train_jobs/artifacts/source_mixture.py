"""Shares of the sources of a text in every window of training examples.

The plan prints them for a token store, and the job for the store that it prepared.
"""

from __future__ import annotations

from collections.abc import Iterator

from train_jobs.artifacts.store_manifest import StoreManifest

SHOWN = 6  # sources by name; the others are summed


def epoch_tokens(manifest: StoreManifest) -> list[float]:
    """Return what an epoch reads of each source: its training tokens times its weight."""
    amounts = [0.0] * len(manifest.sources)
    for shard in manifest.shards:
        if shard.split == "train":
            amounts[shard.source] += sum(shard.tokens) * manifest.sources[shard.source].weight
    return amounts


def mixture_text(manifest: StoreManifest) -> str | None:
    """Return the share of each source in an epoch, the largest first; None for a store with a single source."""
    amounts = epoch_tokens(manifest)
    if len(amounts) < 2:
        return None
    order = sorted(range(len(amounts)), key=lambda number: -amounts[number])
    shares = [f"{manifest.sources[number].name} {amounts[number] / sum(amounts):.1%}" for number in order[:SHOWN]]
    if rest := order[SHOWN:]:
        shares.append(f"{len(rest)} others {sum(amounts[number] for number in rest) / sum(amounts):.1%}")
    return f"mixed in every window of examples: {', '.join(shares)} (tokens x weight)"


def held_out_warnings(manifest: StoreManifest) -> Iterator[str]:
    """Yield a warning for each source whose documents were all drawn for validation.

    This is likely for a source of a single document, such as a book: it is trained on as a whole or not at all.
    """
    for source, amount in zip(manifest.sources, epoch_tokens(manifest), strict=True):
        if source.tokens and not amount:
            yield (
                f"nothing of {source.name} is trained on: all of its documents ({source.documents:,}) are held out for"
                " validation; divide them with document: blank-line, or change data.validation_fraction"
            )
