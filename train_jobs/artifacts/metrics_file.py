"""Reader of metrics.jsonl: a line per report, {"step": 120, "time": 1763712000.0, "metrics": {"train_loss": 6.81}}."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_reports(path: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each complete report of a metrics file, with the byte offset after it; skip incomplete lines.

    Args:
        path: a metrics.jsonl, which a job may be writing.
        offset: byte to start from: 0, or an offset that was yielded before.
    """
    with path.open("rb") as stream:
        stream.seek(offset)
        for line in stream:
            if not line.endswith(b"\n"):
                return  # still being written; a later call starts at the same offset
            offset += len(line)
            try:
                report = json.loads(line)
            except ValueError:
                continue  # a machine died while writing this line, and the next attempt appended to it
            yield offset, report
