"""Findings of `orchestrator doctor`: the result of one check, with its fix."""

from __future__ import annotations

from typing import Literal

from train_jobs.config.fields import Config


class Finding(Config):
    """Result of a check."""

    name: str
    """Name of the check."""
    level: Literal["ok", "warn", "fail"]
    """fail: runs will not work; warn: some runs will fail or be slow."""
    text: str
    """What was found."""
    fix: str | None = None
    """Command or instruction that fixes it."""


def ok(name: str, text: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(name=name, level="ok", text=text)


def warn(name: str, text: str, fix: str) -> Finding:
    """Return a finding that may prevent or slow down some runs.

    Args:
        name: of the check.
        text: the problem.
        fix: a command, or one imperative sentence.
    """
    return Finding(name=name, level="warn", text=text, fix=fix)


def fail(name: str, text: str, fix: str) -> Finding:
    """Return a finding that prevents runs; the command exits with an error.

    Args:
        name: of the check.
        text: the problem.
        fix: a command, or one imperative sentence.
    """
    return Finding(name=name, level="fail", text=text, fix=fix)
