"""What a fine-tuning job needs, for the laptop, which validates it first, and for the job, which does again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from train_jobs.config.base import Config
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
)

OWN = "own"
TASKS = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI")

Column = Annotated[str, Field(min_length=1)]


def _known_task(name: str) -> str:
    spelled = {_bare(task): task for task in (*TASKS, OWN)}
    if _bare(name) in spelled:
        return spelled[_bare(name)]
    raise ValueError(f"must be {', '.join(TASKS)} or {OWN}{did_you_mean(name, spelled.values())}")


def _bare(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


Task = Annotated[str, AfterValidator(_known_task)]


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
    """GLUE's folder, as its download script makes it."""
    train: Path | None = None
    """Table to learn from; of a task of GLUE in place of the official file."""
    validation: Path | None = None
    """Table that checkpoints are chosen by; of a task of GLUE in place of the official dev set."""
    test: Path | None = None
    """Table to predict, with or without labels. None: of a task of GLUE the official one, if it is there."""
    max_length: Annotated[int, Field(ge=8)] = 128
    """Tokens of a sequence, [CLS] and [SEP] included; of longer texts the end is cut off, of two the longer one's."""
    lowercase: bool | None = None
    """Whether the model is uncased. None: as its tokenizer says, and if that does not, it is."""


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
    micro_batch_size: Positive = 32
    """Rows that one process takes through the model at once. Memory that runs out halves it."""
    group_by_length: bool = False
    """Batches of rows of about one length, so that padding to the longest of a batch costs little. Off: any rows."""
    unpad: bool = True
    """Compute tokens alone: sequences lie one behind the other, and padding costs nothing. Off: padded to the longest
    of each micro batch."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: a class counts as much as any other, however many rows it has. none: a row as much as any other."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic of forward and backward pass; weights stay fp32. auto: bf16 where the hardware has it, else fp32."""
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


class FinetuneCheckpointConfig(CheckpointConfig):
    """When to save, what to keep; the model that is exported is the best one."""

    keep_last: Positive = 1
    """Newest checkpoints kept."""
    keep_best: Literal[1] = 1
    """Checkpoints of the best score kept; a better evaluation is saved at its step."""


class FinetuneConfig(Config):
    """Everything that `python -m train_jobs.finetune --config FILE` reads from FILE."""

    task: Task = OWN
    """Which task: one of GLUE by its name, or own: tables of yours, with the columns that data names."""
    init_from: Path
    """Hugging Face BERT that training starts from: a folder, an exported one or any other."""
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
    watchdog: WatchdogConfig = WatchdogConfig()
    resume: Literal["auto", "never"] = "auto"
    """auto: go on from the newest valid checkpoint of the output folder, if any. never: refuse a used folder."""

    @model_validator(mode="after")
    def _files_are_given(self) -> FinetuneConfig:
        if self.task == OWN and (self.data.train is None or self.data.validation is None):
            raise ValueError("data.train and data.validation are needed for a task of your own")
        if self.task != OWN and self.data.glue is None and (self.data.train is None or self.data.validation is None):
            raise ValueError(f"data.glue, the folder of GLUE, is needed for {self.task}")
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
