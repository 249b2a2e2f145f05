"""The tokenizer of a Hugging Face BERT folder: which files decide its rule, and which rules are not implemented.

transformers makes a `BertTokenizer` from tokenizer_config.json, and ignores the rule in tokenizer.json. Its general
class takes the rule from tokenizer.json. Training and prediction both ask here, so their rules are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from train_jobs.artifacts.files import read_object
from train_jobs.artifacts.regular_files import read_bytes
from train_jobs.artifacts.text_rule import SPLIT_UNSPACED, bert_rule
from train_jobs.artifacts.vocabulary_file import PAD, split_lines
from train_jobs.artifacts.word_rules import word_problems
from train_jobs.config.errors import in_shell

VOCABULARY = "vocab.txt"
TOKENIZER = "tokenizer_config.json"
TOKENIZER_FILE = "tokenizer.json"
ADDED_TOKENS = "added_tokens.json"  # of transformers before tokenizer.json
CLASS = "tokenizer_class"
BERT_CLASSES = ("BertTokenizer", "BertTokenizerFast")
GENERAL_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
_LISTED = 10  # tokens named in a message


class TokenizerFlags(NamedTuple):
    """Flags of BERT's normalisation as a file states them, of any type."""

    lowercase: Any
    """Whether to lower-case. None: not stated, which means yes."""
    strip_accents: Any
    """Whether to drop nonspacing marks. None: if and only if text is lower-cased."""
    chinese_words: Any
    """Whether each Chinese character is a word."""


_SETTINGS = TokenizerFlags("do_lower_case", "strip_accents", "tokenize_chinese_chars")
_NORMALIZER = TokenizerFlags("lowercase", "strip_accents", "handle_chinese_chars")


@dataclass(frozen=True)
class SavedTokenizer:
    """Content of the files of a tokenizer; files that are missing or damaged are empty."""

    folder: Path
    name: Any
    """Name of its class. None: not stated, which means BertTokenizer."""
    settings: dict[str, Any]
    """tokenizer_config.json."""
    rules: dict[str, Any]
    """tokenizer.json."""

    @classmethod
    def read(cls, folder: Path) -> SavedTokenizer:
        """Read the files of a folder."""
        settings, config = (read_object(folder / name) or {} for name in (TOKENIZER, "config.json"))
        return cls(
            folder, settings.get(CLASS) or config.get(CLASS), settings, read_object(folder / TOKENIZER_FILE) or {}
        )

    @property
    def is_general(self) -> bool:
        """Whether tokenizer.json decides the rule."""
        return self.name in GENERAL_CLASSES and isinstance(self.rules.get("normalizer"), dict)

    @property
    def file(self) -> Path:
        """Path of the file that decides the rule."""
        return self.folder / (TOKENIZER_FILE if self.is_general else TOKENIZER)

    @property
    def keys(self) -> TokenizerFlags:
        """Names of the flags in that file."""
        return _NORMALIZER if self.is_general else _SETTINGS

    @property
    def flags(self) -> TokenizerFlags:
        """The flags of that file."""
        stated = self.rules["normalizer"] if self.is_general else self.settings
        return TokenizerFlags(*(stated.get(key) for key in self.keys))

    def class_problems(self) -> list[str]:
        """Return a problem if the class has other rules than BERT's."""
        known = (*BERT_CLASSES, *GENERAL_CLASSES)
        if self.name is None or self.name in known:
            return []
        return [f"{self.folder}: {CLASS} is {self.name!r}, but only these are supported: {', '.join(known)}"]

    def training_problems(self) -> Iterator[str]:
        """Yield a problem for each property that training cannot reproduce."""
        yield from self.class_problems()
        if self.flags.chinese_words is False:
            yield f"{self.file}: {self.keys.chinese_words} is False, but only True is supported"
        if self.is_general:
            yield from self._rule_problems()
        pieces = _pieces(self.folder / VOCABULARY)
        if pieces and pieces[0] != PAD:  # padding has id 0, whose row of the embedding table learns nothing
            yield f"{self.folder / VOCABULARY}: its first piece is {pieces[0]!r}, but only {PAD} is supported"
        added = self._added_tokens()
        if pieces and (lost := sorted(added.keys() - set(pieces), key=added.__getitem__)):
            yield f"{self.folder / VOCABULARY} lacks added tokens: {self._described(lost)}{vocabulary_fix(self.folder)}"

    def _rule_problems(self) -> Iterator[str]:
        """Yield the parts of tokenizer.json that are not BERT's."""
        needed = {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer", "model": "WordPiece"}
        if self.settings.get(SPLIT_UNSPACED):  # of our export, which cuts scripts without blanks in addition
            del needed["pre_tokenizer"]
        for key, need in needed.items():
            part = self.rules.get(key)
            # an old tokenizer.json does not state the type of its model
            have = part.get("type", need if key == "model" else None) if isinstance(part, dict) else part
            if have != need:
                yield f"{self.folder / TOKENIZER_FILE}: {key} is {have!r}, but only {need!r} is supported"
        if self.rules["normalizer"].get("clean_text") is False:
            yield f"{self.folder / TOKENIZER_FILE}: clean_text is False, but only True is supported"

    def _added_tokens(self) -> dict[str, int]:
        """Return the tokens that are found in a text before it is split, with their ids."""
        entries, numbered = self.rules.get("added_tokens"), self.settings.get("added_tokens_decoder")
        found = dict(read_object(self.folder / ADDED_TOKENS) or {})
        if isinstance(numbered, dict):
            found |= {
                one["content"]: int(number) for number, one in numbered.items() if _is_token(one) and number.isdigit()
            }
        if isinstance(entries, list):
            found |= {one["content"]: one.get("id") for one in entries if _is_token(one)}
        return {token: number for token, number in found.items() if isinstance(number, int)}

    def _described(self, lost: Sequence[str]) -> str:
        """Name tokens, and those of them that are never found in a text as pieces of the vocabulary."""
        lower, strip, _ = self.flags
        rule = bert_rule(lowercase=lower is not False, strip_accents=strip if isinstance(strip, bool) else None)
        split = [token for token in lost if any(word_problems([token], (), rule))]
        note = f" (training never finds {_listed(split)} in a text)" if split else ""
        return _listed(lost) + note


def vocabulary_fix(folder: Path) -> str:
    """Return a hint with a command that writes vocab.txt, added tokens included; empty if it would not help."""
    show = "print(*sorted(v, key=v.get), sep='\\n')"
    # transformers 5 writes the vocabulary only into tokenizer.json.
    if (folder / TOKENIZER_FILE).is_file():
        read = "t = json.load(sys.stdin); v = t['model']['vocab']"
        program = f"{read}; v.update((a['content'], a['id']) for a in t.get('added_tokens', [])); {show}"
        source, into = TOKENIZER_FILE, ">"
    elif (folder / ADDED_TOKENS).is_file() and (folder / VOCABULARY).is_file():
        program, source, into = f"v = json.load(sys.stdin); {show}", ADDED_TOKENS, ">>"
    else:
        return ""
    paths = f"< {in_shell(folder / source)} {into} {in_shell(folder / VOCABULARY)}"
    return f'; write it with: python -c "import json, sys; {program}" {paths}'


def _is_token(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("content"), str)


def _listed(tokens: Sequence[str]) -> str:
    more = f" and {len(tokens) - _LISTED} more" if len(tokens) > _LISTED else ""
    return " ".join(tokens[:_LISTED]) + more


def _pieces(path: Path) -> list[str]:
    """Return the pieces of a vocab.txt; empty without such a file. One that is not UTF-8 is refused later."""
    try:
        text = read_bytes(path).decode("utf-8-sig", errors="replace")
    except OSError:
        return []
    return split_lines(text) if text else []
