"""Sentences in many scripts for tests of tokenisation, written for them."""

from __future__ import annotations

from pathlib import Path

_LINES = Path(__file__).with_name("scripts.tsv").read_text(encoding="utf-8").splitlines()
SENTENCES = dict(line.split("\t") for line in _LINES)
"""Language -> one or two short sentences."""
