"""Runs on Azure: logs of every rank and attempt, metrics, downloads, use from another machine."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.log_query import LogQuery
from orchestrator.client import Orchestrator
from orchestrator.run import Run
from orchestrator.runs.status import RunState
from orchestrator.support.errors import AuthError, ConflictError, NotFoundError
from orchestrator.testing import AzureDouble
from tests.conftest import wait_for, write_corpus, write_spec

pytestmark = pytest.mark.usefixtures("small_snapshot")

PREEMPTED = {"code": "ServiceError", "message": "JobNodePreempted: a compute node of the job was preempted."}
SIZE = "Standard_NC48ads_A100_v4"  # two GPUs


@pytest.fixture
def orchestrator(tmp_path: Path, azure: AzureDouble, monkeypatch: pytest.MonkeyPatch) -> Orchestrator:
    monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.0001")  # pauses before restarts are multiples of it
    return Orchestrator("azure", home=tmp_path / "home", environ={})


@pytest.fixture
def run(orchestrator: Orchestrator, tmp_path: Path, azure: AzureDouble) -> Run:
    """Return an accepted job of two nodes with two ranks each and one restart."""
    write_corpus(tmp_path / "corpus.txt")
    compute = {"cluster": "gpu", "sku": SIZE, "nodes": 2}
    write_spec(tmp_path / "job.yaml", data={"text": ["corpus.txt"]}, compute=compute, max_restarts=1)
    return orchestrator.submit(orchestrator.plan(file=tmp_path / "job.yaml"))


def log(azure: AzureDouble, job: str, rank: int, text: str) -> None:
    """Write the output of a rank of a job."""
    path = azure.folder("workspaceartifactstore") / f"ExperimentRun/dcid.{job}/user_logs/std_log_process_{rank:02}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        stream.write(text)


def outputs(azure: AzureDouble, run: Run) -> Path:
    folder = azure.folder() / "orchestrator" / "runs" / run.name / "outputs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def lines(run: Run, **query: Any) -> list[tuple[int | None, int | None, str]]:
    return [(line.node, line.rank, line.text) for line in run.logs(**query)]


def test_logs_of_all_ranks_name_their_writers(run: Run, azure: AzureDouble) -> None:
    for rank in range(4):
        log(azure, run.name, rank, f"one from {rank}\ntwo from {rank}\n")
    assert lines(run) == [(0, 0, "one from 0"), (0, 0, "two from 0")]
    assert lines(run, all_ranks=True, tail=1) == [(rank // 2, rank, f"two from {rank}") for rank in range(4)]
    assert lines(run, node=1, tail=1) == [(1, 2, "two from 2"), (1, 3, "two from 3")]
    assert lines(run, rank=3, grep="^one") == [(1, 3, "one from 3")]
    for wrong in ({"rank": 4}, {"node": 2}, {"node": 0, "rank": 2}):
        with pytest.raises(NotFoundError):
            lines(run, **wrong)


@pytest.mark.parametrize("follow", [False, True])
def test_tail_shows_last_existing_lines(run: Run, azure: AzureDouble, follow: bool) -> None:
    """Short logs are shown completely; a progress bar that redraws itself is one line."""
    azure.move(run.name, "Completed")
    written = [f"{number:3}%\r{number + 1:3}%" for number in range(15)]
    log(azure, run.name, 0, "".join(f"{line}\n" for line in written))
    for tail, shown in ((20, 15), (15, 15), (14, 14), (2, 2), (0, 0)):
        assert [line for _, _, line in lines(run, tail=tail, follow=follow)] == written[15 - shown :]


def test_shared_cluster_only_grows(orchestrator: Orchestrator, tmp_path: Path, azure: AzureDouble) -> None:
    write_corpus(tmp_path / "corpus.txt")

    def submitted(**compute: Any) -> tuple[int, int, str]:
        section = {"cluster": "gpu", "sku": SIZE, **compute}
        write_spec(tmp_path / "job.yaml", data={"text": ["corpus.txt"]}, compute=section, train={"seed": len(compute)})
        orchestrator.submit(orchestrator.plan(file=tmp_path / "job.yaml"), new=True)
        scale = azure.state.resources["computes/gpu"]["properties"]["properties"]["scaleSettings"]
        return scale["minNodeCount"], scale["maxNodeCount"], scale["nodeIdleTimeBeforeScaleDown"]

    assert submitted(min_nodes=1, idle_seconds=600) == (1, 1, "PT10M")
    assert submitted(nodes=2) == (1, 2, "PT10M"), "without a scale, the cluster grows only as far as the job needs"
    assert submitted() == (1, 2, "PT10M")
    assert submitted(max_nodes=1) == (1, 1, "PT10M"), "an explicit scale is applied"


def test_secret_in_a_log_is_hidden(run: Run, azure: AzureDouble) -> None:
    log(azure, run.name, 0, "reading https://a.blob.core.windows.net/c/b?sv=1&sig=abcdefgh%3D\nBearer abcdefghij\n")
    text = "".join(line.text for line in run.logs())
    assert "abcdefgh" not in text
    assert text.count("REDACTED") == 2


def test_follow_shows_all_attempts_and_starts_the_second(run: Run, azure: AzureDouble) -> None:
    azure.move(run.name, "Running")
    log(azure, run.name, 0, "first attempt\nhalf a line")
    seen: list[str] = []
    idle = threading.Event()

    def follow() -> None:
        for block in run.log_blocks(LogQuery(follow=True)):
            seen.extend(line.text for line in block.lines())
            if not block.data:
                idle.set()

    follower = threading.Thread(target=follow)
    follower.start()
    assert idle.wait(30)
    assert seen == ["first attempt"]
    azure.move(run.name, "Failed", PREEMPTED)
    second = f"{run.name}-a2"
    wait_for(lambda: azure.jobs.get(second), what="the second attempt")
    azure.move(second, "Running")
    log(azure, second, 0, "second attempt\n")
    wait_for(lambda: "second attempt" in seen, what="its log")
    azure.move(second, "Completed")
    follower.join(30)
    assert not follower.is_alive()
    assert seen == ["first attempt", "half a line", "second attempt"]
    status = run.status()
    assert (status.state, status.attempt) == (RunState.COMPLETED, 2)
    assert [attempt.state for attempt in status.attempts] == [RunState.PREEMPTED, RunState.COMPLETED]
    assert lines(run) == [(0, 0, text) for text in seen]


def test_status_has_what_the_job_reported(run: Run, azure: AzureDouble) -> None:
    reports = [{"step": step, "time": time.time() + step, "metrics": {"train_loss": 9.0 - step}} for step in (2, 4)]
    reports.append({"step": 4, "time": time.time() + 4, "metrics": {"sequences_per_second": 100.0}})
    text = "".join(json.dumps(report) + "\n" for report in reports)
    (outputs(azure, run) / "metrics.jsonl").write_text(text + '{"step": 6')
    assert run.status().step is None  # it has not started
    azure.move(run.name, "Running")
    status = run.status()
    assert (status.step, status.steps, status.metrics["train_loss"]) == (4, 12, 5.0)
    assert status.eta is not None
    assert status.cost is not None
    assert list(run.metrics()) == reports
    azure.move(run.name, "Completed")
    status = run.status()
    assert (status.state, status.exit_code, status.ranks) == (RunState.COMPLETED, 0, dict.fromkeys(range(4), 0))
    asked = len(azure.requests())
    assert run.status() == status
    assert len(azure.requests()) == asked  # a finished run is not polled


def test_status_names_a_slow_rank_until_it_recovers(run: Run, azure: AzureDouble) -> None:
    azure.move(run.name, "Running")
    path = outputs(azure, run) / "metrics.jsonl"
    started = run.status().started or 0.0

    def report(*, after: float, ratio: float) -> str | None:
        metrics = {"slowest_rank": 3.0, "slowest_rank_ratio": ratio}
        with path.open("a") as stream:
            stream.write(json.dumps({"step": 1, "time": started + after, "metrics": metrics}) + "\n")
        return run.status().warning

    slow = "rank 3 is slow: its work takes 4.0 times as long as that of the others"
    assert report(after=-100, ratio=4.0) is None, "it is of an earlier attempt"
    assert [report(after=after, ratio=4.0) for after in (0, 30, 60)] == [None, None, slow]
    assert report(after=70, ratio=1.0) is None


def test_error_of_failed_rank_is_the_reason(run: Run, azure: AzureDouble) -> None:
    azure.move(run.name, "Running")
    for rank, kind in ((0, "peer"), (2, "memory")):
        left = {"error": {"kind": kind}, "text": f"error[{kind}]: of rank {rank}"}
        (outputs(azure, run) / f"error-{rank}.json").write_text(json.dumps(left))
    message = "Execution failed. User process '2' exited with status code 1. Please check log file"
    azure.move(run.name, "Failed", {"code": "UserError", "message": message})
    status = run.status()
    assert (status.state, status.exit_code, status.reason) == (RunState.FAILED, 1, "error[memory]: of rank 2")


def checkpoint(folder: Path, step: int, *, committed: bool = True) -> None:
    place = folder / "checkpoints" / f"step-{step:08}"
    place.mkdir(parents=True)
    (place / "model.safetensors").write_bytes(b"weights" * 1000)
    digest = hashlib.sha256(b"weights" * 1000).hexdigest()
    commit = {"step": step, "validation_loss": None, "files": {"model.safetensors": {"bytes": 7000, "sha256": digest}}}
    if committed:
        (place / "COMMIT.json").write_text(json.dumps(commit))


def test_download_of_a_running_job_has_no_partial_files(run: Run, azure: AzureDouble, tmp_path: Path) -> None:
    azure.move(run.name, "Running")
    folder = outputs(azure, run)
    checkpoint(folder, 4)
    checkpoint(folder, 8, committed=False)
    (folder / "metrics.jsonl").write_text('{"step": 4, "time": 1.0, "metrics": {}}\n')
    (outputs(azure, Run(run._backend, run.handle.__class__("azure", f"{run.name}-2"))) / "secret.txt").write_text("no")
    done: list[tuple[int, int]] = []
    here = run.download("checkpoints", to=tmp_path / "to", progress=lambda *now: done.append(now))
    assert here == [tmp_path / "to" / "checkpoints"]
    assert [path.name for path in here[0].iterdir()] == ["step-00000004"]
    assert done[-1][0] == done[-1][1] > 7000
    with pytest.raises(ConflictError, match="already exists"):
        run.download("checkpoints", to=tmp_path / "to")
    run.download("checkpoints", to=tmp_path / "to", force=True)
    with pytest.raises(NotFoundError) as failure:
        run.download("modle", to=tmp_path / "elsewhere")
    assert failure.value.facts == {"state": "running", "has": "checkpoints, metrics, plan, spec"}
    with pytest.raises(NotFoundError) as failure:
        run.download("model", to=tmp_path / "elsewhere")
    assert failure.value.fix == f"orchestrator wait {run.name}"
    assert not (tmp_path / "elsewhere").exists()
    everything = {path.name for path in run.download(to=tmp_path / "all")}
    assert everything == {"checkpoints", "metrics.jsonl", "plan.json", "spec.yaml"}


def test_edited_predictions_are_kept(
    run: Run, azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record on this machine remembers the delivery: a run on Azure has no folder here."""
    (outputs(azure, run) / "predictions.jsonl").write_text("{}\n")
    azure.move(run.name, "Completed")
    path = tmp_path / "labels.jsonl"
    monkeypatch.setattr(Run, "delivery", path)
    assert run.deliver() == path
    assert path.read_text() == "{}\n"
    path.write_text("notes")
    with pytest.raises(ConflictError, match="changed since"):
        run.deliver()
    assert path.read_text() == "notes"


def test_markers_of_folders_are_no_outputs(run: Run, azure: AzureDouble, tmp_path: Path) -> None:
    """Blobfuse and ADLS Gen2 write an empty blob for each folder."""
    azure.move(run.name, "Completed")
    checkpoint(outputs(azure, run), 4)
    container, top = azure.storage.datastores["workspaceblobstore"], f"orchestrator/runs/{run.name}/outputs"
    for folder in ("model", "checkpoints", "checkpoints/step-00000004"):
        azure.storage.write(container, f"{top}/{folder}", [b""], {"hdi_isfolder": "true"}, "")
    (outputs(azure, run) / "model" / "config.json").write_text("{}")
    here = run.download("model", "checkpoints", to=tmp_path / "to")
    found = sorted(path.name for folder in here for path in folder.rglob("*") if path.is_file())
    assert found == ["COMMIT.json", "config.json", "model.safetensors"]
    run._backend.delete(run.name)
    assert [blob.name for blob in azure.storage.blobs(container, top)] == []


def test_download_of_damaged_checkpoint_is_refused(run: Run, azure: AzureDouble, tmp_path: Path) -> None:
    checkpoint(outputs(azure, run), 4)
    (outputs(azure, run) / "checkpoints" / "step-00000004" / "model.safetensors").write_bytes(b"WEIGHTS" * 1000)
    with pytest.raises(ConflictError, match="is damaged"):
        run.download("checkpoints", to=tmp_path / "to")
    assert not (tmp_path / "to" / "checkpoints").exists()


def test_interrupted_download_is_resumed(
    run: Run, azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.backends.azure.wire import blobs

    monkeypatch.setattr(blobs, "BLOCK", 1000)
    monkeypatch.setattr(blobs, "THREADS", 1)
    content = bytes(range(256)) * 20
    (outputs(azure, run) / "model").mkdir()
    (outputs(azure, run) / "model" / "model.safetensors").write_bytes(content)
    read, count = blobs.Files.read, []

    def interrupted(files: blobs.Files, name: str, *where: int) -> bytes:
        count.append(where)
        if len(count) == 4:
            raise KeyboardInterrupt
        return read(files, name, *where)

    monkeypatch.setattr(blobs.Files, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.download("model", to=tmp_path / "to")
    (model,) = run.download("model", to=tmp_path / "to")
    assert (model / "model.safetensors").read_bytes() == content
    assert [where[0] for where in count[4:]] == [3000, 4000, 5000]
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["model"]


def test_killed_replacement_leaves_no_partial_output(
    run: Run, azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it deletes the former copy: the new one is in place, and a repeat deletes the rest."""
    azure.move(run.name, "Completed")
    checkpoint(outputs(azure, run), 4)
    to = tmp_path / "to"
    mine = to / "checkpoints" / "step-00000001"
    mine.mkdir(parents=True)
    for name in ("COMMIT.json", "model.safetensors"):
        (mine / name).write_text("mine")
    remove = shutil.rmtree

    def kill(folder: Path) -> None:
        next(path for path in sorted(folder.rglob("*")) if path.is_file()).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", kill)
    with pytest.raises(KeyboardInterrupt):
        run.download("checkpoints", to=to, force=True)
    assert [path.name for path in (to / "checkpoints").iterdir()] == ["step-00000004"]
    monkeypatch.setattr(shutil, "rmtree", remove)
    run.download("checkpoints", to=to, force=True)
    assert [path.name for path in to.iterdir()] == ["checkpoints"]
    assert sorted(path.name for path in to.rglob("*.*")) == ["COMMIT.json", "model.safetensors"]


def test_resumed_download_skips_rotated_checkpoints(
    run: Run, azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.backends.azure.wire import blobs

    monkeypatch.setattr(blobs, "BLOCK", 1000)
    monkeypatch.setattr(blobs, "THREADS", 1)
    checkpoint(outputs(azure, run), 4)
    checkpoint(outputs(azure, run), 8)
    read, count = blobs.Files.read, []

    def interrupted(files: blobs.Files, name: str, *where: int) -> bytes:
        count.append(where)
        if len(count) == 12:
            raise KeyboardInterrupt
        return read(files, name, *where)

    monkeypatch.setattr(blobs.Files, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.download("checkpoints", to=tmp_path / "to")
    left = {path.name.partition(".")[0] for path in (tmp_path / "to").rglob("*") if path.is_file()}
    assert left == {"COMMIT", "model"}
    shutil.rmtree(outputs(azure, run) / "checkpoints" / "step-00000004")
    changed = outputs(azure, run) / "checkpoints" / "step-00000008" / "model.safetensors"
    changed.write_bytes(changed.read_bytes())  # another ETag
    checkpoint(outputs(azure, run), 12)
    (found,) = run.download("checkpoints", to=tmp_path / "to")
    files = sorted(str(path.relative_to(found)) for path in found.rglob("*") if path.is_file())
    kept = ("COMMIT.json", "model.safetensors")
    assert files == [f"step-{step:08}/{name}" for step in (8, 12) for name in kept]
    assert len(list(found.iterdir())) == 2
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["checkpoints"]


def test_interrupted_upload_is_resumed(azure: AzureDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.backends.azure.backend import AzureBackend
    from orchestrator.backends.azure.wire import blobs

    monkeypatch.setattr(blobs, "BLOCK", 1000)
    content = bytes(range(256)) * 20
    files = blobs.Files(AzureBackend(Path("unused")).wire({}), "workspaceblobstore")
    sent, lost = [], blobs._retry_while_busy

    def fail_fourth(ask: Callable[[], Any]) -> Any:
        sent.append(ask)
        if len(sent) == 5:  # the first request lists the folder
            raise KeyboardInterrupt
        return lost(ask)

    with monkeypatch.context() as patch:
        patch.setattr(blobs, "_retry_while_busy", fail_fourth)
        with pytest.raises(KeyboardInterrupt):
            files.upload("some/folder/", {"one.bin": content})
    assert len(azure.requests("PUT *one.bin")) == 3
    assert files.upload("some/folder/", {"one.bin": content, "two.txt": b"2"}) == len(content) + 1
    assert (azure.folder() / "some" / "folder" / "one.bin").read_bytes() == content
    assert len(azure.requests("PUT *one.bin")) == 3 + 3 + 1  # the missing blocks, and their list
    before = len(azure.requests("PUT *"))
    assert files.upload("some/folder/", {"one.bin": content, "two.txt": b"2"}) == 0
    assert len(azure.requests("PUT *")) == before  # existing files are not sent again
    assert files.upload("some/folder/", {"two.txt": b"3"}) == 1


def test_transfer_outlasts_its_signature(azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK asks for a signature of one hour; a large file takes longer."""
    from orchestrator.backends.azure.backend import AzureBackend
    from orchestrator.backends.azure.wire import blobs, control_plane

    monkeypatch.setattr(blobs, "BLOCK", 1000)
    wire, content = AzureBackend(Path("unused")).wire({}), bytes(range(256)) * 20
    files, requests, ask_again = blobs.Files(wire, "workspaceblobstore"), [], blobs._retry_while_busy

    def expire_third(ask: Callable[[], Any]) -> Any:
        requests.append(ask)
        answer = ask_again(ask)
        if len(requests) % 4 == 3:
            azure.storage._signatures.clear()
            monkeypatch.setattr(control_plane, "STORE_SECONDS", -1)
        return answer

    monkeypatch.setattr(blobs, "_retry_while_busy", expire_third)
    assert files.upload("some/folder/", {"one.bin": content}) == len(content)
    monkeypatch.setattr(control_plane, "STORE_SECONDS", 1800)
    files.fetch("some/folder/", files.list("some/folder/"), tmp_path / "to")
    assert (tmp_path / "to" / "one.bin").read_bytes() == content
    monkeypatch.setattr(control_plane, "STORE_SECONDS", 1800)
    wire.store("workspaceblobstore")
    azure.storage._signatures.clear()
    with pytest.raises(AuthError, match="does not accept the key or the signature") as failure:
        files.read("some/folder/one.bin")
    assert "role" not in str(failure.value)


def test_handle_finds_run_from_another_machine(run: Run, azure: AzureDouble, tmp_path: Path) -> None:
    azure.move(run.name, "Failed", PREEMPTED)
    run._backend.restart_if_needed(run.name)
    azure.move(f"{run.name}-a2", "Running")
    elsewhere = Orchestrator(home=tmp_path / "another", environ={})
    assert elsewhere.runs() == []
    assert [status.name for status in Orchestrator("azure", home=tmp_path / "a-third", environ={}).runs()] == [run.name]
    found = elsewhere.attach(f"azure://double/{run.name}")
    ours, theirs = run.status(), found.status()
    assert (theirs.state, theirs.attempt, theirs.handle) == (RunState.RUNNING, 2, ours.handle)
    assert found.plan() == run.plan()
    assert [status.name for status in elsewhere.runs()] == [run.name]  # now it has a record
    with pytest.raises(NotFoundError, match="unknown run 'missing'"):
        elsewhere.attach("azure://double/missing")
    azure.fail_next("GET *runs/*/details", status=403)
    with pytest.raises(AuthError):
        Orchestrator(home=tmp_path / "fourth", environ={}).attach(f"azure://double/{run.name}")
    assert not list((tmp_path / "fourth" / "azure").glob("*"))
    with pytest.raises(ConflictError, match="belongs to workspace double, not elsewhere"):
        elsewhere.attach(f"azure://elsewhere/{run.name}")
    with pytest.raises(NotFoundError, match="workspace elsewhere does not exist"):
        Orchestrator(home=tmp_path / "third", environ={}).attach(f"azure://elsewhere/{run.name}")


def test_list_sends_no_request_for_finished_or_local_runs(
    run: Run, azure: AzureDouble, orchestrator: Orchestrator, tmp_path: Path
) -> None:
    assert [status.name for status in orchestrator.runs()] == [run.name]
    asked = len(azure.requests())
    assert Orchestrator(home=tmp_path / "fresh", environ={}).runs() == []
    assert len(azure.requests()) == asked


def test_delete_removes_all_files_of_only_that_run(run: Run, azure: AzureDouble) -> None:
    other = outputs(azure, Run(run._backend, run.handle.__class__("azure", f"{run.name}-2"))) / "kept.txt"
    other.write_text("kept")
    with pytest.raises(ConflictError):
        run._backend.delete(run.name)
    azure.move(run.name, "Completed")
    run._backend.delete(run.name)
    assert run._backend.names() == []
    assert other.read_text() == "kept"
    assert not list((azure.folder() / "orchestrator" / "runs" / run.name).rglob("*.json"))


def test_supervise_restarts_up_to_its_limit(run: Run, azure: AzureDouble) -> None:
    ended: list[RunState] = []
    waiter = threading.Thread(target=lambda: ended.append(run.wait(60, max_restarts=2).state))
    waiter.start()
    for attempt in (run.name, f"{run.name}-a2", f"{run.name}-a3"):
        wait_for(lambda name=attempt: azure.jobs.get(name), what=attempt)
        azure.move(attempt, "Running")
        azure.move(attempt, "Failed", PREEMPTED)
    waiter.join(60)
    assert ended == [RunState.PREEMPTED]
    assert len(azure.jobs.all()) == 3


def test_metrics_of_each_seed_are_read(run: Run, azure: AzureDouble) -> None:
    folder = outputs(azure, run) / "seed-2"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 7, "time": 1.0, "metrics": {"train_loss": 0.5}}\n{"step": 8, "ti')
    assert [report["step"] for report in run.metrics(seed=2)] == [7]
    assert list(run.metrics(seed=3)) == [], "it has not started"


def test_identity_based_datastore_needs_no_key(run: Run, azure: AzureDouble) -> None:
    log(azure, run.name, 0, "a line\n")
    azure.storage.by_identity = True
    run._backend._wires.clear()
    assert lines(run) == [(0, 0, "a line")]
    (outputs(azure, run) / "result.json").write_text('{"steps": 12}')
    assert run._backend.result(run.name) == {"steps": 12}


def test_no_secret_is_stored_or_printed(
    run: Run, azure: AzureDouble, orchestrator: Orchestrator, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    azure.move(run.name, "Running")
    run.status()
    log(azure, run.name, 0, f"{azure.secrets[-1]}\n")
    texts = [path.read_text(errors="replace") for path in (tmp_path / "home").rglob("*") if path.is_file()]
    output: Callable[[], str] = lambda: "".join(capfd.readouterr())  # noqa: E731
    assert not [secret for secret in azure.secrets if any(secret in text for text in [*texts, output()])]
    assert not [text for text in texts if re.search(r"sig=(?!REDACTED)\w{8}", text)]


def test_az_ml_job_file_is_submitted_and_followed(
    azure: AzureDouble, orchestrator: Orchestrator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.backends.azure.backend import AzureBackend
    from orchestrator.backends.azure.clusters import compute_body

    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print()\n")
    job = {
        "command": "python train.py",
        "code": "src",
        "environment": {"image": "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04:latest"},
        "compute": "azureml:gpu",
    }
    (tmp_path / "job.yml").write_text(json.dumps(job))
    backend = AzureBackend(tmp_path / "home")
    submission = orchestrator.prepare_file(tmp_path / "job.yml")
    with pytest.raises(NotFoundError, match="cluster gpu does not exist"):
        orchestrator.submit(submission)
    body = compute_body(size=SIZE, tier="dedicated", min_nodes=0, max_nodes=1, idle_seconds=60)
    backend.wire({}).put_compute("gpu", {"location": "eastus", **body})
    run = orchestrator.submit(orchestrator.prepare_file(tmp_path / "job.yml"))
    assert orchestrator.attach(str(run.handle)).name == run.name == submission.run
    azure.move(run.name, "Running")
    log_file = azure.folder("workspaceartifactstore") / f"ExperimentRun/dcid.{run.name}/user_logs/std_log.txt"
    log_file.parent.mkdir(parents=True)
    log_file.write_text("hello\n")
    assert [line.text for line in run.logs()] == ["hello"]
    azure.move(run.name, "Completed")
    assert run.wait().state == RunState.COMPLETED
    with pytest.raises(ConflictError, match="exists"):
        orchestrator.submit(submission)
    assert azure.violations == []


def test_prepared_store_is_uploaded_and_trained_from(
    azure: AzureDouble, orchestrator: Orchestrator, tmp_path: Path
) -> None:
    from train_jobs.artifacts.layers import build, merge, read_file
    from train_jobs.config import PretrainConfig
    from train_jobs.corpus.preparation import prepare_store

    write_corpus(tmp_path / "corpus.txt")
    write_spec(tmp_path / "plain.yaml")
    data = read_file(tmp_path / "plain.yaml").tree["data"]
    (tmp_path / "data.yaml").write_text(json.dumps({"data": {**data, "text": [str(tmp_path / "corpus.txt")]}}))
    config = build(PretrainConfig, merge([read_file(tmp_path / "data.yaml")]))
    prepare_store(config.data, tmp_path / "store", progress=lambda text: None)
    compute = {"cluster": "gpu", "sku": SIZE}
    sections = {"data": {"store": str(tmp_path / "store")}, "compute": compute, "train": {"global_batch_size": 8}}
    write_spec(tmp_path / "job.yaml", **sections)
    run = orchestrator.submit(orchestrator.plan(file=tmp_path / "job.yaml"))
    body = azure.job(run.name).properties
    assert "--set 'data.store=${{inputs.text}}'" in body["command"]
    uri = azure.state.resources[body["inputs"]["text"]["uri"].partition("/workspaces/double/")[2]]["properties"][
        "dataUri"
    ]
    uploaded = azure.folder() / uri.partition("/paths/")[2]
    files = sorted(path.relative_to(tmp_path / "store") for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert [(uploaded / name).read_bytes() == (tmp_path / "store" / name).read_bytes() for name in files] == [
        True
    ] * len(files)
    config_sent = json.loads((azure.folder() / "orchestrator" / "runs" / run.name / "job" / "config.json").read_text())
    assert (config_sent["data"]["store"], config_sent["data"]["text"]) == (None, [])
