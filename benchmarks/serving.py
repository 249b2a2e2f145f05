"""The local prediction server: requests a second of one client and of 16 concurrent ones, with the same predictions.

python -m benchmarks.serving                        a MiniLM-shaped model with drawn weights
python -m benchmarks.serving --checkpoint MINILM    a folder of a BERT without head, see benchmarks.inference
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.inference import classifier
from benchmarks.machine import describe

CLIENTS = 16
REQUESTS = 320  # of a round
ROUNDS = 5
WORDS = ("the", "of", "company", "said", "market", "year", "shares", "percent", "new", "officials", "report", "growth")


def drawn_checkpoint(folder: Path) -> Path:
    """Save a BERT with 6 layers of width 384 and drawn weights."""
    import transformers

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    config = transformers.BertConfig(
        vocab_size=len(pieces),
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=512,
    )
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    return folder


@contextmanager
def served(model: Path) -> Iterator[int]:
    """Serve a model, and yield its port."""
    command = [sys.executable, "-m", "train_jobs.tools.serve", "--model", str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(json.loads(process.stdout.readline())["port"])
        finally:
            process.terminate()


def answers(port: int, texts: Sequence[str]) -> tuple[list[Any], list[float]]:
    """Return outputs and latencies in seconds of requests with one text each, over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    outputs, seconds = [], []
    for text in texts:
        began = time.perf_counter()
        connection.request("POST", "/score", json.dumps({"inputs": [text]}))
        outputs.append(json.loads(connection.getresponse().read())["outputs"][0])
        seconds.append(time.perf_counter() - began)
    connection.close()
    return outputs, seconds


def measure(port: int, texts: Sequence[str], clients: int) -> tuple[float, list[float], list[Any]]:
    """Return requests a second, latencies in seconds, and the outputs in the order of the texts."""
    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as threads:
        found = list(threads.map(lambda first: answers(port, texts[first::clients]), range(clients)))
    rate = len(texts) / (time.perf_counter() - began)
    outputs: list[Any] = [None] * len(texts)
    for first, (some, _) in enumerate(found):
        outputs[first::clients] = some
    return rate, [one for _, seconds in found for one in seconds], outputs


def main() -> None:
    """Measure in rounds that take turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path)
    arguments = parser.parse_args()
    random = Random(1)
    texts = [" ".join(random.choices(WORDS, k=random.randint(8, 40))) for _ in range(REQUESTS)]
    print(describe())
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, part) for part in ("drawn", "classifier")]
        for folder in folders:
            folder.mkdir()
        model = classifier(arguments.checkpoint or drawn_checkpoint(folders[0]), folders[1])
        with served(model) as port:
            answers(port, texts[:32])
            rounds = [[measure(port, texts, clients) for clients in (1, CLIENTS)] for _ in range(ROUNDS)]
    for number, clients in enumerate((1, CLIENTS)):
        rates = [one[number][0] for one in rounds]
        seconds = sorted(value for one in rounds for value in one[number][1])
        p50, p99 = (1e3 * seconds[int(part * len(seconds))] for part in (0.5, 0.99))
        spread = f"{min(rates):.0f}-{max(rates):.0f}"
        print(f"| {clients} | {statistics.median(rates):.0f} ({spread}) | {p50:.1f} | {p99:.1f} |")
    pairs = list(zip(rounds[0][0][2], rounds[0][1][2], strict=True))
    furthest = max(
        abs(a["probabilities"][label] - b["probabilities"][label]) for a, b in pairs for label in a["probabilities"]
    )
    same = sum(a["label"] == b["label"] for a, b in pairs)
    print(f"same label: {same} of {len(pairs)}; largest difference of a probability: {furthest:.2g}")


if __name__ == "__main__":
    main()
