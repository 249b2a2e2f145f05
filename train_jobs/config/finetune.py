"""The configuration of a fine-tuning job, validated on the laptop and again by the job."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializationInfo,
    ValidationError,
    field_serializer,
)

from train_jobs.config.errors import SpecError, did_you_mean
from train_jobs.config.fields import AS_WRITTEN, CheckedConfig, Config, CountAutoOrNone, is_user_code, one_of
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
    SPANS_SPECIAL_TOKENS,
    TASKS,
    WORDS,
    TaskKind,
    bare,
    data_folder,
    spellings,
    task_kind,
    task_names,
)
from train_jobs.config.trust import TrustConfig

SETTINGS_OF: dict[str, TaskKind | None] = {
    "data.glue": SENTENCES,
    "data.squad": SPANS,
    "data.conll": WORDS,
    **dict.fromkeys(
        (
            f"data.{key}"
            for key in (
                *(
                    "dataset",
                    "text",
                    "pair",
                    "label",
                    "regression",
                    "positive_label",
                    "validation_fraction",
                    "test_fraction",
                    "test_fraction_from",
                    "format",
                    "quoting",
                ),
            )
        ),
        None,
    ),
    **dict.fromkeys(("data.word_column", "data.tag_column"), WORDS),
    **dict.fromkeys(("data.doc_stride", "data.max_query_length"), SPANS),
    **dict.fromkeys(("evaluation.n_best", "evaluation.max_answer_length"), SPANS),
}
"""Dotted keys that only one kind of task uses -> that kind. None: the user's own tables."""

Column = Annotated[str, Field(min_length=1), AS_WRITTEN]  # names of columns and labels


def _one_of_tasks(name: str, tasks: tuple[str, ...]) -> str:
    found = spellings(tasks).get(bare(name))
    if found in tasks:
        return found
    raise ValueError(f"must be {', '.join(tasks[:-1])} or {tasks[-1]}{did_you_mean(name, tasks)}")


TaskName = Annotated[str, AfterValidator(lambda name: _one_of_tasks(name, task_names()))]
OneOfGlue = Annotated[str, AfterValidator(lambda name: _one_of_tasks(name, GLUE_TASKS))]


class ColumnsConfig(CheckedConfig):
    """Columns of the user's own tables."""

    text: Column = "text"
    """Column of the text, or of the first of two."""
    pair: Column | None = None
    """Column of the second text. None: one text per row."""
    label: Column = "label"
    """Column of the label to predict."""
    regression: bool = False
    """Predict a number; labels must be numbers. Off: labels are names of classes, even if they look like numbers."""
    positive_label: Column | None = None
    """Two classes: the label whose F1 is reported and is part of the score. None: the mean F1 of both labels
    (macro_f1)."""
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Own, without a validation table: share of the rows of the training table that become the dev set, by a hash of
    their text. Rows with the same text stay together."""
    test_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Own: share of the rows of test_fraction_from to hold back. They choose nothing and are scored once, with the best
    checkpoint, as test_METRIC. Rows with the same text stay together. None: only a labelled test set is scored."""
    test_fraction_from: Literal["validation", "train"] = "validation"
    """Own: the rows that test_fraction holds back. validation: those of the validation table. train: those of the
    training table, which are then not trained on."""
    format: Literal["auto", "tsv", "csv", "jsonl", "parquet"] = "auto"
    """Format of the files. auto: from the file extension."""
    quoting: bool | None = None
    """TSV and CSV: quoted fields may contain separators and line breaks. None: on for CSV, off for TSV."""

    def problems(self) -> Iterator[str]:
        """Yield one message per contradiction between values of the section."""
        names = [name for name in (self.text, self.pair, self.label) if name is not None]
        if len(set(names)) < len(names):
            yield f"text, pair and label must be different columns, not {', '.join(names)}"
        if self.test_fraction_from != "validation" and self.test_fraction is None:
            yield f"test_fraction_from is {self.test_fraction_from}, but test_fraction is not set"
        if self.regression and self.positive_label is not None:
            yield "positive_label names a class, and a regression predicts numbers"


class ExamplesConfig(ColumnsConfig):
    """Sources and lengths of examples; columns apply to your own tables."""

    glue: Path | None = None
    """Folder of GLUE's official files, as its download script creates it: TASK/train.tsv, ..."""
    squad: Path | None = None
    """Folder of SQuAD's official files: train-v1.1.json, dev-v1.1.json, train-v2.0.json, ..."""
    conll: Path | None = None
    """Folder of CoNLL-2003: train.txt, valid.txt and test.txt, or eng.train, eng.testa and eng.testb."""
    dataset: Annotated[str, Field(min_length=1)] | None = None
    """Task own: NAME[:CONFIGURATION] of a dataset on the Hugging Face Hub, or its folder, instead of files. It needs
    splits train and validation; test is optional. Requires the package datasets."""
    train: Path | None = None
    """File to train on, instead of the official one: a table; for SQuAD JSON; for NER one word and its tag per line."""
    validation: Path | None = None
    """File that selects the best checkpoint, instead of the official dev set."""
    test: Path | None = None
    """File to predict, with or without labels. None: the official one, if it exists."""
    word_column: Positive = 1
    """NER: number of the column with the word, from 1."""
    tag_column: Positive | None = None
    """NER: number of the column with the tag, from 1. None: the last one."""
    max_length: Annotated[int, Field(ge=8)] | None = None
    """Maximum tokens of a sequence, with [CLS] and [SEP]. Longer texts are truncated; of a pair, the longer text.
    Contexts of SQuAD and sentences of NER are split into several sequences instead. None: 384 for SQuAD, else 128."""
    doc_stride: Positive = 128
    """SQuAD: tokens between the starts of consecutive sequences of a long context."""
    max_query_length: Positive = 64
    """SQuAD: maximum tokens of a question; longer ones are truncated."""
    lowercase: bool | None = None
    """Whether the model is uncased. None: as its tokenizer states, or true."""

    def problems(self) -> Iterator[str]:
        """Yield one message per contradiction between values of the section."""
        yield from super().problems()
        if self.word_column == self.tag_column:
            yield f"word_column and tag_column are both {self.tag_column}"
        if self.test_fraction is not None and self.test is not None:
            yield "test_fraction and test are both given: a labelled test set is the held-back one"


class DropoutConfig(Config):
    """Settings of the model that only training uses; the model's folder determines all others."""

    hidden_dropout_prob: Dropout = 0.1
    """Dropout of embeddings, attention output, feed-forward output and head."""
    attention_probs_dropout_prob: Dropout = 0.1
    """Dropout of the attention probabilities."""


class FinetuneOptimizerConfig(OptimizerConfig):
    """AdamW with bias correction, or LAMB."""

    name: Annotated[str, one_of("adamw", "lamb")] = "adamw"
    """Optimizer: adamw or lamb."""
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    """Peak learning rate, after warm-up."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Learning rate of a layer, as a factor of that of the layer above it. 1: the same for all layers."""


class FinetuneScheduleConfig(ScheduleConfig):
    """Learning rate over a run: linear up, linear down."""

    warmup_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the steps over which the rate rises linearly from zero."""
    power: Annotated[float, Field(gt=0)] = 1.0
    """Exponent of the polynomial decay: 1 is linear."""
    continuous: bool = True
    """Scale the polynomial so that decay starts at the peak rate."""


class FinetuneTrainConfig(Config):
    """Epochs, batches, precision."""

    epochs: Positive = 3
    """Passes over all rows."""
    global_batch_size: Positive = 32
    """Rows per optimizer step, over all processes and accumulation steps; the last batch of an epoch may be smaller."""
    micro_batch_size: CountAutoOrNone = None
    """Rows in one forward and backward pass of a process. auto: the largest that fits on every process with rows of
    full length, found before the first step. It is halved when memory runs out. None: auto on GPUs, 32 on CPUs."""
    group_by_length: bool = False
    """Build batches from rows of similar length, to reduce padding. Off: in random order."""
    unpad: bool = True
    """Pack sequences without padding, so that only tokens are computed. Off: pad to the longest of each micro batch."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: all classes have the same total weight in the loss. none: all rows have the same weight."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic of forward and backward pass; weights stay fp32. auto: bf16 if the hardware supports it, else fp16
    with loss scaling on GPUs (before Ampere) and fp32 on CPUs."""
    compile: Literal["auto"] | bool = False
    """torch.compile of the model's layers. auto: on GPUs."""
    deterministic: bool = False
    """Use only deterministic algorithms on GPUs too. On CPUs all are deterministic."""
    log_every: Positive = 10
    """Steps between two reports of metrics."""

    def for_engine(self, steps: int, seed: int) -> TrainConfig:
        """Return the settings of the training loop.

        Args:
            steps: optimizer steps of all epochs.
            seed: seed of this training.
        """
        shared = self.model_dump(include=TrainConfig.model_fields.keys() & type(self).model_fields.keys())
        return TrainConfig(steps=steps, seed=seed, **shared)

    def on_device(self, *, on_cpu: bool) -> Self:
        """Return these settings with the micro batch that is the default on a device; see `TrainConfig`."""
        # The loss is a mean over the global batch, so its split does not change the result, as in pretraining.
        size = self.for_engine(1, 0).on_device(on_cpu=on_cpu).micro_batch_size
        return self.model_copy(update={"micro_batch_size": size})


class EvaluationConfig(Config):
    """Evaluations on the dev set."""

    every: Positive | None = None
    """Steps between two evaluations. None: after each epoch."""
    patience: Positive | None = None
    """Stop after this many evaluations without improvement. None: train all epochs."""
    n_best: Positive = 20
    """SQuAD: number of candidate answers per question, also written to nbest_predictions.json."""
    max_answer_length: Positive = 30
    """SQuAD: maximum tokens of an answer."""


class FinetuneCheckpointConfig(CheckpointConfig):
    """Frequency and retention of checkpoints; the best one is exported."""

    keep_last: Positive = 1
    """Number of newest checkpoints to keep."""
    keep_best: Literal[1] = 1
    """Number of best checkpoints to keep; a checkpoint is saved at each evaluation that improves the score."""


class Sections(CheckedConfig):
    """Settings of a job that one task of GLUE may override."""

    data: ExamplesConfig = ExamplesConfig()
    model: DropoutConfig = DropoutConfig()
    optimizer: FinetuneOptimizerConfig = FinetuneOptimizerConfig()
    schedule: FinetuneScheduleConfig = FinetuneScheduleConfig()
    train: FinetuneTrainConfig = FinetuneTrainConfig()
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1)] = [42]  # noqa: RUF012
    """Seeds of the new head, the order of rows and dropout; each is trained separately. The best model is exported.
    Mean, standard deviation, median, maximum and the number of collapsed runs are reported."""
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: FinetuneCheckpointConfig = FinetuneCheckpointConfig()


class TaskOverrides(Sections):
    """Overrides for one task of GLUE; all other settings are shared."""

    init_from: Path | None = None
    """Hugging Face BERT that this task starts from, such as one fine-tuned on MNLI. None: the shared one."""


class FinetuneConfig(Sections):
    """Configuration file of `python -m train_jobs.finetune --config FILE`."""

    task: TaskName = OWN
    """Task: a task of GLUE, glue for all nine, SQuAD-1.1, SQuAD-2.0, NER, or own: your own tables, with the columns
    named in data."""
    init_from: Path
    """Hugging Face BERT that training starts from: a folder exported by a run, or any other."""
    stretch_positions: Positive | None = None
    """Positions to cover by linear interpolation of the trained position embeddings, for sequences that are longer than
    those of the pretraining. It may cost accuracy (docs/fine-tuning.md, Lengths). None: no interpolation."""
    per_task: dict[OneOfGlue, TaskOverrides] = Field(default={})
    """Task glue: overrides by task, such as {RTE: {train: {epochs: 10}}}."""
    trust: TrustConfig = TrustConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    resume: Literal["auto", "never"] = "auto"
    """auto: resume from the newest valid checkpoint of the output folder, if any. never: fail if it has one."""

    @property
    def max_length(self) -> int:
        """Maximum tokens of a sequence."""
        return self.data.max_length or (task_kind(self.task) or SENTENCES).max_length

    def require_positions(self, positions: int, model: Path, trained: int | None = None, *, section: str = "") -> None:
        """Refuse sequences that are longer than the positions of the model, or than those that were trained.

        Args:
            positions: maximum tokens of a sequence of the model.
            model: folder of the model, for the message.
            trained: tokens of the longest sequences in its pretraining, or that its positions were stretched to. None:
                all positions were trained.
            section: beginning of the key of the length in messages, such as "per_task.RTE.".

        Raises:
            SpecError: sequences are longer.
        """
        key = f"{section}data.max_length"
        trained = max(trained, self.stretch_positions or 0) if trained is not None else None
        if self.max_length > positions:
            raise SpecError(
                f"{key} {self.max_length} is more than the {positions} positions of {model}",
                fix=f"--set {key}={trained or positions}",
            )
        if trained is not None and self.max_length > trained:
            raise untrained_error(
                self.max_length,
                model,
                trained,
                stretch=f"interpolate them: --set stretch_positions={self.max_length}",
                key=key,
            )

    def on_device(self, *, on_cpu: bool) -> Self:
        """Return this configuration with the micro batch that is the default on a device; see `TrainConfig`."""
        return self.model_copy(update={"train": self.train.on_device(on_cpu=on_cpu)})

    def micro_batches(self, world_size: int, *, on_cpu: bool) -> list[int]:
        """Return the micro batch sizes to try, largest first; a single one unless `micro_batch_size` is auto.

        A size is at most a process's share of the global batch.

        Args:
            world_size: number of processes.
            on_cpu: whether training runs on CPUs.
        """
        share = -(-self.train.global_batch_size // world_size)
        size = self.train.on_device(on_cpu=on_cpu).micro_batch_size
        if isinstance(size, int):
            return [min(size, share)]
        return micro_batch_sizes(share, self.max_length, on_cpu=on_cpu)

    def of_task(self, name: str) -> FinetuneConfig:
        """Return the configuration of one GLUE task in a job of task glue.

        Args:
            name: official name of the task.
        """
        own = self.per_task[name].model_dump(exclude_unset=True) if name in self.per_task else {}
        shared = self.model_dump(exclude_unset=True, include=FinetuneConfig.model_fields.keys() - {"per_task"})
        return FinetuneConfig.model_validate({**_laid_over(shared, own), "task": name})

    def ignored(self) -> list[str]:
        """Return the dotted keys with a changed value that this task does not use."""
        kind = task_kind(self.task)
        keys = [key for key, one in SETTINGS_OF.items() if one != kind]
        if self.task in TASKS and not TASKS[self.task].has_classes:
            keys.append("train.class_weights")
        if self.data.validation is not None or self.data.dataset is not None:
            keys.append("data.validation_fraction")
        defaults = FinetuneConfig.model_construct(init_from=Path())
        return [key for key in keys if attrgetter(key)(self) != attrgetter(key)(defaults)]

    @field_serializer("per_task")
    def _as_written(self, tasks: dict[str, TaskOverrides], info: SerializationInfo) -> dict[str, Any]:
        """Return only the given values, because a written default would override the shared setting."""
        return {name: own.model_dump(mode=info.mode, exclude_unset=True) for name, own in tasks.items()}

    def problems(self) -> Iterator[str]:
        """Yield one message per contradiction between values of the section."""
        data = self.data
        files = [name for name in ("train", "validation", "test") if getattr(data, name) is not None]
        if self.task == GLUE:
            if data.glue is None:
                yield "task glue requires data.glue, the folder of its files"
            if files:
                yield f"data.{files[0]} is a single table, but task glue has several tasks"
        elif self.task == OWN and data.dataset is not None:
            if files:
                yield f"data.{files[0]} and data.dataset are both given"
        elif data.train is None or (data.validation is None and self.task != OWN):
            wanted = data_folder(self.task)
            if wanted is None:
                yield "a task of your own requires data.train, a table, or data.dataset"
            elif getattr(data, wanted) is None:
                yield f"task {self.task} requires data.{wanted}, a folder, or data.train and data.validation"
        needed = data.max_query_length + SPANS_SPECIAL_TOKENS
        if task_kind(self.task) is SPANS and self.max_length <= needed:
            yield (
                f"data.max_length {self.max_length} leaves no room for the context of a question: it must be more than"
                f" {needed}, which is data.max_query_length and {SPANS_SPECIAL_TOKENS} special tokens"
            )
        for section in (self.optimizer, self.schedule):
            if is_user_code(section.name):
                yield f"{section.name}: fine-tuning does not support your own code"
        if self.schedule.hours is not None:
            yield "schedule.hours: not supported by fine-tuning, which ends with train.epochs"
        if len(set(self.seeds)) < len(self.seeds):
            yield "seeds contains a duplicate, which would repeat the same training"
        if self.per_task and self.task != GLUE:
            yield f"per_task is only for task glue, and task is {self.task}"
        for name in self.per_task:
            try:
                self.of_task(name)
            except ValidationError as problem:
                message = str(problem.errors()[0]["msg"]).removeprefix("Value error, ")
                yield f"per_task.{name}: {message}"


def require_length(length: int | None, model: Path, positions: int, trained: int) -> None:
    """Refuse predictions on sequences that reach untrained positions, or that the model has no positions for.

    Args:
        length: tokens of the longest sequence. None: as many as the model allows.
        model: folder of the model.
        positions: all positions of the model.
        trained: positions that were trained, or that these were stretched to.

    Raises:
        SpecError: sequences are too long.
    """
    if length is None or length <= trained:
        return
    if length > positions:
        raise SpecError(
            f"data.max_length {length} is more than the {positions} positions of {model}",
            fix=f"--set data.max_length={trained}",
        )
    raise untrained_error(
        length,
        model,
        trained,
        stretch=f"interpolate them in the fine-tuning: --set stretch_positions={length}",
    )


def untrained_error(length: int, model: Path, trained: int, *, stretch: str, key: str = "data.max_length") -> SpecError:
    """Return the error about sequences that reach untrained positions, with the choices.

    Args:
        length: tokens of the longest sequence.
        model: folder of the model.
        trained: positions that were trained.
        stretch: how to interpolate positions instead.
        key: key of the length.
    """
    return SpecError(
        f"{key} {length} is more than the {trained} positions that {model} was trained on",
        facts={"why": f"positions from {trained} on still have their random initial values"},
        fix=f"--set {key}={trained}; or train the other positions first: orchestrator submit pretrain"
        f" --set phase_from=RUN --set data.sequence_length={length}; or {stretch}",
    )


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge nested values; those of `above` override those of `below`."""
    both = below.keys() & above.keys()
    nested = {key for key in both if isinstance(below[key], dict) and isinstance(above[key], dict)}
    return {**below, **above, **{key: _laid_over(below[key], above[key]) for key in nested}}
