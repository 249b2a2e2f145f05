"""Which places are asked for data: the shipped ones, and before them the user's."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from train_jobs.artifacts.layers import build, merge, read_file
from train_jobs.config.base import Config

SHIPPED = Path(__file__).with_name("mirrors.yaml")
MIRRORS = "mirrors.yaml"  # of the user, in the home folder


class Mirrors(Config):
    """mirrors.yaml."""

    wikipedia: list[str] = Field(default=[], min_length=1)
    """Folders with a folder for each wiki."""
    glue: list[str] = Field(default=[], min_length=1)
    """Folders with GLUE's archives."""
    squad: list[str] = Field(default=[], min_length=1)
    """Folders with SQuAD's files."""


def mirrors_of(what: str, home: Path | None) -> tuple[str, ...]:
    """Addresses of the places that have something, those of the user's mirrors.yaml first.

    Raises:
        SpecError: the user's file is wrong, with file and line.
    """
    shipped = read_file(SHIPPED)
    own = home / MIRRORS if home is not None else None
    found: list[str] = []
    if own is not None and own.is_file():
        layer = read_file(own)
        build(Mirrors, merge([shipped, layer]))
        found = layer.tree.get(what, [])
    return tuple(dict.fromkeys([*found, *getattr(build(Mirrors, merge([shipped])), what)]))
