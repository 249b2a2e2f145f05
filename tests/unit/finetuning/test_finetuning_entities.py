"""CoNLL files, words as pieces, and entity F1 with the rules of seqeval's default mode."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from train_jobs.config import DataError
from train_jobs.corpus.tokenize.vocabulary import load_vocabulary
from train_jobs.tasks.entities.conll import (
    IGNORED,
    conll_text,
    entities,
    entity_scores,
    make_pieces,
    piece_labels,
    read_conll,
    tag_names,
)

TEXT = """-DOCSTART- -X- -X- O

EU NNP I-NP B-ORG
rejects VBZ I-VP O

Peter NNP I-NP B-PER
Blackburn NNP I-NP I-PER
"""


def put(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def problems(path: Path, **options: object) -> list[str]:
    with pytest.raises(DataError) as caught:
        read_conll(path, **options)  # type: ignore[arg-type]
    return caught.value.problems or [caught.value.message]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n\n"])
def test_conll_sentences_are_read(tmp_path: Path, newline: str, end: str) -> None:
    path = put(tmp_path / "t.txt", (TEXT.rstrip("\n") + end).replace("\n", newline))
    found = read_conll(path)
    assert found.words == [["EU", "rejects"], ["Peter", "Blackburn"]]
    assert found.tags == [["B-ORG", "O"], ["B-PER", "I-PER"]]
    assert bool(found.notes) == (newline == "\r\n")


def test_two_tab_separated_columns_are_read(tmp_path: Path) -> None:
    found = read_conll(put(tmp_path / "t.txt", "\ufeffNew\u00a0York\tB-LOC\n \t\nis\tO"))
    assert found.words == [["New\u00a0York"], ["is"]]
    assert found.notes[0].startswith(f"{tmp_path}/t.txt:1: a byte-order mark")


def test_invalid_lines_are_named(tmp_path: Path) -> None:
    path = put(tmp_path / "t.txt", "EU NNP B-ORG\nrejects O\nit NNP PER\nthe NNP B-\ncall NNP O\n")
    assert problems(path) == [
        f"{path}:2: 2 columns, need 3",
        f"{path}:3: invalid tag: a text of 3 characters, need O, B-TYPE, I-TYPE, E-TYPE or S-TYPE",
        f"{path}:4: invalid tag: a text of 2 characters, need O, B-TYPE, I-TYPE, E-TYPE or S-TYPE",
    ]
    assert problems(put(tmp_path / "u.txt", "alone\n")) == [f"{tmp_path}/u.txt:1: 1 columns, need 2"]
    assert problems(put(tmp_path / "v.txt", "-DOCSTART- O\n\n")) == [f"{tmp_path}/v.txt has no sentence"]


def test_tag_only_in_dev_is_named(tmp_path: Path) -> None:
    names = tag_names(read_conll(put(tmp_path / "train.txt", TEXT)))
    path = put(tmp_path / "dev.txt", "EU B-ORG\nthere B-LOC\n")
    (problem,) = problems(path, known=names)
    assert problem.startswith(f"{path}:2: the tag, a text of 5 characters, is not in the training data")


def test_tags_are_ordered_by_type_for_any_row_order(tmp_path: Path) -> None:
    path = put(tmp_path / "t.txt", "a I-PER\nb B-PER\nc B-LOC\n")
    assert tag_names(read_conll(path)) == ("O", "B-LOC", "B-PER", "I-PER")


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-PER I-PER O B-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
        ("B-PER B-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("I-PER I-PER O I-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),  # as in the files of CoNLL-2003
        ("I-PER I-LOC", [("PER", 0, 0), ("LOC", 1, 1)]),
        ("B-PER I-LOC I-LOC", [("PER", 0, 0), ("LOC", 1, 2)]),
        ("O I-PER B-PER", [("PER", 1, 1), ("PER", 2, 2)]),
        ("B-PER I-PER E-PER S-LOC", [("PER", 0, 2), ("LOC", 3, 3)]),
        ("S-PER I-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("B-PER E-PER I-PER", [("PER", 0, 1), ("PER", 2, 2)]),
        ("E-PER E-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("S-PER S-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("B-PER L-PER U-PER U-PER", [("PER", 0, 1), ("PER", 2, 2), ("PER", 3, 3)]),
        ("B-a-b I-a-b", [("a-b", 0, 1)]),
        ("O O", []),
    ],
)
def test_entities_are_extracted_from_tags(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert entities(tags.split()) == expected


def test_scores_count_whole_entities() -> None:
    gold = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    predicted = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    assert entity_scores(gold, predicted) == {  # the first example of seqeval
        "precision": 0.5,
        "recall": 0.5,
        "f1": 0.5,
        "score": 0.5,
        "f1_MISC": 0.0,
        "f1_PER": 1.0,
    }


def test_precision_and_recall_are_distinguished() -> None:
    found = entity_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "B-PER", "O"]])
    assert (found["precision"], found["recall"]) == (0.5, 0.5)
    found = entity_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]])
    assert (found["precision"], found["recall"], found["f1"]) == pytest.approx((1.0, 0.5, 2 / 3))


def test_scores_separate_types_and_sentences() -> None:
    assert entity_scores([["B-PER"]], [["B-LOC"]])["f1"] == 0.0
    assert entity_scores([["B-PER"], ["O"]], [["O"], ["B-PER"]])["f1"] == 0.0
    assert entity_scores([["O", "B-PER"], ["I-PER"]], [["O", "B-PER"], ["I-PER"]])["recall"] == 1.0


def test_empty_prediction_scores_zero() -> None:
    zero = {"precision": 0.0, "recall": 0.0, "f1": 0.0, "score": 0.0}
    assert entity_scores([["B-PER"]], [["O"]]) == {**zero, "f1_PER": 0.0}
    assert entity_scores([["O"]], [["O"]]) == zero


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c", "##d"]) + "\n")
    return load_vocabulary(path, lowercase=True)


def test_first_piece_of_word_has_its_label(tokenizer: Tokenizer) -> None:
    (found,) = make_pieces([["a", "bcd", "\u200b"]], tokenizer, max_length=16)
    assert found == (0, 0, [2, 5, 6, 7, 8, 1, 3], [1, 2, 5])
    assert piece_labels(found, ["O", "B-X", "I-X"], ("O", "B-X", "I-X")) == [
        *(IGNORED, 0, 1, IGNORED, IGNORED, 2, IGNORED),
    ]


def test_long_sentence_is_cut_between_words_without_loss(tokenizer: Tokenizer) -> None:
    found = list(make_pieces([["a", "bc", "b", "bcdcd"], ["a"]], tokenizer, max_length=5))
    assert found == [
        (0, 0, [2, 5, 6, 7, 3], [1, 2]),
        (0, 2, [2, 6, 3], [1]),
        (0, 3, [2, 6, 7, 8, 3], [1]),
        (1, 0, [2, 5, 3], [1]),
    ]
    assert piece_labels(found[2], ["O", "O", "O", "B-X"], ("O", "B-X"))[1] == 1


def test_conll_round_trip(tmp_path: Path) -> None:
    words, tags = [["EU", "rejects"], ["it"]], [["B-ORG", "O"], ["O"]]
    (tmp_path / "t.txt").write_text(conll_text(words, tags))
    found = read_conll(tmp_path / "t.txt")
    assert (found.words, found.tags) == (words, tags)


def test_word_of_million_characters_is_reported(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = put(tmp_path / "t.txt", "a O\n" + "b" * 1_000_000 + " O\n")
    found = read_conll(path)
    assert found.notes[0].startswith(f"{path}:2: a word of 1,000,000 characters")
    assert [len(one.starts) for one in make_pieces(found.words, tokenizer, max_length=16)] == [2]


def test_word_and_tag_columns_are_configurable(tmp_path: Path) -> None:
    path = put(tmp_path / "t.txt", "1 Peter B-PER O\n2 runs O O\n")
    found = read_conll(path, word_column=2, tag_column=3)
    assert (found.words, found.tags) == ([["Peter", "runs"]], [["B-PER", "O"]])
    assert read_conll(path, word_column=2).tags == [["O", "O"]]
    bare = put(tmp_path / "u.txt", "1 Peter\n2 runs\n")
    assert problems(bare, word_column=2, tag_column=3) == [f"{bare}:{line}: 2 columns, need 3" for line in (1, 2)]
    assert read_conll(bare, word_column=2, tag_column=3, tags_needed=False).tags == []
    assert read_conll(path, word_column=3, tags_needed=False).tags == [["O", "O"]]
    assert problems(bare, word_column=3, tags_needed=False) == [f"{bare}:{line}: 2 columns, need 3" for line in (1, 2)]
