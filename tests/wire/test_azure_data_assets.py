"""`orchestrator data asset create|list|show` against the double."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import main
from orchestrator.testing import AzureDouble

Asset = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def asset(
    azure: AzureDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Asset:
    """Return a function that runs `orchestrator data asset`: exit code, document, stderr."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes" / "more").mkdir(parents=True)
    (tmp_path / "notes" / "a.txt").write_text("one")
    (tmp_path / "notes" / "more" / "b.txt").write_text("two")
    (tmp_path / "notes" / ".hidden").write_text("no")

    def run(*words: str) -> tuple[int, Any, str]:
        code = main(["data", "asset", *words, "-o", "json"])
        out, err = capsys.readouterr()
        return code, json.loads(out), err

    return run


def test_created_asset_is_listed_and_shown(asset: Asset, azure: AzureDouble) -> None:
    code, row, err = asset("create", "notes", "notes")
    assert (code, row["type"], row["use"]) == (0, "uri_folder", f"azureml:notes:{row['version']}")
    folder = azure.folder() / row["address"].partition("/paths/")[2]
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    assert files == ["a.txt", "more/b.txt"]
    assert "2 files, 6 B uploaded" in err
    assert asset("list")[1] == [row]
    assert asset("show", "notes")[1] == asset("show", row["use"].removeprefix("azureml:"))[1] == row


def test_second_version_sends_only_new_content(asset: Asset, azure: AzureDouble, tmp_path: Path) -> None:
    first = asset("create", "notes", "notes")[1]
    assert "cached" in asset("create", "notes", "notes")[2]
    (tmp_path / "notes" / "c.txt").write_text("three")
    second = asset("create", "notes", "notes")
    assert "3 files, 5 B uploaded" in second[2]
    assert second[1]["versions"] == [second[1]["version"], first["version"]]


def test_asset_of_one_file_has_its_type(asset: Asset) -> None:
    row = asset("create", "words", "notes/a.txt", "--version", "7")[1]
    assert (row["type"], row["version"], row["address"].rpartition("/")[2]) == ("uri_file", "7", "a.txt")


def test_version_with_other_content_is_refused(asset: Asset, tmp_path: Path) -> None:
    asset("create", "notes", "notes", "--version", "1")
    (tmp_path / "notes" / "a.txt").write_text("changed")
    code, document, _ = asset("create", "notes", "notes", "--version", "1")
    assert (code, document["error"]["message"]) == (1, "data asset notes:1 exists with other content")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("show", "nothing"), 5, "unknown data asset 'nothing'"),
        (("create", "x", "missing"), 2, "no such file or folder: missing"),
        (("create", "x", "azureml://datastores/d/paths/p/"), 2, "cannot derive a version"),
        (("create", "x", "azureml:notes:1", "--version", "1"), 2, "azureml:notes:1 is a data asset already"),
    ],
)
def test_wrong_request_for_an_asset_is_refused(asset: Asset, words: tuple[str, ...], code: int, message: str) -> None:
    got, document, _ = asset(*words)
    assert got == code
    assert message in document["error"]["message"]


def test_address_in_azure_becomes_an_asset(asset: Asset) -> None:
    address = "azureml://datastores/workspaceblobstore/paths/texts/"
    row = asset("create", "texts", address, "--version", "1")[1]
    assert (row["address"], row["type"], row["version"]) == (address, "uri_folder", "1")
