"""Our scores compared with the programs that define them: SQuAD's two official scripts, seqeval, conlleval.

    python -m benchmarks.official_scores --official DIR --squad SQUAD

DIR holds evaluate-v1.1.py and evaluate-v2.0.py (CodaLab's bundles 0xbcd57bee090b421c982906709c8c27e1 and
0x6b567e1cf2e041ec80d7098f031c5c9e), the package seqeval and conlleval.pl (both in seqeval's source archive on PyPI;
seqeval needs scikit-learn). SQUAD is a folder with SQuAD's dev files, of which every question is answered, most of them
adversarially: articles, punctuation, other alphabets, nothing at all. The scripts run as their users run them, on files
that our own writer made; seqeval judges drawn tags, of which most are no legal sequence.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.machine import describe
from train_jobs.readers.squad_data import Question, Squad, read_squad
from train_jobs.tasks.entities.conll import conll_text, entity_scores
from train_jobs.tasks.squad.scoring import score_v1, score_v2
from train_jobs.tasks.squad.spans import Prediction, prediction_files

MD5 = {  # of the published scripts, as NVIDIA's download of SQuAD checks them
    "evaluate-v1.1.py": "afb04912d18ff20696f7f88eed49bea9",
    "evaluate-v2.0.py": "ff23213bed5516ea4a6d9edb6cd7d627",
}
WITHIN = 1e-9
TYPES = ("PER", "LOC", "a-b")
LEGAL: dict[str, Callable[[str, int], list[str]]] = {
    "BIO": lambda kind, size: [f"B-{kind}", *[f"I-{kind}"] * (size - 1)],
    "BIOES": lambda kind, size: _ended(kind, size, "E", "S"),
    "BILOU": lambda kind, size: _ended(kind, size, "L", "U"),
}
"""Scheme -> the tags of an entity by its number of words."""
STRICT = {"BIO": "IOB2", "BIOES": "IOBES", "BILOU": "BILOU"}
"""Scheme -> its class in seqeval."""
Tags = list[list[str]]
Differences = dict[str, float]
"""Metric -> difference of ours and theirs."""


def adversarial(question: Question, others: Sequence[str], draw: random.Random) -> str:
    """Return an answer that a model might give, or that is hard for a script to score."""
    words = question.context.split()
    begin = draw.randrange(len(words))
    gold = draw.choice(question.answers).text if question.answers else draw.choice(others)
    return draw.choice(
        [
            *(gold, gold, gold.upper(), f"The {gold}!", f"an {gold} a", f" {gold}\t\n", f"{gold} {gold}"),
            *("", "", " ", "the", "a an the", "!?", "the, a.", "\u00a0", "\u200b", "-", "0", "null"),
            *(gold[: len(gold) // 2], gold[::-1], " ".join(reversed(gold.split())), gold.replace(" ", "\u00a0")),
            *(gold.replace(" ", "-"), f"\u201c{gold}\u201d", f"\u2014{gold}\u2026", f"{gold}\u0301", f"\u0130{gold}"),
            *(
                f"{gold}'s",
                f"the-{gold}",
                f"{gold} the",
                f"a {gold} \u00e1",
                f"\u0441\u0435 {gold}",
                f"\U0001f600 {gold}",
            ),
            *(" ".join(words[begin : begin + draw.randint(1, 12)]), draw.choice(others), question.context),
        ]
    )


def drawn_predictions(questions: Sequence[Question], draw: random.Random) -> list[Prediction]:
    """Return an answer to each question, with odds, some of which are equal."""
    others = [answer.text for question in questions for answer in question.answers]
    odds = [0.0, 1.0, -1.0, draw.gauss(0, 3), draw.gauss(0, 3)]
    return [
        Prediction(one.id, adversarial(one, others, draw), draw.choice([*odds, draw.gauss(0, 3)]), [])
        for one in questions
    ]


def differences_of_squad(official: Path, file: Path, seed: int) -> Differences:
    """Return the metrics of the official script of the file's version, over all of its questions."""
    squad, draw = read_squad(file), random.Random(seed)
    predictions = drawn_predictions(squad.questions, draw)
    if not squad.version_2:
        predictions = draw.sample(predictions, len(predictions) - len(predictions) // 50)  # some are not answered
    threshold = draw.choice([0.0, 1.0, -2.5, predictions[0].null_odds])
    answers = {one.id: one.best for one in predictions}
    odds = {one.id: one.null_odds for one in predictions}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, text in prediction_files(predictions, threshold=float("inf") if squad.version_2 else None).items():
            (folder / name).write_text(text, encoding="utf-8")
        if not squad.version_2:
            return differences(score_v1(squad.questions, answers), script(official, file, folder))
        plain = differences(score_v2(squad.questions, answers), script(official, file, folder))
        tuned = differences(
            score_v2(squad.questions, answers, odds, threshold=threshold),
            script(official, file, folder, "-n", folder / "null_odds.json", "-t", threshold),
        )
    return tuned | {f"{name}, without odds": value for name, value in plain.items()}


def version_of(squad: Squad) -> str:
    """Return the command line of an official script."""
    return "2.0" if squad.version_2 else "1.1"


def script(official: Path, file: Path, folder: Path, *more: object) -> dict[str, float]:
    """Return the output of the official script for predictions.json in a folder."""
    command = [
        sys.executable,
        official / f"evaluate-v{version_of(read_squad(file))}.py",
        file,
        folder / "predictions.json",
        *more,
    ]
    output = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONUTF8": "1"},  # the scripts open files with the default encoding
    ).stdout
    found: dict[str, float] = json.loads(output)
    return found


def drawn_tags(scheme: str, *, legal: bool, rows: int, draw: random.Random) -> tuple[Tags, Tags]:
    """Return gold tags of sentences of 0 to 12 words, and predicted ones, of which half are correct."""
    gold = [_sentence(scheme, legal=legal, draw=draw) for _ in range(rows)]
    guesses = [_sentence(scheme, legal=legal, draw=draw, size=len(one)) for one in gold]
    return gold, [one if draw.random() < 0.5 else other for one, other in zip(gold, guesses, strict=True)]


def _sentence(scheme: str, *, legal: bool, draw: random.Random, size: int | None = None) -> list[str]:
    size = draw.randint(0, 12) if size is None else size
    if not legal:
        letters = scheme.replace("O", "")
        return draw.choices(["O", *(f"{letter}-{kind}" for letter in letters for kind in TYPES)], k=size)
    tags: list[str] = []
    while len(tags) < size:
        longest = min(4, size - len(tags))
        tags += draw.choice([["O"], LEGAL[scheme](draw.choice(TYPES), draw.randint(1, longest))])
    return tags


def _ended(kind: str, size: int, last: str, alone: str) -> list[str]:
    return [f"{alone}-{kind}"] if size == 1 else [f"B-{kind}", *[f"I-{kind}"] * (size - 2), f"{last}-{kind}"]


def differences_of_seqeval(scheme: str, *, legal: bool, strict: bool, rows: int, seed: int) -> Differences:
    """Return the metrics of seqeval's report: all entities together, each type, the mean of the types.

    Args:
        scheme: of the tags.
        legal: sequences as the scheme has them; else letters and types in any order.
        strict: seqeval's strict mode; else its default one, for which L and U are written E and S.
        rows: sentences.
        seed: of what is drawn.
    """
    from seqeval import metrics
    from seqeval import scheme as schemes

    gold, found = drawn_tags(scheme, legal=legal, rows=rows, draw=random.Random(seed))
    options = {"mode": "strict", "scheme": getattr(schemes, STRICT[scheme])} if strict else {}
    renamed = scheme == "BILOU" and not strict
    given = [[[_renamed(tag) for tag in row] for row in some] if renamed else some for some in (gold, found)]
    report = metrics.classification_report(*given, output_dict=True, zero_division=0, **options)
    micro, macro = report["micro avg"], report["macro avg"]
    types = {f"f1_{name}": one["f1-score"] for name, one in report.items() if not name.endswith(" avg")}
    theirs = {**types, "precision": micro["precision"], "recall": micro["recall"], "f1": micro["f1-score"]}
    ours = entity_scores(gold, found)
    ours["macro"] = statistics.fmean(value for name, value in ours.items() if name.startswith("f1_"))
    del ours["score"]
    return differences(ours, {**theirs, "macro": macro["f1-score"]})


def _renamed(tag: str) -> str:
    return {"L": "E", "U": "S"}.get(tag[0], tag[0]) + tag[1:]


def differences_of_conlleval(official: Path, *, legal: bool, rows: int, seed: int) -> Differences:
    """Return the metrics of the Perl program for tags in BIO."""
    gold, found = drawn_tags("BIO", legal=legal, rows=rows, draw=random.Random(seed))
    words = [["w"] * len(row) for row in gold]
    output = subprocess.run(
        ["perl", official / "conlleval.pl"],
        input=conll_text(words, gold, found),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    wanted, guessed, right = map(
        int, re.findall(r"with (\d+) phrases; found: (\d+) phrases; correct: (\d+)", output)[0]
    )
    ours = {name: value for name, value in entity_scores(gold, found).items() if name in ("precision", "recall", "f1")}
    return differences(
        ours, {"precision": right / guessed, "recall": right / wanted, "f1": 2 * right / (wanted + guessed)}
    )


def differences(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Differences:
    """Return the largest difference of two sets of metrics; infinity for a metric that one of them lacks."""
    return {name: abs(ours.get(name, float("inf")) - theirs.get(name, -1.0)) for name in {*ours, *theirs}}


def squad_files(squad: Path) -> list[Path]:
    """Return the files that contain answers."""
    return [path for path in sorted(squad.rglob("*.json")) if any(one.answers for one in read_squad(path).questions)]


def comparisons(official: Path, squad: Path, rows: int) -> Iterator[tuple[str, str, Callable[..., Differences]]]:
    """Yield official program, data, and the function that compares with it, given a seed."""
    for file in squad_files(squad):
        found = read_squad(file)
        what = f"{file.parent.name}/{file.name}, {len(found.questions):,} questions"
        yield f"evaluate-v{version_of(found)}.py", what, partial(differences_of_squad, official, file)
    for scheme, legal, strict in (
        (scheme, legal, strict) for scheme in LEGAL for legal, strict in ((True, True), (True, False), (False, False))
    ):
        one = partial(differences_of_seqeval, scheme, legal=legal, strict=strict, rows=rows)
        yield f"seqeval, {'strict' if strict else 'default'} mode", _what(scheme, legal, rows), one
    for legal in (True, False):
        yield (
            "conlleval.pl",
            _what("BIO", legal, rows),
            partial(differences_of_conlleval, official, legal=legal, rows=rows),
        )


def _what(scheme: str, legal: bool, rows: int) -> str:
    return f"{scheme}, {'legal' if legal else 'any'} order, {rows:,} sentences"


def main() -> int:
    """Print a table; return 1 if any difference exceeds 1e-9."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--official", type=Path, required=True, help="folder of the official programs")
    parser.add_argument("--squad", type=Path, required=True, help="folder with files of SQuAD")
    parser.add_argument("--rounds", type=int, default=5, help="seeds")
    parser.add_argument("--rows", type=int, default=2000, help="sentences a round")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.official))
    print(f"{describe('scikit-learn')}\n")
    for name, published in MD5.items():
        found = hashlib.md5((arguments.official / name).read_bytes(), usedforsecurity=False).hexdigest()
        print(f"{name}: MD5 {found}, {'as published' if found == published else f'NOT {published}'}")
    print("\n| official | of what | rounds | metrics | largest difference |\n|---|---|---|---|---|")
    furthest = 0.0
    for name, what, compare in comparisons(arguments.official, arguments.squad, arguments.rows):
        found = [compare(seed=seed) for seed in range(arguments.rounds)]
        largest = max(max(one.values()) for one in found)
        furthest = max(furthest, largest)
        metrics = len({metric for one in found for metric in one})
        print(f"| {name} | {what} | {len(found)} | {metrics} | {largest:.1e} |", flush=True)
    print(f"\n{'as asked' if furthest <= WITHIN else 'NOT AS ASKED'}: {WITHIN:.0e}")
    return 0 if furthest <= WITHIN else 1


if __name__ == "__main__":
    raise SystemExit(main())
