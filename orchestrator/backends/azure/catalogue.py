"""Dated facts about Azure that this package ships: sizes, prices, retirements and base images, one file each.

Every file in `data/` names its source and its date. `orchestrator skus --refresh` replaces sizes and prices by current
ones in the home folder; a plan warns about facts that are older than `MAX_AGE_DAYS`.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).resolve().parent / "data"
MAX_AGE_DAYS = 180
UNKNOWN = "unknown"  # digest of an image whose registry has not been asked


class Facts(NamedTuple):
    """The content of one file."""

    source: str
    """Where its facts come from."""
    date: str
    """When they were true, YYYY-MM-DD."""
    items: Any
    """The facts themselves."""
    region: str | None = None
    """Region of prices."""


@cache
def shipped_facts(name: str) -> Facts:
    """Return one of the shipped files: sizes, prices, retirements or images."""
    document = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return Facts(document["source"], document["date"], document["items"], document.get("region"))


class BaseImage(NamedTuple):
    """The image that an environment is built on."""

    image: str
    """Registry and name."""
    tag: str
    """Tag, with a date in it."""
    digest: str
    """`sha256:...`, or `unknown`."""

    @property
    def reference(self) -> str:
        """The image by its digest or, without one, by its tag."""
        return f"{self.image}:{self.tag}" if self.digest == UNKNOWN else f"{self.image}@{self.digest}"


def base_image(environment: str) -> BaseImage:
    """Return the base image of an environment of this package.

    Args:
        environment: train-gpu or train-cpu.
    """
    return BaseImage(**shipped_facts("images").items[environment])


def today() -> date:
    """Return the current date in UTC, in which all dates of facts are."""
    return datetime.now(UTC).date()


def age_days(dated: str) -> int:
    """Return the age of a date YYYY-MM-DD or YYYY-MM in days."""
    return (today() - date.fromisoformat(dated if len(dated) > len("YYYY-MM") else f"{dated}-01")).days


def stale_text(what: str, dated: str, fix: str) -> str | None:
    """Return a warning about old facts; None: they are recent enough.

    Args:
        what: name of the facts.
        dated: their date.
        fix: the command that renews them.
    """
    days = age_days(dated)
    return f"{what} of {dated} are {days} days old: {fix}" if days > MAX_AGE_DAYS else None
