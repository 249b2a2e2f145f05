"""The configuration of a prediction or an evaluation, validated on the laptop and again by the job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from train_jobs.config.errors import SpecError, did_you_mean
from train_jobs.config.fields import CheckedConfig, Config
from train_jobs.config.finetune import Column
from train_jobs.config.pretrain import Positive, WatchdogConfig
from train_jobs.config.privacy import classes_text
from train_jobs.config.tasks import SENTENCES, SPANS, TASKS, WORDS, SentenceTask, bare, model_ids, spellings
from train_jobs.config.trust import TrustConfig

AUTO: Final = "auto"
CLASSIFICATION, QUESTION_ANSWERING, TOKEN_CLASSIFICATION, FILL_MASK, EMBEDDINGS = KINDS = (
    *(kind.pipeline for kind in (SENTENCES, SPANS, WORDS)),
    "fill-mask",
    "embeddings",
)
"""Kinds of prediction: names of Hugging Face's pipelines, and embeddings."""

HEADS = {
    "BertForSequenceClassification": CLASSIFICATION,
    "BertForQuestionAnswering": QUESTION_ANSWERING,
    "BertForTokenClassification": TOKEN_CLASSIFICATION,
    "BertForMaskedLM": FILL_MASK,
    "BertForPreTraining": FILL_MASK,
    "BertModel": EMBEDDINGS,
}
"""Class of a model, in `architectures` of its config.json -> kind of prediction."""
DEFAULT_LABELS = ("LABEL_0", "LABEL_1")  # Hugging Face's defaults, for a folder without names of labels
REGRESSION, SEVERAL_LABELS = "regression", "multi_label_classification"  # `problem_type` of config.json
MASK = "[MASK]"

InputFormat = Literal["auto", "tsv", "csv", "jsonl", "parquet", "lines", "squad", "conll"]
INPUT_FORMATS: dict[str, InputFormat] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".txt": "lines",
    ".text": "lines",
    ".json": "squad",
    ".conll": "conll",
    ".bio": "conll",
    ".iob2": "conll",
}
TABLES = ("tsv", "csv", "jsonl", "parquet")
LINES = "lines"
READABLE = {
    **dict.fromkeys((CLASSIFICATION, FILL_MASK, EMBEDDINGS), (*TABLES, LINES)),
    TOKEN_CLASSIFICATION: (*TABLES, LINES, "conll"),
    QUESTION_ANSWERING: (*TABLES, "squad"),
}
"""Kind of prediction -> formats of input that it can read."""
SCORED = {TOKEN_CLASSIFICATION: ("entities", "conll"), QUESTION_ANSWERING: ("answers", "squad")}
"""Kind of prediction -> what is scored, and the only format with a reference; others read it from a table."""
OUTPUT_FORMATS = (".jsonl", ".csv", ".tsv", ".parquet", ".npz")


def _known_task(name: str) -> str:
    spelled = spellings((AUTO, *KINDS, *(task for task, entry in TASKS.items() if "train" in entry.files)))
    if (found := spelled.get(bare(name))) is not None:
        return found if found not in TASKS or TASKS[found].kind is SENTENCES else TASKS[found].kind.pipeline
    names = ", ".join((AUTO, *KINDS))
    raise ValueError(f"must be {names}, or a task of GLUE{did_you_mean(name, spelled.values())}")


def _known_output(path: Path) -> Path:
    if path.suffix in OUTPUT_FORMATS:
        return path
    raise ValueError(f"must end in {', '.join(OUTPUT_FORMATS)}")


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str | Path) else value


def _without_section(value: object) -> object:
    """Return X for `{name: X}`: layers expand `model: X` to it, since `model` is a section in training."""
    return value["name"] if isinstance(value, dict) and value.keys() == {"name"} else value


ModelFolder = Annotated[Path, BeforeValidator(_without_section)]
PredictTask = Annotated[str, AfterValidator(_known_task)]
Inputs = Annotated[list[Path], BeforeValidator(_one_or_more), Field(min_length=1)]
Output = Annotated[Path, AfterValidator(_known_output)]


class InputConfig(CheckedConfig):
    """Format, columns and lengths of the input.

    Columns that are not set default to those in the model's lineage, then to the values below. So do the format of
    files without the suffix of a table, and the quoting of files with the format of the training table.
    """

    format: InputFormat = "auto"
    """Format of the files: tables (tsv, csv, jsonl, parquet), lines (one text per line), squad (SQuAD's JSON) or conll
    (one word and its tag per line, as CoNLL-2003). auto: from the file extension."""
    text: Column = "text"
    """Column of the text, or of the first of two."""
    pair: Column | None = None
    """Column of the second text. None: one text per row."""
    question: Column = "question"
    """Column of the question to answer."""
    context: Column = "context"
    """Column of the text that contains the answer."""
    label: Column = "label"
    """Column of the reference for an evaluation: names of the model's labels, their ids, or numbers."""
    positive_label: Column | None = None
    """Two classes: the label whose F1 is reported, one of the model's. None: the mean F1 of both labels (macro_f1)."""
    word_column: Positive = 1
    """Conll: number of the column with the word, from 1."""
    tag_column: Positive | None = None
    """Conll: number of the column with the tag for an evaluation, from 1. None: the last one."""
    keep: list[Column] = Field(default=[])
    """Columns of the input, such as an id, to copy to each row of the output."""
    header: list[Column] | None = None
    """Names of all columns of TSV and CSV files without a header. None: the first line is the header."""
    quoting: bool | None = None
    """TSV and CSV: quoted fields may contain separators and line breaks. None: on for CSV, off for TSV."""
    max_length: Annotated[int, Field(ge=8)] | None = None
    """Maximum tokens of a sequence, with [CLS] and [SEP]. Longer texts are truncated and counted. Contexts of questions
    and texts with entities are split into several sequences. None: all trained positions, at most 384 for questions."""
    doc_stride: Positive = 128
    """Tokens between the starts of consecutive sequences of a long context."""
    max_query_length: Positive = 64
    """Maximum tokens of a question; longer ones are truncated."""
    lowercase: bool | None = None
    """Whether the model is uncased. None: as its tokenizer states, or true."""

    def problems(self) -> Iterator[str]:
        """Yield one message per contradiction between values of the section."""
        for names in ([self.text, self.pair, self.label], [self.question, self.context]):
            given = [name for name in names if name is not None]
            if len(set(given)) < len(given):
                yield f"columns must differ: {', '.join(given)}"
        if self.word_column == self.tag_column:
            yield f"word_column and tag_column are both {self.tag_column}"
        if len(set(self.keep)) < len(self.keep):
            yield f"keep contains a duplicate: {', '.join(self.keep)}"


class BatchingConfig(Config):
    """Batches of rows. These settings change predictions only by rounding."""

    batch_tokens: Annotated[int, Field(ge=8)] | Literal["auto"] = "auto"
    """Tokens in one forward pass of a process. auto: 2,048 on CPUs, 65,536 on GPUs. It is halved when memory runs
    out."""
    window: Positive = 8192
    """Rows that are read, sorted by length, predicted and written together; a kill loses at most this many."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic. auto: bf16 if the hardware supports it, else fp16 on GPUs (before Ampere) and fp32 on CPUs."""
    compile: Literal["auto"] | bool = False
    """torch.compile of the model's layers. auto: on GPUs."""


class AnswersConfig(Config):
    """Answers of question answering."""

    n_best: Positive = 20
    """Number of candidates for the first and the last token, and of reported answers with their probabilities."""
    max_answer_length: Positive = 30
    """Maximum tokens of an answer."""
    null_threshold: float | Literal["auto"] | None = "auto"
    """Return no answer if its score exceeds that of the best answer by more than this. None: always answer. auto: the
    value tuned in training; without one, 0 for SQuAD 2.0 and None for SQuAD 1.1."""


class EmbeddingsConfig(Config):
    """Embeddings: one vector per text."""

    pooling: Literal["mean", "cls"] = "mean"
    """mean: mean of the vectors of all tokens, as in sentence-transformers. cls: vector of [CLS]."""
    normalise: bool = False
    """Scale each vector to length 1, so that dot products are cosine similarities."""


class MaskingConfig(Config):
    """Masking of plain text, to evaluate a language model."""

    probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens to predict: 80% are masked, 10% replaced by another token, 10% unchanged."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """Seed of the masks, together with the number of the row."""


class PredictConfig(CheckedConfig):
    """Configuration file of `python -m train_jobs.predict --config FILE`."""

    model: ModelFolder
    """Hugging Face BERT with a head for the task: a folder exported by a run, or any other."""
    input: Inputs
    """File to predict, or several with the same format, which are predicted as one."""
    output: Output = Path("predictions.jsonl")
    """File of predictions, one per row of the input, in its order: .jsonl, .csv, .tsv, .parquet or (embeddings) .npz.
    A relative path is in the folder of the run."""
    task: PredictTask = AUTO
    """Kind of prediction: text-classification (classes or a number), question-answering, token-classification,
    fill-mask or embeddings; or a task of GLUE (with its file format and metrics), SQuAD or NER. auto: from the head of
    the model; embeddings if it has none."""
    evaluate: bool = False
    """Score the predictions against labels, answers or tags in the input; for fill-mask, against words masked here."""
    top_k: Positive | None = None
    """Number of most probable labels per text, or words per mask, to report. None: all labels, 5 words."""
    runtime: Literal["auto", "torch", "onnx"] = "auto"
    """What runs the model. onnx: onnxruntime on the CPU, in fp32, with the file model.onnx of the model's folder
    (docs/predict.md); within 1e-4 of torch. auto: torch; for single texts of a server on a CPU, onnxruntime if it is
    installed and the folder has the file."""
    int8: bool = False
    """Runtime onnx: weights in 8 bits, smaller and faster. The job prints how often its answers are those of fp32."""
    data: InputConfig = InputConfig()
    batching: BatchingConfig = BatchingConfig()
    answers: AnswersConfig = AnswersConfig()
    embeddings: EmbeddingsConfig = EmbeddingsConfig()
    masking: MaskingConfig = MaskingConfig()
    trust: TrustConfig = TrustConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    resume: Literal["auto", "never"] = "auto"
    """auto: resume after the last complete window of an earlier start with the same settings. never: start over."""

    def problems(self) -> Iterator[str]:
        """Yield one message per contradiction between values of the section."""
        if self.evaluate and self.task == EMBEDDINGS:
            yield "evaluate: embeddings have no reference to score against"
        if self.int8 and self.runtime != "onnx":
            yield "int8: only for runtime onnx"
        if self.runtime == "onnx" and self.batching.precision in {"bf16", "fp16"}:
            yield f"batching.precision: {self.batching.precision} is not available with runtime onnx"
        if self.output.suffix == ".npz" and self.task not in {AUTO, EMBEDDINGS}:
            yield "output: .npz is only for embeddings"
        if self.output.suffix == ".npz" and self.data.keep:
            yield "data.keep: .npz holds only embeddings; set output to a .parquet, .jsonl, .csv or .tsv file"
        forms = {self.form(path) for path in self.input}
        if len(forms) > 1:
            yield f"input: files of several formats: {', '.join(sorted(forms))}"

    def form(self, path: Path, kind: str | None = None) -> str:
        """Return the format of an input file: one of `InputFormat` except auto.

        Args:
            path: path of the file.
            kind: kind of prediction: `.json` means SQuAD's format for questions, and objects in lines for all others.
                None: unknown, as questions.

        Raises:
            ValueError: the format is unknown.
        """
        if self.data.format != AUTO:
            return self.data.format
        if self.task in TASKS:
            return TASKS[self.task].kind.form
        if path.is_dir():
            raise ValueError(f"input: {path} is a folder: give its files, --input FILE for each")
        if (suffix := path.suffix.lower()) not in INPUT_FORMATS:
            raise ValueError(
                f"input: unknown format of {path}: set data.format, or use the extension {', '.join(INPUT_FORMATS)}"
            )
        return "jsonl" if suffix == ".json" and kind not in {None, QUESTION_ANSWERING} else INPUT_FORMATS[suffix]

    def text_columns(self, kind: str) -> list[str]:
        """Return the columns of text in a table.

        Args:
            kind: kind of prediction.
        """
        data = self.data
        if kind == QUESTION_ANSWERING:
            return [data.question, data.context]
        return [data.text, *([data.pair] if data.pair else [])]

    def columns(self, kind: str) -> list[str]:
        """Return all columns to read from a table, see `text_columns`."""
        label = [self.data.label] if self.evaluate and kind == CLASSIFICATION else []
        return list(dict.fromkeys([*self.text_columns(kind), *self.data.keep, *label]))

    def require_other_file(self, output: Path, *, fix: str) -> None:
        """Require that the file of predictions is no input, by its path or by a link.

        Args:
            output: the file that the predictions replace.
            fix: fix of the error.

        Raises:
            SpecError: it is an input, which would be lost.
        """
        for path in self.input:
            with suppress(OSError):  # one of them does not exist
                if output.samefile(path):
                    raise SpecError(f"cannot write the predictions to {output}: it is the input {path}", fix=fix)

    def require_readable(self, kind: str) -> str:
        """Return the format of the input.

        Args:
            kind: kind of prediction.

        Raises:
            SpecError: predictions of this kind cannot read it, or a column or reference cannot be in it.
        """
        path, form, columns = self.input[0], self.form(self.input[0], kind), self.columns(kind)
        if form not in READABLE[kind]:
            raise SpecError(
                f"cannot read the format {form} for {kind}",
                facts={"need": ", ".join(READABLE[kind]), "have": path},
                fix="--set data.format=FORMAT, or use another file",
            )
        if form == LINES and len(columns) > 1:
            raise SpecError(
                f"cannot read columns of {path}: it has one text per line",
                facts={"need": ", ".join(columns)},
                fix="use a table: .tsv, .csv, .jsonl or .parquet",
            )
        what, scored = SCORED.get(kind, ("", form))
        if self.evaluate and form != scored:
            raise SpecError(
                f"cannot score {what}: the format of the input is {form}, not {scored}",
                fix=f"--set data.format={scored}, or use another file",
            )
        return form


def require_labels(task: SentenceTask, model: Path, labels: Sequence[str], *, number: bool) -> None:
    """Check that a model predicts what a built-in task scores.

    Args:
        task: the task.
        model: folder of the model, for the error.
        labels: names of the model's classes in the order of its ids.
        number: whether the model predicts a number.

    Raises:
        SpecError: it does not.
    """
    if number == task.regression and (number or model_ids(task, labels) is not None):
        return
    raise SpecError(
        f"cannot score {task.name}: the model has other labels",
        facts={
            "need": "a number" if task.regression else classes_text(task.class_names),
            "have": "a number" if number else classes_text(labels),
        },
        fix=f"rename the labels in id2label of {model / 'config.json'}, or use another model",
    )
