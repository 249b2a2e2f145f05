"""What a fine-tuning job needs, for the laptop, which validates it first, and for the job, which does again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    SerializationInfo,
    ValidationError,
    field_serializer,
    model_validator,
)

from train_jobs.config.base import Config, CountOrAuto
from train_jobs.config.errors import SpecError
from train_jobs.config.names import did_you_mean
from train_jobs.config.own import is_own, one_of
from train_jobs.config.pretrain import (
    CheckpointConfig,
    Dropout,
    OptimizerConfig,
    Positive,
    ScheduleConfig,
    TrainConfig,
    WatchdogConfig,
    micro_batch_sizes,
)
from train_jobs.config.tasks import (
    GLUE,
    GLUE_TASKS,
    OWN,
    SENTENCES,
    SPANS,
    TASKS,
    WORDS,
    TaskKind,
    bare,
    data_folder,
    spellings,
    task_kind,
    task_names,
)

SETTINGS_OF: dict[str, TaskKind | None] = {
    "data.glue": SENTENCES,
    "data.squad": SPANS,
    "data.conll": WORDS,
    **dict.fromkeys(
        (f"data.{key}" for key in ("dataset", "text", "pair", "label", "regression", "format", "quoting")), None
    ),
    **dict.fromkeys(("data.word_column", "data.tag_column"), WORDS),
    **dict.fromkeys(("data.doc_stride", "data.max_query_length"), SPANS),
    **dict.fromkeys(("evaluation.n_best", "evaluation.max_answer_length"), SPANS),
}
"""Dotted keys that only one kind of tasks uses -> that kind; None: tables of one's own."""

Column = Annotated[str, Field(min_length=1)]


def _one_of_tasks(name: str, tasks: tuple[str, ...]) -> str:
    found = spellings(tasks).get(bare(name))
    if found in tasks:
        return found
    raise ValueError(f"must be {', '.join(tasks[:-1])} or {tasks[-1]}{did_you_mean(name, tasks)}")


TaskName = Annotated[str, AfterValidator(lambda name: _one_of_tasks(name, task_names()))]
OneOfGlue = Annotated[str, AfterValidator(lambda name: _one_of_tasks(name, GLUE_TASKS))]


class ColumnsConfig(Config):
    """What the columns of the user's own tables are."""

    text: Column = "text"
    """Column of the text, or of the first of two."""
    pair: Column | None = None
    """Column of the second text. None: there is one text a row."""
    label: Column = "label"
    """Column of what is to be predicted."""
    regression: bool = False
    """Labels are numbers, and a number is predicted. Off, they are names of classes, whatever they look like."""
    format: Literal["auto", "tsv", "csv", "jsonl", "parquet"] = "auto"
    """What the files are. auto: what their names end in."""
    quoting: bool | None = None
    """TSV and CSV: a field in quotation marks may hold separators and ends of lines. None: in CSV, not in TSV."""

    @model_validator(mode="after")
    def _columns_differ(self) -> ColumnsConfig:
        names = [name for name in (self.text, self.pair, self.label) if name is not None]
        if len(set(names)) < len(names):
            raise ValueError(f"text, pair and label must be different columns, and are {', '.join(names)}")
        return self


class ExamplesConfig(ColumnsConfig):
    """Where examples come from, and how long they may be; the columns are those of tables of your own."""

    glue: Path | None = None
    """Folder of the official files of sentence tasks, as the download script of GLUE makes it: TASK/train.tsv, ..."""
    squad: Path | None = None
    """SQuAD's folder, with its files under their own names: train-v1.1.json, dev-v1.1.json, train-v2.0.json, ..."""
    conll: Path | None = None
    """CoNLL-2003's folder: train.txt, valid.txt and test.txt, or eng.train, eng.testa and eng.testb."""
    dataset: Annotated[str, Field(min_length=1)] | None = None
    """Own: NAME[:CONFIGURATION] of a dataset on the Hugging Face Hub, or a folder of one, with splits train, validation
    and maybe test, in place of files. Needs the package datasets."""
    train: Path | None = None
    """File to learn from, in place of the official one: a table, of SQuAD JSON, of NER lines of a word and its tag."""
    validation: Path | None = None
    """File that checkpoints are chosen by, in place of the official dev set."""
    test: Path | None = None
    """File to predict, with or without labels. None: the official one, if it is there."""
    word_column: Positive = 1
    """NER: which column of a line is the word, counted from 1."""
    tag_column: Positive | None = None
    """NER: which column of a line is the tag, counted from 1. None: the last one."""
    max_length: Annotated[int, Field(ge=8)] | None = None
    """Tokens of a sequence, [CLS] and [SEP] included; of longer texts the end is cut off, of two the longer one's.
    SQuAD's contexts and NER's sentences are not cut but become several sequences. None: 384 of SQuAD, else 128."""
    doc_stride: Positive = 128
    """SQuAD: tokens from the beginning of one sequence of a long context to that of the next."""
    max_query_length: Positive = 64
    """SQuAD: tokens of a question; the rest of it is cut off."""
    lowercase: bool | None = None
    """Whether the model is uncased. None: as its tokenizer says, and if that does not, it is."""

    @model_validator(mode="after")
    def _word_is_no_tag(self) -> ExamplesConfig:
        if self.word_column == self.tag_column:
            raise ValueError(f"word_column and tag_column are both {self.tag_column}")
        return self


class DropoutConfig(Config):
    """What of the model is for training alone; all else is as its folder has it."""

    hidden_dropout_prob: Dropout = 0.1
    """Dropout of embeddings, attention output, feed-forward output, and of the head."""
    attention_probs_dropout_prob: Dropout = 0.1
    """Dropout of the attention probabilities."""


class FinetuneOptimizerConfig(OptimizerConfig):
    """AdamW with bias correction, or LAMB."""

    name: Annotated[str, one_of("adamw", "lamb")] = "adamw"
    """Which optimizer: adamw or lamb."""
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    """Peak learning rate, after warm-up."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Each layer takes this much of the rate of the one above it; at 1 all take the whole."""


class FinetuneScheduleConfig(ScheduleConfig):
    """Learning rate over a run: linear up, linear down."""

    warmup_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the steps over which the rate rises linearly from zero."""
    power: Annotated[float, Field(gt=0)] = 1.0
    """Exponent of the polynomial: 1 is linear."""
    continuous: bool = True
    """Scale the polynomial to start at the peak."""


class FinetuneTrainConfig(Config):
    """Epochs, batches, precision."""

    epochs: Positive = 3
    """Times that training sees every row."""
    global_batch_size: Positive = 32
    """Rows per optimizer step, over all processes and accumulation steps; the last batch of an epoch has the rest."""
    micro_batch_size: CountOrAuto = 32
    """Rows that one process takes through the model at once. auto: the largest that fits on every process if all were
    of full length, found before the first step. Memory that runs out halves it."""
    group_by_length: bool = False
    """Batches of rows of about one length, so that padding to the longest of a batch costs little. Off: any rows."""
    unpad: bool = True
    """Compute tokens alone: sequences lie one behind the other, and padding costs nothing. Off: padded to the longest
    of each micro batch."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: a class counts as much as any other, however many rows it has. none: a row as much as any other."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic of forward and backward pass; weights stay fp32. auto: bf16 where the hardware has it, else
    fp16 with a loss scale on GPUs (those before Ampere) and fp32 on CPUs."""
    compile: Literal["auto"] | bool = False
    """torch.compile of the model's layers. auto: on GPUs."""
    deterministic: bool = False
    """On GPUs too only algorithms that give the same bits every time. On CPUs they always do."""
    log_every: Positive = 10
    """Steps between two lines of metrics."""

    def for_engine(self, steps: int, seed: int) -> TrainConfig:
        """What the training loop wants to know."""
        shared = self.model_dump(include=TrainConfig.model_fields.keys() & type(self).model_fields.keys())
        return TrainConfig(steps=steps, seed=seed, **shared)


class EvaluationConfig(Config):
    """Metrics on the dev set."""

    every: Positive | None = None
    """Steps between two evaluations. None: one after each epoch."""
    patience: Positive | None = None
    """So many evaluations in a row without a better score end training. None: only the epochs do."""
    n_best: Positive = 20
    """SQuAD: answers that are considered, and written to nbest_predictions.json."""
    max_answer_length: Positive = 30
    """SQuAD: most tokens of an answer."""


class FinetuneCheckpointConfig(CheckpointConfig):
    """When to save, what to keep; the model that is exported is the best one."""

    keep_last: Positive = 1
    """Newest checkpoints kept."""
    keep_best: Literal[1] = 1
    """Checkpoints of the best score kept; a better evaluation is saved at its step."""


class Sections(Config):
    """What a job says, and may say differently of one of the tasks of GLUE."""

    data: ExamplesConfig = ExamplesConfig()
    model: DropoutConfig = DropoutConfig()
    optimizer: FinetuneOptimizerConfig = FinetuneOptimizerConfig()
    schedule: FinetuneScheduleConfig = FinetuneScheduleConfig()
    train: FinetuneTrainConfig = FinetuneTrainConfig()
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1)] = [42]  # noqa: RUF012
    """The run is made once with each: new head, order of rows and dropout are functions of it. The best model of all
    is exported; mean, standard deviation, median, maximum and how many collapsed are told."""
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: FinetuneCheckpointConfig = FinetuneCheckpointConfig()


class TaskOverrides(Sections):
    """What one task of GLUE has otherwise; what is not said is as for all."""

    init_from: Path | None = None
    """Hugging Face BERT that training of this task starts from: one tuned on MNLI, say. None: that of all."""


class FinetuneConfig(Sections):
    """Everything that `python -m train_jobs.finetune --config FILE` reads from FILE."""

    task: TaskName = OWN
    """Which task: one of GLUE by its name, glue for all nine, SQuAD-1.1, SQuAD-2.0, NER, or own: tables of yours, with
    the columns that data names."""
    init_from: Path
    """Hugging Face BERT that training starts from: a folder, an exported one or any other."""
    per_task: dict[OneOfGlue, TaskOverrides] = Field(default={})
    """Task glue: name of a task -> keys that are otherwise for it, as in {RTE: {train: {epochs: 10}}}."""
    watchdog: WatchdogConfig = WatchdogConfig()
    resume: Literal["auto", "never"] = "auto"
    """auto: go on from the newest valid checkpoint of the output folder, if any. never: refuse a used folder."""

    @property
    def max_length(self) -> int:
        """Tokens of a sequence."""
        kind = task_kind(self.task) or SENTENCES
        return self.data.max_length or kind.max_length

    def require_positions(self, positions: int, model: Path) -> None:
        """Refuse sequences that are longer than the positions of the model.

        Args:
            positions: of the model.
            model: its folder.

        Raises:
            SpecError: they are longer.
        """
        if self.max_length > positions:
            raise SpecError(
                f"data.max_length {self.max_length} is more than the {positions} positions of {model}",
                fix=f"--set data.max_length={positions}",
            )

    def micro_batches(self, world_size: int, *, on_cpu: bool) -> list[int]:
        """The sizes among which `micro_batch_size: auto` finds the largest that fits, largest first; or the one given.

        A process whose share of the global batch is less takes all of it at once.
        """
        share = -(-self.train.global_batch_size // world_size)
        if self.train.micro_batch_size == "auto":
            return micro_batch_sizes(share, self.max_length, on_cpu=on_cpu)
        return [min(self.train.micro_batch_size, share)]

    def of_task(self, name: str) -> FinetuneConfig:
        """The configuration of one task of GLUE, in a job of all of them."""
        own = self.per_task[name].model_dump(exclude_unset=True) if name in self.per_task else {}
        told = self.model_dump(exclude_unset=True, include=FinetuneConfig.model_fields.keys() - {"per_task"})
        return FinetuneConfig.model_validate({**_laid_over(told, own), "task": name})

    def ignored(self) -> list[str]:
        """Dotted keys that are set to something although this task has no use for them."""
        kind = task_kind(self.task)
        keys = [key for key, one in SETTINGS_OF.items() if one != kind]
        if self.task in TASKS and not TASKS[self.task].has_classes:
            keys.append("train.class_weights")
        return [key for key in keys if self._is_changed(*key.split("."))]

    def _is_changed(self, section: str, name: str) -> bool:
        here = getattr(self, section)
        return bool(getattr(here, name) != type(here).model_fields[name].default)

    @field_serializer("per_task")
    def _as_written(self, tasks: dict[str, TaskOverrides], info: SerializationInfo) -> dict[str, Any]:
        """What was said alone: a default would be read as said."""
        return {name: own.model_dump(mode=info.mode, exclude_unset=True) for name, own in tasks.items()}

    @model_validator(mode="after")
    def _files_are_given(self) -> FinetuneConfig:
        data = self.data
        if self.task == GLUE:
            if data.glue is None:
                raise ValueError("data.glue, the folder of GLUE, is needed for its tasks")
            if given := [name for name in ("train", "validation", "test") if getattr(data, name) is not None]:
                raise ValueError(f"data.{given[0]} is one table, and the tasks of glue have one each")
        elif self.task == OWN and data.dataset is not None:
            if given := [name for name in ("train", "validation", "test") if getattr(data, name) is not None]:
                raise ValueError(f"data.{given[0]} and data.dataset are both given")
        elif data.train is None or data.validation is None:
            wanted = data_folder(self.task)
            if wanted is None:
                raise ValueError("data.train and data.validation, or data.dataset, are needed for a task of your own")
            if getattr(data, wanted) is None:
                raise ValueError(
                    f"data.{wanted}, a folder, or data.train and data.validation are needed for {self.task}"
                )
        return self

    @model_validator(mode="after")
    def _nothing_is_of_own_code(self) -> FinetuneConfig:
        for section in (self.optimizer, self.schedule):
            if is_own(section.name):
                raise ValueError(f"{section.name}: fine-tuning takes no code of your own")
        return self

    @model_validator(mode="after")
    def _epochs_end_it(self) -> FinetuneConfig:
        if self.schedule.hours is not None:
            raise ValueError("schedule.hours: fine-tuning ends with train.epochs")
        return self

    @model_validator(mode="after")
    def _seeds_differ(self) -> FinetuneConfig:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("a seed that is there twice would be the same run twice")
        return self

    @model_validator(mode="after")
    def _tasks_are_whole(self) -> FinetuneConfig:
        if self.per_task and self.task != GLUE:
            raise ValueError(f"per_task is for task glue, and task is {self.task}")
        for name in self.per_task:
            try:
                self.of_task(name)
            except ValidationError as problem:
                told = str(problem.errors()[0]["msg"]).removeprefix("Value error, ")
                raise ValueError(f"per_task.{name}: {told}") from None
        return self


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Nested values, those above in place of those below."""
    both = below.keys() & above.keys()
    nested = {key for key in both if isinstance(below[key], dict) and isinstance(above[key], dict)}
    return {**below, **above, **{key: _laid_over(below[key], above[key]) for key in nested}}
