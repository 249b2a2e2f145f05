"""What a pretraining job needs: one model for the laptop, which validates it first, and for the job, which does again.

Names of the model's sizes are those of Hugging Face's `BertConfig`; batch words are the project's:
global_batch_size = micro_batch_size x accumulation_steps x world_size, in sequences per optimizer step.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from train_jobs.config.base import Config, CountOrAuto
from train_jobs.config.errors import SpecError
from train_jobs.config.own import Named, is_own, one_of
from train_jobs.config.prepare import TextConfig

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[int, Field(gt=0)]

OBSERVERS = {"metrics", "profile", "watchdog"}  # sections that look on: no weight depends on them
PROFILE_WARMUP = 3  # steps of a job that are not profiled unless asked for: they do what only first steps do
# Tokens of a micro batch that keep a device busy; more cost memory and, on a CPU, its caches. Matrix units of GPUs are
# busy from 16 to 32 thousand on. On a CPU the copy of all weights in 16 bit, once a micro batch, then is below 3%.
ENOUGH_TOKENS = {"cpu": 4096, "gpu": 32_768}
LONGEST_PLAIN_ATTENTION = 256  # tokens; on CPUs longer sequences use the fused kernel, which keeps no probabilities


class ModelConfig(Named):
    """The shape of BERT."""

    name: Annotated[str, one_of("bert")] = "bert"
    """Which model: bert, or MODULE:NAME of your own code."""
    hidden_size: Positive = 768
    """Width of the encoder."""
    num_hidden_layers: Positive = 12
    """Number of encoder layers."""
    num_attention_heads: Positive = 12
    """Attention heads of each layer; must divide hidden_size."""
    intermediate_size: Positive = 3072
    """Width of the feed-forward layers."""
    max_position_embeddings: Positive = 512
    """The longest sequence that the model can ever take."""
    type_vocab_size: Annotated[int, Field(ge=2)] = 2
    """Number of segment ids; next-sentence prediction needs two."""
    hidden_dropout_prob: Dropout = 0.1
    """Dropout of embeddings, attention output and feed-forward output."""
    attention_probs_dropout_prob: Dropout = 0.1
    """Dropout of the attention probabilities."""
    layer_norm_eps: Annotated[float, Field(gt=0)] = 1e-12
    """Epsilon of every LayerNorm."""
    initializer_range: Annotated[float, Field(gt=0)] = 0.02
    """Standard deviation of the initial weights."""
    pad_vocab_to_multiple_of: Positive = 8
    """The embedding table, not the vocabulary, is rounded up to a multiple of this: matrix units like round sizes."""

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelConfig:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} does not divide into {self.num_attention_heads} attention heads"
            )
        return self

    def padded_vocab_size(self, vocab_size: int) -> int:
        """Rows of the embedding table for a vocabulary of `vocab_size` pieces."""
        step = self.pad_vocab_to_multiple_of
        return -(-vocab_size // step) * step


class DataConfig(TextConfig):
    """Text in, sequences out."""

    store: Path | None = None
    """A token store that was prepared from text before, instead of `text`; vocabulary, case and split are then its own.
    None: one is made of `text`, or found where an earlier run made it."""
    sequence_length: Annotated[int, Field(ge=8)] = 128
    """Tokens of a sequence, [CLS] and the two [SEP] included."""
    short_sequence_probability: Probability = 0.1
    """Share of sequences made shorter on purpose, so that fine-tuning on short text is no surprise."""


class ObjectiveConfig(Named):
    """Masked language model and next-sentence prediction."""

    name: Annotated[str, one_of("bert")] = "bert"
    """Which objective: bert, or MODULE:NAME of your own code; masks are as below, whichever it is."""
    masked_lm_probability: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    """Share of tokens to predict: 80% become [MASK], 10% a random piece, 10% stay. Validation is always at 15%."""
    max_predictions: Positive | None = None
    """Most tokens predicted in a sequence. None: sequence_length x masked_lm_probability, rounded up (20 for 128)."""
    whole_word: bool = False
    """Predict all pieces of a word or none; validation does not, so that its loss compares with that of other runs."""
    duplicates: Positive | None = None
    """Static masking: pairs and masks of so many epochs, which then come again in another order, as data written once
    with this dupe_factor. None: dynamic masking, new pairs and masks in each epoch."""
    next_sentence: bool = True
    """Train next-sentence prediction; off, its head stays as initialised and its loss is not counted."""


class OptimizerConfig(Named):
    """AdamW, or LAMB as NVIDIA ran it or as its paper has it."""

    name: Annotated[str, one_of("adamw", "lamb")] = "lamb"
    """Which optimizer: adamw, lamb, or MODULE:NAME of your own code, which is given groups, rate and options."""
    learning_rate: Annotated[float, Field(gt=0)] = 6e-3
    """Peak learning rate, after warm-up."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay of the first and of the second moment."""
    eps: Annotated[float, Field(gt=0)] = 1e-6
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled weight decay; never on biases and LayerNorm."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Clip of the global gradient norm, after accumulation and reduction. None: no clip."""
    bias_correction: bool = True
    """Correct the moments for their start at zero. Google's BERT and AzureML-BERT do not, NVIDIA's LAMB does."""
    trust_ratio: Literal["matrices", "all"] = "matrices"
    """What LAMB's trust ratio is for. matrices, as in NVIDIA's PyTorch recipe: biases and LayerNorm take Adam's step.
    all, as in the paper and in NVIDIA's TensorFlow recipe (which clips each micro batch; here the step is clipped)."""
    sharded: bool = False
    """ZeRO stage 1: each process keeps the moments of its share of the tensors, not of all. No weight depends on it,
    checkpoints are the same files, and a run may go on with or without."""


class ScheduleConfig(Named):
    """Learning rate over a run, whose progress is the share of its steps made, or of its hours if that is more."""

    name: Annotated[str, one_of("polynomial", "exponential", "cosine", "constant")] = "polynomial"
    """Shape after warm-up: polynomial or cosine to zero at the end, exponential as in AzureML-BERT, or constant. Or
    MODULE:NAME of your own code, which decides alone."""
    warmup_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2843
    """Share of the run over which the rate rises linearly from zero."""
    power: Annotated[float, Field(gt=0)] = 0.5
    """Exponent of the polynomial: 0.5 as in NVIDIA's recipe, 1 is linear."""
    continuous: bool = False
    """Scale the polynomial to start at the peak. Off, the rate jumps down at the end of warm-up, as NVIDIA's does."""
    decay_rate: Annotated[float, Field(gt=0, le=1)] = 0.99
    """exponential: what the rate is multiplied by in every `decay_steps` steps."""
    decay_steps: Positive = 1000
    """exponential: the steps of one `decay_rate`."""
    hours: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Hours of training, over all attempts of a run, after which it ends if train.steps have not ended it before; the
    schedule then ends with them, and no such run can be repeated bit for bit. None: train.steps alone end it."""

    def text(self, peak: float) -> str:
        """All of it in words."""
        end = f", for {self.hours:g} hours at most" if self.hours else ""
        if is_own(self.name):
            return f"{peak:g} at its peak, by {self.name}{end}"
        decay = {
            "polynomial": f"polynomial decay of power {self.power:g}",
            "exponential": f"{self.decay_rate:g} times as much every {self.decay_steps:,} steps",
            "cosine": "cosine decay",
            "constant": "constant",
        }[self.name]
        return (
            f"{peak:g} after a linear warm-up over {self.warmup_fraction:.1%} of the {'run' if self.hours else 'steps'}"
            f", then {decay}{end}"
        )


class TrainConfig(Config):
    """Steps, batches, precision."""

    steps: Positive = 7038
    """Optimizer steps."""
    global_batch_size: Positive = 65_536
    """Sequences per optimizer step, over all processes and accumulation steps."""
    micro_batch_size: CountOrAuto = 32
    """Sequences that one process takes through the model at once. Memory grows with it, the recipe does not change.
    auto: the largest that fits on every process, found before the first step. Memory that runs out halves it."""
    loss_normalization: Literal["global", "micro_batch"] = "global"
    """What a step's loss is the mean over. global: all masked tokens, and pairs, of the global batch, however it is cut
    up. micro_batch: each micro batch's own mean, all counting the same, a partial one too: as the published recipes
    do; the size of micro batches and the number of processes then are part of the recipe."""
    unpad: bool = True
    """Compute tokens alone: sequences lie one behind the other, and padding costs nothing. Off, it is computed too."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic of forward and backward pass; weights stay fp32. auto: bf16 where the hardware has it, else
    fp16 with a loss scale on GPUs (those before Ampere) and fp32 on CPUs."""
    compile: Literal["auto"] | bool = "auto"
    """torch.compile of the model's layers. auto: on GPUs; on a CPU it gains little, and needs a C++ compiler."""
    deterministic: bool = False
    """On GPUs too only algorithms that give the same bits every time; what that costs is told at the start. On CPUs
    they always do."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """Initial weights, order of examples, masks and dropout are functions of this."""
    max_consecutive_skips: Positive = 50
    """fp16: stop after this many optimizer steps skipped in a row for gradients that are not finite."""
    log_every: Positive = 10
    """Steps between two lines of metrics."""

    @model_validator(mode="after")
    def _micro_batch_is_given(self) -> TrainConfig:
        if self.micro_batch_size == "auto" and self.loss_normalization == "micro_batch":
            raise ValueError(
                "micro_batch_size is auto, which loss_normalization=micro_batch makes part of the recipe: "
                "set a number, or loss_normalization=global"
            )
        return self

    def accumulation_steps(self, world_size: int) -> int | None:
        """Micro-batches that each process sums up before an optimizer step; None while the micro batch is to be found.

        Raises:
            SpecError: the global batch does not divide; the message names the nearest that do.
        """
        found = self.micro_batch_size != "auto"
        unit = (1 if self.micro_batch_size == "auto" else self.micro_batch_size) * world_size
        if self.global_batch_size % unit == 0:
            return self.global_batch_size // unit if found else None
        below = self.global_batch_size // unit * unit
        nearest = [str(size) for size in (below, below + unit) if size > 0]
        factors = f"micro_batch_size {self.micro_batch_size} x world_size" if found else "world_size"
        raise SpecError(
            f"train.global_batch_size {self.global_batch_size} does not divide into "
            + ("micro batches" if found else "processes"),
            facts={"need": f"a multiple of {unit} = {factors} {world_size}", "nearest": " or ".join(nearest)},
            fix=self._fitting_micro_batch(world_size) or f"--set train.global_batch_size={nearest[-1]}",
        )

    def _fitting_micro_batch(self, world_size: int) -> str | None:
        """The micro batch that leaves the global batch as it is: it is the recipe. None: processes do not divide it."""
        if self.global_batch_size % world_size or self.micro_batch_size == "auto":
            return None
        return f"--set train.micro_batch_size={max(dividing(self.share(world_size), self.micro_batch_size))}"

    def share(self, world_size: int) -> int:
        """Most sequences of a global batch that one process has."""
        return -(-self.global_batch_size // world_size)


class ValidationConfig(Config):
    """Loss and accuracy on the held-out documents."""

    every: Positive = 500
    """Steps between two validations; one more comes after the last step."""
    max_sequences: Positive = 4096
    """Most sequences of the held-out documents that a validation reads (always the same ones, with the same masks)."""


class CheckpointConfig(Config):
    """When to save, what to keep. One more checkpoint comes after the last step, and one when a run is stopped."""

    every: Positive | None = None
    """Each step that is a multiple of this is saved. None: by the clock alone."""
    every_minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 10.0
    """Minutes after a checkpoint at which the next one is due, whatever the steps say. None: by steps alone."""
    keep_last: Positive = 2
    """Newest checkpoints kept; older ones are deleted once a newer one is committed."""
    keep_best: Annotated[int, Field(ge=0)] = 1
    """Checkpoints of lowest validation loss kept; a validation that is one of them is saved at its step. 0: none."""
    keep_every: Positive | None = None
    """Each step that is a multiple of this is saved and kept for good. None: no step is."""
    asynchronous: bool = True
    """Write while training goes on, from a copy in host memory (12 bytes a parameter). Off: training waits."""

    @model_validator(mode="after")
    def _saves_at_all(self) -> CheckpointConfig:
        if self.every is None and self.every_minutes is None:
            raise ValueError("every and every_minutes are both null: a killed run would have to begin again")
        return self


Language = Annotated[str, Field(pattern=r"^([a-z]{2,3}|multilingual)$")]


class CardConfig(Config):
    """What only the user knows of the exported model; goes into its model card and changes nothing else."""

    license: Annotated[str, Field(min_length=1)] | None = None
    """Licence of the model, as the Hugging Face Hub calls it (apache-2.0, cc-by-sa-4.0, other). None: not stated."""
    data_license: Annotated[str, Field(min_length=1)] | None = None
    """Licence of the text. None: not stated; that of the embedded corpus is known."""
    language: list[Language] = Field(default=[])
    """Languages of the text, by their ISO 639 codes."""
    description: str | None = None
    """What the model is for: plain text."""


class MetricsConfig(Config):
    """Where metrics go, besides metrics.jsonl and MLflow."""

    tensorboard: bool = False
    """Write event files for TensorBoard too, to OUTPUT/tensorboard; needs the package tensorboardX."""


class ProfileConfig(Config):
    """Where the time of a few steps goes: a trace by torch.profiler, and a table of the longest operations."""

    steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps that rank 0 records; they take longer than others, and their trace memory. 0: none."""
    start: Positive | None = None
    """The first of them. None: the fourth step after each start of the job."""

    @property
    def first(self) -> int:
        """The first of them in a run that begins at its first step."""
        return self.start or PROFILE_WARMUP + 1


class WatchdogConfig(Config):
    """Ends a job that hangs, so that it can be started again."""

    hang_minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 30.0
    """A process that gets nowhere for so long leaves its stacks and ends the job with exit code 76. None: it waits.
    What counts is the time since it last began or ended a part of a step, a validation batch or a checkpoint."""

    @property
    def hang_seconds(self) -> float | None:
        """The same in seconds."""
        return None if self.hang_minutes is None else 60 * self.hang_minutes


class PretrainConfig(Config):
    """Everything that `python -m train_jobs.pretrain --config FILE` reads from FILE."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    train: TrainConfig = TrainConfig()
    validation: ValidationConfig = ValidationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    metrics: MetricsConfig = MetricsConfig()
    profile: ProfileConfig = ProfileConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    resume: Literal["auto", "never"] = "auto"
    """auto: go on from the newest valid checkpoint of the output folder, if any. never: refuse a used folder."""
    init_from: Path | None = None
    """Hugging Face BERT whose weights training starts from, at step 0 with empty moments: a folder, or a name on the
    Hub. Shape and vocabulary are then its own. None: weights are drawn."""
    phase_from: Path | None = None
    """Earlier phase of training that this one goes on from: a run's folder of outputs, or one of its checkpoints.
    Weights and moments are taken over, step, schedule and loss scale begin anew; sequences and batches may differ."""
    card: CardConfig = CardConfig()

    @model_validator(mode="after")
    def _sequence_fits(self) -> PretrainConfig:
        if self.data.sequence_length > self.model.max_position_embeddings:
            raise ValueError(
                f"data.sequence_length {self.data.sequence_length} is more than "
                f"model.max_position_embeddings {self.model.max_position_embeddings}"
            )
        return self

    @model_validator(mode="after")
    def _one_start(self) -> PretrainConfig:
        if self.init_from is not None and self.phase_from is not None:
            raise ValueError(
                "init_from and phase_from are both given: from one come weights alone, from the other moments as well"
            )
        return self

    @model_validator(mode="after")
    def _tokens_are_added_to_something(self) -> PretrainConfig:
        if self.data.add_tokens and self.init_from is None:
            raise ValueError(
                "data.add_tokens adds to the vocabulary of the model in init_from, and there is none; a vocabulary"
                " trained on the text has its words without being told"
            )
        return self

    @model_validator(mode="after")
    def _text_or_store(self) -> PretrainConfig:
        if self.data.store is not None and self.data.text:
            raise ValueError("data.text and data.store are both given: a store is text already")
        return self

    @model_validator(mode="after")
    def _profile_fits(self) -> PretrainConfig:
        last = self.profile.first + self.profile.steps - 1
        if self.profile.steps and last > self.train.steps:
            raise ValueError(
                f"profile: steps {self.profile.first} to {last} are asked for, train.steps is {self.train.steps}"
            )
        return self

    def micro_batches(self, world_size: int, *, on_cpu: bool) -> list[int]:
        """The sizes among which `micro_batch_size: auto` finds the largest that fits, largest first."""
        return micro_batch_sizes(self.train.share(world_size), self.data.sequence_length, on_cpu=on_cpu)

    @property
    def max_predictions(self) -> int:
        """Most tokens predicted in a sequence."""
        if self.objective.max_predictions is not None:
            return min(self.objective.max_predictions, self.data.sequence_length)
        return math.ceil(self.data.sequence_length * self.objective.masked_lm_probability)


def dividing(share: int, most: int) -> list[int]:
    """Micro batches of at most so many sequences that divide the share of a process evenly, smallest first."""
    return [size for size in range(1, min(share, most) + 1) if share % size == 0]


def micro_batch_sizes(share: int, length: int, *, on_cpu: bool) -> list[int]:
    """Sizes of micro batches to be tried, largest first.

    The share, halved again and again down to one sequence: if it is even enough no micro batch is a rest of another
    size. Those with more tokens than the device needs are left out.

    Args:
        share: sequences of a global batch that a process has.
        length: tokens of a sequence.
        on_cpu: which device it is.
    """
    sizes = [share]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    most = ENOUGH_TOKENS["cpu" if on_cpu else "gpu"] // length
    return [size for size in sizes if size <= most] or [1]
