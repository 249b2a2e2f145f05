"""Coordination of nodes through their shared files."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from train_jobs.config import DataError, PeerError
from train_jobs.corpus.executors import nodes
from train_jobs.corpus.executors.nodes import Node, Peers, StoreComplete


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(nodes, "BEAT_SECONDS", 0.01)
    monkeypatch.setattr(nodes, "PATIENCE_SECONDS", 0.3)


def test_node_is_read_from_environment() -> None:
    assert Node.from_environment({}) == Node(0, 1, 1)
    node = Node.from_environment({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"})
    assert (node.rank, node.size, node.local_size, node.leads) == (3, 4, 2, False)
    assert [node.owner(part) for part in range(6)] == [0, 1, 2, 3, 0, 1]


def test_live_node_awaited_longer_than_dead_one(tmp_path: Path) -> None:
    lines: list[str] = []
    mine, theirs = (Peers(tmp_path, Node(rank, 2), "key", lines.append) for rank in (0, 1))
    with pytest.raises(PeerError, match="rank 1 has written no heartbeat") as caught:
        mine.wait("a part", 1, lambda: None)
    assert caught.value.facts["waiting for"] == "a part"
    found: list[str] = []
    later = threading.Timer(0.6, lambda: found.append("it"))
    later.start()
    with theirs.heartbeats():
        assert mine.wait("a part", 1, lambda: found[0] if found else None) == "it"
    later.join()
    assert lines == ["waiting for a part of rank 1"]  # not once per part


def test_node_with_other_text_is_refused(tmp_path: Path) -> None:
    mine, theirs = Peers(tmp_path, Node(0, 2), "key", print), Peers(tmp_path, Node(1, 2), "other", print)
    with theirs.heartbeats(), pytest.raises(DataError, match="the nodes do not see the same text"):
        mine.wait("a part", 1, lambda: None)


def test_heartbeat_of_earlier_start_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "alive-1.json").write_text(json.dumps({"key": "of another text", "beat": 1}))
    with pytest.raises(PeerError):
        Peers(tmp_path, Node(0, 2), "key", print).wait("a part", 1, lambda: None)


def test_single_node_writes_no_heartbeat(tmp_path: Path) -> None:
    with Peers(tmp_path, Node(), "key", print).heartbeats():
        assert list(tmp_path.iterdir()) == []


def test_late_node_uses_store_of_others(tmp_path: Path) -> None:
    with pytest.raises(StoreComplete):
        Peers(tmp_path, Node(1, 2), "key", print, lambda: True).wait("documents of part 0", 0, lambda: None)
