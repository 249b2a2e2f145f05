"""Export a BERT with its head and its tokenizer as ONNX, for runtimes without torch.

    pip install "bert-orchestrator[onnx]"
    python -m train_jobs.tools.onnx --model out/model --output onnx/model.onnx

The graph takes input_ids, attention_mask and token_type_ids, int64 [batch, length], both of any size up to the model's
positions, and returns in fp32

    text-classification    logits [batch, labels]
    token-classification   logits [batch, length, labels]
    question-answering     start_logits, end_logits [batch, length]
    fill-mask              logits [batch, length, vocabulary]
    embeddings             last_hidden_state [batch, length, hidden] and its mean, sentence_embedding

If onnxruntime is installed, its results are compared with torch: a difference above 1e-4 is an error. Exit codes: 0
done, 2 invalid input, 1 any other error.
"""

from __future__ import annotations

import logging
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from train_jobs.artifacts.host import disable_telemetry
from train_jobs.artifacts.model_tokenizer import TOKENIZER, TOKENIZER_FILE, VOCABULARY
from train_jobs.artifacts.model_trust import PICKLED
from train_jobs.artifacts.start_model import CONFIG
from train_jobs.config import SpecError, TrainingError, UserError
from train_jobs.config.errors import in_shell
from train_jobs.config.predict import AUTO, EMBEDDINGS, FILL_MASK, KINDS, QUESTION_ANSWERING
from train_jobs.engine.runtime import boundary, storage
from train_jobs.inference.model_folder import Folder, Model, read_folder
from train_jobs.inference.prediction_files import atomic_file
from train_jobs.models.huggingface import WEIGHTS

OPSET = 18
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = {
    QUESTION_ANSWERING: ("start_logits", "end_logits"),
    EMBEDDINGS: ("last_hidden_state", "sentence_embedding"),
}
"""Kind -> names of its outputs, where they are not `logits`."""
TOLERANCE = 1e-4
COPIED_FILES = (CONFIG, TOKENIZER_FILE, TOKENIZER, VOCABULARY)
REQUIRED_PACKAGES = ("onnx", "onnxscript")
Arrays = dict[str, npt.NDArray[np.int64]]


class Graph(nn.Module):
    """A wrapper that gives a model the inputs and outputs of the exported graph.

    Args:
        kind: one of `train_jobs.config.predict.KINDS`.
        model: model with its weights.
    """

    def __init__(self, kind: str, model: Model) -> None:
        super().__init__()
        self.kind, self.model = kind, model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the graph, see the module.

        Args:
            input_ids: int64 [B, S].
            attention_mask: int64 [B, S], 1 at tokens and 0 at padding.
            token_type_ids: int64 [B, S].
        """
        mask = attention_mask > 0
        if self.kind == FILL_MASK:
            return self.model(input_ids, token_type_ids, mask)[:1]
        if self.kind == EMBEDDINGS:
            hidden = self.model.bert(input_ids, token_type_ids, mask)
            real = mask[..., None].to(hidden.dtype)
            return hidden, (hidden * real).sum(1) / real.sum(1)
        logits = self.model(input_ids, token_type_ids, mask)
        return logits.unbind(-1) if self.kind == QUESTION_ANSWERING else (logits,)


def export_onnx(folder: Folder, path: Path, *, opset: int = OPSET) -> float | None:
    """Write the graph of a model, with its configuration and tokenizer in the same folder.

    Args:
        folder: folder of the model.
        path: path of the graph; it is renamed to this when it is complete.
        opset: version of the ONNX operator set.

    Returns:
        The largest difference between onnxruntime and torch; None without onnxruntime.

    Raises:
        UserError: the path is not one for a graph, packages are missing, the model cannot be loaded, the disk is
            full, or the two differ.
    """
    _check_path(folder, path)
    if missing := [name for name in REQUIRED_PACKAGES if find_spec(name) is None]:
        raise SpecError(
            f"cannot export: {' and '.join(missing)} not installed", fix='pip install "bert-orchestrator[onnx]"'
        )
    graph = Graph(folder.kind, folder.model()).requires_grad_(False).eval()
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=folder.positions)
    # Not 1 x anything: torch.export specialises dimensions of size 1, and the graph would accept no other size.
    example = _inputs(folder, (3, min(16, folder.positions)))
    with _quiet():
        program = torch.onnx.export(
            graph,
            tuple(torch.from_numpy(example[name]) for name in INPUTS),
            dynamo=True,
            input_names=INPUTS,
            output_names=OUTPUTS.get(folder.kind, ("logits",)),
            dynamic_shapes={name: {0: batch, 1: length} for name in INPUTS},
            opset_version=opset,
            verbose=False,
        )
    assert program is not None, "the exporter returns a program unless it writes the file itself"
    with storage.storage_errors(path.parent, "the export"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            program.save(temporary)
            difference = _difference(graph, folder, temporary)
            for name in COPIED_FILES:
                if (folder.path / name).is_file() and folder.path.resolve() != path.parent.resolve():
                    shutil.copyfile(folder.path / name, path.parent / name)
    return difference


def _check_path(folder: Folder, path: Path) -> None:
    if path.suffix != ".onnx":
        raise SpecError(
            f"invalid --output {path}: a graph ends in .onnx", fix=f"--output {in_shell(path.with_suffix('.onnx'))}"
        )
    has_weights = any((path.parent / name).exists() for name in (WEIGHTS, PICKLED))
    if has_weights and folder.path.resolve() != path.parent.resolve():
        raise SpecError(
            f"cannot export to {path.parent}: it contains another model, whose configuration would be replaced",
            fix=f"--output {in_shell(folder.path / path.name)}",
        )


def _difference(graph: Graph, folder: Folder, path: Path) -> float | None:
    """Return the largest difference between torch and onnxruntime, over batches of several shapes."""
    if find_spec("onnxruntime") is None:
        return None
    disable_telemetry()
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    largest = 0.0
    for shape in ((1, 5), (4, folder.positions), (2, 2)):
        arrays = _inputs(folder, shape)
        with torch.inference_mode():
            expected = graph(*(torch.from_numpy(arrays[name]) for name in INPUTS))
        real = arrays["attention_mask"] > 0
        for mine, theirs in zip(expected, session.run(None, arrays), strict=True):
            gap = np.abs(mine.numpy() - theirs)
            largest = max(largest, float((gap[real] if gap.shape[:2] == real.shape else gap).max()))
    if not largest <= TOLERANCE:  # true for NaN
        raise TrainingError(
            "onnxruntime and torch return different results", facts={"difference": largest, "tolerance": TOLERANCE}
        )
    return largest


def _inputs(folder: Folder, shape: tuple[int, int]) -> Arrays:
    """Return random inputs; the first row has full length, the others are padded."""
    rows, size = shape
    draw = np.random.default_rng(rows * size)
    real = np.arange(size) < np.linspace(size, max(size // 2, 1), rows).astype(np.int64)[:, None]
    segments = (np.arange(size) >= size // 2) & real & (folder.shape.type_vocab_size > 1)
    ids = np.where(real, draw.integers(0, folder.rows, shape), 0)
    return dict(zip(INPUTS, (ids, real.astype(np.int64), segments.astype(np.int64)), strict=True))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which warns about packages that are not needed here."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, export the model and return an exit code."""
    parser = boundary.documented_parser("tools.onnx", __doc__)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of a BERT")
    parser.add_argument("--output", type=Path, default=Path("model.onnx"), help="the file (default: ./model.onnx)")
    parser.add_argument(
        "--task", choices=[AUTO, *KINDS], default=AUTO, help="head to export (default: that of the model's class)"
    )
    parser.add_argument("--opset", type=int, default=OPSET, help=f"version of ONNX's operators (default: {OPSET})")
    boundary.add_trust(parser)
    arguments = parser.parse_args(argv)
    try:
        folder = read_folder(arguments.model, arguments.task, boundary.trust_of(arguments))
        difference = export_onnx(folder, arguments.output, opset=arguments.opset)
    except UserError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    checked = (
        "not compared with torch: onnxruntime is not installed"
        if difference is None
        else f"within {difference:.1e} of torch"
    )
    print(f"exported {arguments.output}: {folder.kind}, opset {arguments.opset}, {checked}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
