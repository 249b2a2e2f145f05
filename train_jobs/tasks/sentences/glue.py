"""The tasks of GLUE (Wang et al. 2018): files, columns, order of labels, metrics, and what the official files hold.

A folder of GLUE is what its own download script makes: CoLA/train.tsv, MNLI/dev_matched.tsv and so on. Rows are counted
without the header. Checksums are those of complete copies; of a file that is known by its rows alone, none is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from train_jobs.artifacts.files import file_sha256
from train_jobs.config import DataError
from train_jobs.tasks.rows.labelled import Examples, SequenceTask, make_examples
from train_jobs.tasks.rows.tables import read_table

ENTAILMENT = ("entailment", "not_entailment")
INFERENCE = ("entailment", "neutral", "contradiction")
YES_OR_NO = ("0", "1")
COLA_HEADER = ("source", "label", "star", "sentence")  # of train and dev, whose first line is a row


@dataclass(frozen=True)
class OfficialFile:
    """A file as GLUE has it."""

    paths: tuple[str, ...]
    """Below the folder of GLUE; the first one is the download script's."""
    rows: int
    sha256: str | None = None
    header: tuple[str, ...] | None = None
    """Names of all columns, if the first line does not have them."""
    labelled: bool = True


@dataclass(frozen=True)
class GlueTask(SequenceTask):
    """One of GLUE's tasks."""

    files: Mapping[str, OfficialFile] = field(default_factory=dict)
    """Split -> file; MNLI has two of dev and of test, AX is all test."""
    server: Mapping[str, str] = field(default_factory=dict)
    """Split of test -> the name that GLUE's server has for its predictions, without `.tsv`."""
    known_flaws: bool = False
    """The official files have rows with a wrong number of tabs, and empty texts: these are told, and no error."""

    @property
    def dev_splits(self) -> tuple[str, ...]:
        """Those that are scored; where there are two, the score is the mean."""
        return tuple(split for split in self.files if split.startswith("dev"))


def _official(
    folder: str,
    train: int,
    dev: int,
    test: int,
    sha256: tuple[str | None, ...] = (None, None, None),
    header: tuple[str, ...] | None = None,
) -> dict[str, OfficialFile]:
    """The three files of a task; the header is that of train and dev."""
    train_file, dev_file, test_file = (f"{folder}/{split}.tsv" for split in ("train", "dev", "test"))
    return {
        "train": OfficialFile((train_file,), train, sha256[0], header),
        "dev": OfficialFile((dev_file,), dev, sha256[1], header),
        "test": OfficialFile((test_file,), test, sha256[2], labelled=False),
    }


def _task(
    name: str,
    text: str,
    pair: str | None,
    label: str,
    labels: tuple[str, ...],
    metrics: tuple[str, ...],
    files: Mapping[str, OfficialFile],
    *,
    known_flaws: bool = False,
) -> GlueTask:
    server = {"test": name}
    return GlueTask(name, text, pair, label, labels, metrics, files, server, known_flaws)


_COLA = _official(
    "CoLA",
    *(8551, 1043, 1063),
    (
        "cb368ebeb9f27d7ad03720d27ddc95687a311bdb100781a2fe59a5f5b1bc0624",
        "8c013e21dc39957cac37378d87bebe225b694a0d5fe13eded66c2856628833fd",
        "3b4df85f7a9a0633574b38d181e18090ac961a24b18fb6bcd74999ddea8ad0b8",
    ),
    COLA_HEADER,
)
_SST2 = _official(
    "SST-2",
    *(67_349, 872, 1821),
    (
        "48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1",
        "54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0",
        "69a938605609b3e6663b4487918fe1565eb293734e6e520d0366d1d412fd2a13",
    ),
)
_MRPC = _official(
    "MRPC",
    *(3668, 408, 1725),
    (
        "122becc469405bc16f9defcb8715d2a4b7ce600e9d9381e6dc42bfdd1494c51d",
        "81c8a1a9e1dfe461dd2c1a4f98f43fe18bece44d2bf9e3d0b245b88e5aa5eaf7",
        "4ee428d354c01fa35c2f0f6ab835398abb0bec01f17ed68fbcb6c04265505b0a",
    ),
)
_STSB = _official(
    "STS-B",
    *(5749, 1500, 1379),
    (
        "41c4d978b6162abdcada7e49a982211954cca5459c228db478af333124b257a2",
        "fe7dc0632a5033562f3cadff991f6e8d9b9b6311861660e78c3c82eb7db67f59",
        "16b4223d7d44a644fbc10f1b449472cfe81e1715fb07cf44023b0aa88ce856eb",
    ),
)
_WNLI = _official(
    "WNLI",
    *(635, 71, 146),
    (
        "9a88e9d54b6861cc796a088e9acf4f5f65064a9ef65ae6fa7a688b28391e5c9a",
        "cba00490596dd14be8cf53b4f53bb744abe3a7b89f81ab210528d80225338ed5",
        "ff0296817e235bf6f7a230c5f6781bd6ee228a45445f6510831fdef6f2a04766",
    ),
)
_MNLI = {
    "train": OfficialFile(("MNLI/train.tsv",), 392_702),
    "dev_matched": OfficialFile(("MNLI/dev_matched.tsv",), 9815),
    "dev_mismatched": OfficialFile(("MNLI/dev_mismatched.tsv",), 9832),
    "test_matched": OfficialFile(("MNLI/test_matched.tsv",), 9796, labelled=False),
    "test_mismatched": OfficialFile(("MNLI/test_mismatched.tsv",), 9847, labelled=False),
}
_AX = {
    "test": OfficialFile(
        ("diagnostic/diagnostic.tsv", "AX/diagnostic.tsv", "AX/AX.tsv", "AX/test.tsv", "AX.tsv"),
        1104,
        "0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd",  # as the Hub's `glue` has it
        labelled=False,
    )
}

GLUE: Mapping[str, GlueTask] = {
    task.name: task
    for task in (
        _task("CoLA", "sentence", None, "label", YES_OR_NO, ("matthews",), _COLA),
        _task("SST-2", "sentence", None, "label", YES_OR_NO, ("accuracy",), _SST2),
        _task("MRPC", "#1 String", "#2 String", "Quality", YES_OR_NO, ("f1", "accuracy"), _MRPC),
        _task("STS-B", "sentence1", "sentence2", "score", (), ("pearson", "spearman"), _STSB),
        _task(
            *("QQP", "question1", "question2", "is_duplicate", YES_OR_NO, ("f1", "accuracy")),
            _official("QQP", 363_846, 40_430, 390_965),
            known_flaws=True,
        ),
        GlueTask(
            *("MNLI", "sentence1", "sentence2", "gold_label", INFERENCE, ("accuracy",), _MNLI),
            server={"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm"},
        ),
        _task(
            *("QNLI", "question", "sentence", "label", ENTAILMENT, ("accuracy",)),
            _official("QNLI", 104_743, 5463, 5463),
        ),
        _task("RTE", "sentence1", "sentence2", "label", ENTAILMENT, ("accuracy",), _official("RTE", 2490, 277, 3000)),
        _task("WNLI", "sentence1", "sentence2", "label", YES_OR_NO, ("accuracy",), _WNLI),
        _task("AX", "sentence1", "sentence2", "label", INFERENCE, ("matthews",), _AX),
    )
}
"""By the names of its server; AX has no data to train on, and is predicted with MNLI's model."""

SCORED = tuple(name for name in GLUE if name != "AX")
"""The nine whose mean is the GLUE score."""

CLASS_NAMES: Mapping[str, tuple[str, ...]] = {
    "CoLA": ("unacceptable", "acceptable"),
    "SST-2": ("negative", "positive"),
    "MRPC": ("not_equivalent", "equivalent"),
    "QQP": ("not_duplicate", "duplicate"),
    "WNLI": ("not_entailment", "entailment"),
}
"""What stands for 0 and 1 in a saved model, as in the `glue` data set of Hugging Face."""


def glue_task(name: str) -> GlueTask | None:
    """A task by its name, however it is spelled (sst2, SST-2, sts_b); None if it is none of GLUE's."""
    return {_bare(known): task for known, task in GLUE.items()}.get(_bare(name))


def _bare(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def class_names(task: GlueTask) -> tuple[str, ...]:
    """Names of a task's classes for people; none for a number."""
    return CLASS_NAMES.get(task.name, task.labels)


def read_split(task: GlueTask, split: str, glue: Path | None, *, file: Path | None = None) -> Examples:
    """One split of a task.

    Args:
        task: one of GLUE.
        split: one of its files.
        glue: the folder of GLUE; None with a file.
        file: this one instead of the official one below the folder.

    Returns:
        The examples; their notes tell how the file differs from the official one, row count or content, and what is
        unusual in it. An official file, whose content is known, has no notes.

    Raises:
        DataError: the file is missing, or has rows that cannot be used.
    """
    official = task.files[split]
    assert file or glue, "a split is looked for somewhere"
    path = file or _find(glue, official)
    columns = [task.text, *([task.pair] if task.pair else []), *([task.label] if official.labelled else [])]
    table = read_table(path, columns, format="tsv", header=official.header, quoting=False, pass_over=task.known_flaws)
    found = make_examples(task, table, labelled=official.labelled, empty_texts=task.known_flaws)
    differs = _differences(official, path, len(found))
    if official.sha256 is not None and not differs:
        found.notes.clear()
    found.notes[:0] = differs
    return found


def glue_score(scores: Mapping[str, float]) -> float:
    """The GLUE score: the mean over tasks, of which a task with two metrics or two dev sets gives the mean of the two.

    Args:
        scores: task -> its score; those of SCORED that are there are averaged, and AX is not.
    """
    return fmean(scores[name] for name in SCORED if name in scores)


def _find(glue: Path, official: OfficialFile) -> Path:
    for name in official.paths:
        if (glue / name).is_file():
            return glue / name
    raise DataError(
        f"no such file: {glue / official.paths[0]}",
        facts={"need": "GLUE's folder as its download script makes it", "where": glue},
        fix="--set data.glue=FOLDER",
    )


def _differences(official: OfficialFile, path: Path, rows: int) -> list[str]:
    if rows != official.rows:
        return [f"{path}: {rows:,} rows, the official file has {official.rows:,}"]
    if official.sha256 is not None and (found := file_sha256(path)) != official.sha256:
        return [f"{path}: SHA-256 {found[:8]}, that of the official file is {official.sha256[:8]}: other content"]
    return []
