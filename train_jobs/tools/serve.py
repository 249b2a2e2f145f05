"""Predictions on request: the scoring script of an Azure ML managed endpoint, and a local server.

    python -m train_jobs.tools.serve --model MODEL_FOLDER --port 8080
    curl -d '{"inputs": ["The capital of France is [MASK]."], "top": 3}' http://127.0.0.1:8080/score

`train_jobs.inference.score_requests` describes requests and responses. An invalid request returns {"error": text}.

The server listens on the loopback interface. ORCHESTRATOR_SERVE_TOKEN, or a file of mode 0600 that
ORCHESTRATOR_SERVE_TOKEN_FILE names, contains a token that every request must present; any other address needs one:

    export ORCHESTRATOR_SERVE_TOKEN=$(openssl rand -hex 32)
    curl -H "Authorization: Bearer $ORCHESTRATOR_SERVE_TOKEN" -d '{"inputs": ["A fine film."]}' http://127.0.0.1:8080/score

On an Azure endpoint this file is deployed with the package next to it as train_jobs.zip.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if (_archive := Path(__file__).with_name("train_jobs.zip")).is_file():
    sys.path.insert(0, str(_archive))

if TYPE_CHECKING:
    from train_jobs.inference.predictor import Predictor

_LOADED: dict[str, Any] = {}  # Azure's scoring script is a module with `init` and `run`, so the model is global


def init() -> None:
    """Load the model in AZUREML_MODEL_DIR; Azure calls this once per process."""
    # The directory contains the registered model under its name and version, at a depth that Azure decides.
    load(next(path.parent for path in sorted(Path(os.environ["AZUREML_MODEL_DIR"]).rglob("config.json"))))


def load(folder: Path, trust: dict[str, Any] | None = None) -> Predictor:
    """Load a model for `run`, and return its predictor.

    Args:
        folder: Hugging Face folder of a BERT.
        trust: values of `train_jobs.config.TrustConfig`; None: its defaults.

    Raises:
        UserError: the folder does not contain a BERT that can predict, or the GPU cannot be used.
    """
    import torch

    from train_jobs.config import PredictConfig
    from train_jobs.engine.runtime.distributed import uses_gpu
    from train_jobs.engine.runtime.gpu_check import require_usable_gpu
    from train_jobs.inference.loaded_model import load_predictor
    from train_jobs.inference.score_requests import limited

    config = PredictConfig.model_validate({"model": folder, "input": "inputs.jsonl", "trust": trust or {}})
    device = torch.device("cuda", 0) if uses_gpu("auto") else torch.device("cpu")
    if device.type == "cuda":
        require_usable_gpu(device)
    task = limited(load_predictor(config, device, single_texts=True))
    _LOADED["task"] = task
    return task


def run(raw: str) -> dict[str, Any]:
    """Return the response to one request; Azure calls this with the body of the request.

    Args:
        raw: JSON of the request.

    Returns:
        {"outputs": [...]} or {"error": text}.
    """
    from train_jobs.config import UserError
    from train_jobs.inference.score_requests import predict_requests, read_request

    try:
        (outputs,) = predict_requests(_LOADED["task"], [read_request(raw, _LOADED["task"])])
        return {"outputs": outputs}
    except ValueError as problem:
        return {"error": f'invalid request, need {{"inputs": [text, ...], "top": 5}}: {problem}'}
    except UserError as problem:  # out of memory, for example
        return {"error": str(problem)}


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, serve until SIGTERM or Ctrl-C, and return an exit code."""
    parser = argparse.ArgumentParser(
        prog="train_jobs.tools.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of a BERT")
    parser.add_argument("--port", type=int, default=0, help="port (default: any free one)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="IP address to listen on; other than loopback it needs a token (%(default)s)",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="host name that clients may use in addition to localhost and IP addresses; repeatable",
    )
    from train_jobs.engine.runtime.boundary import add_trust, trust_of

    add_trust(parser)
    arguments = parser.parse_args(argv)
    from train_jobs.config import UserError
    from train_jobs.tools.serve_access import Access, read_token
    from train_jobs.tools.serve_http import listen, serve

    try:
        access = Access(read_token(os.environ), frozenset(map(str.lower, arguments.allow_host)))
        with listen(arguments.host, arguments.port, access) as socket:
            serve(socket, load(arguments.model, trust_of(arguments).model_dump()), access)
    except UserError as problem:
        print(problem, file=sys.stderr, flush=True)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    from train_jobs.artifacts.redaction import redact_output

    redact_output()
    raise SystemExit(main())
