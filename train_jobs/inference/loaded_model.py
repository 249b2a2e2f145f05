"""Loading of a model for prediction, for the job, the server and the benchmark."""

from __future__ import annotations

from collections.abc import Callable

import torch

from train_jobs.config import PredictConfig, SpecError
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
from train_jobs.inference.model_folder import Folder, Model, read_folder
from train_jobs.inference.onnx_model import GRAPH_FILE, OnnxModel, export_command
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


def load_predictor(
    config: PredictConfig,
    device: torch.device,
    beat: Callable[[], None] = lambda: None,
    *,
    single_texts: bool = False,
) -> Predictor:
    """Return the predictor of a configuration, with its model on the device.

    Args:
        config: the configuration.
        device: device to compute on.
        beat: called after each batch, for the watchdog.
        single_texts: whether most batches have one text, as those of a server, so that latency counts.

    Raises:
        UserError: the folder contains no model of this kind, or it cannot be loaded.
    """
    config = with_task_columns(config)
    kind = config.task if config.task in (AUTO, *KINDS) else CLASSIFICATION
    folder = read_folder(config.model, kind, config.trust)
    batching = config.batching
    tokens = None if batching.batch_tokens == AUTO else batching.batch_tokens
    if config.runtime == "onnx":
        if device.type != "cpu":
            raise SpecError("cannot use runtime onnx on a GPU", fix="--set compute.device=cpu, or --set runtime=torch")
        computed = OnnxModel(folder, int8=config.int8)
        if not computed.agrees(folder.model(), folder):
            raise SpecError(
                f"cannot use runtime onnx: {folder.path / GRAPH_FILE} is not of these weights",
                fix=export_command(folder),
            )
        forward = Forward(computed, batch_tokens=tokens, beat=beat, unpad=False)
        return PREDICTORS[folder.kind](config, folder, folder.tokenizer(config.data.lowercase), forward)
    weights = folder.model()
    graph = None
    if config.runtime == AUTO and single_texts and device.type == "cpu":
        graph = _checked_graph(folder, weights)  # before the weights are converted
    model: Model = prepare_model(
        weights,
        precision=resolve_precision(batching.precision, device),
        device=device,
        compiled=is_compiled(batching.compile, device),
    )
    if graph is not None:
        graph.many = model
    forward = Forward(model if graph is None else graph, batch_tokens=tokens, beat=beat)
    return PREDICTORS[folder.kind](config, folder, folder.tokenizer(config.data.lowercase), forward)


def _checked_graph(folder: Folder, weights: Model) -> OnnxModel | None:
    """Return the graph of a folder; None without one or onnxruntime, and with a warning if its results differ."""
    try:
        graph = OnnxModel(folder)
    except SpecError:
        return None
    if graph.agrees(weights, folder):
        return graph
    path = folder.path / GRAPH_FILE
    print(f"warning: {path} is not of these weights, so torch computes single texts too; export it again", flush=True)
    return None
