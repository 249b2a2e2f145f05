"""Data assets on Azure: a new version of a text sends only its new files."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from orchestrator.backends.azure.backend import AzureBackend
from orchestrator.backends.azure.wire import blobs
from orchestrator.client import Orchestrator
from orchestrator.testing import AzureDouble
from tests.conftest import write_corpus, write_spec

pytestmark = pytest.mark.usefixtures("small_snapshot")

FILE = 100_000  # bytes of each file
FILES = 63


@pytest.fixture
def orchestrator(tmp_path: Path, azure: AzureDouble) -> Orchestrator:
    return Orchestrator("azure", home=tmp_path / "home", environ={})


def bytes_sent(azure: AzureDouble, folder: str) -> int:
    """Return the bytes of all requests that wrote blobs below a folder of the double."""
    return sum(request.size for request in azure.requests(f"PUT *.blob.*/{folder}/*"))


def text_folders(azure: AzureDouble) -> list[Path]:
    """Return the folders of all versions of the text, the oldest first."""
    return sorted((azure.folder() / "orchestrator" / "data").iterdir(), key=lambda path: path.stat().st_mtime)


def submit(orchestrator: Orchestrator, folder: Path) -> None:
    write_spec(
        folder / "job.yaml",
        data={"text": [str(folder / "text")]},
        compute={"cluster": "gpu", "sku": "Standard_NC4as_T4_v3"},
    )
    orchestrator.submit(orchestrator.plan(file=folder / "job.yaml"))


@pytest.mark.parametrize("by_identity", [False, True])
def test_added_file_alone_is_sent(
    orchestrator: Orchestrator, azure: AzureDouble, tmp_path: Path, by_identity: bool
) -> None:
    """The new version has all files by their names, so that Azure mounts it as a plain folder."""
    azure.by_identity(by_identity)
    text, letters = tmp_path / "text", random.Random(1)
    text.mkdir()
    for number in range(FILES):
        words = (letters.randbytes(4).hex() for _ in range(FILE // 9))
        (text / f"part-{number:02}.txt").write_text(" ".join(words))
    submit(orchestrator, tmp_path)
    before = bytes_sent(azure, "orchestrator/data")
    assert before > 0.99 * FILE * FILES
    small = write_corpus(text / "small.txt", documents=2).stat().st_size
    (text / "part-00.txt").rename(text / "renamed.txt")
    submit(orchestrator, tmp_path)
    assert bytes_sent(azure, "orchestrator/data") - before < small + 200 * FILES  # and the lists of blocks
    _, new = text_folders(azure)
    mounted = {path.name: path.read_bytes() for path in (new / "text").iterdir()}
    assert mounted == {path.name: path.read_bytes() for path in text.iterdir()}
    assert azure.violations == []


@pytest.fixture
def two_folders(azure: AzureDouble) -> blobs.Files:
    """Return a datastore with a text in one folder."""
    files = blobs.Files(AzureBackend(Path("unused")).wire({}), "workspaceblobstore")
    files.upload("data/one/", {"a.txt": b"some text"})
    return files


def test_refused_copy_is_sent(azure: AzureDouble, two_folders: blobs.Files) -> None:
    azure.fail_next("PUT *data/two/a.txt", status=403, code="CannotVerifyCopySource")
    assert two_folders.upload("data/two/", {"a.txt": b"some text"}, copy_below="data/") == 9
    assert (azure.folder() / "data" / "two" / "a.txt").read_bytes() == b"some text"


def test_large_file_is_copied_in_ranges(
    azure: AzureDouble, two_folders: blobs.Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(2500)
    two_folders.upload("data/one/", {"large.bin": content})
    monkeypatch.setattr(blobs, "COPIED", 1000)
    assert two_folders.upload("data/two/", {"other.bin": content}, copy_below="data/") == 0
    assert len(azure.requests("PUT *data/two/other.bin")) == 4
    assert two_folders.list("data/two/")[0].sha256 == two_folders.list("data/one/")[-1].sha256
    assert (azure.folder() / "data" / "two" / "other.bin").read_bytes() == content
