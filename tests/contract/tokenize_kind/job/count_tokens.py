"""Count the words of a text: `python -m count_tokens --config FILE --output FOLDER`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from train_jobs.artifacts.layers import merge, read_assignments, read_file


def main() -> None:
    """Write result.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--set", dest="sets", action="append", default=[])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device")
    arguments = parser.parse_args()
    config = merge([read_file(arguments.config), read_assignments(arguments.sets, "--set")]).tree
    text = Path(config["text"]).read_text(encoding="utf-8")
    words = (text.lower() if config["lowercase"] else text).split()
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "result.json").write_text(json.dumps({"tokens": len(words), "distinct": len({*words})}))


if __name__ == "__main__":
    main()
