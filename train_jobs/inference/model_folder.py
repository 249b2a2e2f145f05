"""A Hugging Face folder that predicts: its model with the head, the labels of that, its tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from tokenizers import AddedToken, Tokenizer

from train_jobs.artifacts.layers import dotted
from train_jobs.artifacts.start_model import CONFIG, FIXED, SHAPE, TOKENIZER, VOCABULARY
from train_jobs.config import DataError, ModelConfig, SpecError
from train_jobs.config.names import in_shell
from train_jobs.config.predict import (
    AUTO,
    CLASSIFICATION,
    EMBEDDINGS,
    FILL_MASK,
    QUESTION_ANSWERING,
    TOKEN_CLASSIFICATION,
)
from train_jobs.corpus.tokenize.vocabulary import SPECIAL_PIECES, load_vocabulary
from train_jobs.models.bert.pretraining_heads import BertForPreTraining
from train_jobs.models.bert.task_heads import (
    BertEncoder,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    Finetuned,
)
from train_jobs.models.huggingface import load_weights
from train_jobs.models.labels import saved_labels

HEADS = {
    "BertForSequenceClassification": CLASSIFICATION,
    "BertForQuestionAnswering": QUESTION_ANSWERING,
    "BertForTokenClassification": TOKEN_CLASSIFICATION,
    "BertForMaskedLM": FILL_MASK,
    "BertForPreTraining": FILL_MASK,
    "BertModel": EMBEDDINGS,
}
"""What a model's class, as its config.json names it, is made to predict."""
UNNAMED = ("LABEL_0", "LABEL_1")  # of a folder that says nothing, as in Hugging Face's configurations
TOKENIZER_FILE = "tokenizer.json"
REGRESSION, SEVERAL_LABELS = "regression", "multi_label_classification"
_NEEDED = {
    CLASSIFICATION: ("bert.pooler.", "classifier."),
    TOKEN_CLASSIFICATION: ("classifier.",),
    QUESTION_ANSWERING: ("qa_outputs.",),
    FILL_MASK: ("cls.predictions.",),
    EMBEDDINGS: (),
}

Model = Finetuned | BertForPreTraining


@dataclass(frozen=True)
class Folder:
    """What a folder says of its model."""

    path: Path
    kind: str
    """What it is to predict: one of `train_jobs.config.predict.KINDS`."""
    shape: ModelConfig
    """Without dropout."""
    rows: int
    """Of its embedding table."""
    labels: tuple[str, ...]
    """Names of its classes or tags in the order of their ids; of other kinds none."""
    problem: str | None
    """Classes: regression, multi_label_classification, or else one class of several."""
    null_threshold: float | None
    """Answers: the odds of none above which none is given, tuned when the model was trained; None: it was not."""

    @property
    def positions(self) -> int:
        """Tokens of the longest sequence that it takes."""
        return self.shape.max_position_embeddings

    def tokenizer(self, lowercase: bool | None = None) -> Tokenizer:
        """Splits text as the model was taught to; the special pieces, spelled in text, are what they say.

        Args:
            lowercase: whether the model is uncased. None: as the folder says.

        Raises:
            DataError: no vocabulary, or one that is no BERT's.
        """
        whole, settings = self.path / TOKENIZER_FILE, _read(self.path / TOKENIZER) or {}
        if lowercase is None and whole.is_file():
            return _saved_tokenizer(whole)
        known = lowercase if lowercase is not None else settings.get("do_lower_case", True)
        tokenizer = load_vocabulary(self.path / VOCABULARY, lowercase=known)
        tokenizer.add_special_tokens([AddedToken(piece, normalized=False, special=True) for piece in SPECIAL_PIECES])
        return tokenizer

    def model(self) -> Model:
        """The model with its weights, on the CPU, for evaluation.

        Raises:
            SpecError: the folder has no such head.
            TrainingError: its weights cannot be read, or are not of this shape.
        """
        model = _empty(self)
        absent = load_weights(model, self.path, leave=())
        missing = [name for name in absent if name.startswith(_NEEDED[self.kind])]
        if missing:
            raise SpecError(
                f"{self.path} has no head for {self.kind}",
                facts={"missing": ", ".join(missing)},
                fix=f"fine-tune it first: python -m train_jobs.finetune --set {in_shell(f'init_from={self.path}')} ...",
            )
        return model.eval()


def read_folder(path: Path, task: str = AUTO) -> Folder:
    """Reads what a folder says of its model.

    Args:
        path: the folder.
        task: one of `train_jobs.config.predict.KINDS`; auto: what the model's class is made for.

    Raises:
        SpecError: it is no BERT's, or nothing tells what it predicts.
    """
    config = _read(path / CONFIG)
    if config is None:
        raise SpecError(
            f"no {CONFIG} in {path} that can be read", fix="give a folder written by save_pretrained or by an export"
        )
    problems = [
        f"{path / CONFIG}: {key} is {config[key]!r}, need {need!r}"
        for key, need in FIXED.items()
        if config.get(key, need) != need
    ]
    shape = {key: config[key] for key in SHAPE if key in config}
    try:
        model = ModelConfig(
            **shape, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_vocab_to_multiple_of=1
        )
    except ValidationError as failure:
        problems += [f"{path / CONFIG}: {dotted(error['loc'])}: {error['msg']}" for error in failure.errors()]
    if problems:
        raise SpecError(f"{path} is no model to predict with", problems=problems)
    kind = _kind(path, config.get("architectures") or []) if task == AUTO else task
    labelled = kind in {CLASSIFICATION, TOKEN_CLASSIFICATION}
    labels = tuple(saved_labels(path)) or UNNAMED if labelled else ()
    problem = config.get("problem_type") or (REGRESSION if kind == CLASSIFICATION and len(labels) == 1 else None)
    threshold = config.get("null_threshold")
    return Folder(path, kind, model, config.get("vocab_size", 30_522), labels, problem, threshold)


def _kind(path: Path, architectures: list[str]) -> str:
    found = next((HEADS[name] for name in architectures if name in HEADS), None)
    if found is None:
        raise SpecError(
            f"{path / CONFIG} does not tell what the model predicts",
            facts={"need": ", ".join(HEADS), "have": ", ".join(architectures) or "no architectures"},
            fix="say it: --set task=embeddings",
        )
    return found


def _empty(folder: Folder) -> Model:
    """A model of the folder's shape, with whatever weights torch gives new modules."""
    if folder.kind == CLASSIFICATION:
        return BertForSequenceClassification(folder.shape, folder.rows, len(folder.labels))
    if folder.kind == TOKEN_CLASSIFICATION:
        return BertForTokenClassification(folder.shape, folder.rows, len(folder.labels))
    if folder.kind == QUESTION_ANSWERING:
        return BertForQuestionAnswering(folder.shape, folder.rows)
    if folder.kind == FILL_MASK:
        return BertForPreTraining(folder.shape, folder.rows)
    return BertEncoder(folder.shape, folder.rows)


def _saved_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as problem:  # tokenizers raises nothing more particular
        raise DataError(f"cannot read {path}", facts={"why": str(problem).splitlines()[0]}) from None
    missing = [piece for piece in SPECIAL_PIECES if tokenizer.token_to_id(piece) is None]
    if missing:
        raise DataError(f"{path} is not a BERT tokenizer", facts={"missing": " ".join(missing)})
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where there is none to read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
