"""Downloads: the outputs of a run, copied completely or not at all."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from orchestrator.backends.folder.outputs import outputs_of
from orchestrator.backends.folder.run_folder import RunFolder
from orchestrator.client import Orchestrator
from orchestrator.run import Run
from orchestrator.runs.status import RunState
from orchestrator.support.errors import ConflictError, NotFoundError, StorageError
from tests.conftest import tmpfs
from tests.run_folders import make_run, report


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Create a run with a model, two checkpoints (one of them incomplete), code and metrics."""
    run = make_run(tmp_path / "home", "one")
    report(run, 10, loss=1.0)
    run.model.mkdir()
    (run.model / "model.safetensors").write_bytes(b"weights")
    (run.model / "tokenizer").mkdir()
    (run.model / "tokenizer" / "vocab.txt").write_text("[PAD]\n")
    for name, files in (("step-1", ("weights", "COMMIT.json")), ("step-2", ("weights",))):
        (run.outputs / "checkpoints" / name / "shards").mkdir(parents=True)
        for file in (*files, "shards/0"):
            (run.outputs / "checkpoints" / name / file).write_text(name)
    (run.outputs / "checkpoints" / ".step-3.7.tmp").mkdir()
    (run.code / "train_jobs").mkdir(parents=True)
    (run.code / "train_jobs" / "loop.py").write_text("pass\n")
    (run.outputs / "error-0.json").write_text("{}")
    return run


@pytest.fixture
def run(folder: RunFolder) -> Run:
    return Orchestrator(home=folder.path.parent.parent, environ={}).attach("one")


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_outputs_are_submission_and_results_of_the_job(folder: RunFolder) -> None:
    names = ["checkpoints", "code", "logs", "metrics", "model", "plan"]
    assert list(outputs_of(folder)) == names  # this folder has no spec.yaml, so it is not listed
    (folder.outputs / "result.json").write_text("{}")
    (folder.path / "spec.yaml").write_text("")
    assert list(outputs_of(folder)) == [*names, "result", "spec"]
    (folder.outputs / "error-analysis.json").write_text("{}")  # the job's own, no error record of a rank
    assert list(outputs_of(folder)) == sorted([*names, "error-analysis", "result", "spec"])


def test_prepared_store_is_an_output(folder: RunFolder, run: Run, tmp_path: Path) -> None:
    store = tmp_path / "stores" / "wiki"
    store.mkdir(parents=True)
    (store / "manifest.json").write_text("{}")
    (folder.outputs / "result.json").write_text(json.dumps({"store": str(store), "documents": 12}))
    assert run.download("store", to=tmp_path / "to") == [tmp_path / "to" / "wiki"]
    assert tree(tmp_path / "to") == {"wiki/manifest.json"}


def test_copies_keep_their_names_in_the_target_folder(run: Run, tmp_path: Path) -> None:
    paths = run.download("metrics", "model", to=tmp_path / "to" / "there")
    assert paths == [tmp_path / "to/there/metrics.jsonl", tmp_path / "to/there/model"]
    assert tree(tmp_path / "to") == {
        "there/metrics.jsonl",
        "there/model/model.safetensors",
        "there/model/tokenizer/vocab.txt",
    }
    assert (tmp_path / "to/there/model/model.safetensors").read_bytes() == b"weights"


def test_only_committed_checkpoints_are_copied(run: Run, tmp_path: Path) -> None:
    (path,) = run.download("checkpoints", to=tmp_path / "to")
    assert tree(path) == {"step-1/weights", "step-1/COMMIT.json", "step-1/shards/0"}


def test_without_folder_download_goes_to_run_name(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [path.as_posix() for path in run.download()] == [
        f"one/{name}" for name in ("checkpoints", "code", "logs", "metrics.jsonl", "model", "plan.json")
    ]
    assert (tmp_path / "one/logs").is_dir()  # empty, but exists
    assert not [path for path in (tmp_path / "one").iterdir() if path.name.startswith(".")]


def test_unknown_output_names_existing_ones(run: Run, folder: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r'has no output modl \(did you mean "model"\?\)') as caught:
        run.download("metrics", "modl", to=tmp_path / "to")
    assert caught.value.facts == {"state": "completed", "has": "checkpoints, code, logs, metrics, model, plan"}
    with pytest.raises(NotFoundError) as caught:
        run.download("modl", to=tmp_path / "to")
    assert caught.value.fix == f"orchestrator download {run.name} model"
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("state", "fix"),
    [
        (RunState.FAILED, "orchestrator resume one"),
        (RunState.RUNNING, "orchestrator wait one"),
        (RunState.COMPLETED, "orchestrator download one code"),
    ],
)
def test_missing_model_waits_or_resumes_run(
    folder: RunFolder, run: Run, tmp_path: Path, state: RunState, fix: str
) -> None:
    shutil.rmtree(folder.model)
    shutil.rmtree(folder.outputs / "checkpoints")
    folder.write_state(folder.state().model_copy(update={"state": state}))
    with folder.lock() if state == RunState.RUNNING else nullcontext(), pytest.raises(NotFoundError) as caught:
        run.download("model", to=tmp_path / "to")
    assert caught.value.message == "run one has no output model", "no other model is suggested"
    assert (caught.value.facts["state"], caught.value.fix) == (state, fix)


def test_existing_target_is_kept_unless_forced(run: Run, tmp_path: Path) -> None:
    to = tmp_path / "to"
    (to / "model").mkdir(parents=True)
    run.download("model", to=to)  # an empty folder is no conflict
    (to / "model" / "mine").write_text("mine")
    with pytest.raises(ConflictError, match=f"{to / 'model'} already exists") as caught:
        run.download("metrics", "model", to=to)
    assert "--force" in str(caught.value.fix)
    assert {path.name for path in to.iterdir()} == {"model"}
    assert (to / "model" / "mine").read_text() == "mine"
    run.download("metrics", "model", to=to, force=True)
    assert tree(to) == {"metrics.jsonl", "model/model.safetensors", "model/tokenizer/vocab.txt"}
    assert {path.name for path in to.iterdir()} == {"metrics.jsonl", "model"}


def test_all_existing_targets_are_named_together(run: Run, tmp_path: Path) -> None:
    run.download("metrics", "plan", to=tmp_path / "to")
    with pytest.raises(ConflictError) as caught:
        run.download("metrics", "plan", to=tmp_path / "to")
    assert caught.value.facts == {"and": str(tmp_path / "to" / "plan.json")}


def test_full_disk_leaves_no_partial_copy(run: Run, folder: RunFolder, tmp_path: Path) -> None:
    (folder.model / "large").write_bytes(os.urandom(200_000))
    with tmpfs(tmp_path / "disk", "100k") as disk:
        with pytest.raises(StorageError, match=r"cannot download to .*: No space left on device"):
            run.download("metrics", "model", to=disk / "to")
        assert tree(disk) == set()
        assert list((disk / "to").iterdir()) == []


def test_target_that_is_a_file_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        run.download("metrics", to=tmp_path / "file")


def test_output_changed_during_copy_is_not_half_copied(
    run: Run, folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live job deletes its oldest checkpoint during the copy."""

    def delete(done: int, total: int) -> None:
        (folder.outputs / "checkpoints/step-1/weights").unlink(missing_ok=True)
        (folder.outputs / "checkpoints/step-1/shards/0").unlink(missing_ok=True)

    with pytest.raises(ConflictError, match="cannot download run one: it changed"):
        run.download("checkpoints", to=tmp_path / "to", progress=delete)
    assert list((tmp_path / "to").iterdir()) == []


def test_progress_counts_all_bytes(run: Run, folder: RunFolder, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    run.download("model", to=tmp_path / "to", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(7, 13), (13, 13)]


def test_outputs_of_a_live_run_can_be_copied(tmp_path: Path) -> None:
    report(make_run(tmp_path, "live", RunState.RUNNING), 5, loss=1.0)
    (path,) = Orchestrator(home=tmp_path, environ={}).attach("live").download("metrics", to=tmp_path / "to")
    assert '"step": 5' in path.read_text()
