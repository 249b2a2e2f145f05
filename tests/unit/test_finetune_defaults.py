"""The benchmark of default settings: held-back chapters, missing trainings, the table."""

from __future__ import annotations

import csv
import io
import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.defaults_data import BOOKS, write_corpus, write_tables
from benchmarks.finetune_defaults import SEEDS, SPACE, TRIALS, Benchmark, print_table, weights
from tests.conftest import write_bert

DEFAULT = {"optimizer.learning_rate": 1e-3, "train.global_batch_size": 32, "train.epochs": 20}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with two books of 40 chapters, one article and MRPC."""
    (tmp_path / "gutenberg").mkdir()
    for name in ("1_One", "2_Two"):
        chapters = [
            f"CHAPTER {number}\n\n" + "\n\n".join(f"{name} {number} {part} " + "word " * 50 for part in range(20))
            for number in range(1, 41)
        ]
        (tmp_path / "gutenberg" / f"{name}.txt.xz").write_bytes(lzma.compress("\n\n".join(chapters).encode()))
    (tmp_path / "wiki_extracted").mkdir()
    with tarfile.open(tmp_path / "wiki_extracted" / "enwiki_topics_wikiextractor.tar.xz", "w:xz") as archive:
        page = b'<doc id="1">\nTitle\n\nAn article.\n</doc>\n'
        member = tarfile.TarInfo("BB/wiki_00")
        member.size = len(page)
        archive.addfile(member, io.BytesIO(page))
    (tmp_path / "glue" / "MRPC").mkdir(parents=True)
    for split, count in (("train", 300), ("dev", 10)):
        rows = "".join(f"{number % 2}\t1\t2\tone {split} {number}\ttwo\n" for number in range(count))
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        (tmp_path / "glue" / "MRPC" / f"{split}.tsv").write_text(header + rows)
    return tmp_path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_held_back_chapters_are_in_no_other_text(data: Path, tmp_path: Path) -> None:
    write_corpus(data, corpus := tmp_path / "corpus.jsonl")
    train, held_back = (rows_of(path) for path in write_tables(BOOKS, 200, data, tmp_path))
    assert len(train) == 200
    assert {row["label"] for row in train} == {row["label"] for row in held_back} == {"One", "Two"}
    chapters = {tuple(row["text"].split()[:2]) for row in held_back}
    assert {int(number) % 4 for _, number in chapters} == {0}
    assert chapters.isdisjoint(tuple(row["text"].split()[:2]) for row in train)
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    assert any("An article." in text for text in texts)
    assert not [text for text in texts if any(" ".join(chapter) in text for chapter in chapters)]


def test_smaller_table_begins_larger_table(data: Path, tmp_path: Path) -> None:
    small, large = (rows_of(write_tables("MRPC", rows, data, tmp_path)[0]) for rows in (100, 200))
    assert small == large[:100]
    assert small[0].keys() == {"text", "pair", "label"}


def line(role: str, number: int, score: float, **settings: Any) -> dict[str, Any]:
    values = {**dict.fromkeys(SPACE, 0), **DEFAULT, "evaluation.patience": None, **settings}
    return {
        "task": "MRPC",
        "rows": 200,
        "role": role,
        "number": number,
        "settings": values,
        "dev": score,
        "model": "a",
    } | ({} if role == "trial" else {"score": score, "row_error": 0.01})


def test_resumed_benchmark_trains_what_is_missing(data: Path, tmp_path: Path) -> None:
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "result.json").write_text("{}")
    write_bert(tmp_path / "pretrained" / "model", hidden_size=128, num_attention_heads=2, max_position_embeddings=128)
    benchmark = Benchmark(data, tmp_path, tmp_path / "results.jsonl")
    first = next(benchmark.missing("MRPC", 200))
    assert (first.role, first.number) == ("default", SEEDS[0])
    rate = benchmark.config(first).optimizer.learning_rate
    point = {"optimizer.learning_rate": 5e-5, "schedule.warmup_fraction": 0.06}
    current = {"optimizer.learning_rate": rate, "schedule.warmup_fraction": 0.1}
    done = [
        line("default", 1, 0.5, **current | {"optimizer.learning_rate": 2 * rate}),
        line("default", 2, 0.5, **current),
        *(line("trial", number, number == 4, **point if number == 4 else {}) for number in range(TRIALS)),
    ]
    lines = [one | {"model": weights(benchmark.model())} for one in done]
    other = line("default", 3, 0.5, **current)
    benchmark.results.write_text("".join(json.dumps(one) + "\n" for one in [*lines, other]))
    missing = list(benchmark.missing("MRPC", 200))
    assert [one.number for one in missing if one.role == "default"] == [1, 3]
    best = [one for one in missing if one.role == "best"]
    assert [one.number for one in best] == list(SEEDS)
    assert benchmark.config(best[0]).optimizer.learning_rate == 5e-5


def test_table_shows_newest_default(capsys: pytest.CaptureFixture[str]) -> None:
    best = [line("best", seed, 0.7 + seed / 100) for seed in SEEDS]
    old = [line("default", seed, 0.5, **{"train.epochs": 3}) for seed in SEEDS]
    new = [line("default", seed, 0.72 + seed / 1000) for seed in SEEDS]
    print_table([*best, *old])
    assert "| 0.500 ± 0.000 | -0.220 | 0.010 | no |" in capsys.readouterr().out
    print_table([*best, *old, *new])
    shown = capsys.readouterr().out
    assert "| 0.722 ± 0.001 | +0.002 | 0.010 | yes |" in shown
    assert "1 of 1 cells" in shown
    print_table([*best, *old, *new[:2]])
    assert "0 of" not in capsys.readouterr().out
