"""The rules for sentences, applied one after the other to one pre-token at a time.

`train_jobs.corpus.tokenize.sentences` must give the same for clean text. Shared are the table of characters and the
meaning of a single word before a stop; where sentences begin is decided here in plain Python.
"""

from __future__ import annotations

import re
from itertools import pairwise

from train_jobs.corpus.tokenize import sentences as rules
from train_jobs.corpus.tokenize.abbreviations import AFTER_ORDINAL, BEFORE_ORDINAL
from train_jobs.corpus.tokenize.pretokens import pretoken_starts
from train_jobs.corpus.tokenize.sentences import StopKind, kind_table, stop_kind

PARAGRAPH = re.compile(r"\n(?:[ \t]*\n|(?=[ \t]*(?:[-*+\u2022]|\(?[0-9]{1,3}[.)]|\(?[a-z][.)])[ \t]))")
BLANK_LINE = re.compile(r"\n\n")
RARE_BLANK = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
BLANKS = " \t\n\r"
LETTERS_BEFORE = {
    ";": tuple(chr(code) for code in range(0x370, 0x400)),
    ":": tuple(chr(code) for code in range(0x531, 0x588)),
}
OPENING = {rules.OPENER, rules.QUOTE, rules.LEFT_QUOTE, rules.OTHER}
CLOSING = {rules.CLOSER, rules.QUOTE, rules.LEFT_QUOTE, rules.ALWAYS}
BEGINS = {rules.UPPER, rules.UNCASED, rules.IDEOGRAPH, rules.SPACELESS, rules.DIGIT}


def plain_sentences(document: str) -> list[str]:
    """Return the sentences of a clean document, blanks squeezed."""
    text = RARE_BLANK.sub(lambda blank: " " * len(blank[0].encode()), document)
    found = Splitter(f"{text}\n\n").sentences()
    return [" ".join(sentence.split()) for sentence in found if sentence.split()]


class Splitter:
    """One document, cut into pre-tokens."""

    def __init__(self, text: str) -> None:
        raw = text.encode()
        bounds = [*pretoken_starts(raw).tolist(), len(raw)]
        self.text = text
        self.tokens = [raw[start:end].decode() for start, end in pairwise(bounds)]
        self.places = [len(raw[:start].decode()) for start in bounds]
        table = kind_table()
        self.kinds = [int(table[ord(token[0])]) if ord(token[0]) < 1 << 16 else int(table[0]) for token in self.tokens]
        self.kinds.append(rules.CONTINUES)

    def sentences(self) -> list[str]:
        """Return the sentences as they are in the text."""
        self.begins = {0: rules.PARAGRAPH} | {
            self.after(match.start()): rules.PARAGRAPH for match in PARAGRAPH.finditer(self.text)
        }
        for number in range(len(self.tokens)):
            after = self.last_closer(number) + 1
            if after < len(self.tokens) and after not in self.begins and self.ends(number, after):
                self.begins[after] = rules.SENTENCE
        edges = sorted(place for place in self.begins if place < len(self.tokens))
        edges = [cut for start, end in pairwise([*edges, len(self.tokens)]) for cut in self.cut(start, end)]
        return ["".join(self.tokens[start:end]) for start, end in pairwise([*edges, len(self.tokens)])]

    def after(self, place: int) -> int:
        """Return the first pre-token that starts behind a character."""
        return next((number for number, at in enumerate(self.places[:-1]) if at > place), len(self.tokens))

    def blank(self, number: int) -> bool:
        """Return whether white space precedes a pre-token."""
        return number > 0 and self.tokens[number - 1][-1] in BLANKS

    def last_closer(self, stop: int) -> int:
        """Return the last closing mark behind a stop."""
        last = stop
        while last - stop < 8 and last + 1 < len(self.tokens):
            kind, blank, next_blank = (
                self.kinds[last + 1],
                self.blank(last + 1),
                self.blank(min(last + 2, len(self.tokens))),
            )
            guillemet = (
                blank and not self.tokens[last].endswith("\n\n") and self.tokens[last + 1][0] == "\u00bb" and next_blank
            )
            if not guillemet and (blank or kind not in CLOSING or (kind == rules.LEFT_QUOTE and not next_blank)):
                break
            last += 1
        return last

    def ends(self, number: int, after: int) -> bool:
        """Return whether a sentence ends at a pre-token."""
        kind, sign = self.kinds[number], self.tokens[number][0]
        if kind == rules.ALWAYS:
            cited = after > number + 1 and self.tokens[after][0] in "\u3068\u3063"
            return self.kinds[after] not in {rules.CONTINUES, rules.SCRIPT_STOP, rules.ALWAYS} and not cited
        if kind == rules.SCRIPT_STOP and (number == 0 or not self.tokens[number - 1].endswith(LETTERS_BEFORE[sign])):
            return False
        if kind not in {rules.STOP, rules.SCRIPT_STOP}:
            return False
        if not self.blank(after):
            return sign in "!?" and self.kinds[after] == rules.IDEOGRAPH and not self.kept(number, after)
        first = after
        for _ in range(3):
            if first < len(self.tokens) and self.kinds[first] in OPENING:
                first += 1
                if self.tokens[first - 1].endswith("\n\n"):
                    return False
        begins = self.kinds[first] in BEGINS or (self.kinds[first] == rules.LOWER and self.lowered(first))
        return begins and not self.kept(number, after)

    def lowered(self, number: int) -> bool:
        """Return whether the paragraph of a pre-token is in lower case."""
        breaks = [0, *(self.after(match.start()) for match in BLANK_LINE.finditer(self.text))]
        start = max(place for place in breaks if place <= number)
        end = min((place for place in breaks if place > number), default=len(self.tokens))
        cased = [kind for kind in self.kinds[start:end] if kind in {rules.UPPER, rules.LOWER}]
        return cased.count(rules.UPPER) * 50 <= cased.count(rules.LOWER) and cased[0] == rules.LOWER

    def kept(self, number: int, after: int) -> bool:
        """Return whether the word before a stop keeps it from ending a sentence."""
        stop, place = self.places[number], self.places[after]
        begin = max((self.text.rfind(blank, 0, stop) for blank in BLANKS), default=-1) + 1
        certain = [stop_ for sign in rules._ALWAYS if (stop_ := self.text.rfind(sign, begin, stop)) >= 0]
        begin = max([begin, *(at + 1 for at in certain)])
        kind = stop_kind(self.text[begin : stop + 1].encode()[-64:])
        begins = next((self.begins.get(at, 0) for at, start in enumerate(self.places) if start == begin), 0)
        behind, ahead = self.text[:begin].lower().split(), self.text[place:].lower()
        if kind is StopKind.DIGITS:
            return bool(begins) or self.ordinal(self.text[begin:stop], self.text[:begin], behind, ahead)
        if kind is StopKind.LETTER:
            if "".join([*behind[-1:], self.text[begin:stop].lower()]) in {"т.д", "т.п"}:
                return False
            numbered = not begins and bool(behind) and behind[-1][-1].isdigit()
            return not numbered or bool(re.match(r"[^\W\d_]\.", ahead))
        return (
            kind is StopKind.ABBREVIATION
            or (kind is StopKind.NUMBER and self.text[place].isdigit())
            or (kind is StopKind.PRONOUN and begins == rules.PARAGRAPH)
        )

    @staticmethod
    def ordinal(word: str, before: str, behind: list[str], ahead: str) -> bool:
        """Return whether a number with a full stop is an ordinal or part of a date."""
        if re.search(r"[0-9]\.\s?\Z", before[-4:]) or re.match(r"[0-9]{1,2}\.\s?[0-9]", ahead):
            return True
        if len(word.encode()) > 2:
            return False
        follows = re.match(r"\w*", ahead)
        known = bool(follows) and follows[0] in AFTER_ORDINAL
        return known or (bool(behind) and behind[-1] in BEFORE_ORDINAL and behind[-2:] != ["i", "am"])

    def cut(self, start: int, end: int) -> list[int]:
        """Return where the pieces of a sentence begin that is too long."""
        found = {start}
        blanks = [number for number in range(start + 1, end) if self.blank(number)]
        if end - start > rules.MAX_WORDS:
            found.update(blanks[rules.MAX_WORDS - 1 :: rules.MAX_WORDS])
        spaceless = sum(kind == rules.SPACELESS for kind in self.kinds[start:end])
        shortest, size = 3 * rules.MIN_PIECE, self.size(start, end)
        if spaceless * 2 > end - start and size > 2 * shortest:
            place = start
            for number in blanks:
                if self.size(place, number) >= shortest:
                    if self.size(number, end) < shortest // 2:
                        break
                    found.add(number)
                    place = number
        return sorted(found)

    def size(self, start: int, end: int) -> int:
        """Return the number of bytes of pre-tokens."""
        return sum(len(token.encode()) for token in self.tokens[start:end])
