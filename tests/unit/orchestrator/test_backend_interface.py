"""The interface of a backend: required methods are checked on creation, optional ones are capabilities."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import load_backend, require
from orchestrator.backends.base import Backend, Request, Submission
from orchestrator.backends.capabilities import Deletes, Registers, Resumes, SweepsNatively
from orchestrator.backends.log_query import LogBlock, LogQuery
from orchestrator.runs.status import Handle, RunState, RunStatus
from orchestrator.support.errors import StorageError, UsageError

DOCUMENTS = {
    "plan.json": b'{"run_hash": "1"}',
    "metrics.jsonl": b'{"step": 1}\n{"step": 2}\n{"st',
    "seed-3/metrics.jsonl": b'{"step": 7}\n',
}


class Smallest(Backend):
    """A backend with the required methods and no capability."""

    name = "smallest"

    def prepare(self, plan: Any, *, run: str) -> Submission:
        return Submission(self.name, plan, Request(name=run), (), {}, {})

    def submit(self, submission: Submission) -> Handle:
        return self.handle(submission.run)

    def describe(self, run: str) -> RunStatus:
        return RunStatus(name=run, handle=f"smallest://{run}", state=RunState.COMPLETED, created=0.0, run_hash="1")

    def list(self) -> Iterator[RunStatus]:
        yield self.describe("one")

    def logs(self, run: str, query: LogQuery) -> Iterator[LogBlock]:
        return iter(())

    def cancel(self, run: str) -> None:
        pass

    def fetch(self, run: str, outputs: Sequence[str], to: Path, **_: Any) -> Sequence[Path]:
        return ()

    def read(self, run: str, document: str) -> bytes:
        return DOCUMENTS.get(document, b"")


@pytest.mark.parametrize("method", sorted(Backend.__abstractmethods__))
def test_backend_without_required_method_fails_on_creation(method: str, tmp_path: Path) -> None:
    rest = {name: value for name, value in vars(Smallest).items() if name != method}
    incomplete = type("Incomplete", (Backend,), rest)
    with pytest.raises(TypeError, match=method):
        incomplete(tmp_path)
    assert isinstance(Smallest(tmp_path), Backend)


def test_capability_without_its_method_fails_on_creation(tmp_path: Path) -> None:
    incomplete = type("Incomplete", (Smallest, Deletes), {})
    with pytest.raises(TypeError, match="delete"):
        incomplete(tmp_path)


def test_documents_are_parsed_once_for_all_backends(tmp_path: Path) -> None:
    backend = Smallest(tmp_path)
    assert backend.plan("one") == {"run_hash": "1"}
    assert backend.result("one") == {}
    assert [report["step"] for report in backend.metrics("one")] == [1, 2]
    assert [report["step"] for report in backend.metrics("one", seed=3)] == [7]
    assert backend.names() == ["one"]
    assert (backend.handle("one"), backend.folder("one")) == (Handle("smallest", "one"), None)


def test_plan_with_invalid_json_is_reported_as_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DOCUMENTS, "plan.json", b"{")
    with pytest.raises(StorageError, match="run one: it is damaged"):
        Smallest(tmp_path).plan("one")


def test_require_returns_backend_or_names_alternatives(tmp_path: Path) -> None:
    local = load_backend("local", tmp_path)
    assert require(local, Registers) is local
    with pytest.raises(UsageError) as refusal:
        require(Smallest(tmp_path), Resumes)
    assert refusal.value.message == "cannot resume a run: backend smallest does not support it"
    assert refusal.value.facts == {"supported by": "azure, debug, local"}
    assert json.loads(json.dumps(refusal.value.as_json()))["error"]["kind"] == "usage"


def test_require_without_any_capable_backend_fails(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        require(Smallest(tmp_path), type("Flies", (SweepsNatively,), {"verb": "fly"}))
    assert refusal.value.facts == {"supported by": "no backend"}
