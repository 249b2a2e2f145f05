"""Blobs of the double compared with Azurite, Microsoft's emulator: one scenario, the same answers.

npm install azurite; PATH=$PWD/node_modules/.bin:$PATH pytest tests/wire/test_wire_blobs.py
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError

from orchestrator.testing import AzureDouble
from tests.conftest import wait_for

AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTENT = bytes(range(256)) * 400
Answers = dict[str, Any]
ANSWERS: Answers = {
    "container": True,
    "no container": False,
    "whole": True,
    "range": True,
    "end": True,
    "past the end": (416, "InvalidRange"),
    "of nothing": b"",
    "properties": (102400, {"step": "1"}, "application/x-tar", "BlockBlob"),
    "listed": ["run/a/1.txt", "run/a/2 & more.txt", "run/b.txt", "run/large.bin"],
    "by two": [2, 2, 2],
    "folders": ["run/a/", "run/b.txt", "run/large.bin"],
    "metadata": [{"step": "1"}],
    "changed": {"step": "2"},
    "there already": (409, "BlobAlreadyExists"),
    "there already, small": (409, "BlobAlreadyExists"),
    "overwritten": b"new",
    "stale": (412, "ConditionNotMet"),
    "stale write": (412, "ConditionNotMet"),
    "blocks that never came": (400, "InvalidBlockList"),
    "missing": (404, "BlobNotFound"),
    "missing container": (404, "ContainerNotFound"),
    "deleted": False,
    "deleted twice": (404, "BlobNotFound"),
    "sas": True,
    "past": 403,
    "other blob": 403,
    "may only read": 403,
}


def refusal(ask: Callable[[], object]) -> tuple[int | None, str]:
    """Return status and code of a refusal."""
    try:
        ask()
    except HttpResponseError as problem:
        return problem.status_code, str(getattr(problem.error_code, "value", problem.error_code))
    return None, "not at all"


def scenario(url: str, key: str, account: str) -> Answers:
    """Return the answers to a client's calls for folders of files."""
    from azure.storage.blob import BlobClient, BlobServiceClient, ContentSettings, generate_blob_sas

    with BlobServiceClient(url, {"account_name": account, "account_key": key}, max_single_put_size=50_000) as service:
        service.create_container("box")
        box = service.get_container_client("box")
        answers: Answers = {"container": box.exists(), "no container": service.get_container_client("none").exists()}
        large = box.get_blob_client("run/large.bin")
        large.upload_blob(CONTENT, metadata={"step": "1"}, content_settings=ContentSettings("application/x-tar"))
        for name in ("run/a/1.txt", "run/a/2 & more.txt", "run/b.txt", "run-a2/b.txt"):
            box.upload_blob(name, name.encode())
        answers["whole"] = large.download_blob().readall() == CONTENT
        answers["range"] = large.download_blob(offset=1000, length=3).readall() == CONTENT[1000:1003]
        answers["end"] = large.download_blob(offset=len(CONTENT) - 2, length=100).readall() == CONTENT[-2:]
        answers["past the end"] = refusal(lambda: large.download_blob(offset=len(CONTENT) + 9).readall())
        answers["of nothing"] = box.upload_blob("empty", b"").download_blob().readall()
        properties = large.get_blob_properties()
        answers["properties"] = (
            properties.size,
            properties.metadata,
            properties.content_settings.content_type,
            properties.blob_type.value,
        )
        answers["listed"] = [found.name for found in box.list_blobs(name_starts_with="run/")]
        answers["by two"] = [len(list(page)) for page in box.list_blobs(results_per_page=2).by_page()]
        answers["folders"] = [found.name for found in box.walk_blobs(name_starts_with="run/", delimiter="/")]
        answers["metadata"] = [found.metadata for found in box.list_blobs("run/large", include=["metadata"])]
        large.set_blob_metadata({"step": "2"})
        answers["changed"] = large.get_blob_properties().metadata
        answers["there already"] = refusal(lambda: large.upload_blob(b"other"))
        answers["there already, small"] = refusal(lambda: box.upload_blob("run/b.txt", b"other"))
        answers["overwritten"] = box.upload_blob("run/b.txt", b"new", overwrite=True).download_blob().readall()
        stale = {"etag": '"0x1"', "match_condition": MatchConditions.IfNotModified}
        answers["stale"] = refusal(lambda: large.download_blob(**stale).readall())
        answers["stale write"] = refusal(lambda: large.upload_blob(b"other", overwrite=True, **stale))
        answers["blocks that never came"] = refusal(lambda: large.commit_block_list(["bm9uZQ=="]))
        answers["missing"] = refusal(lambda: box.get_blob_client("none").download_blob())
        answers["missing container"] = refusal(lambda: service.get_container_client("none").upload_blob("x", b""))
        box.delete_blob("run/b.txt")
        answers["deleted"] = box.get_blob_client("run/b.txt").exists()
        answers["deleted twice"] = refusal(lambda: box.delete_blob("run/b.txt"))

        def sas(permission: str, minutes: float, blob: str = "run/large.bin") -> BlobClient:
            ends = datetime.now(UTC) + timedelta(minutes=minutes)
            token = generate_blob_sas(account, "box", blob, account_key=key, permission=permission, expiry=ends)
            return BlobClient(url, "box", "run/large.bin", credential=token)

        for what, signed in {"sas": sas("r", 5), "past": sas("r", -5), "other blob": sas("r", 5, "x")}.items():
            with signed:
                reads = lambda signed=signed: signed.download_blob().readall()  # noqa: E731
                answers[what] = reads() == CONTENT if what == "sas" else refusal(reads)[0]
        with sas("r", 5) as reader:
            answers["may only read"] = refusal(lambda: reader.upload_blob(b"x", overwrite=True))[0]
        return answers


def listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return not probe.connect_ex(("127.0.0.1", port))


@pytest.fixture
def azurite(tmp_path: Path) -> Iterator[str]:
    """Start Azurite; return the address of an account."""
    if (program := shutil.which("azurite-blob")) is None:
        pytest.skip("no azurite: npm install azurite")
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ("--silent", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence")
    command = [program, "--blobPort", str(port), *options]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: listens(port), what="Azurite")
            yield f"http://127.0.0.1:{port}/devstoreaccount1"
        finally:
            process.kill()


def test_double_gives_the_recorded_answers(azure: AzureDouble) -> None:
    answers = scenario(f"https://{azure.place.blob_host}", azure.storage.key, azure.place.account)
    assert answers == ANSWERS


def test_service_sas_opens_one_blob_until_it_expires(azure: AzureDouble) -> None:
    (azure.folder() / "text.txt").write_text("text")
    (azure.folder() / "other.txt").write_text("other")
    container = azure.storage.datastores["workspaceblobstore"]
    whole = azure.storage.sign(container, permissions="r", seconds=60)
    one = azure.storage.sign(container, "text.txt", permissions="r", seconds=60)
    late = azure.storage.sign(container, "text.txt", permissions="r", seconds=-60)
    made_up = one.replace("sig=", "sig=A")
    codes = {}
    for what, name, sas in [
        ("whole", "other.txt", whole),
        ("one", "text.txt", one),
        ("another", "other.txt", one),
        ("late", "text.txt", late),
        ("made up", "text.txt", made_up),
        ("none", "text.txt", ""),
        ("out of the container", "..%2f..%2ftls%2fauthority.pem", whole),
    ]:
        with requests.get(f"https://{azure.place.blob_host}/{container}/{name}?{sas}") as reply:
            codes[what] = reply.status_code
    assert codes == {
        "whole": 200,
        "one": 200,
        "another": 403,
        "late": 403,
        "made up": 403,
        "none": 401,
        "out of the container": 400,
    }


def test_incomplete_upload_creates_no_blob(azure: AzureDouble) -> None:
    container = azure.storage.datastores["workspaceblobstore"]
    sas = azure.storage.sign(container, permissions="racw", seconds=60)
    request = (
        f"PUT http://{azure.place.blob_host}/{container}/half?{sas} HTTP/1.1\r\nx-ms-blob-type: BlockBlob\r\n"
        "Content-Length: 100\r\n\r\nhalf"
    )
    address = urlsplit(azure.environment()["HTTPS_PROXY"])
    with socket.create_connection((str(address.hostname), address.port or 0)) as connection:
        connection.sendall(request.encode())
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""
    assert list(azure.folder().iterdir()) == []


def test_parallel_uploads_are_complete(azure: AzureDouble) -> None:
    from azure.storage.blob import ContainerClient

    url = f"https://{azure.place.blob_host}"
    with ContainerClient(url, "azureml", azure.storage.key, max_single_put_size=1000, max_block_size=1000) as box:

        def store(number: int) -> bool:
            content = bytes([number]) * 5000
            box.upload_blob(f"many/{number}", content, metadata={"number": str(number)})
            return box.download_blob(f"many/{number}").readall() == content

        with ThreadPoolExecutor(8) as workers:
            assert all(workers.map(store, range(24)))
        listed = {found.name: found.metadata["number"] for found in box.list_blobs("many/", include=["metadata"])}
    assert listed == {f"many/{number}": str(number) for number in range(24)}
    assert len(azure.requests("PUT *.blob.*/many/*")) == 24 * 6


@pytest.mark.slow
def test_azurite_gives_the_recorded_answers(azure: AzureDouble, azurite: str) -> None:
    ours = scenario(f"https://{azure.place.blob_host}", azure.storage.key, azure.place.account)
    assert ours == scenario(azurite, AZURITE_KEY, "devstoreaccount1")
