"""What a prediction or an evaluation needs, for the laptop, which validates it first, and for the job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from train_jobs.config.base import Config
from train_jobs.config.finetune import Column
from train_jobs.config.names import did_you_mean
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
    """As written: layers of a configuration turn `model: X` into `model: {name: X}`, as a recipe of training has it."""
    return value["name"] if isinstance(value, dict) and value.keys() == {"name"} else value


ModelFolder = Annotated[Path, BeforeValidator(_without_section)]
PredictTask = Annotated[str, AfterValidator(_known_task)]
Inputs = Annotated[list[Path], BeforeValidator(_one_or_more), Field(min_length=1)]
Output = Annotated[Path, AfterValidator(_known_output)]


class InputConfig(Config):
    """What stands in the input, and how much of it a model looks at. Columns that are not named are those that the
    model was tuned on, as its lineage has them, or else those below."""

    format: InputFormat = "auto"
    """What the files are: tables (tsv, csv, jsonl, parquet), lines (a text each), squad (SQuAD's JSON) or conll (a word
    and its tag a line, as CoNLL-2003). auto: what their names end in."""
    text: Column = "text"
    """Column of the text, or of the first of two."""
    pair: Column | None = None
    """Column of the second text. None: there is one text a row."""
    question: Column = "question"
    """Column of the question that is to be answered."""
    context: Column = "context"
    """Column of the text that holds the answer."""
    label: Column = "label"
    """Column of what is right, read to evaluate: names of the model's labels or their ids, or numbers."""
    word_column: Positive = 1
    """Conll: which column of a line is the word, counted from 1."""
    tag_column: Positive | None = None
    """Conll: which column of a line is the tag, counted from 1, read to evaluate. None: the last one."""
    keep: list[Column] = Field(default=[])
    """Columns of the input, an id among them, that each row of the output is to have besides."""
    header: list[Column] | None = None
    """Names of all columns of TSV and CSV files whose first line is a row already. None: the first line has them."""
    quoting: bool | None = None
    """TSV and CSV: a field in quotation marks may hold separators and ends of lines. None: in CSV, not in TSV."""
    max_length: Annotated[int, Field(ge=8)] | None = None
    """Tokens of a sequence, [CLS] and [SEP] included. Longer texts are cut off, and told of; contexts and texts with
    entities are read in several sequences. None: as many as the model has positions, of questions at most 384."""
    doc_stride: Positive = 128
    """Tokens from the beginning of a sequence to that of the next, where a context takes several."""
    max_query_length: Positive = 64
    """Tokens of a question; the rest of it is cut off."""
    lowercase: bool | None = None
    """Whether the model is uncased. None: as its tokenizer says, and if that does not, it is."""

    @model_validator(mode="after")
    def _columns_differ(self) -> InputConfig:
        for names in ([self.text, self.pair, self.label], [self.question, self.context]):
            given = [name for name in names if name is not None]
            if len(set(given)) < len(given):
                raise ValueError(f"columns must differ, and are {', '.join(given)}")
        if self.word_column == self.tag_column:
            raise ValueError(f"word_column and tag_column are both {self.tag_column}")
        if len(set(self.keep)) < len(self.keep):
            raise ValueError(f"keep: a column is there twice: {', '.join(self.keep)}")
        return self


class BatchingConfig(Config):
    """How rows go through the model. None of it changes a prediction by more than rounding does."""

    batch_tokens: Annotated[int, Field(ge=8)] | Literal["auto"] = "auto"
    """Tokens that one process takes through the model at once. auto: 2,048 on CPUs, 65,536 on GPUs. Memory that runs
    out halves it."""
    window: Positive = 8192
    """Rows that are read, put in order of length, predicted and written together; what a kill costs at most."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic. auto: bf16 where the hardware has it, else fp16 on GPUs (those before Ampere) and fp32 on CPUs."""
    compile: Literal["auto"] | bool = False
    """torch.compile of the model's layers. auto: on GPUs."""


class AnswersConfig(Config):
    """Answers to questions."""

    n_best: Positive = 20
    """First and last tokens that answers are made of, and answers told to each question with their probabilities."""
    max_answer_length: Positive = 30
    """Tokens of an answer."""
    null_threshold: float | Literal["auto"] | None = "auto"
    """No answer is given where the score of none exceeds that of the best one by more than this. None: there always is
    an answer. auto: what was tuned when the model was trained; of SQuAD 2.0's form else 0, of 1.1's None."""


class EmbeddingsConfig(Config):
    """A vector for each text."""

    pooling: Literal["mean", "cls"] = "mean"
    """mean: of the vectors of all tokens, as sentence-transformers has it. cls: that of [CLS]."""
    normalise: bool = False
    """Scale each to length 1, so that products are cosines."""


class MaskingConfig(Config):
    """Words that are masked to evaluate a language model on text of which none is."""

    probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens to be predicted; of those 80% are masked, 10% another token, 10% as they were."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """With the row's number decides which."""


class PredictConfig(Config):
    """Everything that `python -m train_jobs.predict --config FILE` reads from FILE."""

    model: ModelFolder
    """Hugging Face BERT with the head that predicts: a folder, an exported one or any other."""
    input: Inputs
    """File of what to predict, or several of one form, which are predicted as if they were one."""
    output: Output = Path("predictions.jsonl")
    """File of predictions, a line for each of the input, in its order: .jsonl, .tsv, .parquet or (embeddings) .npz. A
    name, or a path that is not absolute, lies in the folder of the run."""
    task: PredictTask = AUTO
    """What is predicted: text-classification (or a number), question-answering, token-classification, fill-mask or
    embeddings; or a task of GLUE, whose files and metrics are known, SQuAD or NER. auto: what the model has a head
    for, and embeddings if it has none."""
    evaluate: bool = False
    """Score the predictions by what the input says is right: its labels, answers or tags, or words masked here."""
    top_k: Positive | None = None
    """Likeliest labels of a text, or words for a mask, that are told. None: all labels, 5 words."""
    data: InputConfig = InputConfig()
    batching: BatchingConfig = BatchingConfig()
    answers: AnswersConfig = AnswersConfig()
    embeddings: EmbeddingsConfig = EmbeddingsConfig()
    masking: MaskingConfig = MaskingConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    resume: Literal["auto", "never"] = "auto"
    """auto: go on behind the last complete window that an earlier start of the same left. never: begin anew."""

    @model_validator(mode="after")
    def _embeddings_are_not_evaluated(self) -> PredictConfig:
        if self.evaluate and self.task == EMBEDDINGS:
            raise ValueError("evaluate: nothing says which embeddings are right")
        return self

    @model_validator(mode="after")
    def _arrays_are_of_embeddings(self) -> PredictConfig:
        if self.output.suffix == ".npz" and self.task not in {AUTO, EMBEDDINGS}:
            raise ValueError("output: .npz is for embeddings")
        return self

    @model_validator(mode="after")
    def _files_are_of_one_form(self) -> PredictConfig:
        forms = {self.form(path) for path in self.input}
        if len(forms) > 1:
            raise ValueError(f"input: files of several forms: {', '.join(sorted(forms))}")
        return self

    def form(self, path: Path) -> str:
        """What an input is: one of InputFormat but auto, or that of a built-in task.

        Raises:
            ValueError: nothing tells.
        """
        if self.data.format != AUTO:
            return self.data.format
        if self.task in TASKS:
            return TASKS[self.task].kind.form
        if path.suffix not in INPUT_FORMATS:
            raise ValueError(f"input: what is {path}? Name it in data.format, or end it in {', '.join(INPUT_FORMATS)}")
        return INPUT_FORMATS[path.suffix]
