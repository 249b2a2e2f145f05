"""The configuration of a pretraining job, validated on the laptop and again by the job.

Sizes of the model have the names of Hugging Face's `BertConfig`. Batch sizes are in sequences: global_batch_size =
micro_batch_size x accumulation_steps x world_size, per optimizer step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from train_jobs.config.errors import SpecError
from train_jobs.config.fields import CheckedConfig, Config, CountAutoOrNone, Named, is_user_code, one_of
from train_jobs.config.prepare import TextConfig
from train_jobs.config.trust import TrustConfig
from train_jobs.config.urls import STORE_AT_URL, was_url

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[int, Field(gt=0)]

OBSERVERS = {"metrics", "profile", "trust", "watchdog"}  # sections that do not affect the weights
PROFILE_WARMUP = 3  # atypical first steps of a job, which are not profiled by default
# Tokens of a micro batch that saturate a device; more only need memory and, on a CPU, exceed its caches. Matrix units
# of GPUs are saturated by 16 to 32 thousand. On a CPU, copying all weights to 16 bit then costs below 3% of a pass.
ENOUGH_TOKENS = {"cpu": 4096, "gpu": 32_768}
DEFAULT_MICRO_BATCH = 32
LONGEST_PLAIN_ATTENTION = 256  # tokens; longer sequences on CPUs use the fused kernel, which stores no probabilities


class ModelConfig(Named):
    """Architecture and size of the model."""

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
    """Maximum tokens of a sequence that the model can process."""
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
        """Yield one message per contradiction between values of the section."""
        yield from super().problems()
        if self.hidden_size % self.num_attention_heads:
            yield f"hidden_size {self.hidden_size} does not divide into {self.num_attention_heads} attention heads"

    def padded_vocab_size(self, vocab_size: int) -> int:
        """Return the rows of the embedding table for a vocabulary of `vocab_size` pieces."""
        step = self.pad_vocab_to_multiple_of
        return -(-vocab_size // step) * step


class DataConfig(TextConfig):
    """Text and length of sequences."""

    store: Path | None = None
    """Prepared token store to use instead of `text`; it determines vocabulary, case and split. None: prepare one from
    `text`, or use the one that an earlier run prepared."""
    sequence_length: Annotated[int, Field(ge=8)] = 128
    """Tokens of a sequence, with [CLS] and two [SEP]."""
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
    """Predict all pieces of a word or none. Validation always masks pieces, so that losses are comparable."""
    duplicates: Positive | None = None
    """Static masking: repeat pairs and masks of this many epochs, in another order, like data written once with this
    dupe_factor. None: dynamic masking, with new pairs and masks in each epoch."""
    next_sentence: bool = True
    """Train next-sentence prediction. Off: its head keeps its initial weights and is not part of the loss."""
    sequences: Literal["full-sentences", "doc-sentences"] = "full-sentences"
    """Sequences without next_sentence, as in RoBERTa. full-sentences: filled with consecutive text, also of several
    documents, with a [SEP] between them. doc-sentences: each has text of one document, so the last of a document may be
    short. A sentence is cut where more than 3% of a sequence would stay empty."""

    @property
    def own(self) -> bool:
        """Whether it is the user's own code."""
        return is_user_code(self.name)

    @property
    def spans_documents(self) -> bool:
        """Whether a sequence may have text of several documents."""
        return not self.own and not self.next_sentence and self.sequences == "full-sentences"


class OptimizerConfig(Named):
    """Optimizer: AdamW, or LAMB as in NVIDIA's recipe or in its paper."""

    name: Annotated[str, one_of("adamw", "lamb")] = "lamb"
    """Optimizer: adamw, lamb, or MODULE:NAME of your own code, called with parameter groups, lr and options."""
    learning_rate: Annotated[float, Field(gt=0)] = 6e-3
    """Peak learning rate, after warm-up."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay rates of the first and the second moment."""
    eps: Annotated[float, Field(gt=0)] = 1e-6
    """Term added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled weight decay; not applied to biases and LayerNorm."""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Maximum global gradient norm, after accumulation and reduction. None: no clipping."""
    bias_correction: bool = True
    """Correct the bias of the moments towards zero, as NVIDIA's LAMB does; Google's BERT and AzureML-BERT do not."""
    trust_ratio: Literal["matrices", "all"] = "matrices"
    """Tensors with LAMB's trust ratio. matrices: biases and LayerNorm take Adam's step, as in NVIDIA's PyTorch recipe.
    all: as in the paper and in NVIDIA's TensorFlow recipe (which clips each micro batch; here the step is clipped)."""
    sharded: bool = False
    """ZeRO stage 1: each process stores moments only for its share of the tensors. It does not affect weights and
    checkpoints, and a resumed run may change it."""


class ScheduleConfig(Named):
    """Learning rate over a run. Progress is the used share of its steps or hours, whichever is larger."""

    name: Annotated[str, one_of("polynomial", "exponential", "cosine", "constant")] = "polynomial"
    """Shape after warm-up: polynomial or cosine to zero at the end, exponential as in AzureML-BERT, or constant. Or
    MODULE:NAME of your own code, which replaces warm-up too."""
    warmup_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2843
    """Share of the run over which the rate rises linearly from zero."""
    power: Annotated[float, Field(gt=0)] = 0.5
    """Exponent of the polynomial decay: 0.5 as in NVIDIA's recipe; 1 is linear."""
    continuous: bool = False
    """Scale the polynomial so that decay starts at the peak rate. Off: the rate drops after warm-up, as in NVIDIA's
    recipe."""
    decay_rate: Annotated[float, Field(gt=0, le=1)] = 0.99
    """exponential: factor of the rate per `decay_steps` steps."""
    decay_steps: Positive = 1000
    """exponential: steps per factor `decay_rate`."""
    hours: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Maximum hours of training over all attempts of a run; it ends earlier after train.steps. The schedule adapts to
    the time, so the run is not bit-exactly reproducible. None: no time limit."""

    def text(self, peak: float) -> str:
        """Return the schedule as one line of text.

        Args:
            peak: peak learning rate.
        """
        end = f", for {self.hours:g} hours at most" if self.hours else ""
        if is_user_code(self.name):
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
    batch_tokens: Positive | None = None
    """Tokens per optimizer step, instead of `global_batch_size`: as many sequences as have these tokens on average,
    measured on a sample of the text before the first step. None: `global_batch_size` sequences."""
    micro_batch_size: CountAutoOrNone = None
    """Sequences in one forward and backward pass of a process. It affects memory, not the result. auto: the largest
    that fits on every process, found before the first step. It is halved when memory runs out. None: auto on GPUs,
    unless loss_normalization is micro_batch; otherwise 32."""
    loss_normalization: Literal["global", "micro_batch"] = "global"
    """Loss of a step. global: mean over all masked tokens, and over all pairs, of the global batch. micro_batch: mean
    of the means of micro batches, as in the published recipes; the result then depends on the size of micro batches
    and the number of processes."""
    unpad: bool = True
    """Pack sequences without padding, so that only tokens are computed. Off: compute padding too."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic of forward and backward pass; weights stay fp32. auto: bf16 if the hardware supports it, else fp16
    with loss scaling on GPUs (before Ampere) and fp32 on CPUs."""
    compile: Literal["auto"] | bool = "auto"
    """torch.compile of the model's layers. auto: on GPUs; on a CPU it gains little and needs a C++ compiler."""
    cuda_graphs: bool = Field(default=False, exclude_if=lambda value: not value)
    """On GPUs: record the kernels of a micro batch and replay them, which relieves the host where micro batches are
    small. Needs `compile` and a number for `micro_batch_size`. It was not tried on a GPU yet."""
    overlap_all_reduce: bool = Field(default=False, exclude_if=lambda value: not value)
    """With several processes: sum gradients over them in buckets of 25 MB during the backward pass of the last micro
    batch. Off: in one piece after it. With two processes both give the same bits."""
    deterministic: bool = False
    """Use only deterministic algorithms on GPUs too; their cost is reported at the start. On CPUs all are
    deterministic."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """Seed of initial weights, order of examples, masks and dropout."""
    max_consecutive_skips: Positive = 50
    """fp16: fail after this many consecutive optimizer steps are skipped because gradients are not finite."""
    log_every: Positive = 10
    """Steps between two reports of metrics."""

    def problems(self) -> Iterator[str]:
        """Yield one message per contradiction between values of the section."""
        if self.micro_batch_size == "auto" and self.loss_normalization == "micro_batch":
            yield (
                "micro_batch_size is auto, but with loss_normalization=micro_batch it is part of the recipe: "
                "set a number, or loss_normalization=global"
            )
        if self.batch_tokens is not None and self.loss_normalization == "micro_batch":
            yield (
                "batch_tokens leaves micro batches of unequal size, which loss_normalization=micro_batch would weight "
                "equally: set global_batch_size, or loss_normalization=global"
            )
        if self.cuda_graphs and self.on_device(on_cpu=False).micro_batch_size == "auto":
            yield "cuda_graphs needs a number for micro_batch_size, since the search for one would record each size"
        if self.cuda_graphs and self.compile is False:
            yield "cuda_graphs needs compiled layers: set compile to auto or true"
        if self.cuda_graphs and self.overlap_all_reduce:
            yield (
                "cuda_graphs and overlap_all_reduce exclude each other: a recorded backward pass has no moment "
                "between two layers"
            )

    def on_device(self, *, on_cpu: bool) -> TrainConfig:
        """Return these settings with the micro batch that is the default on a device, unless they have one.

        Args:
            on_cpu: whether training runs on CPUs.
        """
        if self.micro_batch_size is not None:
            return self
        fixed = on_cpu or self.loss_normalization == "micro_batch"
        return self.model_copy(update={"micro_batch_size": DEFAULT_MICRO_BATCH if fixed else "auto"})

    def micro_batch_reason(self, *, on_cpu: bool) -> str:
        """Return why `on_device` has this micro batch, such as `the default on GPUs`; empty if it is given."""
        if self.micro_batch_size is not None:
            return ""
        if self.loss_normalization == "micro_batch":
            return "the default with loss_normalization=micro_batch"
        return f"the default on {'CPUs' if on_cpu else 'GPUs'}"

    def accumulation_steps(self, world_size: int) -> int | None:
        """Return the micro batches per process and optimizer step; None if `micro_batch_size` is auto.

        Args:
            world_size: number of processes.

        Raises:
            SpecError: the global batch does not divide evenly; the message names the nearest sizes that do. With
                `batch_tokens` it need not, but must have a sequence for each process.
        """
        assert self.micro_batch_size is not None, "on_device comes first"
        if self.batch_tokens is not None:
            if self.global_batch_size < world_size:
                raise SpecError(
                    f"train.batch_tokens {self.batch_tokens} are fewer than {world_size} sequences, one a process",
                    fix="--set train.batch_tokens=N with more, or fewer processes",
                )
            return None if self.micro_batch_size == "auto" else -(-self.share(world_size) // self.micro_batch_size)
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

    def resumable_world_sizes(self) -> Sequence[int]:
        """Return the numbers of processes with which a run of these settings can resume, smallest first."""
        if self.loss_normalization == "global":
            return range(1, self.global_batch_size + 1)
        # The means of micro batches have equal weight, so that all must have the same number of sequences.
        size = self.on_device(on_cpu=True).micro_batch_size
        assert isinstance(size, int), "the configuration refuses auto"
        count, rest = divmod(self.global_batch_size, size)
        return [] if rest else dividing(count, count)

    def _fitting_micro_batch(self, world_size: int) -> str | None:
        """Return the flag of a micro batch size that divides the global batch; None if the processes do not."""
        if self.global_batch_size % world_size or not isinstance(self.micro_batch_size, int):
            return None
        return f"--set train.micro_batch_size={max(dividing(self.share(world_size), self.micro_batch_size))}"

    def share(self, world_size: int) -> int:
        """Return the largest number of sequences of a global batch that one process has."""
        return -(-self.global_batch_size // world_size)


class ValidationConfig(Config):
    """Validation on the held-out documents."""

    every: Positive = 500
    """Steps between two validations; the last step is validated too."""
    max_sequences: Positive = 4096
    """Maximum sequences of a validation: a sample of all held-out documents, of each source in proportion to
    its held-out tokens. They and their masks are always the same."""


class CheckpointConfig(CheckedConfig):
    """Frequency and retention of checkpoints. The last step is saved too, and the current one when a run is stopped."""

    every: Positive | None = None
    """Steps between two checkpoints. None: only `every_minutes` applies."""
    every_minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 10.0
    """Minutes between two checkpoints, in addition to `every`. None: only `every` applies."""
    keep_last: Positive = 2
    """Number of newest checkpoints to keep; older ones are deleted once a newer one is committed."""
    keep_best: Annotated[int, Field(ge=0)] = 1
    """Number of checkpoints with the lowest validation loss to keep; each is saved at its validation. 0: none."""
    keep_every: Positive | None = None
    """Steps between two checkpoints that are kept permanently. None: none."""
    asynchronous: bool = True
    """Write while training continues, from a copy in host memory (12 bytes per parameter). Off: training waits."""

    def problems(self) -> Iterator[str]:
        """Yield one message per contradiction between values of the section."""
        if self.every is None and self.every_minutes is None:
            yield "every and every_minutes are both null: a killed run could not resume"


Language = Annotated[str, Field(pattern=r"^([a-z]{2,3}|multilingual)$")]


class CardConfig(Config):
    """Facts for the model card of the exported model."""

    license: Annotated[str, Field(min_length=1)] | None = None
    """Licence of the model by its name on the Hugging Face Hub (apache-2.0, cc-by-sa-4.0, other). None: not stated."""
    data_license: Annotated[str, Field(min_length=1)] | None = None
    """Licence of the text. None: not stated, except for the embedded corpus."""
    language: list[Language] = Field(default=[])
    """Languages of the text, by their ISO 639 codes."""
    description: str | None = None
    """Purpose of the model, as plain text."""


class MetricsConfig(Config):
    """Outputs of metrics in addition to metrics.jsonl and MLflow."""

    tensorboard: bool = False
    """Also write event files for TensorBoard to OUTPUT/tensorboard; needs the package tensorboardX."""


class ProfileConfig(Config):
    """Profile of a few steps: a trace of torch.profiler, and a table of the slowest operations."""

    steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps that rank 0 records; these are slower, and their trace needs memory. 0: none."""
    start: Positive | None = None
    """First recorded step. None: the fourth step after each start of the job."""

    @property
    def first(self) -> int:
        """First recorded step of a run that starts at step 1."""
        return self.start or PROFILE_WARMUP + 1


class WatchdogConfig(Config):
    """Watchdog that ends a hanging job, so that it can be restarted."""

    hang_minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 30.0
    """Minutes without progress after which a process writes its stacks and ends the job with exit code 76. None: never.
    Progress is the start or end of a part of a step, of a validation batch or of a checkpoint."""

    @property
    def hang_seconds(self) -> float | None:
        """`hang_minutes` in seconds."""
        return None if self.hang_minutes is None else 60 * self.hang_minutes


class PretrainConfig(CheckedConfig):
    """Configuration file of `python -m train_jobs.pretrain --config FILE`."""

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
    """auto: resume from the newest valid checkpoint of the output folder, if any. never: fail if it has one."""
    init_from: Path | None = None
    """Hugging Face BERT whose weights training starts from, at step 0 with empty moments: a folder, a name on the Hub,
    or models:/NAME@ALIAS of an MLflow registry. It determines shape and vocabulary. None: initialise the weights at
    random."""
    stretch_positions: Positive | None = None
    """Positions to cover at the start by linear interpolation of the trained position embeddings of `init_from`, for
    longer sequences. The job measures the loss before and after. None: untrained positions keep their values."""
    phase_from: Path | None = None
    """Earlier phase that training starts from: the output folder of a run, or one of its checkpoints. Weights and
    moments are loaded; step, schedule and loss scale are reset; lengths and batch sizes may differ."""
    trust: TrustConfig = TrustConfig()
    card: CardConfig = CardConfig()

    def problems(self) -> Iterator[str]:
        """Yield one message per contradiction between values of the section."""
        if self.data.sequence_length > self.model.max_position_embeddings:
            yield (
                f"data.sequence_length {self.data.sequence_length} is more than "
                f"model.max_position_embeddings {self.model.max_position_embeddings}"
            )
        if self.init_from is not None and self.phase_from is not None:
            yield "init_from and phase_from are both given: the first loads only weights, the second also moments"
        if self.stretch_positions is not None:
            if self.init_from is None:
                yield "stretch_positions requires init_from: moments of a phase belong to other positions"
            if self.data.sequence_length > self.stretch_positions:
                yield (
                    f"data.sequence_length {self.data.sequence_length} is more than "
                    f"stretch_positions {self.stretch_positions}"
                )
        if self.data.add_tokens and self.init_from is None:
            yield (
                "data.add_tokens requires init_from, whose vocabulary it extends; a vocabulary trained on the text"
                " contains its words"
            )
        if self.data.store is not None and self.data.text:
            yield "data.text and data.store are both given, but a store already contains its text"
        if was_url(self.data.store):
            yield STORE_AT_URL
        if self.train.cuda_graphs and is_user_code(self.model.name):
            yield f"train.cuda_graphs records the model bert only, and model.name is {self.model.name}"
        last = self.profile.first + self.profile.steps - 1
        if self.profile.steps and last > self.train.steps:
            yield f"profile: steps {self.profile.first} to {last} exceed train.steps {self.train.steps}"

    def with_batch_of(self, tokens_per_sequence: float) -> PretrainConfig:
        """Return this configuration with the `global_batch_size` that has `batch_tokens`; without these, unchanged.

        Args:
            tokens_per_sequence: mean tokens of a sequence, [CLS] and [SEP] included.
        """
        if self.train.batch_tokens is None:
            return self
        sequences = max(round(self.train.batch_tokens / tokens_per_sequence), 1)
        # A multiple of a power of two that is below 2% of it: it then divides among processes and micro batches.
        unit = 1 << max(sequences // 50, 1).bit_length() - 1
        size = round(sequences / unit) * unit
        return self.model_copy(update={"train": self.train.model_copy(update={"global_batch_size": size})})

    def on_device(self, *, on_cpu: bool) -> PretrainConfig:
        """Return this configuration with the micro batch that is the default on a device; see `TrainConfig`."""
        return self.model_copy(update={"train": self.train.on_device(on_cpu=on_cpu)})

    def micro_batches(self, world_size: int, *, on_cpu: bool) -> list[int]:
        """Return the micro batch sizes to try with `micro_batch_size: auto`, largest first.

        Args:
            world_size: number of processes.
            on_cpu: whether training runs on CPUs.
        """
        return micro_batch_sizes(self.train.share(world_size), self.data.sequence_length, on_cpu=on_cpu)

    @property
    def max_predictions(self) -> int:
        """Maximum tokens to predict in a sequence."""
        if self.objective.max_predictions is not None:
            return min(self.objective.max_predictions, self.data.sequence_length)
        return math.ceil(self.data.sequence_length * self.objective.masked_lm_probability)


def dividing(share: int, most: int) -> list[int]:
    """Return the micro batch sizes up to `most` that divide a process's share evenly, smallest first."""
    return [size for size in range(1, min(share, most) + 1) if share % size == 0]


def micro_batch_sizes(share: int, length: int, *, on_cpu: bool) -> list[int]:
    """Return micro batch sizes to try, largest first: a process's share, halved repeatedly down to one sequence.

    Sizes with more tokens than the device needs are left out.

    Args:
        share: sequences of a global batch that a process has.
        length: tokens of a sequence.
        on_cpu: whether training runs on CPUs.
    """
    # Halves of the share leave few micro batches of another size as remainders.
    sizes = [share]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    most = ENOUGH_TOKENS["cpu" if on_cpu else "gpu"] // length
    return [size for size in sizes if size <= most] or [1]
