"""GLUE tasks: the real files if present, otherwise files of the same format; the zip for the GLUE server."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.conftest import SHARED
from train_jobs.config import DataError
from train_jobs.config.tasks import GLUE_SUITE, GLUE_TASKS, SentenceTask, sentence_task
from train_jobs.readers.sentence_data import read_split
from train_jobs.tasks.sentences.glue import FILES, glue_score, predictions_text, write_submission
from train_jobs.tasks.sentences.metrics import scores

REAL = SHARED / "data" / "glue"
ROWS = {  # train, dev, test, as in the literature
    "CoLA": (8551, 1043, 1063),
    "SST-2": (67_349, 872, 1821),
    "MRPC": (3668, 408, 1725),
    "STS-B": (5749, 1500, 1379),
    "QQP": (363_846, 40_430, 390_965),
    "QNLI": (104_743, 5463, 5463),
    "RTE": (2490, 277, 3000),
    "WNLI": (635, 71, 146),
}
FORMS = {  # task -> header of train and dev or None, a row, the parsed row
    "CoLA": (None, "gj04\t0\t*\tHim ran.", ("Him ran.", None, 0)),
    "SST-2": ("sentence\tlabel", "a joy \t1", ("a joy ", None, 1)),
    "MRPC": ("\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", '1\t7\t8\t"Go\tGone', ('"Go', "Gone", 1)),
    "STS-B": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tm\tf\t2012\t1\tn\tn\tA plane.\tA jet.\t3.800",
        ("A plane.", "A jet.", 3.8),
    ),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "5\t1\t2\tWho?\tWho not?\t1",
        ("Who?", "Who not?", 1),
    ),
    "QNLI": ("index\tquestion\tsentence\tlabel", "0\tWhen?\tIn May.\tnot_entailment", ("When?", "In May.", 1)),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel",
        "0\tRain.\tIt's wet.\tentailment",
        ("Rain.", "It's wet.", 0),
    ),
    "WNLI": ("index\tsentence1\tsentence2\tlabel", "0\tA hit B.\tB was hit.\t1", ("A hit B.", "B was hit.", 1)),
    "MNLI": (
        "index\tpromptID\tpairID\tgenre\tp1\tp2\tq1\tq2\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\t1\t1n\tf\t(\t(\t(\t(\tHe ran.\tHe sat.\tneutral\tcontradiction",
        ("He ran.", "He sat.", 2),
    ),
}


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def official(task: SentenceTask, split: str, root: Path, row: str, header: str | None) -> Path:
    return put(root / task.files[split].paths[0], f"{header}\n{row}\n" if header else f"{row}\n")


@pytest.mark.parametrize("name", FORMS)
def test_each_task_is_read_from_its_columns(tmp_path: Path, name: str) -> None:
    header, row, (first, second, label) = FORMS[name]
    task = GLUE_SUITE[name]
    for split in ("train", *task.dev_splits):
        path = official(task, split, tmp_path, row, header)
        found = read_split(task, split, tmp_path)
        assert (found.texts, found.pairs, found.labels) == ([first], [second] if second else None, [label])
        rows = task.files[split].rows
        assert f"{path}: 1 rows, the official file has {rows:,}" in found.notes


@pytest.mark.parametrize("name", FORMS)
def test_test_sets_have_no_labels(tmp_path: Path, name: str) -> None:
    task = GLUE_SUITE[name]
    columns = [task.text, *([task.pair] if task.pair else [])]
    for split in task.predicted:
        put(tmp_path / task.files[split].paths[0], "\t".join(["index", *columns]) + "\n0" + "\tx" * len(columns) + "\n")
        assert read_split(task, split, tmp_path).labels is None


def test_row_counts_of_official_files_are_listed() -> None:
    for name, counts in ROWS.items():
        assert tuple(file.rows for file in GLUE_SUITE[name].files.values()) == counts
    mnli = {
        "train": 392_702,
        "dev_matched": 9815,
        "dev_mismatched": 9832,
        "test_matched": 9796,
        "test_mismatched": 9847,
    }
    assert {split: file.rows for split, file in GLUE_SUITE["MNLI"].files.items()} == mnli
    assert GLUE_SUITE["AX"].files["test"].rows == 1104


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the files of GLUE are not in {REAL}")
@pytest.mark.parametrize("name", ["CoLA", "SST-2", "MRPC", "STS-B", "WNLI"])
def test_official_files_are_read_completely(name: str) -> None:
    for split, rows in zip(("train", "dev", "test"), ROWS[name], strict=True):
        found = read_split(GLUE_SUITE[name], split, REAL)
        assert (len(found), found.notes) == (rows, [])
        assert (found.labels is None) == (split == "test")


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the files of GLUE are not in {REAL}")
def test_baselines_on_real_labels_match_literature() -> None:
    """All acceptable: 0; all equivalent: 81.2 and 68.4; the more frequent label: 56.3 for dev of WNLI."""
    expected = {"CoLA": (1, [0.0]), "MRPC": (1, [0.8122, 0.6838]), "WNLI": (0, [0.5634]), "SST-2": (1, [0.5092])}
    for name, (constant, figures) in expected.items():
        labels = read_split(GLUE_SUITE[name], "dev", REAL).labels
        assert labels is not None
        found = scores(GLUE_SUITE[name].metrics, labels, [constant] * len(labels))
        assert [found[metric] for metric in GLUE_SUITE[name].metrics] == pytest.approx(figures, abs=1e-4)


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the files of GLUE are not in {REAL}")
@pytest.mark.parametrize(
    ("name", "file", "rows"),
    [
        ("QQP", "QQP/subset_dev.tsv", 1000),
        ("QNLI", "QNLI/subset_dev.tsv", 1000),
        ("MNLI", "MNLI/subset_dev.tsv", 1000),
        ("MNLI", "MNLI/train_sample_official_layout.tsv", 480),
    ],
)
def test_samples_of_large_tasks_are_read_and_reported(name: str, file: str, rows: int) -> None:
    task = GLUE_SUITE[name]
    found = read_split(task, "train", REAL, file=REAL / file)
    assert len(found) == rows
    assert found.labels is not None
    assert set(found.labels) == set(range(len(task.labels)))
    assert found.notes == [f"{REAL / file}: {rows:,} rows, the official file has {task.files['train'].rows:,}"]


def test_file_of_right_size_with_other_content_is_reported(tmp_path: Path) -> None:
    path = official(GLUE_SUITE["WNLI"], "dev", tmp_path, "\n".join(["0\ta\tb\t1"] * 71), FORMS["WNLI"][0])
    (note,) = read_split(GLUE_SUITE["WNLI"], "dev", tmp_path).notes
    assert note.startswith(f"{path}: SHA-256 ")
    assert "cba00490" in note
    path = put(tmp_path / "AX.tsv", "index\tsentence1\tsentence2\n" + "0\ta\tb\n" * 1104)
    (note,) = read_split(GLUE_SUITE["AX"], "test", tmp_path).notes
    assert note.startswith(f"{path}: SHA-256 ")


def test_unknown_label_is_named_with_line(tmp_path: Path) -> None:
    header, row, _ = FORMS["RTE"]
    path = official(GLUE_SUITE["RTE"], "train", tmp_path, f"{row}\n1\ta\tb\t1", header)
    with pytest.raises(DataError) as caught:
        read_split(GLUE_SUITE["RTE"], "train", tmp_path)
    assert caught.value.problems == [
        f"{path}:3: unknown label: a text of 1 character; known are entailment, not_entailment"
    ]


def test_bad_rows_are_reported_for_qqp_refused_otherwise(tmp_path: Path) -> None:
    header, row, _ = FORMS["QQP"]
    path = official(GLUE_SUITE["QQP"], "train", tmp_path, f"{row}\nbroken\n7\t1\t2\t\tWhy?\t0", header)
    found = read_split(GLUE_SUITE["QQP"], "train", tmp_path)
    assert (found.texts, found.labels) == (["Who?", ""], [1, 0])
    assert found.notes[1:] == [
        f"{path}:3: skipped: 0 tabs, need 5",
        f"{path}:4: column 'question1' has an empty text, which is kept",
    ]
    path = official(GLUE_SUITE["SST-2"], "train", tmp_path, "a joy\nfine\t1", FORMS["SST-2"][0])
    with pytest.raises(DataError) as caught:
        read_split(GLUE_SUITE["SST-2"], "train", tmp_path)
    assert caught.value.problems == [f"{path}:2: 0 tabs, need 1"]


def test_diagnostic_set_is_found_by_any_name(tmp_path: Path) -> None:
    for number, name in enumerate(GLUE_SUITE["AX"].files["test"].paths):
        put(tmp_path / str(number) / name, "index\tsentence1\tsentence2\n0\tThe cat sat.\tIt stood.\n")
        assert read_split(GLUE_SUITE["AX"], "test", tmp_path / str(number)).texts == ["The cat sat."]


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file: .*RTE/train\.tsv"):
        read_split(GLUE_SUITE["RTE"], "train", tmp_path)


def test_task_lookup_ignores_spelling() -> None:
    assert sentence_task("sst2") is GLUE_SUITE["SST-2"]
    assert sentence_task("STS_B") is sentence_task("stsb") is GLUE_SUITE["STS-B"]
    assert sentence_task("squad") is None


def test_classes_have_readable_names() -> None:
    assert GLUE_SUITE["CoLA"].class_names == ("unacceptable", "acceptable")
    assert GLUE_SUITE["MNLI"].class_names == ("entailment", "neutral", "contradiction")
    assert GLUE_SUITE["STS-B"].class_names == ()
    for task in GLUE_SUITE.values():
        assert len(task.class_names) == len(task.labels)


def test_metrics_of_each_task() -> None:
    assert {name: task.metrics for name, task in GLUE_SUITE.items()} == {
        **dict.fromkeys(("SST-2", "MNLI", "QNLI", "RTE", "WNLI"), ("accuracy",)),
        **dict.fromkeys(("MRPC", "QQP"), ("f1", "accuracy")),
        **dict.fromkeys(("CoLA", "AX"), ("matthews",)),
        "STS-B": ("pearson", "spearman"),
    }


def test_glue_score_is_mean_of_nine_tasks() -> None:
    assert len(GLUE_TASKS) == 9
    assert glue_score({**dict.fromkeys(GLUE_TASKS, 0.5), "RTE": 1.0, "AX": 0.0}) == pytest.approx(5 / 9)
    assert glue_score({"CoLA": 0.2, "RTE": 0.6}) == pytest.approx(0.4)


def predictions() -> dict[str, list[float]]:
    return {name: [0.0 if task.regression else 0] * rows for name, (task, rows) in FILES.items()}


def test_zip_contains_eleven_files_of_server_format(tmp_path: Path) -> None:
    given = predictions()
    given["MNLI-mm"][1], given["QNLI"][-1], given["CoLA"][0] = 2, 1, 1
    given["STS-B"][:4] = [-0.3, 5.2, 2.34567, 4]
    write_submission(tmp_path / "glue.zip", given)
    with zipfile.ZipFile(tmp_path / "glue.zip") as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert sorted(texts) == sorted(
        f"{name}.tsv"
        for name in ("AX", "CoLA", "MNLI-m", "MNLI-mm", "MRPC", "QNLI", "QQP", "RTE", "SST-2", "STS-B", "WNLI")
    )
    assert all(text.startswith("index\tprediction\n0\t") and text.endswith("\n") for text in texts.values())
    lines = {name: text.splitlines() for name, text in texts.items()}
    assert lines["MNLI-mm.tsv"][1:3] == ["0\tentailment", "1\tcontradiction"]
    assert (lines["QNLI.tsv"][-1], len(lines["QNLI.tsv"])) == ("5462\tnot_entailment", 5464)
    assert lines["CoLA.tsv"][1:3] == ["0\t1", "1\t0"]
    assert lines["AX.tsv"][1] == "0\tentailment"
    assert lines["STS-B.tsv"][1:5] == ["0\t0.000", "1\t5.000", "2\t2.346", "3\t4.000"]


def test_zip_lists_all_problems_at_once(tmp_path: Path) -> None:
    given = predictions()
    del given["AX"]
    given["RTE"].pop()
    given["STS-B"][7] = float("nan")
    given["MNLI"] = [0]
    with pytest.raises(DataError) as caught:
        write_submission(tmp_path / "glue.zip", given)
    assert set(caught.value.problems) == {
        "AX.tsv: missing",
        "MNLI.tsv: unknown to GLUE's server",
        "STS-B.tsv: row 7: nan is not a finite number",
        "RTE.tsv: 2,999 predictions, need 3,000",
    }
    assert not (tmp_path / "glue.zip").exists()


def test_server_labels_are_names_or_numbers_per_task() -> None:
    assert predictions_text(GLUE_SUITE["WNLI"], [1, 0]) == "index\tprediction\n0\t1\n1\t0\n"
    assert predictions_text(GLUE_SUITE["RTE"], [1]) == "index\tprediction\n0\tnot_entailment\n"
