"""Comparison of two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.client import Orchestrator
from orchestrator.runs.differences import Difference
from orchestrator.runs.status import RunState
from orchestrator.support.errors import StorageError
from tests.run_folders import PLAN, make_run, report


def full_plan(**changes: Any) -> dict[str, Any]:
    """Return a plan with all compared sections."""
    return {
        **PLAN,
        "spec": {
            "train": {"steps": 100, "seed": 1},
            "tags": {},
            "environment": {"variables": {}},
            "compute": {"nodes": 1, "device": "auto"},
        },
        "compute": {"nodes": 1, "device": "cpu"},
        "environment": {"python": "3.11.7", "torch": "2.13.0"},
        "data": {"name": "a.txt", "files": 1, "total_bytes": 9, "sha256": "aa"},
        "snapshot": {"digest": "c0de"},
        **changes,
    }


def compare(home: Path, *, patch: bool = False) -> Difference:
    orchestrator = Orchestrator(home=home, environ={})
    return orchestrator.attach("a").compare(orchestrator.attach("b"), patch=patch)


def test_equal_runs_have_no_differences(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_run(tmp_path, name, plan=full_plan())
    found = compare(tmp_path)
    assert (found.a, found.b) == ("a", "b")
    assert (found.spec, found.compute, found.environment, found.data, found.code) == ({}, {}, {}, {}, None)
    assert found.results == {"state": {"a": "completed", "b": "completed"}}


def test_every_section_lists_differences_with_both_values(tmp_path: Path) -> None:
    make_run(tmp_path, "a", plan=full_plan())
    spec = {
        "train": {"steps": 200, "seed": 1, "new": True},
        "tags": {"team": "nlp"},
        "environment": {"variables": {"HF_TOKEN": "hf_abc", "NCCL_DEBUG": "INFO"}},
        "compute": {"nodes": 2, "device": "gpu"},  # resolved values are compared
    }
    make_run(
        tmp_path,
        "b",
        plan=full_plan(
            spec=spec,
            compute={"nodes": 2, "device": "cpu"},
            environment={"python": "3.12.0"},
            data={"name": "a.txt", "files": 2, "total_bytes": 10, "sha256": "bb"},
        ),
    )
    found = compare(tmp_path)
    assert found.spec == {
        "train.steps": {"a": 100, "b": 200},
        "train.new": {"b": True},
        "tags.team": {"b": "nlp"},
        "environment.variables.HF_TOKEN": {"b": "(not shown)"},
        "environment.variables.NCCL_DEBUG": {"b": "INFO"},
    }
    assert found.compute == {"nodes": {"a": 1, "b": 2}}
    assert found.environment == {"python": {"a": "3.11.7", "b": "3.12.0"}, "torch": {"a": "2.13.0"}}
    assert found.data == {
        "files": {"a": 1, "b": 2},
        "total_bytes": {"a": 9, "b": 10},
        "sha256": {"a": "aa", "b": "bb"},
    }


def test_results_are_compared_with_their_difference(tmp_path: Path) -> None:
    attempt = {"started": 100.0, "ended": 160.0}
    done = make_run(tmp_path, "a", plan=full_plan(), exit_code=0, attempts=[attempt])
    report(done, 100, train_loss=3.0, validation_loss=9.0)
    (done.outputs / "result.json").write_text(json.dumps({"validation_loss": 2.5, "steps": 100, "model": "/a"}))
    going = {"started": 300.0}
    failed = make_run(
        tmp_path, "b", RunState.FAILED, plan=full_plan(), exit_code=1, attempts=[attempt, going], ended=1.0
    )
    report(failed, 40, at=310.0, train_loss=3.5)
    assert compare(tmp_path).results == {
        "state": {"a": "completed", "b": "failed"},
        "attempts": {"a": 1, "b": 2, "difference": 1},
        "exit_code": {"a": 0, "b": 1, "difference": 1},
        "seconds": {"a": 60.0, "b": 70.0, "difference": 10.0},
        "step": {"a": 100, "b": 40, "difference": -60},
        "steps": {"a": 100},
        "train_loss": {"a": 3.0, "b": 3.5, "difference": 0.5},
        "validation_loss": {"a": 2.5},
    }


def write_code(home: Path, name: str, files: dict[str, bytes]) -> None:
    for path, content in files.items():
        target = home / "runs" / name / "code" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def test_code_is_compared_file_by_file(tmp_path: Path) -> None:
    for name, digest in (("a", "c0de"), ("b", "beef")):
        make_run(tmp_path, name, plan=full_plan(snapshot={"digest": digest}))
    same = {"jobs/same.py": b"same\n"}
    write_code(tmp_path, "a", {**same, "jobs/loop.py": b"one\ntwo\n", "jobs/gone.py": b"", "jobs/bytes": b"\xff\x00"})
    write_code(tmp_path, "b", {**same, "jobs/loop.py": b"one\n2\n", "jobs/new.py": b"", "jobs/bytes": b"\xff\x01"})
    code = compare(tmp_path, patch=True).code
    assert code is not None
    assert code.digest == {"a": "c0de", "b": "beef"}
    assert (code.added, code.removed) == (["jobs/new.py"], ["jobs/gone.py"])
    assert code.changed == ["jobs/bytes", "jobs/loop.py"]
    assert code.patch == (
        "--- a/jobs/bytes\n+++ b/jobs/bytes\nnot text\n"
        "--- a/jobs/loop.py\n+++ b/jobs/loop.py\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    )
    plain = compare(tmp_path).code
    assert plain is not None
    assert plain.patch is None


def test_missing_code_is_compared_by_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, digest in (("a", "c0de"), ("b", "beef")):
        make_run(tmp_path, name, plan=full_plan(snapshot={"digest": digest}))
    write_code(tmp_path, "a", {"jobs/loop.py": b"one\n"})
    write_code(tmp_path, "b", {"jobs/loop.py": b"two\n"})
    for elsewhere in ("a", "b"):
        here = {"a": tmp_path / "runs/a", "b": tmp_path / "runs/b", elsewhere: None}
        monkeypatch.setattr(
            "orchestrator.backends.local.backend.LocalBackend.folder", lambda self, name, here=here: here[name]
        )
        code = compare(tmp_path, patch=True).code
        assert code is not None
        assert code.digest == {"a": "c0de", "b": "beef"}
        assert (code.added, code.removed, code.changed, code.patch) == ([], [], [], None)


def test_damaged_run_is_an_error_and_not_a_bug(tmp_path: Path) -> None:
    make_run(tmp_path, "a", plan=full_plan())
    (make_run(tmp_path, "b").path / "plan.json").write_text("{")
    with pytest.raises(StorageError, match="run b: it is damaged"):
        compare(tmp_path)
