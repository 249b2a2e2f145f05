"""Peers of benchmarks.prepare, each a process of its own: text in, ids out; prints its seconds on stdout as JSON.

    python -m benchmarks.prepare_peers plain TEXT VOCABULARY
    python -m benchmarks.prepare_peers datasets TEXT VOCABULARY PROCESSES
    python -m benchmarks.prepare_peers tokenizers TEXT VOCABULARY
    python -m benchmarks.prepare_peers ours TEXT VOCABULARY
    python -m benchmarks.prepare_peers stages TEXT VOCABULARY
    python -m benchmarks.prepare_peers reading STORE SECONDS

`plain` is what the original recipes do, in Python and one thread, from its published description: clean up, lower case,
accents off, split at white space and punctuation, longest match first; then sentence pairs and masks, each instance
made once. Its text has a sentence a line and blank lines between documents. `datasets` is the run_mlm recipe of
transformers: `map` with a fast tokenizer over lines, then `map` that groups tokens into sequences. `tokenizers` is
`encode_batch_fast`, `ours` the token step alone: lines in, ids out. `stages` is what our pipeline does to text, one
thing at a time; `reading` what training does before it masks.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

LENGTH, PREDICTIONS, SHORT, MASKED = 128, 20, 0.1, 0.15
BYTES_AT_ONCE = 2_000_000  # of lines, for `encode` and its like
EXAMPLES = 256  # of a batch


def main() -> None:
    """Run the peer that the command line names."""
    name, path, *options = sys.argv[1:]
    print(json.dumps(PEERS[name](Path(path), *options)))


def plain(text: Path, vocabulary: str) -> dict[str, float]:
    """Tokenise sentences and create instances in plain Python; return the seconds of both."""
    ids = {piece: number for number, piece in enumerate(Path(vocabulary).read_text("utf-8").splitlines())}
    started = time.perf_counter()
    documents: list[list[list[str]]] = [[]]
    count = 0
    with text.open(encoding="utf-8") as stream:
        for line in stream:
            if not line.strip():
                documents.append([])
                continue
            pieces = [piece for word in words_of(line) for piece in word_pieces(word, ids)]
            [ids[piece] for piece in pieces]
            count += len(pieces)
            documents[-1].append(pieces)
    tokenised = time.perf_counter()
    documents = [document for document in documents if document]
    draw, spelt = random.Random(12345), list(ids)
    instances = 0
    for own in range(len(documents)):
        for a, b, _ in pairs(documents, own, draw):
            instance(a, b, spelt, ids, draw)
            instances += 1
    ended = time.perf_counter()
    return {"tokenise": tokenised - started, "instances": ended - tokenised, "tokens": count, "examples": instances}


def words_of(text: str) -> Iterator[str]:
    """Yield the words and signs of a line, lower-cased, without accents, in the passes of the published code."""
    for word in with_chinese_spacing(cleaned(text)).split():
        yield from " ".join(split_at_punctuation(without_accents(word.lower()))).split()


def cleaned(text: str) -> str:
    """Return the text without control characters, with white space as blanks."""
    kept = []
    for character in text:
        if ord(character) in {0, 0xFFFD} or is_control(character):
            continue
        kept.append(" " if is_space(character) else character)
    return "".join(kept)


def with_chinese_spacing(text: str) -> str:
    """Return the text with blanks around Chinese characters."""
    found = []
    for character in text:
        found += [" ", character, " "] if is_chinese(ord(character)) else [character]
    return "".join(found)


def without_accents(word: str) -> str:
    """Return decomposed text without combining marks."""
    return "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")


def split_at_punctuation(word: str) -> list[str]:
    """Split a word at signs, which become separate words."""
    found: list[list[str]] = []
    fresh = True
    for character in word:
        if is_punctuation(character):
            found.append([character])
            fresh = True
            continue
        if fresh:
            found.append([])
        fresh = False
        found[-1].append(character)
    return ["".join(characters) for characters in found]


def is_space(character: str) -> bool:
    """Return whether a character is white space, including line ends and tabs."""
    return character in {" ", "\t", "\n", "\r"} or unicodedata.category(character) == "Zs"


def is_control(character: str) -> bool:
    """Return whether a character is a control character, except line ends and tabs."""
    return character not in {"\t", "\n", "\r"} and unicodedata.category(character).startswith("C")


def is_chinese(code: int) -> bool:
    """Return whether a code point is in a block whose characters are words."""
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2B73F
        or 0x2B740 <= code <= 0x2B81F
        or 0x2B820 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )


def is_punctuation(character: str) -> bool:
    """Return whether a character is punctuation, including all ASCII signs."""
    code = ord(character)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(character).startswith("P")


def word_pieces(word: str, ids: dict[str, int]) -> list[str]:
    """Split a word into pieces, the longest of the vocabulary first."""
    if len(word) > 100:
        return ["[UNK]"]
    found, start = [], 0
    while start < len(word):
        end = len(word)
        while start < end:
            piece = word[start:end] if start == 0 else "##" + word[start:end]
            if piece in ids:
                break
            end -= 1
        else:
            return ["[UNK]"]
        found.append(piece)
        start = end
    return found


def pairs(
    documents: list[list[list[str]]], own: int, draw: random.Random
) -> Iterator[tuple[list[str], list[str], bool]]:
    """Yield sentence pairs of a document up to a target length; half of the second parts are from other documents."""
    room = LENGTH - 3
    target = draw.randint(2, room) if draw.random() < SHORT else room
    waiting, at = documents[own], 0
    while at < len(waiting):
        end, size = at, 0
        while end < len(waiting) and size < target:
            size += len(waiting[end])
            end += 1
        cut = at + (draw.randint(1, end - at - 1) if end - at > 1 else 1)
        a = [piece for sentence in waiting[at:cut] for piece in sentence]
        b: list[str] = []
        is_random = end - at == 1 or draw.random() < 0.5
        if is_random:
            for _ in range(10):
                other = draw.randrange(len(documents))
                if other != own:
                    break
            for sentence in documents[other][draw.randrange(len(documents[other])) :]:
                b += sentence
                if len(b) >= target - len(a):
                    break
            at = cut
        else:
            b = [piece for sentence in waiting[cut:end] for piece in sentence]
            at = end
        while len(a) + len(b) > room:
            longer = a if len(a) > len(b) else b
            del longer[0 if draw.random() < 0.5 else -1]
        yield a, b, is_random


def instance(a: list[str], b: list[str], spelt: list[str], ids: dict[str, int], draw: random.Random) -> list[int]:
    """Return the ids of a masked, padded sequence."""
    pieces = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
    places = [place for place, piece in enumerate(pieces) if piece not in {"[CLS]", "[SEP]"}]
    draw.shuffle(places)
    for place in places[: min(PREDICTIONS, max(1, round(len(pieces) * MASKED)))]:
        if draw.random() < 0.8:
            pieces[place] = "[MASK]"
        elif draw.random() >= 0.5:
            pieces[place] = spelt[draw.randrange(len(spelt))]
    return [ids[piece] for piece in pieces] + [0] * (LENGTH - len(pieces))


def run_mlm(text: Path, vocabulary: str, processes: str) -> dict[str, float]:
    """Tokenise and group lines like the run_mlm recipe; return the seconds of each step."""
    import datasets
    from transformers import BertTokenizerFast

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        datasets.config.HF_DATASETS_CACHE = folder
        tokenizer = BertTokenizerFast(vocab=vocabulary, do_lower_case=True)
        started = time.perf_counter()
        raw = datasets.load_dataset("text", data_files=str(text), split="train", cache_dir=folder)
        loaded = time.perf_counter()

        def tokenise(examples: dict[str, list[str]]) -> Any:
            return tokenizer(examples["text"], return_special_tokens_mask=True)

        def group(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
            joined = {name: [value for row in rows for value in row] for name, rows in examples.items()}
            whole = len(joined["input_ids"]) // LENGTH * LENGTH
            return {
                name: [values[start : start + LENGTH] for start in range(0, whole, LENGTH)]
                for name, values in joined.items()
            }

        options = {"batched": True, "num_proc": int(processes) if int(processes) > 1 else None}
        tokens = raw.map(tokenise, remove_columns=["text"], **options)
        tokenised = time.perf_counter()
        tokens.map(group, **options)
        ended = time.perf_counter()
    return {"load": loaded - started, "tokenise": tokenised - loaded, "group": ended - tokenised}


def tokenizers(text: Path, vocabulary: str) -> dict[str, float]:
    """Encode lines with `encode_batch_fast`; return seconds and tokens."""
    from train_jobs.corpus.tokenize.vocabulary import load_vocabulary

    tokenizer = load_vocabulary(Path(vocabulary), lowercase=True)
    count = 0
    started = time.perf_counter()
    for lines in batches(text):
        count += sum(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(lines, add_special_tokens=False))
    return {"tokenise": time.perf_counter() - started, "tokens": count}


def ours(text: Path, vocabulary: str) -> dict[str, float]:
    """Encode lines with our token step; return seconds and tokens."""
    from train_jobs.corpus.tokenize.pretokens import pretoken_starts, with_ascii_blanks
    from train_jobs.corpus.tokenize.vocabulary import load_vocabulary
    from train_jobs.corpus.tokenize.word_encoder import WordPieceTokenizer

    tokenizer = WordPieceTokenizer(load_vocabulary(Path(vocabulary), lowercase=True))
    count = 0
    started = time.perf_counter()
    for lines in batches(text):
        joined = with_ascii_blanks("".join(lines).encode())
        count += len(tokenizer.encode(joined, pretoken_starts(joined))[0])
    return {"tokenise": time.perf_counter() - started, "tokens": count}


def stages(text: Path, vocabulary: str) -> dict[str, float]:
    """Return the seconds of each step of our pipeline, and the megabytes of the text."""
    from train_jobs.config.prepare import CleanConfig, SourceConfig
    from train_jobs.corpus.sources.text_parts import plan_parts, read_part
    from train_jobs.corpus.steps.document_rules import clean, document_digest
    from train_jobs.corpus.steps.documents import BATCH_CHARACTERS
    from train_jobs.corpus.tokenize.pretokens import pretoken_starts, with_ascii_blanks
    from train_jobs.corpus.tokenize.sentences import DOCUMENT_SEPARATOR, sentence_starts
    from train_jobs.corpus.tokenize.vocabulary import load_vocabulary
    from train_jobs.corpus.tokenize.word_encoder import WordPieceTokenizer

    rules, sources, seconds = CleanConfig(), [SourceConfig(path=[str(text)])], Counter[str]()
    tokenizer = WordPieceTokenizer(load_vocabulary(Path(vocabulary), lowercase=True))

    def timed(name: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        found = work()
        seconds[name] += time.perf_counter() - started
        return found

    def cut(raw: bytes) -> tuple[bytes, Any]:
        plain = with_ascii_blanks(raw)
        return plain, pretoken_starts(plain)

    size = 0
    for part in plan_parts(sources):
        size += part.size
        read = timed("read", lambda part=part: list(read_part(sources, part)))
        cleaned = timed("clean", lambda read=read: [fit for document in read for fit in clean(document, rules)])
        timed("hash", lambda cleaned=cleaned: [document_digest(document) for document in cleaned])
        for documents in grouped(cleaned, BATCH_CHARACTERS):
            raw = DOCUMENT_SEPARATOR.join(document.encode() for document in documents)
            plain, starts = timed("words and signs", lambda raw=raw: cut(raw))
            timed("sentences", lambda plain=plain, starts=starts: sentence_starts(plain, starts))
            timed("tokens", lambda plain=plain, starts=starts: tokenizer.encode(plain, starts))
    return {"mb": size / 1e6, **seconds}


def grouped(documents: list[str], characters: int) -> Iterator[list[str]]:
    """Yield groups of documents with a given total of characters; the last one may have fewer."""
    found: list[str] = []
    size = 0
    for document in documents:
        found.append(document)
        size += len(document)
        if size >= characters:
            yield found
            found, size = [], 0
    if found:
        yield found


def reading(store: Path, seconds: str) -> dict[str, float]:
    """Measure the time to the first example with a cold file cache, and examples per second."""
    from train_jobs.config.pretrain import DataConfig, ObjectiveConfig
    from train_jobs.corpus.examples.batches import assemble
    from train_jobs.corpus.examples.example_stream import Cursor, ExampleStream
    from train_jobs.corpus.examples.pairs import plan_block
    from train_jobs.corpus.store.token_store import TokenStore

    # Dropped from the page cache: a job on a fresh machine reads from the disk.
    size = 0
    for path in store.iterdir():
        if path.is_file():
            size += path.stat().st_size
            with path.open("rb") as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    started = time.perf_counter()
    opened = TokenStore.open(store)
    plan = partial(plan_block, objective=ObjectiveConfig())
    stream = ExampleStream(opened, "train", data=DataConfig(sequence_length=LENGTH), plan=plan, seed=0)

    def batch(cursor: Cursor) -> Cursor:
        spans, cursor = stream.take(cursor, EXAMPLES)
        for span in spans:
            assemble(span.tokens, span.rows, sequence_length=LENGTH, special=opened.manifest.special_ids)
        return cursor

    cursor = batch(Cursor())
    first = time.perf_counter() - started
    rates = {}
    for name, step in (("slices", lambda cursor: stream.take(cursor, EXAMPLES)[1]), ("sequences", batch)):
        count, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < float(seconds):
            cursor = step(cursor)
            count += EXAMPLES
        rates[name] = count / (time.perf_counter() - begun)
    return {"bytes": size, "first": first, **rates}


def batches(text: Path) -> Iterator[list[str]]:
    """Yield batches of lines of a file."""
    with text.open(encoding="utf-8", newline="\n") as stream:
        while lines := stream.readlines(BYTES_AT_ONCE):
            yield lines


PEERS: dict[str, Callable[..., dict[str, float]]] = {
    "plain": plain,
    "datasets": run_mlm,
    "tokenizers": tokenizers,
    "ours": ours,
    "stages": stages,
    "reading": reading,
}

if __name__ == "__main__":
    main()
