"""onnxruntime behind the interface of our models: for single texts, and for CPUs without half precision.

The graph is FOLDER/model.onnx, as `train_jobs.tools.onnx` writes it. It computes in fp32, and its results are compared
with torch before it is used, so a graph of other weights is noticed. With int8, weights are quantised when it is loaded
(Jacob et al. 2018, as onnxruntime's dynamic quantisation does it).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from train_jobs.artifacts.drafts import scratch_folder
from train_jobs.artifacts.host import disable_telemetry
from train_jobs.config import SpecError
from train_jobs.config.errors import in_shell
from train_jobs.config.predict import EMBEDDINGS, FILL_MASK, QUESTION_ANSWERING
from train_jobs.inference.model_folder import Folder, Model

GRAPH_FILE = "model.onnx"
TOLERANCE = 1e-4
INSTALL = 'pip install "bert-orchestrator[onnx]"'


class OnnxModel(nn.Module):
    """A model whose forward passes run in onnxruntime, all of them or those of single sequences.

    Args:
        folder: folder of the model, with its graph.
        int8: quantise the weights.

    Attributes:
        int8: whether the weights are quantised.
        many: model for batches of several sequences. None: the graph computes them too.

    Raises:
        SpecError: there is no graph, onnxruntime is missing, or it cannot run this kind of prediction.
    """

    def __init__(self, folder: Folder, *, int8: bool = False) -> None:
        super().__init__()
        require_graph(folder)
        self.kind = folder.kind
        self.many: Model | None = None
        # the device of a model is that of its parameters
        self.register_parameter("place", nn.Parameter(torch.empty(0), requires_grad=False))
        self._exact = _session(folder.path / GRAPH_FILE)
        self._session = quantised(folder.path / GRAPH_FILE) if int8 else self._exact
        self.int8 = int8

    @property
    def bert(self) -> OnnxModel:
        """The encoder: for embeddings, the graph returns its output."""
        return self

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor | None = None, packing: Any = None
    ) -> Tensor:
        """Return what the model of this kind returns, see `TokenBatch` for the arguments."""
        if self.many is not None and len(input_ids) > 1:
            one = self.many.bert if self.kind == EMBEDDINGS else self.many
            found: Tensor = one(input_ids, token_type_ids, attention_mask, packing)
            return found
        assert packing is None, "the graph takes padded sequences"
        arrays = _arrays(input_ids, token_type_ids, attention_mask)
        return self._run(self._session, arrays)

    @contextmanager
    def in_fp32(self) -> Iterator[None]:
        """Compute with the weights in fp32 inside the context, also with int8."""
        before, self._session = self._session, self._exact
        try:
            yield
        finally:
            self._session = before

    def agrees(self, exact: Model, folder: Folder) -> bool:
        """Return whether the graph in fp32 and the weights of its folder give the same results, within `TOLERANCE`.

        Args:
            exact: the weights in fp32.
            folder: their folder.
        """
        length = min(12, folder.positions)
        ids = torch.from_numpy(np.random.default_rng(0).integers(0, folder.rows, (1, length)))
        one = exact.bert if folder.kind == EMBEDDINGS else exact
        with torch.no_grad():
            expected = one(ids, torch.zeros_like(ids), None, None).float()
            found = self._run(self._exact, _arrays(ids, torch.zeros_like(ids), None))
        # a graph of another kind of prediction has another shape
        return expected.shape == found.shape and bool(torch.allclose(expected, found, rtol=TOLERANCE, atol=TOLERANCE))

    def _run(self, session: Any, arrays: dict[str, Any]) -> Tensor:
        outputs = [torch.from_numpy(array) for array in session.run(None, arrays)]
        return torch.stack(outputs, -1) if self.kind == QUESTION_ANSWERING else outputs[0]


def require_graph(folder: Folder) -> None:
    """Check that onnxruntime can compute the predictions of a folder.

    Raises:
        SpecError: it cannot.
    """
    if folder.kind == FILL_MASK:
        raise SpecError(
            "cannot use runtime onnx for fill-mask: its graph computes every position", fix="--set runtime=torch"
        )
    if find_spec("onnxruntime") is None:
        raise SpecError("cannot use runtime onnx: onnxruntime is not installed", fix=INSTALL)
    graph = folder.path / GRAPH_FILE
    if not graph.is_file():
        raise SpecError(
            f"cannot use runtime onnx: {graph} does not exist",
            fix=export_command(folder),
        )


def export_command(folder: Folder) -> str:
    """Return the command that writes the graph of a folder."""
    place, graph = in_shell(folder.path), in_shell(folder.path / GRAPH_FILE)
    return f"python -m train_jobs.tools.onnx --model {place} --task {folder.kind} --output {graph}"


def _arrays(input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor | None) -> dict[str, Any]:
    """Return the inputs of a session."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
    inputs = {"input_ids": input_ids, "attention_mask": mask, "token_type_ids": token_type_ids}
    return {name: tensor.numpy() for name, tensor in inputs.items()}


def quantised(graph: Path) -> Any:
    """Return a session of the graph with weights in int8.

    Raises:
        SpecError: the package that quantises is missing.
    """
    if find_spec("onnx") is None:
        raise SpecError("cannot quantise: onnx is not installed", fix=INSTALL)
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with scratch_folder("onnx") as place:
        small, plain = place / GRAPH_FILE, place / "plain.onnx"
        model = onnx.load(str(graph))
        # Shapes of the exported graph: the quantiser transposes weights, and onnx then refuses its own older shapes.
        del model.graph.value_info[:]
        onnx.save(model, str(plain))
        quantize_dynamic(plain, small, weight_type=QuantType.QInt8)
        return _session(small)


def _session(graph: Path) -> Any:
    disable_telemetry()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: a quantised graph has shapes that it warns about
    # as many threads as torch has: torchrun and the server set them
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
