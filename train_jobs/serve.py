"""Answers for masked words: the scoring script of a managed endpoint of Azure ML, and the same as a small server here.

    python -m train_jobs.serve --model MODEL_FOLDER --port 8080
    curl -d '{"inputs": ["The capital of France is [MASK]."], "top": 3}' http://127.0.0.1:8080/score

Request: {"inputs": [text, ...], "top": 5}. Response: {"outputs": [...]}, for each text a list of its masks, and for
each mask a list of {"token", "probability"}, the likeliest first.
What is wrong with a request is answered as {"error": text}. This file stands alone: an endpoint gets nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MOST_TEXTS, MOST_TOP = 64, 100
LARGEST_REQUEST = 1024 * 1024
_LOADED: dict[str, Any] = {}


def init() -> None:
    """Loads the model that AZUREML_MODEL_DIR names; Azure calls it once."""
    root = Path(os.environ["AZUREML_MODEL_DIR"])
    load(next(path.parent for path in sorted(root.rglob("config.json"))))


def load(folder: Path) -> None:
    """Loads a Hugging Face folder."""
    import torch
    from transformers import AutoTokenizer, BertForPreTraining

    torch.set_grad_enabled(False)
    _LOADED["tokenizer"] = AutoTokenizer.from_pretrained(folder)
    _LOADED["model"] = BertForPreTraining.from_pretrained(folder).eval()


def run(raw: str) -> dict[str, Any]:
    """Answers one request; Azure calls it with the body's text."""
    try:
        document = json.loads(raw)
        inputs, top = document["inputs"], document.get("top", 5)
        _check(inputs, top)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        return {"error": f'not of the form {{"inputs": [text, ...], "top": 5}}: {problem}'}
    return {"outputs": [_answer(text, top) for text in inputs]}


def _check(inputs: Any, top: Any) -> None:
    if not isinstance(inputs, list) or not all(isinstance(text, str) for text in inputs):
        raise ValueError("inputs is no list of texts")
    if not 0 < len(inputs) <= MOST_TEXTS:
        raise ValueError(f"{len(inputs)} texts, from 1 to {MOST_TEXTS} are taken")
    if not isinstance(top, int) or not 0 < top <= MOST_TOP:
        raise ValueError(f"top is not from 1 to {MOST_TOP}")


def _answer(text: str, top: int) -> list[list[dict[str, Any]]]:
    tokenizer, model = _LOADED["tokenizer"], _LOADED["model"]
    longest = model.config.max_position_embeddings
    encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=longest)
    logits = model(**encoded).prediction_logits[0]
    found = []
    for position in (encoded["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten().tolist():
        probabilities = logits[position].float().softmax(-1)
        best = probabilities.topk(min(top, len(tokenizer)))
        tokens = tokenizer.convert_ids_to_tokens(best.indices.tolist())
        pairs = zip(tokens, best.values.tolist(), strict=True)
        found.append([{"token": token, "probability": value} for token, value in pairs])
    return found


class Handler(BaseHTTPRequestHandler):
    """POST /score as an endpoint answers it; GET / says that the server lives."""

    def do_GET(self) -> None:
        self._reply(200, {"status": "ready"})

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        if self.path != "/score":
            return self._reply(404, {"error": f"no page {self.path}"})
        if size > LARGEST_REQUEST:
            return self._reply(413, {"error": f"more than {LARGEST_REQUEST} bytes"})
        answer = run(self.rfile.read(size).decode(errors="replace"))
        return self._reply(400 if "error" in answer else 200, answer)

    def _reply(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main(argv: list[str] | None = None) -> int:
    """Loads the model and answers on the loopback interface until it is ended."""
    parser = argparse.ArgumentParser(prog="train_jobs.serve", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of a BERT")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    arguments = parser.parse_args(argv)
    load(arguments.model)
    with ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler) as server:
        print(json.dumps({"port": server.server_address[1]}), flush=True)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
