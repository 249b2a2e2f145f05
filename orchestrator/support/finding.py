"""One thing that was looked at."""

from __future__ import annotations

from typing import Literal

from train_jobs.config.base import Config


class Finding(Config):
    """What a check found."""

    name: str
    """What was looked at."""
    level: Literal["ok", "warn", "fail"]
    """fail: runs will not work; warn: some will not, or slowly."""
    text: str
    """What there is."""
    fix: str | None = None
    """What to do about it."""


def ok(name: str, text: str) -> Finding:
    """All is well."""
    return Finding(name=name, level="ok", text=text)


def warn(name: str, text: str, fix: str) -> Finding:
    """It may be in the way."""
    return Finding(name=name, level="warn", text=text, fix=fix)


def fail(name: str, text: str, fix: str) -> Finding:
    """It is in the way."""
    return Finding(name=name, level="fail", text=text, fix=fix)
