"""Configuration of a prediction or an evaluation, validated on the laptop and again by the job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from train_jobs.config.errors import did_you_mean
from train_jobs.config.fields import CheckedConfig, Config
from train_jobs.config.finetune import Column
from train_jobs.config.pretrain import Positive, WatchdogConfig
from train_jobs.config.tasks import SENTENCES, SPANS, TASKS, WORDS, bare, spellings

AUTO: Final = "auto"
CLASSIFICATION, QUESTION_ANSWERING, TOKEN_CLASSIFICATION, FILL_MASK, EMBEDDINGS = KINDS = (
    *(kind.pipeline for kind in (SENTENCES, SPANS, WORDS)),
    "fill-mask",
    "embeddings",
)
"""What can be predicted, by the names of Hugging Face's pipelines, except for embeddings."""

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
OUTPUT_FORMATS = (".jsonl", ".tsv", ".parquet", ".npz")


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
    """Undo what layers of a configuration do for recipes of training: `model: X` becomes `model: {name: X}`."""
    return value["name"] if isinstance(value, dict) and value.keys() == {"name"} else value


ModelFolder = Annotated[Path, BeforeValidator(_without_section)]
PredictTask = Annotated[str, AfterValidator(_known_task)]
Inputs = Annotated[list[Path], BeforeValidator(_one_or_more), Field(min_length=1)]
Output = Annotated[Path, AfterValidator(_known_output)]


class InputConfig(CheckedConfig):
    """Format, columns and lengths of the input. Columns that are not named are those of the model's lineage, or the
    defaults below."""

    format: InputFormat = "auto"
    """Format of the files: tables (tsv, csv, jsonl, parquet), lines (a text each), squad (SQuAD's JSON) or conll (a
    word and its tag per line, as CoNLL-2003). auto: by the extensions of their names."""
    text: Column = "text"
    """Column of the text, or of the first of two."""
    pair: Column | None = None
    """Column of the second text. None: there is one text a row."""
    question: Column = "question"
    """Column of the question to answer."""
    context: Column = "context"
    """Column of the text that holds the answer."""
    label: Column = "label"
    """Column of the reference, read to evaluate: names of the model's labels, their ids, or numbers."""
    positive_label: Column | None = None
    """Two classes: the label whose F1 is reported, one of the model's. None: the mean F1 of both labels (macro_f1)."""
    word_column: Positive = 1
    """Conll: number of the column with the word, from 1."""
    tag_column: Positive | None = None
    """Conll: number of the column with the tag, from 1, read to evaluate. None: the last one."""
    keep: list[Column] = Field(default=[])
    """Columns of the input, such as an id, to copy to each row of the output."""
    header: list[Column] | None = None
    """Names of all columns of TSV and CSV files without a header. None: the first line is the header."""
    quoting: bool | None = None
    """TSV and CSV: a field in quotation marks may hold separators and ends of lines. None: in CSV, not in TSV."""
    max_length: Annotated[int, Field(ge=8)] | None = None
    """Maximum tokens of a sequence with [CLS] and [SEP]. Longer texts are truncated and counted; contexts and texts
    with entities are read in several sequences. None: the positions of the model, for questions at most 384."""
    doc_stride: Positive = 128
    """Tokens between the starts of two sequences of a long context."""
    max_query_length: Positive = 64
    """Maximum tokens of a question; longer ones are truncated."""
    lowercase: bool | None = None
    """Whether the model is uncased. None: as its tokenizer states, or true."""

    def problems(self) -> Iterator[str]:
        for names in ([self.text, self.pair, self.label], [self.question, self.context]):
            given = [name for name in names if name is not None]
            if len(set(given)) < len(given):
                yield f"columns must differ, not be {', '.join(given)}"
        if self.word_column == self.tag_column:
            yield f"word_column and tag_column are both {self.tag_column}"
        if len(set(self.keep)) < len(self.keep):
            yield f"keep: a column is listed twice: {', '.join(self.keep)}"


class BatchingConfig(Config):
    """Batches of rows. Nothing here changes a prediction by more than rounding."""

    batch_tokens: Annotated[int, Field(ge=8)] | Literal["auto"] = "auto"
    """Tokens in one forward pass of a process. auto: 2,048 on CPUs, 65,536 on GPUs. It is halved when memory runs
    out."""
    window: Positive = 8192
    """Rows that are read, sorted by length, predicted and written together; the most that a kill loses."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic. auto: bf16 where the hardware has it, else fp16 on GPUs (those before Ampere) and fp32 on CPUs."""
    compile: Literal["auto"] | bool = False
    """torch.compile of the model's layers. auto: on GPUs."""


class AnswersConfig(Config):
    """Answers to questions."""

    n_best: Positive = 20
    """Candidates for first and last token of an answer, and number of answers reported with their probabilities."""
    max_answer_length: Positive = 30
    """Maximum tokens of an answer."""
    null_threshold: float | Literal["auto"] | None = "auto"
    """Give no answer if the score of none exceeds that of the best answer by more than this. None: always answer. auto:
    the value tuned in training; without one 0 for the form of SQuAD 2.0, None for that of 1.1."""


class EmbeddingsConfig(Config):
    """A vector for each text."""

    pooling: Literal["mean", "cls"] = "mean"
    """mean: mean of the vectors of all tokens, as in sentence-transformers. cls: vector of [CLS]."""
    normalise: bool = False
    """Scale each vector to length 1, so that products are cosines."""


class MaskingConfig(Config):
    """Masking of text without masks, to evaluate a language model."""

    probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens to predict: 80% are masked, 10% replaced by another token, 10% unchanged."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """Decides with the number of the row which tokens are masked."""


class PredictConfig(CheckedConfig):
    """Everything that `python -m train_jobs.predict --config FILE` reads from FILE."""

    model: ModelFolder
    """Hugging Face BERT with the head that predicts: an exported folder or any other."""
    input: Inputs
    """File to predict, or several of one format, which are predicted as one."""
    output: Output = Path("predictions.jsonl")
    """File of predictions, one per row of the input, in its order: .jsonl, .tsv, .parquet or (embeddings) .npz. A
    relative path is in the folder of the run."""
    task: PredictTask = AUTO
    """What to predict: text-classification (or a number), question-answering, token-classification, fill-mask or
    embeddings; or a task of GLUE, whose files and metrics are known, SQuAD or NER. auto: by the head of the model;
    embeddings if it has none."""
    evaluate: bool = False
    """Score the predictions by the labels, answers or tags of the input, or by words masked here."""
    top_k: Positive | None = None
    """Number of most probable labels of a text, or words for a mask, to report. None: all labels, 5 words."""
    data: InputConfig = InputConfig()
    batching: BatchingConfig = BatchingConfig()
    answers: AnswersConfig = AnswersConfig()
    embeddings: EmbeddingsConfig = EmbeddingsConfig()
    masking: MaskingConfig = MaskingConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    resume: Literal["auto", "never"] = "auto"
    """auto: resume after the last complete window of an earlier start with the same settings. never: start again."""

    def problems(self) -> Iterator[str]:
        if self.evaluate and self.task == EMBEDDINGS:
            yield "evaluate: embeddings have no reference to score by"
        if self.output.suffix == ".npz" and self.task not in {AUTO, EMBEDDINGS}:
            yield "output: .npz is for embeddings"
        forms = {self.form(path) for path in self.input}
        if len(forms) > 1:
            yield f"input: files of several formats: {', '.join(sorted(forms))}"

    def form(self, path: Path) -> str:
        """Return the format of an input: one of InputFormat except auto, or that of a built-in task.

        Raises:
            ValueError: the format is unknown.
        """
        if self.data.format != AUTO:
            return self.data.format
        if self.task in TASKS:
            return TASKS[self.task].kind.form
        if path.suffix not in INPUT_FORMATS:
            raise ValueError(
                f"input: unknown format of {path}: set data.format, or end it in {', '.join(INPUT_FORMATS)}"
            )
        return INPUT_FORMATS[path.suffix]
