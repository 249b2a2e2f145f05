"""Links and chains: the scope of a hash, and the detection of later changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train_jobs.artifacts.lineage import Lineage, Link, read_lineage, store_digest
from train_jobs.config import Config, ConflictError


class Facts(Config):
    """Facts of an unknown kind."""

    weights: str | None = None
    share: float = 0.1
    words: list[str] = []  # noqa: RUF012 - pydantic copies defaults


def chain() -> Lineage:
    """Return a chain: a text, a run on it, and a run that starts from it on another text."""
    text = Link.make("data", "notes", Facts(words=["caf\u00e9"]))
    first = Link.make("pretrain", "first", Facts(weights="aa"), parents=[text])
    other = Link.make("data", "letters", Facts())
    second = Link.make("pretrain", "second", Facts(weights="bb"), parents=[other, first])
    return Lineage(links=(text, first, other, second))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "lineage.json").write_text(chain().text(), encoding="utf-8")
    return tmp_path / "lineage.json"


def test_chain_is_read_as_written(path: Path) -> None:
    assert read_lineage(path) == chain()
    assert read_lineage(path.with_name("none.json")) is None


def test_head_is_last_link_and_names_parents_in_order() -> None:
    found = chain()
    assert found.head.name == "second"
    assert [parent.name for parent in found.parents(found.head)] == ["letters", "first"]
    assert found.parents(found.links[0]) == []
    assert (found.head.weights, found.links[0].weights) == ("bb", None)


def test_hash_changes_with_every_part_of_the_content() -> None:
    base = Link.make("data", "notes", Facts(share=0.1))
    assert Link.make("data", "notes", Facts(share=0.1)).hash == base.hash
    assert len(base.hash) == 64
    others = [
        Link.make("external", "notes", Facts(share=0.1)),
        Link.make("data", "note", Facts(share=0.1)),
        Link.make("data", "notes", Facts(share=0.2)),
        Link.make("data", "notes", Facts(share=0.1), parents=[base]),
    ]
    assert len({link.hash for link in (base, *others)}) == 5


def test_parent_changes_the_hash_of_the_head() -> None:
    def head(share: float) -> str:
        text = Link.make("data", "notes", Facts(share=share))
        first = Link.make("pretrain", "first", Facts(), parents=[text])
        return Link.make("pretrain", "second", Facts(), parents=[first]).hash

    assert head(0.1) != head(0.2)


def test_existing_link_is_not_added_again() -> None:
    found = chain()
    new = Link.make("finetune", "third", Facts(), parents=[found.head])
    assert found.followed_by(found.links[0], new).links == (*found.links, new)


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d["links"][0]["facts"].update(share=0.9), "link 1 of 4, data notes: does not match its hash"),
        (lambda d: d["links"][1].update(name="mine"), "link 2 of 4, pretrain mine: does not match its hash"),
        (lambda d: d["links"][1]["facts"].update(weights="cc"), "link 2 of 4, pretrain first"),
        (lambda d: d["links"][3]["inputs"].pop(), "link 4 of 4, pretrain second"),
        (lambda d: d["links"][0].update(kind="external"), "link 1 of 4, external notes"),
        (lambda d: d["links"][2].update(hash="0" * 64), "link 3 of 4, data letters: does not match its hash"),
        (lambda d: d["links"].pop(0), "link 1 of 3, pretrain first: lacks its parent"),
        (lambda d: d["links"].reverse(), "link 1 of 4, pretrain second: lacks its parent"),
        (lambda d: d["links"].insert(1, d["links"].pop()), "link 2 of 4, pretrain second: lacks its parent"),
        (lambda d: d["links"].clear(), "no links"),
        (lambda d: d["links"][1].pop("name"), "links.1.name: Field required"),
        (lambda d: d.update(version=2), "version: Input should be 1"),
        (lambda d: d["links"][0].update(kind="magic"), "links.0.kind"),
    ],
)
def test_changed_field_is_named(path: Path, change: Change, why: str) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ConflictError) as caught:
        read_lineage(path)
    assert why in caught.value.facts["why"]
    assert caught.value.facts["where"] == path
    assert f"rm {path}" in str(caught.value.fix)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", chain().text()[:-20].encode()])
def test_truncated_file_is_reported(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConflictError, match=r"lineage\.json is truncated"):
        read_lineage(path)


@pytest.mark.parametrize("content", ["[]", "3", "null", '{"links": 3}'])
def test_other_document_is_not_a_lineage(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(ConflictError, match=r"lineage\.json is not a lineage"):
        read_lineage(path)


def test_layout_and_order_of_keys_do_not_matter(path: Path) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps({key: document[key] for key in reversed(document)}, sort_keys=True))
    assert read_lineage(path) == chain()


def test_store_digest_covers_names_and_hashes_in_order() -> None:
    one, two = {"file": "a", "sha256": "1", "size": 5}, {"file": "b", "sha256": "2", "size": 5}
    found = store_digest([one, two])
    assert found == store_digest([{**one, "size": 6}, two])
    assert len({found, store_digest([two, one]), store_digest([one]), store_digest([{**one, "file": "c"}, two])}) == 4
