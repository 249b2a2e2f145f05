"""A model that predicts, ready to be asked: what the job, the server and the benchmark have in common."""

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
from train_jobs.engine.runtime.precision import resolve
from train_jobs.inference.answer_predictor import Answers
from train_jobs.inference.forward import Forward, made_ready
from train_jobs.inference.label_predictor import Classification, with_task_columns
from train_jobs.inference.mask_predictor import Masks
from train_jobs.inference.model_folder import read_folder
from train_jobs.inference.predictor import Task
from train_jobs.inference.tag_predictor import Tagging
from train_jobs.inference.vector_predictor import Embeddings
from train_jobs.models.compiling import is_compiled

TASKS: dict[str, type[Task]] = {
    CLASSIFICATION: Classification,
    QUESTION_ANSWERING: Answers,
    TOKEN_CLASSIFICATION: Tagging,
    FILL_MASK: Masks,
    EMBEDDINGS: Embeddings,
}


def make_task(config: PredictConfig, device: torch.device, beat: Callable[[], None] = lambda: None) -> Task:
    """The task of a configuration, with its model on the device.

    Args:
        config: what is wanted.
        device: where to compute.
        beat: called after each batch.

    Raises:
        UserError: the folder is no such model's.
    """
    config = with_task_columns(config)
    kind = config.task if config.task in (AUTO, *KINDS) else CLASSIFICATION
    folder = read_folder(config.model, kind)
    batching = config.batching
    model = made_ready(
        folder.model(),
        precision=resolve(batching.precision, device),
        device=device,
        compiled=is_compiled(batching.compile, device),
    )
    tokens = None if batching.batch_tokens == AUTO else batching.batch_tokens
    forward = Forward(model, batch_tokens=tokens, beat=beat)
    return TASKS[folder.kind](config, folder, folder.tokenizer(config.data.lowercase), forward)
