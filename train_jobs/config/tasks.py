"""The built-in tasks of fine-tuning: one entry contains all facts of one task, for the laptop and for the job.

To add a sentence task, add an entry to `TASKS` (docs/own-task.md). GLUE (Wang et al. 2018) has the folders of its own
download script: CoLA/train.tsv, MNLI/dev_matched.tsv. A checksum is missing where only the number of rows is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

GLUE, OWN = "glue", "own"  # all nine tasks of GLUE; the user's own tables


@dataclass(frozen=True)
class TaskKind:
    """A kind of task: tasks with the same head and the same file format."""

    pipeline: str
    """Name of Hugging Face's pipeline."""
    folder: str
    """Key of `data` for the folder of official files."""
    form: str
    """Format of the official files, as in `InputFormat`."""
    max_length: int = 128
    """Default of `data.max_length`."""


SENTENCES = TaskKind("text-classification", "glue", "tsv")
SPANS = TaskKind("question-answering", "squad", "squad", 384)
WORDS = TaskKind("token-classification", "conll", "conll")
SPANS_SPECIAL_TOKENS = 3  # of a question and its context: [CLS] and two [SEP]


@dataclass(frozen=True)
class OfficialFile:
    """A file as its authors published it."""

    paths: tuple[str, ...]
    """Possible paths in the folder of data; the first that exists is read."""
    rows: int | None = None
    """Number of rows without the header, questions, or sentences. None: not checked."""
    sha256: str | None = None
    """Hash of the file. None: unknown."""
    header: tuple[str, ...] | None = None
    """Names of all columns if the file has no header. None: the first line is the header."""
    labelled: bool = True
    """Whether the file contains labels."""
    size: int | None = None
    """Bytes. None: unknown."""


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """Facts of a task."""

    name: str
    kind: TaskKind
    metrics: tuple[str, ...]
    """Names of the metrics on the dev set; a name that ends in * is a prefix."""
    files: Mapping[str, OfficialFile] = field(default_factory=dict)
    """train, dev, test -> file; MNLI has two dev and two test files. A task without a train file is only predicted."""
    recipe: str = "glue"
    """Default recipe."""
    aliases: tuple[str, ...] = ()
    """Other names, in lower case without - and _."""
    dataset: str | None = None
    """Name of the dataset on the Hugging Face Hub."""
    diagnostics: tuple[str, ...] = ()
    """Tasks whose test sets are predicted with a model of this task."""

    @property
    def has_classes(self) -> bool:
        """Whether the task predicts one of several classes."""
        return self.kind is not SPANS

    def official(self, split: str) -> list[OfficialFile]:
        """Return the files of a split: train, validation or test."""
        prefix = "dev" if split == "validation" else split
        return [file for name, file in self.files.items() if name.startswith(prefix)]


AUROC = "auroc"


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics of a task of sentences."""

    scored: tuple[str, ...]
    """Names of those whose mean is the score, which selects the best checkpoint."""
    reported: tuple[str, ...] = ()
    """Names of the others."""
    positive: int = 1
    """Id of the class that F1 and AUROC refer to."""


NUMBER_METRICS = ClassMetrics(("pearson", "spearman"))
"""Metrics of a regression on the user's own tables."""


def own_metrics(classes: Sequence[str], positive: str | None) -> ClassMetrics:
    """Return the metrics of the user's own classes.

    F1 of one class is reported only if the user names the class: which one matters is not in the data.

    Args:
        classes: their names in the order of their ids.
        positive: the class that F1 refers to. None: the score has the mean F1 of both classes in place of F1.
    """
    reported = ("macro_f1", "balanced_accuracy", "matthews")
    if len(classes) != 2:
        return ClassMetrics(("accuracy",), reported)
    if positive is None:
        return ClassMetrics(("accuracy", "macro_f1"), (*reported[1:], AUROC))
    return ClassMetrics(("accuracy", "f1"), (*reported, AUROC), classes.index(positive))


@dataclass(frozen=True, kw_only=True)
class SentenceTask(TaskEntry):
    """A task that predicts a class or a number for each text or pair of texts.

    `metrics` are names in `tasks.sentences.metrics.METRICS`; their mean is the score.
    """

    kind: TaskKind = SENTENCES
    text: str
    """Column of the text, or of the first of two."""
    pair: str | None = None
    """Column of the second text. None: one text per row."""
    label: str
    """Column of the label to predict."""
    reported: tuple[str, ...] = ()
    """Names of further metrics, which are not in the score."""
    positive: int = 1
    """Id of the class that F1 refers to."""
    labels: tuple[str, ...] = ()
    """Names of the classes in the files, in the order of their ids; empty for regression."""
    readable: tuple[str, ...] = ()
    """Names of the classes in a saved model if the files contain numbers: those of the Hub's dataset `glue`."""
    suite: str = ""
    """GLUE for tasks that its server scores."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Test split -> name of its prediction file, without `.tsv`. Empty: the name of the task."""
    known_flaws: bool = False
    """Whether the official files have rows with a wrong number of tabs and empty texts, which are then not errors."""

    @property
    def class_metrics(self) -> ClassMetrics:
        """Its metrics."""
        return ClassMetrics(self.metrics, self.reported, self.positive)

    @property
    def regression(self) -> bool:
        """Whether the task predicts a number."""
        return not self.labels

    @property
    def has_classes(self) -> bool:
        """Whether the task predicts one of several classes."""
        return not self.regression

    @property
    def class_names(self) -> tuple[str, ...]:
        """Readable names of the classes; empty for regression."""
        return self.readable or self.labels

    @property
    def dev_splits(self) -> tuple[str, ...]:
        """Splits that are scored; with two, the score is their mean."""
        return tuple(split for split in self.files if split.startswith("dev"))

    @property
    def predicted(self) -> Mapping[str, str]:
        """Test split -> name of its prediction file, without `.tsv`."""
        return self.outputs or {"test": self.name}


def tables(
    folder: str,
    train: int,
    dev: int,
    test: int,
    sha256: tuple[str | None, str | None, str | None] = (None, None, None),
    header: tuple[str, ...] | None = None,
) -> dict[str, OfficialFile]:
    """Return the files FOLDER/train.tsv, dev.tsv and test.tsv.

    Args:
        folder: folder in the folder of data.
        train: rows of train.tsv.
        dev: rows of dev.tsv.
        test: rows of test.tsv.
        sha256: hashes of the three files; None: unknown.
        header: names of the columns if train.tsv and dev.tsv have no header.
    """
    return {
        "train": OfficialFile((f"{folder}/train.tsv",), train, sha256[0], header),
        "dev": OfficialFile((f"{folder}/dev.tsv",), dev, sha256[1], header),
        "test": OfficialFile((f"{folder}/test.tsv",), test, sha256[2], labelled=False),
    }


ENTAILMENT = ("entailment", "not_entailment")
INFERENCE = ("entailment", "neutral", "contradiction")
YES_OR_NO = ("0", "1")
_PAIR: dict[str, Any] = {"text": "sentence1", "pair": "sentence2"}
_GLUE: dict[str, Any] = {"suite": "GLUE", "dataset": "nyu-mll/glue"}

_ENTRIES: tuple[TaskEntry, ...] = (
    SentenceTask(
        name="CoLA",
        text="sentence",
        label="label",
        labels=YES_OR_NO,
        readable=("unacceptable", "acceptable"),
        metrics=("matthews",),
        files=tables(
            "CoLA",
            *(8551, 1043, 1063),
            (
                "cb368ebeb9f27d7ad03720d27ddc95687a311bdb100781a2fe59a5f5b1bc0624",
                "8c013e21dc39957cac37378d87bebe225b694a0d5fe13eded66c2856628833fd",
                "3b4df85f7a9a0633574b38d181e18090ac961a24b18fb6bcd74999ddea8ad0b8",
            ),
            header=("source", "label", "star", "sentence"),
        ),
        **_GLUE,
    ),
    SentenceTask(
        name="SST-2",
        text="sentence",
        label="label",
        labels=YES_OR_NO,
        readable=("negative", "positive"),
        metrics=("accuracy",),
        files=tables(
            "SST-2",
            *(67_349, 872, 1821),
            (
                "48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1",
                "54a9c12c77e402fc14d6a66a506f24d999f596b0176eb777c972cccc2f9cc4b0",
                "69a938605609b3e6663b4487918fe1565eb293734e6e520d0366d1d412fd2a13",
            ),
        ),
        **_GLUE,
    ),
    SentenceTask(
        name="MRPC",
        text="#1 String",
        pair="#2 String",
        label="Quality",
        labels=YES_OR_NO,
        readable=("not_equivalent", "equivalent"),
        metrics=("f1", "accuracy"),
        files=tables(
            "MRPC",
            *(3668, 408, 1725),
            (
                "122becc469405bc16f9defcb8715d2a4b7ce600e9d9381e6dc42bfdd1494c51d",
                "81c8a1a9e1dfe461dd2c1a4f98f43fe18bece44d2bf9e3d0b245b88e5aa5eaf7",
                "4ee428d354c01fa35c2f0f6ab835398abb0bec01f17ed68fbcb6c04265505b0a",
            ),
        ),
        **_GLUE,
    ),
    SentenceTask(
        name="STS-B",
        **_PAIR,
        label="score",
        metrics=("pearson", "spearman"),
        files=tables(
            "STS-B",
            *(5749, 1500, 1379),
            (
                "41c4d978b6162abdcada7e49a982211954cca5459c228db478af333124b257a2",
                "fe7dc0632a5033562f3cadff991f6e8d9b9b6311861660e78c3c82eb7db67f59",
                "16b4223d7d44a644fbc10f1b449472cfe81e1715fb07cf44023b0aa88ce856eb",
            ),
        ),
        **_GLUE,
    ),
    SentenceTask(
        name="QQP",
        text="question1",
        pair="question2",
        label="is_duplicate",
        labels=YES_OR_NO,
        readable=("not_duplicate", "duplicate"),
        metrics=("f1", "accuracy"),
        files=tables("QQP", 363_846, 40_430, 390_965),
        known_flaws=True,
        **_GLUE,
    ),
    SentenceTask(
        name="MNLI",
        **_PAIR,
        label="gold_label",
        labels=INFERENCE,
        metrics=("accuracy",),
        files={
            "train": OfficialFile(("MNLI/train.tsv",), 392_702),
            "dev_matched": OfficialFile(("MNLI/dev_matched.tsv",), 9815),
            "dev_mismatched": OfficialFile(("MNLI/dev_mismatched.tsv",), 9832),
            "test_matched": OfficialFile(("MNLI/test_matched.tsv",), 9796, labelled=False),
            "test_mismatched": OfficialFile(("MNLI/test_mismatched.tsv",), 9847, labelled=False),
        },
        outputs={"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm"},
        diagnostics=("AX",),
        **_GLUE,
    ),
    SentenceTask(
        name="QNLI",
        text="question",
        pair="sentence",
        label="label",
        labels=ENTAILMENT,
        metrics=("accuracy",),
        files=tables("QNLI", 104_743, 5463, 5463),
        **_GLUE,
    ),
    SentenceTask(
        name="RTE",
        **_PAIR,
        label="label",
        labels=ENTAILMENT,
        metrics=("accuracy",),
        files=tables("RTE", 2490, 277, 3000),
        **_GLUE,
    ),
    SentenceTask(
        name="WNLI",
        **_PAIR,
        label="label",
        labels=YES_OR_NO,
        readable=("not_entailment", "entailment"),
        metrics=("accuracy",),
        files=tables(
            "WNLI",
            *(635, 71, 146),
            (
                "9a88e9d54b6861cc796a088e9acf4f5f65064a9ef65ae6fa7a688b28391e5c9a",
                "cba00490596dd14be8cf53b4f53bb744abe3a7b89f81ab210528d80225338ed5",
                "ff0296817e235bf6f7a230c5f6781bd6ee228a45445f6510831fdef6f2a04766",
            ),
        ),
        **_GLUE,
    ),
    SentenceTask(
        name="AX",
        **_PAIR,
        label="label",
        labels=INFERENCE,
        metrics=("matthews",),
        files={
            "test": OfficialFile(
                ("diagnostic/diagnostic.tsv", "AX/diagnostic.tsv", "AX/AX.tsv", "AX/test.tsv", "AX.tsv"),
                1104,
                "0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd",  # of the copy in the Hub's `glue`
                labelled=False,
            )
        },
        **_GLUE,
    ),
    TaskEntry(
        name="SQuAD-1.1",
        kind=SPANS,
        metrics=("exact_match", "f1"),
        files={
            "train": OfficialFile(
                ("train-v1.1.json",),
                87_599,
                "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955",
                size=30_288_272,
            ),
            "dev": OfficialFile(
                ("dev-v1.1.json",),
                10_570,
                "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
                size=4_854_279,
            ),
        },
        recipe="squad",
        aliases=("squad", "squad1", "squadv1", "squadv1.1"),
        dataset="rajpurkar/squad",
    ),
    TaskEntry(
        name="SQuAD-2.0",
        kind=SPANS,
        metrics=("exact", "f1", "best_exact", "best_f1"),
        files={
            "train": OfficialFile(
                ("train-v2.0.json",),
                130_319,
                "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002",
                size=42_123_633,
            ),
            "dev": OfficialFile(
                ("dev-v2.0.json",),
                11_873,
                "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",
                size=4_370_528,
            ),
        },
        recipe="squad",
        aliases=("squad2", "squadv2", "squadv2.0"),
        dataset="rajpurkar/squad_v2",
    ),
    TaskEntry(
        name="NER",
        kind=WORDS,
        metrics=("precision", "recall", "f1", "f1_*"),
        files={
            "train": OfficialFile(("train.txt", "eng.train")),
            "dev": OfficialFile(("valid.txt", "eng.testa", "dev.txt")),
            "test": OfficialFile(("test.txt", "eng.testb")),
        },
        recipe="entities",
        aliases=("entities", "conll", "conll2003"),
    ),
)

TASKS: dict[str, TaskEntry] = {entry.name: entry for entry in _ENTRIES}
"""Name -> task. AX has no training data; it is predicted with a model of MNLI."""

GLUE_SUITE: Mapping[str, SentenceTask] = {
    entry.name: entry for entry in _ENTRIES if isinstance(entry, SentenceTask) and entry.suite
}
"""Name on the GLUE server -> task, including AX."""
GLUE_TASKS = tuple(name for name, entry in GLUE_SUITE.items() if "train" in entry.files)
"""The nine tasks whose mean is the GLUE score."""
SQUAD_1, SQUAD_2 = SQUAD_TASKS = ("SQuAD-1.1", "SQuAD-2.0")
NER = "NER"


def task_names() -> tuple[str, ...]:
    """Return all valid values of `task`: tasks to train, all of GLUE, and the user's own tables."""
    others = (name for name, entry in TASKS.items() if name not in GLUE_TASKS and "train" in entry.files)
    return (*GLUE_TASKS, GLUE, *others, OWN)


def task_kind(task: str | None) -> TaskKind | None:
    """Return the kind of a built-in task; None for the user's own tables, and for an unknown task."""
    if task == GLUE:
        return SENTENCES
    return TASKS[task].kind if task in TASKS else None


def data_folder(task: str | None) -> str | None:
    """Return the key of `data` for the folder of a task's official files; None if it has none."""
    kind = task_kind(task)
    return kind.folder if kind else None


def sentence_task(name: str) -> SentenceTask | None:
    """Return a sentence task by its name in any spelling (sst2, SST-2, sts_b); None for an unknown one."""
    entry = TASKS.get(spellings(TASKS).get(bare(name), ""))
    return entry if isinstance(entry, SentenceTask) else None


def spellings(names: Iterable[str]) -> dict[str, str]:
    """Return normalised names (see `bare`) and aliases -> official names."""
    known = {bare(name): name for name in names}
    entries = [entry for entry in TASKS.values() if bare(entry.name) in known]
    return {alias: entry.name for entry in entries for alias in entry.aliases} | known


def model_ids(task: SentenceTask, labels: Sequence[str]) -> list[int] | None:
    """Return the id that a model has for each class of a built-in task.

    Args:
        task: a task with classes.
        labels: names of the model's classes in the order of its ids. A model of another source may spell or order them
            differently, or have only numbers: the official ones are taken then.

    Returns:
        The ids in the order of the task's classes; None if the labels are not those of the task.
    """
    places = {bare(label): number for number, label in enumerate(labels)}
    each = zip(map(bare, task.class_names), map(bare, task.labels), strict=True)
    found = [
        next((places[name] for name in (*names, str(number), f"label{number}") if name in places), None)
        for number, names in enumerate(each)
    ]
    ids = [one for one in found if one is not None]
    return ids if len(set(ids)) == len(task.labels) == len(labels) else None


def bare(name: str) -> str:
    """Return a name in lower case, without - and _."""
    return name.lower().replace("-", "").replace("_", "")
