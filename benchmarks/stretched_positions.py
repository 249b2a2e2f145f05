"""The loss of sequences beyond the trained positions: untrained, interpolated, and after a short further training.

    python -m benchmarks.stretched_positions --output out --pieces 512 --batch 32

Recipe `tiny` is trained on the embedded text with sequences of 64 tokens and evaluated at 128. Expected before the
first measurement: positions with random values cost a few tenths of a nat, as half of the tokens lose the order of
their neighbours. Interpolation costs about half of that, as the distance between neighbours changes for all tokens. A
tenth of the steps at 128 repairs most of it, and the interpolated start stays ahead of the untrained one.

Neither was found: models of 1000 steps, with 4096 or 512 pieces, hardly use positions, and no row of 128 differs from
another by more than 0.04 nats. A model that was trained for longer is needed to see the cost.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean

from train_jobs.config import PretrainConfig
from train_jobs.engine.runtime import distributed
from train_jobs.pretrain import find_store, pretrain, read_config
from train_jobs.tasks.stretching import SEQUENCES, initial_loss

TRAINED, STRETCHED, STEPS, MORE = 64, 128, 1000, 100
ROWS = {
    "trained": f"{TRAINED} tokens, all positions trained",
    "untrained": f"{STRETCHED} tokens, positions from {TRAINED} untrained",
    "interpolated": f"{STRETCHED} tokens, positions interpolated",
    "untrained_more": f"{STRETCHED} tokens, untrained, then {MORE} steps at {STRETCHED}",
    "interpolated_more": f"{STRETCHED} tokens, interpolated, then {MORE} steps at {STRETCHED}",
}


def measure(output: Path, seed: int, *, pieces: int, batch: int) -> dict[str, float]:
    """Train and evaluate with one seed; return the held-out MLM loss of each row, in nats."""
    cache, first = output / "stores", output / f"{seed}-first"
    shared = [f"train.seed={seed}", f"validation.max_sequences={SEQUENCES}", "train.precision=fp32"]
    shared += [f"train.global_batch_size={batch}", f"train.micro_batch_size={batch}"]
    text = [f"train.steps={STEPS}", f"data.vocab_size={pieces}"]
    pretrain(read_config("tiny", [*shared, *text]), output=first, cache=cache, device="cpu")
    further = [*shared, f"init_from={first / 'model'}", f"data.sequence_length={STRETCHED}", f"train.steps={MORE}"]
    starts = {
        "untrained": read_config("tiny", further),
        "interpolated": read_config("tiny", [*further, f"stretch_positions={STRETCHED}"]),
    }
    found: dict[str, float] = {}
    for name, config in starts.items():
        found["trained"] = loss(config, cache, length=TRAINED)
        found[name] = loss(config, cache, length=STRETCHED, stretched=config.stretch_positions is not None)
        result = pretrain(config, output=output / f"{seed}-{name}", cache=cache, device="cpu")
        found[f"{name}_more"] = result["validation_mlm_loss"]
    return found


def loss(config: PretrainConfig, cache: Path, *, length: int, stretched: bool = False) -> float:
    """Return the held-out loss of the initial model of a configuration, in nats."""
    world = distributed.single_process_world()
    store = find_store(config, cache, world)
    return initial_loss(config, store, world, "fp32", length=length, stretched_from=TRAINED if stretched else None)


def main() -> None:
    """Measure with each seed and print a table of means and ranges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--pieces", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    found = []
    for seed in arguments.seeds:
        found.append(measure(arguments.output, seed, pieces=arguments.pieces, batch=arguments.batch))
        print(json.dumps({"seed": seed, **found[-1]}), flush=True)
    print(f"| | loss in nats, {len(found)} seeds (minimum-maximum) |\n|---|---|")
    for key, text in ROWS.items():
        losses = [one[key] for one in found]
        print(f"| {text} | {mean(losses):.3f} ({min(losses):.3f}-{max(losses):.3f}) |")


if __name__ == "__main__":
    main()
