"""A model registered on a real MLflow server: loaded, served, and used by jobs under its name."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.conftest import Console
from tests.mlflow_servers import MlflowServer, running
from tests.unit.finetuning.finetune_jobs import write_model

TUNING = (
    *("--set", "optimizer.learning_rate=0.003", "--set", "train.epochs=2", "--set", "train.precision=fp32"),
    *("--set", "data.max_length=32", "--set", "compute.threads_per_process=1"),
)
EXACT = ("--set", "batching.precision=fp32", "--set", "compute.threads_per_process=1")
BIN = Path(sys.executable).parent  # mlflow starts uvicorn by its name
ROWS: dict[str, tuple[list[dict[str, Any]], tuple[str, ...]]] = {
    "text": ([{"text": "w1 w2"}, {"text": "w20 w21 w22"}], ()),
    "pair": ([{"text": "w1 w2", "pair": "w3"}, {"text": "w20", "pair": "w1 w1"}], ("--set", "data.pair=pair")),
}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def served(log: Path, model: str, **variables: str) -> Iterator[str]:
    """Run `mlflow models serve` until it answers, and yield its address."""
    port = free_port()
    words = ("models", "serve", "-m", model, "--env-manager", "local", "--host", "127.0.0.1", "--port", str(port))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words],
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                "MLFLOW_DISABLE_TELEMETRY": "true",
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
                **variables,
            },
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + 120
        while True:
            try:
                urlopen(f"http://127.0.0.1:{port}/ping", timeout=5).close()
                break
            except (URLError, OSError):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


def write_task(folder: Path, *, pair: bool) -> Path:
    """Write a task whose first word decides the label."""
    folder.mkdir()
    rows = [
        {"text": f"w{number % 30} w{number % 7}", "label": "low" if number % 30 < 15 else "high"}
        | ({"pair": f"w{number % 11}"} if pair else {})
        for number in range(64)
    ]
    for name in ("train", "dev"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = folder / "task.yaml"
    more = "pair: pair\n" if pair else ""
    task.write_text(f"train: train.jsonl\nvalidation: dev.jsonl\ntext: text\nlabel: label\n{more}")
    return task


def result_of(console: Console, *words: str) -> Any:
    done = console(*words, "-o", "json")
    assert done.code == 0, done.err
    assert done.out.startswith("{"), f"stdout has more than the document: {done.out}"
    return done.json


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "pair"])
def test_served_model_predicts_as_the_job(console: Console, kind: str) -> None:
    rows, columns = ROWS[kind]
    write_model(console.cwd)
    task = write_task(console.cwd / "own", pair=kind == "pair")
    (console.cwd / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    place = console.cwd / "server"
    place.mkdir()
    with running(MlflowServer(place)) as server:
        uri = server.uri
        tracked = ("--set", f"tracking.uri={uri}")
        submit = ("submit", "finetune", "--task", str(task), "--model", "model", *TUNING, *tracked)
        name = result_of(console, *submit)["name"]
        registered = result_of(console, "model", "register", name, "--name", "reviews", "--alias", "champion")
        assert (registered["uri"], registered["alias"]) == ("models:/reviews/1", "champion")
        assert result_of(console, "model", "register", name, "--name", "reviews")["version"] == "1"

        predict = ("submit", "predict", "--input", "new.jsonl", *EXACT, *columns)
        of_run = console(*predict, "--model", name, "--output", "run.jsonl")
        assert of_run.code == 0, of_run.err
        expected = [json.loads(line) for line in (console.cwd / "run.jsonl").read_text().splitlines()]
        of_name = ("--model", "models:/reviews@champion", *tracked)
        planned = console(*predict, *of_name, "--dry-run")
        assert "models:/reviews/1" in planned.out, planned.err
        done = console(*predict, *of_name, "--output", "name.jsonl", "--new")
        assert done.code == 0, done.err
        assert (console.cwd / "name.jsonl").read_text() == (console.cwd / "run.jsonl").read_text()
        tuned = result_of(console, "submit", "finetune", "--task", str(task), *of_name, *TUNING)["name"]
        lineage = (console.folder(tuned) / "outputs" / "lineage.json").read_text()
        assert name in lineage, "the run that the version came from"

        hidden = console.cwd / "hidden"
        hidden.mkdir()
        for package in ("train_jobs", "orchestrator"):
            (hidden / f"{package}.py").write_text("raise ModuleNotFoundError('hidden')\n")
        variables = {"MLFLOW_TRACKING_URI": uri, "PYTHONPATH": str(hidden)}
        with served(console.cwd / "serve.log", "models:/reviews@champion", **variables) as address:
            body = json.dumps({"dataframe_records": rows}).encode()
            request = Request(f"{address}/invocations", body, {"Content-Type": "application/json"})
            with urlopen(request, timeout=60) as reply:
                found = json.load(reply)["predictions"]
    for one, other in zip(found, expected, strict=True):
        assert one["label"] == other["label"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
