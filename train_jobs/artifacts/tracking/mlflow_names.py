"""Names under which MLflow takes the metrics, parameters and tags of a run.

MLflow refuses a whole request because of one name. A command of the user's own may report names such as `recall@10`.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping

LONGEST_NAME = 250  # MLflow's limit, in characters
REFUSED = re.compile(r"[^/\w.\- :]")
NO_PATH = {"", ".", ".."}  # MLflow takes names for paths, and refuses one that is not normal
HASH_DIGITS = 8


class AllowedNames:
    """Names of a run in a form that MLflow allows: each character that it refuses becomes `_`.

    A name that is too long, or that an earlier one of the run has become, ends with a hash of the original.
    """

    def __init__(self) -> None:
        self._made: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Return the allowed form of a name, always the same one."""
        if name not in self._made:
            made = _replace_refused(name)
            if len(made) > LONGEST_NAME or made in self._made.values():
                digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_DIGITS]
                made = f"{made[: LONGEST_NAME - HASH_DIGITS - 1]}-{digest}"
            self._made[name] = made
        return self._made[name]


def with_allowed_names(values: Mapping[str, str]) -> dict[str, str]:
    """Return parameters or tags under names that MLflow allows."""
    names = AllowedNames()
    return {names.of(name): value for name, value in values.items()}


def _replace_refused(name: str) -> str:
    # composed: the rule allows the letter ö, but not o with a combining mark
    text = REFUSED.sub("_", unicodedata.normalize("NFC", name))
    text = "/".join("_" if part in NO_PATH else part for part in text.split("/"))
    return f"__{text[2:]}" if text.startswith("..") else text
