"""Predictions on request: the scoring script of an Azure ML managed endpoint, and a small local server.

    python -m train_jobs.tools.serve --model MODEL_FOLDER --port 8080
    curl -d '{"inputs": ["The capital of France is [MASK]."], "top": 3}' http://127.0.0.1:8080/score

Request: {"inputs": [...], "top": 5}. An input is a text, {"text": ..., "pair": ...} for a pair of texts, or
{"question": ..., "context": ...} for a question. Response: {"outputs": [...]}, for each input the record that
`train_jobs.predict` writes; for a language model a list of its masks, each a list of {"token", "probability"}, most
likely first. An invalid request returns {"error": text}.

On an Azure endpoint this file is deployed with the package next to it as train_jobs.zip.
"""

from __future__ import annotations

import argparse
import copy
import errno
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ARCHIVE = "train_jobs.zip"
MOST_TEXTS, MOST_TOP, DEFAULT_TOP_K = 64, 100, 5
LARGEST_REQUEST = 1024 * 1024
_LOADED: dict[str, Any] = {}  # Azure's scoring script is a module with `init` and `run`, so the model is global

if (_archive := Path(__file__).with_name(ARCHIVE)).is_file():
    sys.path.insert(0, str(_archive))


def init() -> None:
    """Load the model in AZUREML_MODEL_DIR; Azure calls this once per process."""
    # The directory contains the registered model under its name and version, at a depth that Azure decides.
    load(next(path.parent for path in sorted(Path(os.environ["AZUREML_MODEL_DIR"]).rglob("config.json"))))


def load(folder: Path, trust: dict[str, Any] | None = None) -> None:
    """Load a model for `run`.

    Args:
        folder: Hugging Face folder of a BERT.
        trust: values of `train_jobs.config.TrustConfig`; None: its defaults.

    Raises:
        UserError: the folder does not contain a BERT that can predict.
    """
    import torch

    from train_jobs.config import PredictConfig
    from train_jobs.inference.loaded_model import load_predictor

    config = PredictConfig.model_validate({"model": folder, "input": "inputs.jsonl", "trust": trust or {}})
    _LOADED["task"] = load_predictor(config, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def run(raw: str) -> dict[str, Any]:
    """Return the response to one request; Azure calls this with the body of the request.

    Args:
        raw: JSON of the request.

    Returns:
        {"outputs": [...]} or {"error": text}.
    """
    from train_jobs.config import UserError

    try:
        document = json.loads(raw)
        inputs, top = document["inputs"], document.get("top", DEFAULT_TOP_K)
        _check(inputs, top)
        return {"outputs": _answers(inputs, top)}
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        return {"error": f'invalid request, need {{"inputs": [text, ...], "top": 5}}: {problem}'}
    except UserError as problem:  # out of memory, for example
        return {"error": str(problem)}


def _check(inputs: Any, top: Any) -> None:
    if not isinstance(inputs, list):
        raise ValueError("inputs is not a list")
    if not 0 < len(inputs) <= MOST_TEXTS:
        raise ValueError(f"{len(inputs)} inputs, need 1 to {MOST_TEXTS}")
    if not isinstance(top, int) or not 0 < top <= MOST_TOP:
        raise ValueError(f"invalid top {top!r}, need 1 to {MOST_TOP}")


def _answers(inputs: list[Any], top: int) -> list[Any]:
    from train_jobs.tasks.rows.tables import RowTable

    # A copy per request: requests are served by several threads and have different settings.
    task = copy.copy(_LOADED["task"])
    paired = any(isinstance(one, dict) and "pair" in one for one in inputs)
    data = task.config.data.model_copy(update={"pair": "pair" if paired else None})
    task.config = task.config.model_copy(update={"top_k": top, "data": data})
    rows = [_row(one, task.text_columns) for one in inputs]
    columns = {name: [row[name] for row in rows] for name in task.text_columns}
    found = task.predict(RowTable(Path("inputs"), columns, list(range(1, len(rows) + 1))), 0).records
    return [_plain(record) for record in found]


def _row(one: Any, columns: list[str]) -> dict[str, str]:
    row = {columns[0]: one} if isinstance(one, str) and len(columns) == 1 else one
    if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in columns):
        need = "a text" if len(columns) == 1 else f"of the form {dict.fromkeys(columns, '...')}"
        raise ValueError(f"an input is not {need}: {str(one)[:80]}")
    return row


def _plain(record: dict[str, Any]) -> Any:
    """Return a record as JSON; of a language model only its masks, the format of the first version."""
    found = {name: getattr(value, "tolist", lambda same=value: same)() for name, value in record.items()}
    return found["masks"] if found.keys() == {"masks"} else found


class Handler(BaseHTTPRequestHandler):
    """Handler of POST /score, like an Azure endpoint, and of GET /, the status of the server."""

    def do_GET(self) -> None:
        """Return the status of the server."""
        self._reply(200, {"status": "ready"})

    def do_POST(self) -> None:
        """Return the response to a request to /score; 404, 413 or 400 with {"error": text} for an invalid one."""
        size = int(self.headers.get("Content-Length") or 0)
        if self.path != "/score":
            return self._reply(404, {"error": f"unknown path {self.path}"})
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
    """Parse the command line, serve on the loopback interface until interrupted, and return an exit code."""
    parser = argparse.ArgumentParser(prog="train_jobs.tools.serve", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of a BERT")
    parser.add_argument("--port", type=int, default=0, help="port (default: any free one)")
    from train_jobs.engine.runtime.boundary import add_trust, trust_of

    add_trust(parser)
    arguments = parser.parse_args(argv)
    from train_jobs.config import UserError

    try:
        load(arguments.model, trust_of(arguments).model_dump())
        with _server(arguments.port) as server:
            print(json.dumps({"port": server.server_address[1]}), flush=True)
            server.serve_forever()
    except UserError as problem:
        print(problem, file=sys.stderr, flush=True)
        return problem.exit_code
    return 0


def _server(port: int) -> ThreadingHTTPServer:
    """Return a server on the loopback interface.

    Raises:
        ConflictError: the port is in use.
        SpecError: the port does not exist, or this user may not use it.
    """
    from train_jobs.config import ConflictError, SpecError

    free = "--port 0 uses any free port"
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as problem:
        if isinstance(problem, OSError) and problem.errno == errno.EADDRINUSE:
            raise ConflictError(f"cannot listen on port {port}: it is in use", fix=free) from None
        raise SpecError(f"cannot listen on port {port}", facts={"why": problem}, fix=free) from None


if __name__ == "__main__":
    raise SystemExit(main())
