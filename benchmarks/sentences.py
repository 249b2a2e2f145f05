"""Compare our sentence rules with other splitters: speed, and agreement with boundaries set by people.

    pip install blingfire==0.1.8 pysbd==0.3.4 uniseg==0.10.1
    python -m benchmarks.sentences [FOLDER]

FOLDER contains GLUE's files, books, PUD and XQuAD, as `../shared/data` does.

- PUD: 1,000 sentences in eight languages, translated by people, one a line. Blocks of 20 are joined by a blank, Chinese
  ones by nothing; a splitter must find the 19 places between them. Score: F1 over all blocks. No splitter is given the
  language, except pysbd, which requires it.
- PUD again, with our rules reduced to the abbreviations and ordinals of the language: what a setting for it would gain.
- GLUE: lines that open with a capital or a digit and end with a full stop, shuffled and joined in groups of six. MNLI's
  hypotheses and CoLA are single sentences by human judgement. MRPC's are from newspapers. QNLI's were cut out of
  Wikipedia by another program, so a disagreement there may be that program's error.
"""

from __future__ import annotations

import csv
import json
import lzma
import random
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from unittest.mock import patch

import blingfire
import pysbd
from uniseg.sentencebreak import sentences as unicode_sentences

from benchmarks.machine import describe, spread
from train_jobs.corpus.tokenize import abbreviations, sentences
from train_jobs.corpus.tokenize.sentences import SPLITTER, split_sentences

Splitter = Callable[[str], list[str]]
SPLITTERS: dict[str, Splitter] = {
    SPLITTER: split_sentences,
    f"blingfire {version('blingfire')}": lambda text: blingfire.text_to_sentences(text).split("\n"),
}
UNICODE = f"UAX 29 (uniseg {version('uniseg')})"
PYSBD = f"pysbd {version('pysbd')}"
LANGUAGES = ("en", "de", "ru", "hi", "ar", "zh", "es", "th")
OWN_LISTS = {
    "en": "English",
    "de": "German",
    "ru": "Russian, Ukrainian, Bulgarian",
    "hi": "Hindi and Marathi",
    "ar": "Arabic",
    "es": "Spanish",
}
BLOCK = 20
LINES = {
    "MNLI hypotheses": ("MNLI/subset_train.tsv", 2),
    "CoLA": ("CoLA/train.tsv", 3),
    "MRPC": ("MRPC/train.tsv", 3),
    "QNLI": ("QNLI/subset_train.tsv", 2),
}
TOGETHER = 6
ROUNDS = 5


def main() -> None:
    """Print five tables."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("../shared/data")
    books = [lzma.decompress(path.read_bytes()).decode("utf-8-sig") for path in sorted(folder.glob("gutenberg/*.xz"))]
    size = sum(len(book.encode()) for book in books)
    print(f"{describe('blingfire')}\n\n| splitter | MB/s of {size / 1e6:.0f} MB of books, one core |\n|---|---|")
    for name, split in SPLITTERS.items():
        print(f"| {name} | {spread([size / 1e6 / seconds_of(split, books) for _ in range(ROUNDS)])} |")
    print("\n| sentences | number | splitter | found | right |\n|---|---|---|---|---|")
    for source, (path, column) in LINES.items():
        sentences = list(whole_sentences(folder / "glue" / path, column))
        for name, split in SPLITTERS.items():
            found, right = agreement(split, sentences)
            print(f"| {source} | {len(sentences):,} | {name} | {found:.2%} | {right:.2%} |")
    show_languages(folder / "multilingual")
    show_named_languages(folder / "multilingual/pud")


def show_languages(folder: Path) -> None:
    """Print the F1 of boundaries in PUD, and the speed on XQuAD's articles, of each language."""
    texts = {language: (folder / f"pud/{language}.txt").read_text(encoding="utf-8") for language in LANGUAGES}
    texts["en lower-cased"] = texts["en"].lower()
    names = [*SPLITTERS, UNICODE, PYSBD]
    print(f"\n| F1 of boundaries | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    for language, text in texts.items():
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        scores = [f1(splitter(name, language[:2]), lines, "" if language == "zh" else " ") for name in names]
        print(f"| {language} | {' | '.join(f'{score:.3f}' for score in scores)} |")
    print(f"\n| MB/s on one core | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    for language in LANGUAGES:
        with lzma.open(folder / f"xquad/{language}.jsonl.xz", "rt", encoding="utf-8") as stream:
            text = "\n\n".join(json.loads(line)["text"] for line in stream)
        size = len(text.encode()) / 1e6
        rates = []
        for name in names:
            rounds = ROUNDS if name in SPLITTERS else 1  # the others take minutes
            seconds = [seconds_of(splitter(name, language), [text]) for _ in range(rounds)]
            rates.append(spread([size / each for each in seconds], digits=2))
        print(f"| {language} | {' | '.join(rates)} |")


def show_named_languages(folder: Path) -> None:
    """Print the F1 of boundaries in PUD with the words of all languages, and with those of the text's language only."""
    print("\n| F1 of boundaries | words of all languages | of this language | of this language and English |")
    print("|---|---|---|---|")
    for language, own in OWN_LISTS.items():
        text = (folder / f"{language}.txt").read_text(encoding="utf-8")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        scores = [f1(split_sentences, lines, " ")]
        for lists in ({own}, {own, "English"}):
            words = frozenset(word for each in lists for word in abbreviations.NEVER_LAST_BY_LANGUAGE[each].split())
            ordinals = abbreviations.BEFORE_ORDINAL if language == "de" else frozenset()
            sentences.stop_kind.cache_clear()
            with patch.multiple(sentences, NEVER_LAST=words, BEFORE_ORDINAL=ordinals):
                scores.append(f1(split_sentences, lines, " "))
        sentences.stop_kind.cache_clear()
        print(f"| {language} | {' | '.join(f'{score:.5f}' for score in scores)} |")


def splitter(name: str, language: str) -> Splitter:
    """Return a splitter by its name in the tables."""
    if name == UNICODE:
        return lambda text: list(unicode_sentences(text))
    if name == PYSBD:
        known = language if language in pysbd.languages.LANGUAGE_CODES else "en"
        return pysbd.Segmenter(language=known, clean=False).segment
    return SPLITTERS[name]


def f1(split: Splitter, sentences: list[str], joint: str) -> float:
    """Return the F1 of the boundaries that a splitter finds in joined blocks of sentences."""
    found = true = both = 0
    for start in range(0, len(sentences) - BLOCK + 1, BLOCK):
        block = sentences[start : start + BLOCK]
        ours, theirs = places(split(joint.join(block))), places(block)
        found, true, both = found + len(ours), true + len(theirs), both + len(ours & theirs)
    return 2 * both / (found + true)


def seconds_of(split: Splitter, texts: list[str]) -> float:
    """Return the processor seconds for texts of paragraphs."""
    started = time.process_time()
    for text in texts:
        split(text)
    return time.process_time() - started


def whole_sentences(path: Path, column: int) -> Iterator[str]:
    """Yield a column's values that look like a sentence, shuffled, so that neighbours are unrelated."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        rows = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    # Neighbours of one document could continue each other, and a splitter may use that.
    random.Random(0).shuffle(rows)
    for row in rows:
        sentence = " ".join(row[column].split()) if len(row) > column else ""
        if sentence[-1:] in {".", "!", "?"} and (sentence[0].isupper() or sentence[0].isdigit()):
            yield sentence


def agreement(split: Splitter, sentences: list[str]) -> tuple[float, float]:
    """Return recall and precision of sentence boundaries."""
    found = true = both = 0
    for start in range(0, len(sentences) - TOGETHER + 1, TOGETHER):
        group = sentences[start : start + TOGETHER]
        # Positions without blanks: splitters differ in the white space that they keep.
        ours, theirs = places(split(" ".join(group))), places(group)
        found, true, both = found + len(ours), true + len(theirs), both + len(ours & theirs)
    return both / true, both / found


def places(sentences: list[str]) -> set[int]:
    """Return the number of characters, without blanks, before each sentence but the first."""
    lengths = [len("".join(sentence.split())) for sentence in sentences if sentence.strip()]
    return set(list(accumulate(lengths))[:-1])


if __name__ == "__main__":
    main()
