"""Measure what the redaction of a log costs: CPU seconds for 100 MB of lines, in the pieces that a pipe delivers.

    python -m benchmarks.log_redaction [MEGABYTES]

A run without secrets, one with a password, and one with a private key of 50 lines.
"""

from __future__ import annotations

import base64
import os
import sys
import time

from benchmarks.machine import describe
from train_jobs.artifacts.redaction import StreamRedactor

STEP = b"step %07d/9999999  loss 7.%04d  lr 1.00e-04  300.5 sequences/s  8192 tokens/s  eta 1:02:03\n"
REQUEST = b"2026-11-28 12:00:00 INFO my_module.sub_pkg [rank0] GET https://host/a_b?c=%d weights key: %d high\n"
PIECES = (1 << 20, 4096)  # bytes: a rank that prints all the time, and one that prints a page at a time


def seconds(data: bytes, size: int, values: list[str]) -> float:
    """Return the CPU seconds of a stream's redaction."""
    passed = bytearray()
    stream = StreamRedactor(values, passed.extend)
    started = time.process_time()
    for start in range(0, len(data), size):
        stream.feed(data[start : start + size])
    stream.close()
    taken = time.process_time() - started
    assert passed == data, "the log has no secret"
    return taken


def main() -> None:
    """Print a table."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    body = "\n".join(base64.b64encode(os.urandom(48)).decode() for _ in range(50))
    key = f"-----BEGIN PRIVATE {'KEY'}-----\n{body}\n-----END PRIVATE {'KEY'}-----\n"
    secrets = {"none": [], "a password": ["p/+ &=q7Wz!kL0%?"], "a private key": [key]}
    print(f"{describe('pydantic')}; CPU seconds for {megabytes} MB\n")
    print("| lines | secrets of the run | pieces of 1 MiB | pieces of 4 KiB |\n|---|---|---|---|")
    for name, line in (("steps", STEP), ("web requests", REQUEST)):
        lines = b"".join(line % (number, number % 9973) for number in range(10_000))
        data = (lines * (megabytes * 1_000_000 // len(lines) + 1))[: megabytes * 1_000_000]
        for known, values in secrets.items():
            taken = " | ".join(f"{seconds(data, size, values):.1f}" for size in PIECES)
            print(f"| {name} | {known} | {taken} |", flush=True)


if __name__ == "__main__":
    main()
