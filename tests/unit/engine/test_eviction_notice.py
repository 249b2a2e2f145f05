"""Eviction notices of the metadata service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import MICRO, wait_for, write_corpus
from train_jobs.artifacts.host import METADATA_VARIABLE
from train_jobs.engine.runtime.stop import listen_for_eviction

ROOT = Path(__file__).resolve().parents[3]
QUIET: dict[str, Any] = {"DocumentIncarnation": 1, "Events": []}


def event(kind: str, *machines: str, when: str = "Sat, 21 Nov 2026 10:00:00 GMT") -> dict[str, Any]:
    return {"EventId": "1", "EventType": kind, "Resources": [*machines], "EventStatus": "Scheduled", "NotBefore": when}


class Metadata(ThreadingHTTPServer):
    """The metadata service of the machine aml_3."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.documents: list[Any] = [QUIET]
        """One for each question about events; the last again and again."""
        self.asked: list[str] = []

    @property
    def variables(self) -> dict[str, str]:
        return {METADATA_VARIABLE: f"http://127.0.0.1:{self.server_port}"}


class Answers(BaseHTTPRequestHandler):
    server: Metadata

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        known = self.headers.get("Metadata") == "true" and "api-version=" in self.path
        self.send_response(200 if known else 400)
        self.end_headers()
        if self.path.startswith("/metadata/instance/compute/name?"):
            self.wfile.write(b"aml_3")
        elif self.path.startswith("/metadata/scheduledevents?"):
            documents = self.server.documents
            document = documents.pop(0) if len(documents) > 1 else documents[0]
            self.wfile.write(document if isinstance(document, bytes) else json.dumps(document).encode())

    def log_message(self, *_: Any) -> None:
        """Discard the message."""


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with Metadata() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def notices_for(metadata: Metadata, *, documents: list[Any], **environ: str) -> list[str]:
    """Return the notices until polling ends or the last document was read twice."""
    notices: list[str] = []
    metadata.documents = [*documents]
    metadata.asked.clear()
    listen_for_eviction(notices.append, {**metadata.variables, **environ}, seconds=0.01)

    def is_finished() -> bool:
        asks = "eviction" in {thread.name for thread in threading.enumerate()}
        return bool(notices) or not asks or len(metadata.asked) > len(documents) + 2

    wait_for(is_finished, what="an answer")
    return notices


def test_first_eviction_of_this_machine_is_reported_once(metadata: Metadata) -> None:
    documents = [QUIET, QUIET, {**QUIET, "Events": [event("Freeze", "aml_3"), event("Preempt", "aml_1", "aml_3")]}]
    assert notices_for(metadata, documents=documents) == ["Preempt of aml_3, Sat, 21 Nov 2026 10:00:00 GMT"]
    started = [{**QUIET, "Events": [event("Terminate", "aml_3", when="")]}]
    assert notices_for(metadata, documents=started) == ["Terminate of aml_3, now"]


@pytest.mark.parametrize(
    "document",
    [
        {**QUIET, "Events": [event("Preempt", "aml_30"), event("Reboot", "aml_1")]},
        {**QUIET, "Events": [event("Freeze", "aml_3")]},
        {"error": "not found"},
        [],
        b"<html>",
    ],
    ids=["neighbours", "freeze", "error", "list", "html"],
)
def test_other_events_are_not_reported(document: Any, metadata: Metadata) -> None:
    assert notices_for(metadata, documents=[document]) == []
    metadata.documents = [{**QUIET, "Events": [event("Preempt", "aml_3")]}]  # ends the thread


def test_one_process_polls_eviction_none_without_service(metadata: Metadata) -> None:
    notices: list[str] = []
    listen_for_eviction(notices.append, {**metadata.variables, "LOCAL_RANK": "1"})
    listen_for_eviction(notices.append, {})
    assert "eviction" not in {thread.name for thread in threading.enumerate()}
    assert (notices, metadata.asked) == ([], [])


@pytest.mark.long
def test_job_with_eviction_notice_stops_with_checkpoint(metadata: Metadata, tmp_path: Path) -> None:
    config = {key: value for key, value in MICRO.items() if key not in {"recipe", "name", "compute"}}
    config["data"] = {**config["data"], "text": [str(write_corpus(tmp_path / "corpus.txt"))]}
    config["checkpoint"] = {"every": 100000, "keep_best": 0}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    job = subprocess.Popen(
        [*(sys.executable, "-m", "train_jobs.pretrain", "--config", "config.yaml"), "--set", "train.steps=100000"],
        cwd=tmp_path,
        env={**os.environ, **metadata.variables, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    reports = tmp_path / "output" / "metrics.jsonl"
    wait_for(lambda: job.poll() is not None or (reports.is_file() and reports.stat().st_size), what="a step")
    metadata.documents = [{**QUIET, "Events": [event("Preempt", "aml_3")]}]
    output, _ = job.communicate()
    assert job.returncode == 75, output
    assert "eviction: Preempt of aml_3, Sat, 21 Nov 2026 10:00:00 GMT: stopping after this step" in output
    assert len([*(tmp_path / "output" / "checkpoints").glob("*/COMMIT.json")]) == 1
