"""Loading of a model for prediction, for the job, the server and the benchmark."""

from __future__ import annotations

from collections.abc import Callable

import torch

from train_jobs.config import PredictConfig
from train_jobs.config.predict import (
    AUTO,
    CLASSIFICATION,
    EMBEDDINGS,
    FILL_MASK,
    KINDS,
    QUESTION_ANSWERING,
    TOKEN_CLASSIFICATION,
)
from train_jobs.engine.runtime.devices import resolve_precision
from train_jobs.inference.forward import Forward, prepare_model
from train_jobs.inference.model_folder import read_folder
from train_jobs.inference.predictor import Predictor
from train_jobs.inference.span_predictors import AnswerPredictor, TagPredictor
from train_jobs.inference.text_predictors import LabelPredictor, MaskPredictor, VectorPredictor, with_task_columns
from train_jobs.models.bert.encoder import is_compiled

PREDICTORS: dict[str, type[Predictor]] = {
    CLASSIFICATION: LabelPredictor,
    QUESTION_ANSWERING: AnswerPredictor,
    TOKEN_CLASSIFICATION: TagPredictor,
    FILL_MASK: MaskPredictor,
    EMBEDDINGS: VectorPredictor,
}


def load_predictor(config: PredictConfig, device: torch.device, beat: Callable[[], None] = lambda: None) -> Predictor:
    """Return the predictor of a configuration, with its model on the device.

    Args:
        config: the configuration.
        device: device to compute on.
        beat: called after each batch, for the watchdog.

    Raises:
        UserError: the folder contains no model of this kind, or it cannot be loaded.
    """
    config = with_task_columns(config)
    kind = config.task if config.task in (AUTO, *KINDS) else CLASSIFICATION
    folder = read_folder(config.model, kind, config.trust)
    batching = config.batching
    model = prepare_model(
        folder.model(),
        precision=resolve_precision(batching.precision, device),
        device=device,
        compiled=is_compiled(batching.compile, device),
    )
    tokens = None if batching.batch_tokens == AUTO else batching.batch_tokens
    forward = Forward(model, batch_tokens=tokens, beat=beat)
    return PREDICTORS[folder.kind](config, folder, folder.tokenizer(config.data.lowercase), forward)
