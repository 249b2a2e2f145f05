"""Valid checkpoints, and everything else that may exist in their place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_disk import Disk
from safetensors.torch import load_file

from orchestrator.backends.folder.outputs import damaged_warning
from train_jobs.artifacts.commit import COMMIT, committed, verify
from train_jobs.artifacts.files import CHECKSUM, checksum
from train_jobs.assembly.starting_point import set_aside_damaged
from train_jobs.config import ConflictError, OptimizerConfig, StorageError, TrainingError
from train_jobs.engine.checkpoint.checkpoints import Checkpoint, CheckpointStore, Retention
from train_jobs.optim.factory import build_optimizer

FILES = ["COMMIT.json", "model.safetensors", "optimizer.safetensors", "state.json"]
NO_STATE: dict[str, Any] = {"state": {}, "param_groups": []}
MOMENTS = ("exp_avg", "exp_avg_sq")
PAGE = 4096


def trained(name: str = "lamb") -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    """Return a layer of 10 KiB and its optimizer after one step."""
    model = torch.nn.Linear(50, 50)
    optimizer = build_optimizer(OptimizerConfig(name=name), model.named_parameters())
    model(torch.randn(4, 50)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def save(store: CheckpointStore, step: int, loss: float | None = None) -> Path:
    weights = {"weight": torch.full((50, 50), float(step)), "bias": torch.zeros(50)}
    store.save(step, weights=weights, optimizer=NO_STATE, state={"loop": {"step": step}}, validation_loss=loss)
    return store.root / f"step-{step:08d}"


def steps_of(store: CheckpointStore) -> list[int]:
    """Return the steps of all folders, valid or not."""
    return sorted(int(path.name.removeprefix("step-")) for path in store.root.iterdir())


def newest_step(store: CheckpointStore) -> int | None:
    """Return the step that a run would resume from, after reading the whole checkpoint."""
    found = store.newest()
    if found is None:
        return None
    assert found.state()["loop"] == {"step": found.step}
    assert found.weights()["weight"][0, 0].item() == found.step
    return found.step


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Return a store with two valid checkpoints, of steps 4 and 8."""
    store = CheckpointStore(tmp_path / "checkpoints", keep_last=3)
    save(store, 4)
    save(store, 8)
    return store


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_checkpoint_round_trip_is_bit_exact(tmp_path: Path, name: str, asynchronous: bool) -> None:
    model, optimizer = trained(name)
    state = {"loop": {"step": 7, "cursor": {"epoch": 1}, "loss_scale": 2.0**15}, "config": {"a": [1, None, "b"]}}
    store = CheckpointStore(tmp_path / "deep" / "checkpoints", keep_last=2, asynchronous=asynchronous)
    store.save(7, weights=model.state_dict(), optimizer=optimizer.state_dict(), state=state)
    saved = store.newest()
    assert saved == Checkpoint(tmp_path / "deep" / "checkpoints" / "step-00000007", 7)
    assert sorted(path.name for path in saved.folder.iterdir()) == FILES
    assert {key: value for key, value in saved.state().items() if key != "optimizer"} == state
    torch.testing.assert_close(saved.weights(), dict(model.state_dict()), rtol=0, atol=0)
    found, expected = saved.optimizer(), optimizer.state_dict()
    assert found["param_groups"] == json.loads(json.dumps(expected["param_groups"])), "tuples became lists"
    torch.testing.assert_close(found["state"], expected["state"], rtol=0, atol=0)


def test_moments_readable_by_name_with_plain_safetensors(tmp_path: Path) -> None:
    _, optimizer = trained()
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, weights={}, optimizer=optimizer.state_dict(), state={})
    moments = load_file(tmp_path / "step-00000001" / "optimizer.safetensors")
    assert moments.keys() == {f"{name}.{key}" for name in ("weight", "bias") for key in ("step", *MOMENTS)}
    torch.testing.assert_close(moments["weight.exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_restored_optimizer_continues_bit_exact(tmp_path: Path) -> None:
    """SGD with momentum and unnamed parameters: its state is indexed by number."""
    (first, again), steps = (torch.nn.Linear(5, 5) for _ in range(2)), [torch.randn(3, 5) for _ in range(4)]
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9)
    train(first, optimizer, steps[:2])
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(2, weights=first.state_dict(), optimizer=optimizer.state_dict(), state={})
    saved = store.newest()
    assert saved is not None
    again.load_state_dict(saved.weights())
    resumed = torch.optim.SGD(again.parameters(), lr=99.0)
    resumed.load_state_dict(saved.optimizer())
    fill_with_zeros_in_place(saved.folder / "optimizer.safetensors")
    train(first, optimizer, steps[2:])
    train(again, resumed, steps[2:])
    torch.testing.assert_close(dict(again.state_dict()), dict(first.state_dict()), rtol=0, atol=0)


def fill_with_zeros_in_place(path: Path) -> None:
    """Overwrite the file in place, visible to memory maps of it."""
    with path.open("r+b") as stream:
        stream.write(bytes(path.stat().st_size))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: list[torch.Tensor]) -> None:
    for one in inputs:
        optimizer.zero_grad()
        model(one).square().mean().backward()
        optimizer.step()


def test_non_tensor_optimizer_state_is_restored(tmp_path: Path) -> None:
    state = {"state": {0: {"momentum_buffer": None, "count": 3}}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, weights={}, optimizer=state, state={})
    saved = store.newest()
    assert saved is not None
    assert saved.optimizer() == state


def test_checkpoint_keeps_dtypes_and_accepts_views(tmp_path: Path) -> None:
    weights = {"view": torch.arange(6.0).view(2, 3).T, "half": torch.ones(2, dtype=torch.bfloat16)}
    store = CheckpointStore(tmp_path, keep_last=1)
    store.save(1, weights=weights, optimizer=NO_STATE, state={})
    saved = store.newest()
    assert saved is not None
    torch.testing.assert_close(saved.weights(), weights, rtol=0, atol=0)


class Odd:
    """A type that is neither a tensor nor a plain value."""


def test_save_of_pickle_only_state_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1)
    state = {"state": {0: {"odd": Odd()}}, "param_groups": [{"params": [0]}]}
    with pytest.raises(TrainingError, match="cannot save the state of the optimizer"):
        store.save(1, weights={"weight": torch.zeros(1)}, optimizer=state, state={})
    assert store.newest() is None


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def append_a_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def fill_with_zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("name", FILES[1:])
@pytest.mark.parametrize("damage", [flip_a_byte, truncate, append_a_byte, empty, fill_with_zeros, Path.unlink])
def test_damaged_file_uses_previous_checkpoint(
    store: CheckpointStore, name: str, damage: Callable[[Path], None]
) -> None:
    damage(store.root / "step-00000008" / name)
    assert not verify(store.root / "step-00000008")
    assert newest_step(store) == 4


@pytest.mark.parametrize("damage", [truncate, empty, fill_with_zeros, Path.unlink])
def test_torn_or_missing_commit_uses_previous_checkpoint(
    store: CheckpointStore, damage: Callable[[Path], None]
) -> None:
    damage(store.root / "step-00000008" / COMMIT)
    assert newest_step(store) == 4


def change_commit(store: CheckpointStore, **changes: Any) -> None:
    path = store.root / "step-00000008" / COMMIT
    document = {**json.loads(path.read_text()), **changes}
    del document[CHECKSUM]
    path.write_text(json.dumps({**document, CHECKSUM: checksum(document)}))


@pytest.mark.parametrize("changes", [{"files": {}}, {"files": []}, {"files": [1]}, {"step": 9}, {"step": "8"}])
def test_commit_with_wrong_contents_is_invalid(store: CheckpointStore, changes: dict[str, Any]) -> None:
    change_commit(store, **changes)
    assert newest_step(store) == 4


@pytest.mark.parametrize("written_as", [1, 3])
def test_valid_checkpoint_of_other_format_refused(store: CheckpointStore, written_as: int) -> None:
    change_commit(store, format=written_as)
    for find in (store.newest, lambda: store.at(8)):
        with pytest.raises(ConflictError, match=f"unknown checkpoint format {written_as}") as caught:
            find()
        assert caught.value.facts == {"need": "format 2", "where": store.root / "step-00000008"}
        assert caught.value.fix is not None
        assert caught.value.fix.startswith("give another --output")


def test_incomplete_checkpoint_of_other_format_is_skipped(store: CheckpointStore) -> None:
    change_commit(store, format=1)
    truncate(store.root / "step-00000008" / "state.json")
    assert newest_step(store) == 4


@pytest.mark.parametrize("written", [[], FILES[1:2], FILES[1:3], FILES[1:]])
def test_incomplete_newer_folder_is_skipped(store: CheckpointStore, written: list[str]) -> None:
    remains = store.root / "step-00000012"
    remains.mkdir()
    for name in written:
        shutil.copy(store.root / "step-00000008" / name, remains)
    assert newest_step(store) == 8


@pytest.mark.parametrize("name", ["latest", "step-99", "step-00000099.tmp", "step-00000099"])
def test_symlink_to_checkpoint_is_ignored(store: CheckpointStore, name: str) -> None:
    (store.root / name).symlink_to(store.root / "step-00000004")
    assert newest_step(store) == 8


@pytest.mark.parametrize("name", ["latest", "step-99", "step-00000099.tmp", "step-00000099"])
def test_renamed_copy_is_ignored(store: CheckpointStore, name: str) -> None:
    shutil.copytree(store.root / "step-00000004", store.root / name)
    assert newest_step(store) == 8


def test_newest_without_valid_checkpoint_is_none(store: CheckpointStore, tmp_path: Path) -> None:
    for step in (4, 8):
        truncate(store.root / f"step-0000000{step}" / "model.safetensors")
    (store.root / "step-00000012").write_text("a file, not a folder")
    assert store.newest() is None
    assert CheckpointStore(tmp_path / "nowhere", keep_last=1).newest() is None


def test_save_replaces_incomplete_folder_of_same_step(store: CheckpointStore) -> None:
    remains = store.root / "step-00000012"
    (remains / "inner").mkdir(parents=True)
    (remains / "model.safetensors.partial").write_bytes(b"left by another writer")
    assert sorted(path.name for path in save(store, 12).iterdir()) == FILES
    assert newest_step(store) == 12


def test_keep_last_keeps_newest_checkpoints(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=2)
    for step in (2, 4, 6, 100):
        save(store, step)
    assert steps_of(store) == [6, 100]
    assert newest_step(store) == 100


def test_incomplete_folders_are_not_counted_and_deleted(store: CheckpointStore) -> None:
    (store.root / "step-00000008" / COMMIT).unlink()
    store.retention = Retention(2)
    save(store, 12)
    assert newest_step(store) == 12
    assert steps_of(store) == [4, 12], "the second newest valid one"


def test_best_checkpoints_outlive_keep_last(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1, keep_best=2)
    for step, loss in ((2, 5.0), (4, 3.0), (5, None), (6, 4.0), (8, 6.0), (9, None)):
        save(store, step, loss)
    assert steps_of(store) == [4, 6, 9]
    again = CheckpointStore(tmp_path, keep_last=1, keep_best=2)
    save(again, 10, 3.5)
    assert steps_of(store) == [4, 10], "what was best is read from the disk"


def test_checkpoints_at_keep_every_are_never_deleted(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1, keep_every=10)
    for step in (5, 10, 15, 20, 25, 26):
        save(store, step)
    assert steps_of(store) == [10, 20, 26]


def test_unreadable_commit_deletes_nothing(store: CheckpointStore) -> None:
    """Storage that fails temporarily: a checkpoint that it does not show may be complete."""
    commit = store.root / "step-00000004" / COMMIT
    commit.unlink()
    commit.symlink_to(commit)  # reading it fails even for root
    with pytest.raises(OSError, match="symbolic links"):
        save(store, 12)
    assert steps_of(store) == [4, 8, 12]


def test_copy_under_other_step_is_not_counted(store: CheckpointStore) -> None:
    shutil.copytree(store.root / "step-00000008", store.root / "step-00000006")
    save(store, 12)
    assert steps_of(store) == [4, 8, 12]


@pytest.mark.parametrize("name", [COMMIT, "model.safetensors"])
@pytest.mark.parametrize("damage", [truncate, Path.unlink])
@pytest.mark.parametrize("keep_last", [1, 2])
def test_new_checkpoint_outlives_newer_incomplete_folders(
    store: CheckpointStore, name: str, damage: Callable[[Path], None], keep_last: int
) -> None:
    """The run died while it committed step 8, or step 8 was damaged later; it resumed from 4 and stopped at 5."""
    damage(store.root / "step-00000008" / name)
    store.retention = Retention(keep_last)
    save(store, 5)
    assert newest_step(store) == 5
    assert steps_of(store) == [4, 5][-keep_last:]


def test_interrupted_deletion_leaves_no_valid_checkpoint(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train_jobs.engine.checkpoint.checkpoints.shutil.rmtree", lambda *_, **__: None)
    store.retention = Retention(1)
    save(store, 12)
    assert {4, 8} < set(steps_of(store))
    assert not any(verify(store.root / f"step-0000000{step}") for step in (4, 8))


def test_foreign_files_are_never_deleted(store: CheckpointStore) -> None:
    for name in ("step-00000001.kept", "best", "step-1"):
        shutil.copytree(store.root / "step-00000004", store.root / name)
    store.retention = Retention(1)
    save(store, 12)
    assert sorted(path.name for path in store.root.iterdir()) == [
        "best",
        "step-00000001.kept",
        "step-00000012",
        "step-1",
    ]


def test_deletion_does_not_follow_symlinks(store: CheckpointStore) -> None:
    (store.root / "step-00000001").symlink_to(store.root / "step-00000008")
    store.retention = Retention(2)
    save(store, 12)
    assert verify(store.root / "step-00000008")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_full_disk_loses_only_this_checkpoint(disk: Disk, asynchronous: bool) -> None:
    """The disk grows page by page from too small to large enough, so that every file after the weights fails once."""
    store = CheckpointStore(disk.folder / "checkpoints", keep_last=5, asynchronous=asynchronous)
    save(store, 4)
    store.collect(wait=True)
    model, optimizer = trained()
    used = shutil.disk_usage(disk.folder).used
    problems = []
    for pages in range(40):
        disk.resize(used + pages * PAGE)
        try:
            store.save(8, weights=model.state_dict(), optimizer=optimizer.state_dict(), state={"loop": {"step": 8}})
            store.collect(wait=True)
        except StorageError as problem:
            problems.append(problem)
            assert steps_of(store) == [4]
            assert newest_step(store) == 4
        else:
            break
    assert steps_of(store) == [4, 8]
    assert {problem.facts["where"] for problem in problems} == {store.root}
    messages = [problem.message for problem in problems]
    foreseen = messages.count("cannot write the checkpoint of step 8: not enough disk space")
    hit = messages.count("cannot write the checkpoint of step 8: the disk is full")
    assert foreseen + hit == len(messages)
    assert foreseen > 0
    assert hit >= 3, "optimizer, state, commit"


def test_read_only_disk_raises_storage_error(disk: Disk) -> None:
    store = CheckpointStore(disk.folder / "checkpoints", keep_last=2)
    save(store, 4)
    disk.make_read_only()
    with pytest.raises(StorageError, match="cannot write the checkpoint of step 8: read-only file system"):
        save(store, 8)
    assert newest_step(store) == 4


def test_flipped_digit_in_commit_is_detected(store: CheckpointStore) -> None:
    """It still parses, but another loss would keep the wrong checkpoint."""
    commit = save(store, 12, loss=4.5) / COMMIT
    commit.write_text(commit.read_text().replace("4.5", "1.5"))
    assert committed(commit.parent) is None
    assert newest_step(store) == 8


def test_commit_without_checksum_is_accepted(store: CheckpointStore) -> None:
    path = store.root / "step-00000008" / COMMIT
    document = json.loads(path.read_text())
    del document[CHECKSUM]
    path.write_text(json.dumps(document))
    assert newest_step(store) == 8


def test_damaged_checkpoint_is_set_aside_until_newer_one(
    store: CheckpointStore, capsys: pytest.CaptureFixture[str]
) -> None:
    (store.root / "step-00000012").mkdir()  # never committed: the process died, nothing is damaged
    truncate(store.root / "step-00000008" / "model.safetensors")
    used = store.newest()
    set_aside_damaged(store, used)
    assert capsys.readouterr().out == (
        "warning: the checkpoint of step 8 is damaged, resuming from step 4;"
        f" its files are in {store.root / 'damaged-step-00000008'}\n"
    )
    found = damaged_warning(store.root)
    assert found == f"damaged checkpoints were not used: step 8; their files: {store.root}/damaged-*"
    aside = store.root / "damaged-step-00000008"
    save(store, 6)
    assert sorted(path.name for path in aside.iterdir()) == FILES
    save(store, 8)
    assert not aside.exists()
    assert damaged_warning(store.root) is None
    assert newest_step(store) == 8


@pytest.mark.parametrize("damaged", [1, 2])
def test_earliest_of_equal_best_checkpoints_must_be_whole(tmp_path: Path, damaged: int) -> None:
    store = CheckpointStore(tmp_path, keep_last=3, keep_best=1, best_is_result=True)
    for step in (1, 2, 3):
        weights = {"weight": torch.full((5,), float(step))}
        store.save(step, weights=weights, optimizer=NO_STATE, state={"loop": {"best": [0.5]}}, validation_loss=0.5)
    store.collect(wait=True)
    truncate(tmp_path / f"step-{damaged:08d}" / "model.safetensors")
    newest = store.newest()
    assert (newest.step if newest else None) == {1: None, 2: 3}[damaged]
