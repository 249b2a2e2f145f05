"""Hugging Face folder for prediction: the model with its head, labels and tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from train_jobs.artifacts.files import read_object
from train_jobs.artifacts.layers import dotted
from train_jobs.artifacts.model_tokenizer import TOKENIZER_FILE, VOCABULARY, SavedTokenizer
from train_jobs.artifacts.model_trust import require_trusted
from train_jobs.artifacts.start_model import (
    CONFIG,
    FIXED,
    SHAPE,
    stated_positions,
    usable_positions,
)
from train_jobs.artifacts.text_rule import SPLIT_UNSPACED
from train_jobs.artifacts.vocabulary_file import SPECIAL_PIECES
from train_jobs.config import DataError, ModelConfig, SpecError, TrustConfig, in_shell
from train_jobs.config.predict import (
    AUTO,
    CLASSIFICATION,
    DEFAULT_LABELS,
    EMBEDDINGS,
    FILL_MASK,
    HEADS,
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)
from train_jobs.corpus.tokenize.vocabulary import load_input_tokenizer
from train_jobs.models.bert.pretraining_heads import BertForPreTraining
from train_jobs.models.bert.task_heads import (
    BertEncoder,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    Finetuned,
)
from train_jobs.models.huggingface import load_weights, require_shapes, saved_labels

RARE_LETTERS = "\U00010380 \U00013000 \ua66e"  # of Ugaritic, Egyptian and Cyrillic: at least one is unknown
TRUST = TrustConfig()
Model = Finetuned | BertForPreTraining

MODELS: dict[str, tuple[Callable[..., Model], tuple[str, ...]]] = {
    CLASSIFICATION: (BertForSequenceClassification, ("bert.pooler.", "classifier.")),
    TOKEN_CLASSIFICATION: (BertForTokenClassification, ("classifier.",)),
    QUESTION_ANSWERING: (BertForQuestionAnswering, ("qa_outputs.",)),
    FILL_MASK: (BertForPreTraining, ("cls.predictions.",)),
    EMBEDDINGS: (BertEncoder, ()),
}
"""Kind of prediction -> class of the model, and prefixes of the weights that it needs."""


@dataclass(frozen=True)
class Folder:
    """Model of a folder: kind, shape, labels."""

    path: Path
    kind: str
    """Kind of prediction: one of `train_jobs.config.predict.KINDS`."""
    shape: ModelConfig
    """Shape of the model, without dropout."""
    rows: int
    """Rows of its embedding table."""
    labels: tuple[str, ...]
    """Names of its classes or tags in the order of their ids; empty for other kinds."""
    problem: str | None
    """For classes: regression, multi_label_classification, or None for one class of several."""
    null_threshold: float | None
    """For question answering: tuned odds above which there is no answer. None: not tuned."""

    trained_positions: int | None = None
    """Tokens of the longest sequences that it was trained on. None: not stated, taken to be all positions."""
    stretched_positions: int | None = None
    """Positions that the trained ones were interpolated to cover. None: they were not."""
    allow_pickle: bool = False
    """Whether its weights may be a pickle."""

    @property
    def positions(self) -> int:
        """Rows of the table of positions."""
        return self.shape.max_position_embeddings

    @property
    def usable_positions(self) -> int:
        """Tokens of the longest sequence that does not reach untrained positions."""
        return usable_positions(self.positions, self.trained_positions, self.stretched_positions)

    def tokenizer(self, lowercase: bool | None = None) -> Tokenizer:
        """Return the tokenizer of the model; special pieces in a text, such as [MASK], keep their meaning.

        Args:
            lowercase: whether the model is uncased. None: the setting of the folder.

        Raises:
            DataError: the vocabulary is missing, or is not one of BERT.
        """
        saved, file = SavedTokenizer.read(self.path), self.path / TOKENIZER_FILE
        for key, value in zip(saved.keys, saved.flags, strict=True):
            if not isinstance(value, bool | None):
                raise DataError(f"{saved.file}: {key} is {value!r}", facts={"need": "true, false or null"})
        stated, strip_accents, chinese_words = saved.flags
        if lowercase is None and file.is_file():  # preferred: vocab.txt does not describe added tokens
            tokenizer = _saved_tokenizer(file)
            if not saved.is_general and not saved.settings.get(SPLIT_UNSPACED):
                tokenizer.normalizer = normalizers.BertNormalizer(
                    lowercase=stated is not False,
                    strip_accents=strip_accents,
                    handle_chinese_chars=chinese_words is not False,
                )
                tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            return tokenizer
        return load_input_tokenizer(
            self.path / VOCABULARY,
            lowercase=stated is not False if lowercase is None else lowercase,
            strip_accents=strip_accents,
            split_unspaced=bool(saved.settings.get(SPLIT_UNSPACED)),
        )

    def model(self) -> Model:
        """Return the model with its weights, on the CPU, for evaluation.

        Raises:
            SpecError: weights of the head are missing, or the weights have other shapes than config.json states.
            TrainingError: the weights cannot be read, or have another shape.
        """
        sizes = {**self.shape.model_dump(include=set(SHAPE)), "vocab_size": self.rows}
        require_shapes(self.path, sizes, allow_pickle=self.allow_pickle)
        make, needed = MODELS[self.kind]
        model = make(self.shape, self.rows, *([len(self.labels)] if self.labels else []))
        absent = load_weights(model, self.path, ignore=(), allow_pickle=self.allow_pickle)
        missing = [name for name in absent if name.startswith(needed)]
        if missing:
            raise SpecError(
                f"cannot predict with {self.path}: it has no head for {self.kind}",
                facts={"missing": ", ".join(missing)},
                fix=f"fine-tune it first: python -m train_jobs.finetune --set {in_shell(f'init_from={self.path}')} ...",
            )
        return model.eval()


def read_folder(path: Path, task: str = AUTO, trust: TrustConfig = TRUST) -> Folder:
    """Read config.json of a folder.

    Args:
        path: the folder.
        task: one of `train_jobs.config.predict.KINDS`; auto: from `architectures`.
        trust: checks of the folder before anything else.

    Raises:
        DataError: the folder is not trusted, see `require_trusted`.
        SpecError: the folder contains no BERT, or the kind of prediction is unknown.
    """
    require_trusted(path, trust)
    config = read_object(path / CONFIG)
    if config is None:
        raise SpecError(f"cannot read {path / CONFIG}", fix="name a folder written by save_pretrained or by an export")
    problems = [
        f"{path / CONFIG}: {key} is {config[key]!r}, need {need!r}"
        for key, need in FIXED.items()
        if config.get(key, need) != need
    ]
    problems += SavedTokenizer.read(path).class_problems()
    # Only keys that are present: for others the defaults are those of BERT-base, in transformers as in ModelConfig.
    shape = {key: config[key] for key in SHAPE if key in config}
    try:
        model = ModelConfig(
            **shape, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_vocab_to_multiple_of=1
        )
    except ValidationError as failure:
        problems += [f"{path / CONFIG}: {dotted(error['loc'])}: {error['msg']}" for error in failure.errors()]
    if problems:
        raise SpecError(f"cannot predict with {path}", problems=problems)
    kind = _kind(path, config.get("architectures") or []) if task == AUTO else task
    labelled = kind in {CLASSIFICATION, TOKEN_CLASSIFICATION}
    labels = tuple(saved_labels(path)) or DEFAULT_LABELS if labelled else ()
    problem = config.get("problem_type") or (REGRESSION if kind == CLASSIFICATION and len(labels) == 1 else None)
    threshold = config.get("null_threshold")
    if threshold is not None and type(threshold) not in {int, float}:
        raise SpecError(f"{path / CONFIG}: null_threshold is {threshold!r}", facts={"need": "a number, or no such key"})
    trained, stretched = stated_positions(config, path / CONFIG)
    return Folder(
        path,
        kind,
        model,
        config.get("vocab_size", 30_522),
        labels,
        problem,
        threshold,
        trained_positions=trained,
        stretched_positions=stretched,
        allow_pickle=trust.allow_pickle,
    )


def _kind(path: Path, architectures: Any) -> str:
    architectures = [str(name) for name in architectures] if isinstance(architectures, list) else []
    found = next((HEADS[name] for name in architectures if name in HEADS), None)
    if found is None:
        raise SpecError(
            f"cannot predict with {path}: unknown class in {CONFIG}",
            facts={"need": ", ".join(HEADS), "have": ", ".join(architectures) or "no architectures"},
            fix="--set task=embeddings, or the kind of its head",
        )
    return found


def _saved_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as problem:  # tokenizers has no narrower exception
        raise DataError(f"cannot read {path}", facts={"why": str(problem).splitlines()[0]}) from None
    missing = [piece for piece in SPECIAL_PIECES if tokenizer.token_to_id(piece) is None]
    if missing:
        raise DataError(f"{path} is not a BERT tokenizer", facts={"missing": " ".join(missing)})
    # Saved settings may truncate or pad; both are decided here, per batch.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    try:
        tokenizer.encode(RARE_LETTERS)
    except Exception as problem:  # the token of unknown words may lack in the vocabulary
        raise DataError(f"{path} is not a BERT tokenizer", facts={"why": str(problem).splitlines()[0]}) from None
    return tokenizer
