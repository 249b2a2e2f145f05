"""Scores equal those of the official SQuAD scripts, seqeval and conlleval, if these are installed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from benchmarks.official_scores import (
    LEGAL,
    WITHIN,
    differences_of_conlleval,
    differences_of_seqeval,
    differences_of_squad,
)
from tests.conftest import SHARED
from train_jobs.tasks.entities.conll import entity_scores

OFFICIAL = "ORCHESTRATOR_TEST_OFFICIAL"  # the folder described in benchmarks/official_scores.py
REAL = SHARED / "data" / "squad"


@pytest.fixture(scope="module")
def official() -> Path:
    """Return the folder of the official programs."""
    if not (folder := os.environ.get(OFFICIAL)):
        pytest.skip(f"{OFFICIAL} names no folder with evaluate-v1.1.py, evaluate-v2.0.py, seqeval and conlleval.pl")
    return Path(folder)


@pytest.fixture
def seqeval(official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make seqeval importable."""
    pytest.importorskip("sklearn.metrics")
    monkeypatch.syspath_prepend(official)


def squad(path: Path, version: str) -> Path:
    """Write questions about a text; in 2.0 some have no answer, and some answers contain only articles."""
    context = (
        "The Normans (\u201cNortmanni\u201d) gave their name to Normandy, a region in the north of the Stra\u00dfe."
    )
    golds = [["Normandy", "a region"], ["The Normans"], ["\u201cNortmanni\u201d)"], ["the Stra\u00dfe"]]
    golds += [["a", "the"], ["the", "region"], [], []] if version == "2.0" else []
    questions = [
        {
            "id": f"q{number}",
            "question": "Who?",
            "answers": [{"text": text, "answer_start": context.index(text)} for text in texts],
            "is_impossible": not texts,
        }
        for number, texts in enumerate(golds * 25)
    ]
    if version == "1.1":
        for one in questions:
            del one["is_impossible"]
    document = {"version": version, "data": [{"title": "x", "paragraphs": [{"context": context, "qas": questions}]}]}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_answers_score_like_official_script(official: Path, tmp_path: Path, version: str) -> None:
    file = squad(tmp_path / "dev.json", version)
    for seed in range(2):
        found = differences_of_squad(official, file, seed)
        assert len(found) == (2 if version == "1.1" else 22)
        assert max(found.values()) <= WITHIN, found


@pytest.mark.parametrize("file", ["v1.1/derived-v1.1-from-cs224n-dev.json", "v2.0/official-dev-v2.0-5articles.json"])
def test_real_answers_score_like_official_script(official: Path, file: str) -> None:
    if not (REAL / file).is_file():
        pytest.skip(f"the files of SQuAD are not in {REAL}")
    found = differences_of_squad(official, REAL / file, 0)
    assert max(found.values()) <= WITHIN, found


@pytest.mark.usefixtures("seqeval")
@pytest.mark.parametrize("scheme", LEGAL)
@pytest.mark.parametrize(("legal", "strict"), [(True, True), (True, False), (False, False)])
def test_entities_score_like_seqeval(scheme: str, legal: bool, strict: bool) -> None:
    for seed in range(5):
        found = differences_of_seqeval(scheme, legal=legal, strict=strict, rows=60, seed=seed)
        assert found.keys() >= {"precision", "recall", "f1", "macro", "f1_PER", "f1_LOC", "f1_a-b"}
        assert max(found.values()) <= WITHIN, found


@pytest.mark.usefixtures("seqeval")
@pytest.mark.parametrize(
    ("gold", "found"),
    [
        ([[]], [[]]),
        ([["O"]], [["O"]]),
        ([["O"], []], [["B-PER"], []]),
        ([["B-PER"], ["I-PER"]], [["O"], ["O"]]),
        ([["B-PER"], ["I-PER"]], [["B-PER"], ["I-PER"]]),
        ([["B-PER", "I-LOC"]], [["B-PER", "I-PER"]]),
    ],
)
def test_empty_gold_or_prediction_scores_like_seqeval(gold: list[list[str]], found: list[list[str]]) -> None:
    from seqeval import metrics

    ours = entity_scores(gold, found)
    for name, theirs in (("precision", metrics.precision_score), ("recall", metrics.recall_score)):
        assert ours[name] == pytest.approx(theirs(gold, found, zero_division=0), abs=WITHIN)
    assert ours["f1"] == pytest.approx(metrics.f1_score(gold, found, zero_division=0), abs=WITHIN)


@pytest.mark.parametrize("legal", [True, False])
def test_entities_score_like_conlleval(official: Path, legal: bool) -> None:
    if shutil.which("perl") is None:
        pytest.skip("there is no perl here")
    for seed in range(3):
        assert max(differences_of_conlleval(official, legal=legal, rows=60, seed=seed).values()) <= WITHIN
