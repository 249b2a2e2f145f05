"""Our sentence rules compared with blingfire: speed, and agreement with human boundaries.

    pip install blingfire==0.1.8
    python -m benchmarks.sentences [FOLDER]

FOLDER holds GLUE's files and books, as `../shared/data` does. Sentences that are each a line of their own in GLUE,
opening with a capital or a digit and ending with a full stop, are put one behind the other, six at a time; a splitter
is to find the five places between them. MNLI's hypotheses and CoLA are single sentences by people's hand; MRPC's are
of newspapers, QNLI's were cut out of Wikipedia by another program, so what disagrees there may be that program's error.
"""

from __future__ import annotations

import csv
import lzma
import random
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path

import blingfire

from benchmarks.machine import describe, spread
from train_jobs.corpus.tokenize.sentences import SPLITTER, split_sentences

Splitter = Callable[[str], list[str]]
SPLITTERS: dict[str, Splitter] = {
    SPLITTER: split_sentences,
    f"blingfire {version('blingfire')}": lambda text: blingfire.text_to_sentences(text).split("\n"),
}
LINES = {
    "MNLI hypotheses": ("MNLI/subset_train.tsv", 2),
    "CoLA": ("CoLA/train.tsv", 3),
    "MRPC": ("MRPC/train.tsv", 3),
    "QNLI": ("QNLI/subset_train.tsv", 2),
}
TOGETHER = 6
ROUNDS = 5


def main() -> None:
    """Print two tables."""
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
