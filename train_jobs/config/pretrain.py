"""Configuration of a pretraining job, validated on the laptop and again by the job.

Names of the model's sizes are those of Hugging Face's `BertConfig`; batch words are the project's:
global_batch_size = micro_batch_size x accumulation_steps x world_size, in sequences per optimizer step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from train_jobs.config.errors import SpecError
from train_jobs.config.fields import CheckedConfig, Config, CountOrAuto, Named, is_own, one_of
from train_jobs.config.prepare import TextConfig

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[int, Field(gt=0)]

OBSERVERS = {"metrics", "profile", "watchdog"}  # sections that no weight depends on
PROFILE_WARMUP = 3  # first steps of a job, which are not typical: not profiled by default
# Tokens of a micro batch that keep a device busy; more only need memory and, on a CPU, exceed its caches. Matrix units
# of GPUs are busy from 16 to 32 thousand. On a CPU, copying all weights to 16 bit per micro batch then costs below 3%.
ENOUGH_TOKENS = {"cpu": 4096, "gpu": 32_768}
LONGEST_PLAIN_ATTENTION = 256  # tokens; on CPUs longer sequences use the fused kernel, which keeps no probabilities


class ModelConfig(Named):
    """The shape of BERT."""

    name: Annotated[str, one_of("bert")] = "bert"
    """Model: bert, or MODULE:NAME of your own code."""
    hidden_size: Positive = 768
    """Width of the encoder."""
    num_hidden_layers: Positive = 12
    """Number of encoder layers."""
    num_attention_heads: Positive = 12
    """Attention heads per layer; must divide hidden_size."""
    intermediate_size: Positive = 3072
    """Width of the feed-forward layers."""
    max_position_embeddings: Positive = 512
    """Tokens of the longest sequence that the model can process."""
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
    """Round the rows of the embedding table up to a multiple of this, for faster matrix products."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.hidden_size % self.num_attention_heads:
            yield f"hidden_size {self.hidden_size} does not divide into {self.num_attention_heads} attention heads"

    def padded_vocab_size(self, vocab_size: int) -> int:
        """Return the rows of the embedding table for a vocabulary of `vocab_size` pieces."""
        step = self.pad_vocab_to_multiple_of
        return -(-vocab_size // step) * step


class DataConfig(TextConfig):
    """Text in, sequences out."""

    store: Path | None = None
    """Prepared token store to use instead of `text`; vocabulary, case and split are then its own. None: prepare one
    from `text`, or use the one that an earlier run prepared."""
    sequence_length: Annotated[int, Field(ge=8)] = 128
    """Tokens of a sequence with [CLS] and two [SEP]."""
    short_sequence_probability: Probability = 0.1
    """Share of sequences that are shortened at random, to prepare for fine-tuning on short text."""


class ObjectiveConfig(Named):
    """Masked language model and next-sentence prediction."""

    name: Annotated[str, one_of("bert")] = "bert"
    """Objective: bert, or MODULE:NAME of your own code; the masks below apply to both."""
    masked_lm_probability: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    """Share of tokens to predict: 80% become [MASK], 10% a random piece, 10% stay. Validation always uses 15%."""
    max_predictions: Positive | None = None
    """Maximum tokens to predict in a sequence. None: sequence_length x masked_lm_probability, rounded up (20 for
    128)."""
    whole_word: bool = False
    """Predict all pieces of a word or none; validation does not, so that its loss is comparable between runs."""
    duplicates: Positive | None = None
    """Static masking: pairs and masks of this many epochs, repeated in another order, as data written once with this
    dupe_factor. None: dynamic masking, new pairs and masks in each epoch."""
    next_sentence: bool = True
    """Train next-sentence prediction. Off: its head stays as initialised and its loss is not counted."""


class OptimizerConfig(Named):
    """AdamW, or LAMB as in NVIDIA's recipe or as in its paper."""

    name: Annotated[str, one_of("adamw", "lamb")] = "lamb"
    """Optimizer: adamw, lamb, or MODULE:NAME of your own code, called with groups, rate and options."""
    learning_rate: Annotated[float, Field(gt=0)] = 6e-3
    """Peak learning rate, after warm-up."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay of the first and the second moment."""
    eps: Annotated[float, Field(gt=0)] = 1e-6
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled weight decay; never on biases and LayerNorm."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Clip of the global gradient norm, after accumulation and reduction. None: no clip."""
    bias_correction: bool = True
    """Correct the moments for their start at zero, as NVIDIA's LAMB does; Google's BERT and AzureML-BERT do not."""
    trust_ratio: Literal["matrices", "all"] = "matrices"
    """Tensors with LAMB's trust ratio. matrices, as in NVIDIA's PyTorch recipe: biases and LayerNorm take Adam's step.
    all, as in the paper and in NVIDIA's TensorFlow recipe (which clips each micro batch; here the step is clipped)."""
    sharded: bool = False
    """ZeRO stage 1: each process keeps the moments of its share of the tensors only. Weights and checkpoints do not
    depend on it, and a run may resume with or without."""


class ScheduleConfig(Named):
    """Learning rate over a run; its progress is the used share of its steps or hours, whichever is larger."""

    name: Annotated[str, one_of("polynomial", "exponential", "cosine", "constant")] = "polynomial"
    """Shape after warm-up: polynomial or cosine to zero at the end, exponential as in AzureML-BERT, or constant. Or
    MODULE:NAME of your own code, which replaces warm-up too."""
    warmup_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2843
    """Share of the run over which the rate rises linearly from zero."""
    power: Annotated[float, Field(gt=0)] = 0.5
    """Exponent of the polynomial: 0.5 as in NVIDIA's recipe, 1 is linear."""
    continuous: bool = False
    """Scale the polynomial to start at the peak. Off: the rate drops at the end of warm-up, as NVIDIA's does."""
    decay_rate: Annotated[float, Field(gt=0, le=1)] = 0.99
    """exponential: factor of the rate per `decay_steps` steps."""
    decay_steps: Positive = 1000
    """exponential: steps per `decay_rate`."""
    hours: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Maximum hours of training over all attempts of a run, if train.steps do not end it before; the schedule ends with
    them, and the run is not bit-exactly reproducible. None: train.steps end the run."""

    def text(self, peak: float) -> str:
        """Return the schedule as one line of text."""
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


class TrainConfig(CheckedConfig):
    """Steps, batches, precision."""

    steps: Positive = 7038
    """Optimizer steps."""
    global_batch_size: Positive = 65_536
    """Sequences per optimizer step, over all processes and accumulation steps."""
    micro_batch_size: CountOrAuto = 32
    """Sequences in one forward and backward pass of a process. It decides memory, not the recipe. auto: the largest
    that fits on every process, found before the first step. It is halved when memory runs out."""
    loss_normalization: Literal["global", "micro_batch"] = "global"
    """Mean that is a step's loss. global: over all masked tokens, and pairs, of the global batch, however it is split.
    micro_batch: mean of the means of micro batches, as in the published recipes; the size of micro batches and the
    number of processes are then part of the recipe."""
    unpad: bool = True
    """Compute tokens only: sequences are packed one after the other, without padding. Off: padding is computed too."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic of forward and backward pass; weights stay fp32. auto: bf16 where the hardware has it, else fp16 with
    a loss scale on GPUs (those before Ampere) and fp32 on CPUs."""
    compile: Literal["auto"] | bool = "auto"
    """torch.compile of the model's layers. auto: on GPUs; on a CPU it gains little, and needs a C++ compiler."""
    deterministic: bool = False
    """Use only algorithms with reproducible bits on GPUs too; the cost is reported at the start. On CPUs they always
    are."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """Seed of initial weights, order of examples, masks and dropout."""
    max_consecutive_skips: Positive = 50
    """fp16: stop after this many consecutive optimizer steps skipped for gradients that are not finite."""
    log_every: Positive = 10
    """Steps between two reports of metrics."""

    def problems(self) -> Iterator[str]:
        if self.micro_batch_size == "auto" and self.loss_normalization == "micro_batch":
            yield (
                "micro_batch_size is auto, but with loss_normalization=micro_batch it is part of the recipe: "
                "set a number, or loss_normalization=global"
            )

    def accumulation_steps(self, world_size: int) -> int | None:
        """Return the micro batches per process and optimizer step; None if the micro batch is yet to be found.

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
        """Return the flag of a micro batch that keeps the global batch; None if the processes do not divide it."""
        if self.global_batch_size % world_size or self.micro_batch_size == "auto":
            return None
        return f"--set train.micro_batch_size={max(dividing(self.share(world_size), self.micro_batch_size))}"

    def share(self, world_size: int) -> int:
        """Return the most sequences of a global batch that one process has."""
        return -(-self.global_batch_size // world_size)


class ValidationConfig(Config):
    """Loss and accuracy on the held-out documents."""

    every: Positive = 500
    """Steps between two validations; one more follows the last step."""
    max_sequences: Positive = 4096
    """Maximum held-out sequences in a validation: a sample of all held-out documents, of each source in proportion to
    its held-out tokens (always the same ones, with the same masks)."""


class CheckpointConfig(CheckedConfig):
    """Times and retention of checkpoints. One more is saved after the last step, and one when a run is stopped."""

    every: Positive | None = None
    """Save each step that is a multiple of this. None: only `every_minutes` decides."""
    every_minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 10.0
    """Minutes between two checkpoints, in addition to `every`. None: only `every` decides."""
    keep_last: Positive = 2
    """Number of newest checkpoints to keep; older ones are deleted once a newer one is committed."""
    keep_best: Annotated[int, Field(ge=0)] = 1
    """Number of checkpoints with the lowest validation loss to keep; each is saved at its validation. 0: none."""
    keep_every: Positive | None = None
    """Save and always keep each step that is a multiple of this. None: no such steps."""
    asynchronous: bool = True
    """Write while training continues, from a copy in host memory (12 bytes per parameter). Off: training waits."""

    def problems(self) -> Iterator[str]:
        if self.every is None and self.every_minutes is None:
            yield "every and every_minutes are both null: a killed run would have to start again"


Language = Annotated[str, Field(pattern=r"^([a-z]{2,3}|multilingual)$")]


class CardConfig(Config):
    """Facts for the model card of the exported model; they change only the card."""

    license: Annotated[str, Field(min_length=1)] | None = None
    """Licence of the model by its name on the Hugging Face Hub (apache-2.0, cc-by-sa-4.0, other). None: not stated."""
    data_license: Annotated[str, Field(min_length=1)] | None = None
    """Licence of the text. None: not stated; that of the embedded corpus is known."""
    language: list[Language] = Field(default=[])
    """Languages of the text, by their ISO 639 codes."""
    description: str | None = None
    """Purpose of the model, as plain text."""


class MetricsConfig(Config):
    """Stores of metrics in addition to metrics.jsonl and MLflow."""

    tensorboard: bool = False
    """Also write event files for TensorBoard to OUTPUT/tensorboard; needs the package tensorboardX."""


class ProfileConfig(Config):
    """Profile of a few steps: a trace by torch.profiler, and a table of the longest operations."""

    steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps that rank 0 records; they take longer, and their trace needs memory. 0: none."""
    start: Positive | None = None
    """First recorded step. None: the fourth step after each start of the job."""

    @property
    def first(self) -> int:
        """First recorded step of a run that starts at step 1."""
        return self.start or PROFILE_WARMUP + 1


class WatchdogConfig(Config):
    """Watchdog that ends a job that hangs, so that it can be restarted."""

    hang_minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 30.0
    """Minutes without progress after which a process writes its stacks and ends the job with exit code 76. None: never.
    Progress is the start or end of a part of a step, of a validation batch or of a checkpoint."""

    @property
    def hang_seconds(self) -> float | None:
        """`hang_minutes` in seconds."""
        return None if self.hang_minutes is None else 60 * self.hang_minutes


class PretrainConfig(CheckedConfig):
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
    """auto: resume from the newest valid checkpoint of the output folder, if any. never: refuse a used folder."""
    init_from: Path | None = None
    """Hugging Face BERT whose weights training starts from, at step 0 with empty moments: a folder, or a name on the
    Hub. Shape and vocabulary are then its own. None: draw the weights."""
    phase_from: Path | None = None
    """Earlier phase of training that this one starts from: a run's folder of outputs, or one of its checkpoints.
    Weights and moments are taken over; step, schedule and loss scale are reset; sequences and batches may differ."""
    card: CardConfig = CardConfig()

    def problems(self) -> Iterator[str]:
        if self.data.sequence_length > self.model.max_position_embeddings:
            yield (
                f"data.sequence_length {self.data.sequence_length} is more than "
                f"model.max_position_embeddings {self.model.max_position_embeddings}"
            )
        if self.init_from is not None and self.phase_from is not None:
            yield ("init_from and phase_from are both given: one gives weights only, the other moments as well")
        if self.data.add_tokens and self.init_from is None:
            yield (
                "data.add_tokens adds to the vocabulary of the model in init_from, which is not given; a vocabulary"
                " trained on the text has its words anyway"
            )
        if self.data.store is not None and self.data.text:
            yield "data.text and data.store are both given: a store already contains its text"
        last = self.profile.first + self.profile.steps - 1
        if self.profile.steps and last > self.train.steps:
            yield f"profile: steps {self.profile.first} to {last} are requested, train.steps is {self.train.steps}"

    def micro_batches(self, world_size: int, *, on_cpu: bool) -> list[int]:
        """Return the sizes for `micro_batch_size: auto` to try, largest first."""
        return micro_batch_sizes(self.train.share(world_size), self.data.sequence_length, on_cpu=on_cpu)

    @property
    def max_predictions(self) -> int:
        """Maximum tokens to predict in a sequence."""
        if self.objective.max_predictions is not None:
            return min(self.objective.max_predictions, self.data.sequence_length)
        return math.ceil(self.data.sequence_length * self.objective.masked_lm_probability)


def dividing(share: int, most: int) -> list[int]:
    """Return the micro batches of at most `most` sequences that divide a process's share evenly, smallest first."""
    return [size for size in range(1, min(share, most) + 1) if share % size == 0]


def micro_batch_sizes(share: int, length: int, *, on_cpu: bool) -> list[int]:
    """Return sizes of micro batches to try, largest first.

    They are the share, halved down to one sequence, so that few micro batches are remainders of another size. Sizes
    with more tokens than the device needs are left out.

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
