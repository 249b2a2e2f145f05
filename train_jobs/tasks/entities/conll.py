"""Named entities: CoNLL-2003's format, words as pieces with labels, and the entity F1 of conlleval and seqeval.

The F1 is our own: seqeval is not maintained, and its default mode merges neighbours in BILOU (see `entities`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from train_jobs.config import DataError, did_you_mean
from train_jobs.config.privacy import value_text
from train_jobs.evaluation.resampling import Definition, intervals
from train_jobs.evaluation.scored_rows import ScoredRows, row_ids
from train_jobs.readers.row_readers import LineReader, strip_line_end
from train_jobs.readers.tables import LONG_TEXT, RowProblems

DOCUMENT = "-DOCSTART-"  # first word of a line that starts a document
IGNORED = -100
ERRORS = ("boundary", "type", "both", "missed", "spurious")
_BLANKS = re.compile(r"[ \t]+")  # and no other white space, which may be part of a word
_TAG = re.compile(r"O|[BIESLU]-.+")
_LAST, _ALONE = {"E", "L"}, {"S", "U"}  # of BIOES and of BILOU


@dataclass(frozen=True)
class Sentences:
    """Words and their tags, sentence by sentence."""

    path: Path
    words: list[list[str]]
    tags: list[list[str]]
    """Empty if the file has no tags."""
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.words)

    def add(self, word: str, tags: Sequence[str], *, begin: bool) -> None:
        """Add a word, with its tag if the file has tags, to the last sentence or to a new one."""
        if begin:
            self.words.append([])
            self.tags.extend([] for _ in tags)
        self.words[-1].append(word)
        for tag in tags:
            self.tags[-1].append(tag)


class Entity(NamedTuple):
    """One named entity."""

    type: str
    first: int
    """Number of its first word in the sentence."""
    last: int
    """Number of its last word in the sentence."""


class Pieces(NamedTuple):
    """One sequence: a sentence, or a part of a long one."""

    sentence: int
    first_word: int
    """Number in the sentence of the first word of this part."""
    input_ids: list[int]
    """[CLS] pieces [SEP]."""
    starts: list[int]
    """Position of the first piece of each word, where its tag is predicted."""


def read_conll(
    path: Path,
    *,
    known: Sequence[str] | None = None,
    word_column: int = 1,
    tag_column: int | None = None,
    tags_needed: bool = True,
) -> Sentences:
    """Read lines of a word, optional other columns, and a tag; an empty line ends a sentence.

    Args:
        path: the file, UTF-8.
        known: allowed tags, those of the training data; None: any of the form B-PER, in BIO, BIOES or BILOU.
        word_column: column of the word, counted from 1.
        tag_column: column of the tag; None: the last.
        tags_needed: off, a file whose lines end before the tag has no tags.

    Raises:
        DataError: no such file, no sentence, or lines that cannot be used: each with its number.
    """
    reader = LineReader(path, [])
    problems = RowProblems(f"{path} has lines that cannot be used", fix=f"fix those lines of {path}")
    found = Sentences(path, [], [])
    need, width, begun = max(word_column, tag_column or word_column + 1), 0, False
    for (_, line), written in reader.lines():
        # Every line is checked against the first one: a line with a missing tag would otherwise shift columns silently.
        columns = line_columns(written)
        if not columns or columns[0] == DOCUMENT:
            begun = False
            continue
        width = width or len(columns)
        tagged = tags_needed or width >= need
        least = max(width, need if tagged else word_column)
        if len(columns) != width or width < least:
            problems.add(f"{path}:{line}", f"{len(columns)} columns, need {least}")
            continue
        word, tag = columns[word_column - 1], columns[(tag_column or 0) - 1] if tagged else ""
        if tagged and (wrong := _tag_problem(tag, known)):
            problems.add(f"{path}:{line}", wrong)
            continue
        if len(word) > LONG_TEXT:
            found.notes.append(f"{path}:{line}: a word of {len(word):,} characters, almost all of it truncated")
        found.add(word, [tag] if tagged else [], begin=not begun)
        begun = True
    problems.check()
    found.notes[:0] = reader.notes
    if not found.words:
        raise DataError(f"{path} has no sentence", fix="fetch or create it again")
    return found


def line_columns(line: str) -> list[str]:
    """Return the columns of a line, separated by blanks and tabs; [] if it is empty.

    Other white space belongs to a word, such as the no-break space of 1 000 in French.
    """
    stripped = strip_line_end(line).strip(" \t")
    return _BLANKS.split(stripped) if stripped else []


def _tag_problem(tag: str, known: Sequence[str] | None) -> str:
    if not _TAG.fullmatch(tag):
        return f"invalid tag: {value_text(tag)}, need O, B-TYPE, I-TYPE, E-TYPE or S-TYPE"
    if known is not None and tag not in known:
        guess = did_you_mean(tag, known)
        return f"the tag, {value_text(tag)}, is not in the training data, so nothing can learn it{guess}"
    return ""


def tag_names(sentences: Sentences) -> tuple[str, ...]:
    """Return all tags, O first, then sorted by type and letter."""
    # Independent of the order of rows: ids of tags must be the same for shuffled copies of the same data. O is included
    # even if the data lacks it, since predictions need it.
    tags = {tag for row in sentences.tags for tag in row} | {"O"}
    return tuple(sorted(tags, key=lambda tag: (tag != "O", tag[2:], tag)))


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of one sentence as conlleval finds them: a tag that cannot continue an entity begins one.

    Args:
        tags: tags of one sentence in BIO, BIOES or BILOU, valid or not.
    """
    # I-PER after O begins a person, as CoNLL-2003's own files (IOB1) intend; and so does any tag after an end. L and U
    # of BILOU are E and S; seqeval's default mode, which knows neither, merges neighbours.
    found: list[Entity] = []
    open_type = ""  # type of an entity that the next word may continue
    for number, tag in enumerate(tags):
        letter, _, type_ = tag.partition("-")
        if letter == "O":
            open_type = ""
            continue
        if letter in {"I", *_LAST} and open_type == type_:
            found[-1] = found[-1]._replace(last=number)
        else:
            found.append(Entity(type_, number, number))
        open_type = "" if letter in _LAST | _ALONE else type_
    return found


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return precision, recall and F1 of whole entities with their types, over all sentences; 0 where undefined.

    Returns:
        precision, recall, f1, and the f1 of each type as f1_TYPE; score is f1.
    """
    # Sets of (sentence, type, first, last): an entity is correct only if its borders and its type are.
    wanted, found = (
        {(row, *one) for row, tags in enumerate(rows) for one in entities(tags)} for rows in (gold, predicted)
    )
    types = sorted({one[1] for one in wanted | found})
    by_type = {
        f"f1_{type_}": _f1(*({one for one in group if one[1] == type_} for group in (wanted, found))) for type_ in types
    }
    both = len(wanted & found)
    total = _f1(wanted, found)
    return {
        "precision": both / len(found) if found else 0.0,
        "recall": both / len(wanted) if wanted else 0.0,
        "f1": total,
        **by_type,
        "score": total,
    }


def sentence_ids(words: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> list[str]:
    """Return the identity of each sentence: a hash of its words and gold tags."""
    return row_ids(*([json.dumps(one) for one in some] for some in (words, gold)))


def entity_rows(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], ids: Sequence[str] = ()
) -> ScoredRows:
    """Return the sentences behind the metrics of `entity_scores` and behind the share of right tags, accuracy.

    The sentences are the rows, since the entities of a sentence are not independent.

    Args:
        gold: gold tags of each sentence.
        predicted: predicted tags.
        ids: identity of each sentence, for tests.
    """
    sets = [(set(entities(one)), set(entities(other))) for one, other in zip(gold, predicted, strict=True)]
    types = sorted({one[0] for pair in sets for group in pair for one in group})
    pairs = [list(zip(one, other, strict=True)) for one, other in zip(gold, predicted, strict=True)]
    columns: dict[str, list[float]] = {
        "words": [float(len(one)) for one in pairs],
        "right": [float(sum(wanted == found for wanted, found in one)) for one in pairs],
    }
    metrics: dict[str, Definition] = {"accuracy": _ratio("right", "words")}
    for type_ in (None, *types):
        end = "" if type_ is None else f"_{type_}"
        kept = [[{one for one in group if type_ in (None, one[0])} for group in pair] for pair in sets]
        columns[f"twice{end}"] = [2.0 * len(wanted & found) for wanted, found in kept]
        columns[f"gold{end}"] = [float(len(wanted)) for wanted, _ in kept]
        columns[f"found{end}"] = [float(len(found)) for _, found in kept]
        metrics[f"f1{end}"] = _ratio(f"twice{end}", f"gold{end}", f"found{end}")
    errors = [_errors(wanted, found) for wanted, found in sets]
    columns |= {f"{kind}_{type_}": [float(one[kind, type_]) for one in errors] for kind in ERRORS for type_ in types}
    metrics |= {"precision": _ratio("twice", "found", scale=0.5), "recall": _ratio("twice", "gold", scale=0.5)}
    return ScoredRows(columns, metrics, ids)


def _errors(wanted: set[Entity], found: set[Entity]) -> Counter[tuple[str, str]]:
    """Return (kind of error, type) -> number, of the entities of one sentence.

    An entity that was not found has one kind of error, of its own type: `type` with the right boundaries, `boundary`
    with the right type, `both` where only words are shared, else `missed`. `spurious` counts predicted entities that
    share no word with an entity, by their predicted type.
    """
    kinds: Counter[tuple[str, str]] = Counter()
    for one in wanted - found:
        near = [other for other in found if _overlap(one, other)]
        if any((one.first, one.last) == (other.first, other.last) for other in near):
            kinds["type", one.type] += 1
        elif any(one.type == other.type for other in near):
            kinds["boundary", one.type] += 1
        else:
            kinds["both" if near else "missed", one.type] += 1
    for one in found:
        kinds["spurious", one.type] += not any(_overlap(one, other) for other in wanted)
    return kinds


def _overlap(one: Entity, other: Entity) -> bool:
    return one.first <= other.last and other.first <= one.last


def entity_intervals(rows: ScoredRows) -> dict[str, list[float]]:
    """Return the 95% intervals of the metrics of `entity_rows`; sentences are resampled."""
    found = intervals(rows.resamples())
    return {**found, "score": found["f1"]}


def _ratio(part: str, *wholes: str, scale: float = 1.0) -> Definition:
    return {"kind": "ratio", "part": part, "wholes": list(wholes), "scale": scale}


def _f1(wanted: set[tuple[int, str, int, int]], found: set[tuple[int, str, int, int]]) -> float:
    return 2 * len(wanted & found) / (len(wanted) + len(found)) if wanted or found else 0.0


def make_pieces(sentences: Sequence[Sequence[str]], tokenizer: Tokenizer, *, max_length: int) -> Iterator[Pieces]:
    """Yield sentences as pieces; one that is too long becomes several sequences, cut between words.

    Every word keeps a position: one without pieces becomes [UNK], and one that is too long is truncated.

    Args:
        sentences: their words.
        tokenizer: tokenizer of the model.
        max_length: tokens of a sequence.
    """
    vocabulary = tokenizer.get_vocab()
    cls, sep, unknown = (vocabulary[token] for token in ("[CLS]", "[SEP]", "[UNK]"))
    room = max_length - 2
    # each different word once: a corpus has many times more words than different ones
    different = list(dict.fromkeys(word for words in sentences for word in words))
    encoded = tokenizer.encode_batch(different, add_special_tokens=False)
    pieces = {word: one.ids[:room] or [unknown] for word, one in zip(different, encoded, strict=True)}
    for number, words in enumerate(sentences):
        first, ids, starts = 0, [cls], list[int]()
        for place, word in enumerate(words):
            # + 1 for [CLS], which is in `ids`. Never inside a word: its tag is predicted at its first piece only.
            if len(ids) + len(pieces[word]) > room + 1:
                yield Pieces(number, first, [*ids, sep], starts)
                first, ids, starts = place, [cls], []
            starts.append(len(ids))
            ids += pieces[word]
        yield Pieces(number, first, [*ids, sep], starts)


def piece_labels(pieces: Pieces, tags: Sequence[str], names: Sequence[str]) -> list[int]:
    """Return the id of each word's tag at its first piece, and -100 elsewhere, [length]."""
    labels = [IGNORED] * len(pieces.input_ids)
    for place, start in enumerate(pieces.starts, start=pieces.first_word):
        labels[start] = names.index(tags[place])
    return labels


def conll_text(words: Sequence[Sequence[str]], *columns: Sequence[Sequence[str]]) -> str:
    """Return words with columns of tags in the format of `read_conll`; with gold and predicted ones, conlleval's."""
    rows = (zip(*sentence, strict=True) for sentence in zip(words, *columns, strict=True))
    sentences = ("".join(" ".join(row) + "\n" for row in sentence) for sentence in rows)
    return "\n".join(sentences)
