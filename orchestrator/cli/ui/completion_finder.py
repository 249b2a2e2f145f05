"""The completions of a shell, in a time that grows with their number and not with its square."""

from __future__ import annotations

from argcomplete.finders import CompletionFinder


class DistinctCompletions(CompletionFinder):
    """A finder that looks repeated completions up in a table; argcomplete's own compares each with all before it."""

    def filter_completions(self, completions: list[str]) -> list[str]:
        """Return the completions without repetitions."""
        return list(dict.fromkeys(completions))
