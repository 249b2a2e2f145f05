"""The checks of a real workspace, rehearsed against the double."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from benchmarks import azure_day
from benchmarks.azure_day import CHECKS, Day, main, pin_images, read_rows, run_checks, table
from orchestrator.testing import AzureDouble

DIGEST = f"sha256:{'5' * 64}"


class Registry(BaseHTTPRequestHandler):
    """A registry of images that has every tag."""

    def do_HEAD(self) -> None:
        """Answer with a digest."""
        known = self.path.startswith("/v2/azureml/") or self.path.startswith("/v2/aifx/")
        self.send_response(200 if known and "/manifests/" in self.path else 404)
        self.send_header("Docker-Content-Digest", DIGEST)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.5")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def start_scheduled_jobs(azure: AzureDouble, done: threading.Event) -> None:
    """Start a job of each schedule that has none running, which Azure does by its clock."""
    while not done.wait(60):  # else they leave no processor to the run that they supervise
        running = {job.schedule for job in azure.jobs.all() if job.ended is None}
        for name in [one["name"] for one in azure.state.below("schedules")]:
            if name not in running:
                azure.trigger(name)


@pytest.mark.slow
def test_all_checks_hold_on_the_double(
    tmp_path: Path, running_azure: AzureDouble, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "5")  # the runs need the processor
    words = ["--folder", str(tmp_path / "day"), "--sku", "Standard_D16s_v5", "--registry", registry, "-y"]
    done = threading.Event()
    clock = threading.Thread(target=start_scheduled_jobs, args=(running_azure, done))
    clock.start()
    code = main(words)
    done.set()
    clock.join()
    rows = read_rows(tmp_path / "day")
    assert {name: row.detail for name, row in rows.items() if not row.passed} == {}
    assert code == 0
    assert [*rows] == [check.name for check in CHECKS]
    assert DIGEST in rows["images_have_digests"].detail
    text = (tmp_path / "day" / "table.md").read_text()
    assert text.count("| holds |") == len(CHECKS)
    requests = len(running_azure.requests())
    assert main(words) == 0, "a second start has nothing left to check"
    assert len(running_azure.requests()) == requests


@pytest.mark.long
def test_failing_check_is_repeated_and_passed_ones_are_not(
    tmp_path: Path, azure: AzureDouble, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ("signed_in", "images_have_digests", "cluster_is_created")
    checks = tuple(check for check in CHECKS if check.name in wanted)
    monkeypatch.setattr(azure_day, "CHECKS", checks)
    day = Day(tmp_path / "day", "eastus", "Standard_D16s_v5", "spot", registry="http://127.0.0.1:9")
    first = [(row.check, row.passed) for row in run_checks(day)]
    assert first == [("signed_in", True), ("images_have_digests", False), ("cluster_is_created", True)]
    assert "**does not hold**" in table(read_rows(day.folder))
    day = Day(tmp_path / "day", "eastus", "Standard_D16s_v5", "spot", registry=registry)
    assert [(row.check, row.passed) for row in run_checks(day)] == [("images_have_digests", True)]
    lines = (tmp_path / "day" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["passed"] for line in lines] == [True, False, True, True]
    assert azure.requests("PUT */computes/azure-day")


@pytest.mark.slow
def test_model_is_registered_after_the_home_was_removed(tmp_path: Path, running_azure: AzureDouble) -> None:
    """One of the checks moves the home folder away."""
    day = Day(tmp_path / "day", "eastus", "Standard_D16s_v5", "spot")
    day.folder.mkdir()
    azure_day.cluster_is_created(day)
    azure_day.job_completes(day)
    (day.folder / "home").rename(day.folder / "home-of-before")
    assert azure_day.model_is_registered(day).startswith("azure-day:")
    assert running_azure.requests("PUT */models/azure-day/versions/*")


def test_digests_are_written_into_facts_and_dockerfile(tmp_path: Path, registry: str) -> None:
    images, dockerfile = tmp_path / "images.json", tmp_path / "Dockerfile"
    images.write_text(azure_day.IMAGES.read_text())
    dockerfile.write_text(azure_day.DOCKERFILE.read_text())
    pin_images(registry, images, dockerfile)
    facts = json.loads(images.read_text())
    assert {one["digest"] for one in facts["items"].values()} == {DIGEST}
    assert [one["tag"] for one in facts["items"].values()] == [one["tag"] for one in azure_day._images().values()]
    assert f"ARG BASE={facts['items']['train-gpu']['image']}@{DIGEST}\n" in dockerfile.read_text()
    again = images.read_text(), dockerfile.read_text()
    pin_images(registry, images, dockerfile)
    assert (images.read_text(), dockerfile.read_text()) == again


def test_nothing_else_is_tried_without_sign_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUBSCRIPTION_ID", "RESOURCE_GROUP", "WORKSPACE"):
        monkeypatch.delenv(f"ORCHESTRATOR_AZURE_{name}", raising=False)
    (only,) = run_checks(Day(tmp_path / "day", "eastus", "Standard_D16s_v5", "spot"))
    assert (only.check, only.passed) == ("signed_in", False)


def test_declined_question_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert main(["--folder", str(tmp_path / "day")]) == 1
    assert not (tmp_path / "day").exists()
