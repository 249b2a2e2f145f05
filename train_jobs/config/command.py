"""The configuration of a command of the user's own, validated on the laptop and again by the job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Annotated

from pydantic import BeforeValidator, Field

from train_jobs.config.fields import CheckedConfig, Text


def _words(value: object) -> object:
    return shlex.split(value) if isinstance(value, str) else value


Words = Annotated[list[Text], BeforeValidator(_words), Field(min_length=1)]


class CommandConfig(CheckedConfig):
    """Configuration file of `python -m train_jobs.command --config FILE`."""

    command: Words
    """Program and arguments of each process, as a list or as one text with a shell's quotes. No shell reads them: use
    `sh -c 'A | B'` for pipes and variables."""

    def problems(self) -> Iterator[str]:
        """Yield one message per contradiction between values of the section."""
        if not self.command[0]:
            yield "command has no program"
