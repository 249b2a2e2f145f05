"""Downloads over HTTP from a server that truncates, corrupts, stalls and refuses."""

from __future__ import annotations

import email.utils
import fcntl
import gzip
import hashlib
import json
import random
import resource
import time
from pathlib import Path

import pytest

from orchestrator.fetch.http import Client
from orchestrator.fetch.remote_file import Checksum, Remote
from orchestrator.support.errors import ConflictError, NotFoundError, ServiceError, StorageError, UserError
from tests.unit.fetch.conftest import (
    QUICK,
    Handler,
    Script,
    Site,
    cut,
    file_headers,
    send,
    serve_file,
    stall,
    status,
    without_ranges,
)

CONTENT = random.Random(0).randbytes(700_001)
SHA256 = Checksum("sha256", hashlib.sha256(CONTENT).hexdigest())
OTHER = random.Random(1).randbytes(700_001)
PAGE = b"<!DOCTYPE html><html>Please log in</html>"


def send_range(start: int, size: int) -> Script:
    """Return a response with a range that the server chooses."""

    def run(handler: Handler, content: bytes) -> None:
        span = f"bytes {start}-{start + size - 1}/{len(content)}"
        handler.begin(206, size, Content_Range=span, **file_headers(handler, content))
        handler.wfile.write(content[start : start + size])

    return run


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_file_is_fetched_completely_and_checked(client: Client, site: Site, tmp_path: Path) -> None:
    site.publish("a/b.bin", CONTENT)
    target = tmp_path / "deep" / "b.bin"
    reports: list[tuple[str, int, int | None]] = []
    client.transfer = client.transfer._replace(progress=lambda *facts: reports.append(facts))
    fetched = client.get(Remote("a/b.bin", SHA256, len(CONTENT)), target)
    assert (fetched.path, fetched.bytes, fetched.new, fetched.checked) == (target, len(CONTENT), True, "sha256")
    assert target.read_bytes() == CONTENT
    assert file_names(target.parent) == ["b.bin"]
    assert reports[0] == ("b.bin", 0, len(CONTENT))
    assert reports[-1] == ("b.bin", len(CONTENT), len(CONTENT))
    assert site.seen[0][1]["accept-encoding"] == "identity"
    assert site.seen[0][1]["user-agent"].startswith("bert-orchestrator/")


def test_existing_file_is_checked_and_not_fetched_again(client: Client, site: Site, tmp_path: Path) -> None:
    target = tmp_path / "b.bin"
    target.write_bytes(CONTENT)
    assert not client.get(Remote("b.bin", SHA256), target).new
    assert site.seen == []
    target.write_bytes(OTHER)
    with pytest.raises(ConflictError, match="exists, with other content") as caught:
        client.get(Remote("b.bin", SHA256), target)
    assert caught.value.fix == f"mv {target} {target}.old"
    assert target.read_bytes() == OTHER


@pytest.mark.parametrize("known", [Remote("b.bin"), Remote("b.bin", SHA256)])
@pytest.mark.parametrize(
    ("scripts", "ranges"),
    [
        ([cut(300_000)], [None, "bytes=300000-"]),
        (
            [cut(300_000), cut(100_000), cut(0), cut(1)],
            [None, "bytes=300000-", *["bytes=400000-"] * 2, "bytes=400001-"],
        ),
        ([stall(300_000)], [None, "bytes=300000-"]),
        ([status(503), status(500)], [None] * 3),
        ([cut(300_000), status(429, Retry_After="0")], [None, *["bytes=300000-"] * 2]),
        ([cut(300_000), without_ranges], [None, "bytes=300000-"]),
        ([cut(300_000), cut(350_000, ranges=False)], [None, "bytes=300000-", "bytes=350000-"]),
        ([cut(300_000), status(416)], [None, "bytes=300000-", None]),
        ([cut(300_000), send_range(300_000, 100)], [None, "bytes=300000-", "bytes=300100-"]),
        ([cut(300_000), send_range(200_000, 500_001)], [None, "bytes=300000-", None]),
    ],
)
def test_interrupted_download_resumes_at_its_offset(
    client: Client, site: Site, tmp_path: Path, scripts: list[Script], ranges: list[str | None], known: Remote
) -> None:
    site.publish("b.bin", CONTENT, *scripts)
    assert client.get(known, tmp_path / "b.bin").path.read_bytes() == CONTENT
    assert site.ranges() == ranges
    assert file_names(tmp_path) == ["b.bin"]


def test_later_command_resumes_only_the_same_file(client: Client, site: Site, tmp_path: Path) -> None:
    site.publish("b.bin", CONTENT, cut(300_000), *[status(503)] * 3)
    with pytest.raises(ServiceError, match=r"cannot fetch b\.bin") as caught:
        client.get(Remote("b.bin"), tmp_path / "b.bin")
    assert "503 Service Unavailable, 3 times" in str(caught.value)
    assert caught.value.fix is not None
    assert "resumes where it stopped" in caught.value.fix
    assert file_names(tmp_path) == [".b.bin.part", ".b.bin.part.json"]
    client.get(Remote("b.bin"), tmp_path / "b.bin")
    assert (tmp_path / "b.bin").read_bytes() == CONTENT
    path, headers = site.seen[-1]
    assert (path, headers["range"], headers["if-range"]) == (
        "b.bin",
        "bytes=300000-",
        f'"{hashlib.md5(CONTENT).hexdigest()}"',
    )


@pytest.mark.parametrize("etags", [True, False])
def test_changed_file_is_not_spliced(client: Client, site: Site, tmp_path: Path, etags: bool) -> None:
    site.etags = etags
    site.publish("b.bin", CONTENT, cut(300_000), *[status(503)] * 3)
    with pytest.raises(ServiceError):
        client.get(Remote("b.bin"), tmp_path / "b.bin")
    site.publish("b.bin", OTHER)
    site.modified = "Thu, 22 Oct 2015 07:28:00 GMT"
    assert client.get(Remote("b.bin"), tmp_path / "b.bin").path.read_bytes() == OTHER


def test_changed_file_is_not_spliced_without_if_range(client: Client, site: Site, tmp_path: Path) -> None:
    site.publish("b.bin", CONTENT, cut(300_000), *[status(503)] * 3)
    with pytest.raises(ServiceError):
        client.get(Remote("b.bin"), tmp_path / "b.bin")
    site.publish("b.bin", OTHER, cut(10_000_000))  # the range of another file
    assert client.get(Remote("b.bin"), tmp_path / "b.bin").path.read_bytes() == OTHER
    assert site.ranges()[-2:] == ["bytes=300000-", None]


def test_download_without_validator_starts_over(client: Client, site: Site, tmp_path: Path) -> None:
    (tmp_path / ".b.bin.part").write_bytes(OTHER[:1000])
    weak = {"url": f"{site.url}/b.bin", "etag": 'W/"weak"', "modified": ""}
    (tmp_path / ".b.bin.part.json").write_text(json.dumps(weak))
    site.publish("b.bin", CONTENT)
    assert client.get(Remote("b.bin"), tmp_path / "b.bin").path.read_bytes() == CONTENT
    assert site.ranges() == [None]


def test_wrong_checksum_fetches_again(client: Client, site: Site, tmp_path: Path) -> None:
    (tmp_path / ".b.bin.part").write_bytes(OTHER[:1000])
    site.publish("b.bin", CONTENT)
    assert client.get(Remote("b.bin", SHA256), tmp_path / "b.bin").path.read_bytes() == CONTENT
    assert site.ranges() == ["bytes=1000-", None]


def test_complete_partial_file_is_accepted(client: Client, site: Site, tmp_path: Path) -> None:
    (tmp_path / ".b.bin.part").write_bytes(CONTENT)
    site.publish("b.bin", CONTENT)
    assert client.get(Remote("b.bin", SHA256), tmp_path / "b.bin").path.read_bytes() == CONTENT
    assert site.ranges() == [f"bytes={len(CONTENT)}-"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (send(PAGE, Content_Type="text/html; charset=utf-8"), "it sends a web page instead of the file"),
        (send(PAGE, Content_Type="application/octet-stream"), "it is a web page, not data"),
        (send(b""), "b.bin: it is empty"),
        (send(OTHER), "wrong sha256 checksum"),
        (send(CONTENT[:1000], Content_Type="application/zip"), "wrong sha256 checksum"),
        (send(CONTENT, length=1000), "wrong sha256 checksum"),
        (send(gzip.compress(CONTENT), Content_Encoding="gzip"), "it sends the file compressed (gzip)"),
    ],
)
def test_unexpected_body_is_an_error(client: Client, site: Site, tmp_path: Path, script: Script, message: str) -> None:
    site.publish("b.bin", CONTENT, *[script] * 9)
    with pytest.raises(UserError) as caught:
        client.get(Remote("b.bin", SHA256), tmp_path / "b.bin")
    assert message in str(caught.value)
    assert not (tmp_path / "b.bin").exists()
    assert (tmp_path / ".b.bin.part").stat().st_size == 0


def test_known_size_is_compared_before_download(client: Client, site: Site, tmp_path: Path) -> None:
    site.publish("b.bin", CONTENT)
    with pytest.raises(ServiceError, match="its file has 700001 bytes instead of 5"):
        client.get(Remote("b.bin", SHA256, 5), tmp_path / "b.bin")


def test_excessive_content_length_is_an_error(client: Client, site: Site, tmp_path: Path) -> None:
    lie = send(CONTENT, length=len(CONTENT) + 9, ETag='"x"')
    site.publish("b.bin", CONTENT, *[lie] * 9)
    with pytest.raises(ServiceError, match="3 times"):
        client.get(Remote("b.bin"), tmp_path / "b.bin")


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        (status(403), ServiceError, "it answers 403 Forbidden"),
        (status(401), ServiceError, "it answers 401 Unauthorized"),
        (status(404), NotFoundError, "it answers 404 Not Found"),
        (status(500), ServiceError, "it answers 500 Internal Server Error, 3 times"),
        (status(429, Retry_After="7000"), ServiceError, "asks to wait 7000 s"),
        (
            status(503, Retry_After=email.utils.formatdate(time.time() + 5000, usegmt=True)),
            ServiceError,
            "asks to wait",
        ),
        (stall(0), ServiceError, "timed out"),
    ],
)
def test_refusals_are_reported_unchanged(
    client: Client, site: Site, tmp_path: Path, script: Script, error: type[UserError], message: str
) -> None:
    site.publish("b.bin", CONTENT, *[script] * 9)
    with pytest.raises(error) as caught:
        client.get(Remote("b.bin"), tmp_path / "b.bin")
    assert message in str(caught.value)
    assert f"127.0.0.1:{site.url.rpartition(':')[2]}" in caught.value.facts


def test_next_mirror_resumes_partial_file_of_first(site: Site, tmp_path: Path) -> None:
    site.publish("first/b.bin", CONTENT, cut(300_000), status(403))
    site.publish("third/b.bin", CONTENT)
    mirrors = [f"{site.url}/first", f"{site.url}/second", f"{site.url}/third/"]
    with Client(mirrors, QUICK) as client:
        assert client.get(Remote("b.bin", SHA256), tmp_path / "b.bin").path.read_bytes() == CONTENT
    assert site.seen[-1][0] == "third/b.bin"
    assert site.seen[-1][1]["range"] == "bytes=300000-"
    assert "if-range" not in site.seen[-1][1]


def test_mirror_with_another_file_is_skipped(site: Site, tmp_path: Path) -> None:
    site.publish("old/b.bin", OTHER)
    site.publish("new/b.bin", CONTENT)
    with Client([f"{site.url}/old", f"{site.url}/new"], QUICK) as client:
        assert client.get(Remote("b.bin", SHA256), tmp_path / "b.bin").path.read_bytes() == CONTENT


def test_without_checksum_mirror_parts_not_mixed(site: Site, tmp_path: Path) -> None:
    site.publish("one/b.bin", OTHER, cut(300_000), status(403))
    site.publish("two/b.bin", CONTENT)
    with Client([f"{site.url}/one", f"{site.url}/two"], QUICK) as client:
        assert client.get(Remote("b.bin"), tmp_path / "b.bin").path.read_bytes() == CONTENT


def test_existing_file_with_wrong_checksum_is_replaced(client: Client, site: Site, tmp_path: Path) -> None:
    (tmp_path / ".b.bin.part").write_bytes(OTHER)
    site.publish("b.bin", CONTENT)
    assert client.get(Remote("b.bin", SHA256), tmp_path / "b.bin").path.read_bytes() == CONTENT
    assert site.ranges() == [f"bytes={len(OTHER)}-", None]


def test_file_refused_by_one_mirror_is_not_missing(site: Site, tmp_path: Path) -> None:
    site.publish("one/b.bin", CONTENT, status(403))
    with (
        Client([f"{site.url}/one", f"{site.url}/two"], QUICK) as client,
        pytest.raises(ServiceError, match=r"cannot fetch b\.bin"),
    ):
        client.get(Remote("b.bin"), tmp_path / "b.bin")


def test_unreachable_host_is_an_error(tmp_path: Path) -> None:
    with Client(["http://127.0.0.1:9"], QUICK) as client, pytest.raises(ServiceError) as caught:
        client.get(Remote("b.bin"), tmp_path / "b.bin")
    assert "refused" in caught.value.facts["127.0.0.1:9"]


@pytest.mark.parametrize("address", ["no-such-scheme://x", "not an address", "http://"])
def test_invalid_address_is_an_error(tmp_path: Path, address: str) -> None:
    with Client([address], QUICK) as client, pytest.raises(ServiceError, match="cannot fetch"):
        client.get(Remote("b.bin"), tmp_path / "b.bin")


def test_proxy_is_used_and_named_without_its_password(
    client: Client, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("HTTP_PROXY", site.url)
    site.files["http://example.org/b.bin".lstrip("/")] = CONTENT
    with Client(["http://example.org"], QUICK) as client:
        assert client.get(Remote("b.bin", SHA256), tmp_path / "b.bin").new
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:9")
    with Client(["http://example.org"], QUICK) as client, pytest.raises(ServiceError) as caught:
        client.get(Remote("c.bin"), tmp_path / "c.bin")
    assert caught.value.facts["proxy"] == "127.0.0.1"
    assert "secret" not in str(caught.value)


def test_parallel_downloads_do_not_share_a_file(client: Client, site: Site, tmp_path: Path) -> None:
    site.publish("b.bin", CONTENT)
    with (tmp_path / ".b.bin.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConflictError, match="another process fetches"):
            client.get(Remote("b.bin"), tmp_path / "b.bin")
    assert site.seen == []


@pytest.mark.parametrize("obstacle", ["file", "folder"])
def test_unwritable_target_is_an_error(client: Client, site: Site, tmp_path: Path, obstacle: str) -> None:
    site.publish("b.bin", CONTENT)
    if obstacle == "file":
        (tmp_path / "in").write_text("the way")
    else:
        (tmp_path / "in" / ".b.bin.part").mkdir(parents=True)
    with pytest.raises(StorageError, match="cannot write") as caught:
        client.get(Remote("b.bin"), tmp_path / "in" / "b.bin")
    assert caught.value.fix is not None
    assert "--to another folder" in caught.value.fix


def test_full_disk_is_reported_and_partial_file_kept(client: Client, site: Site, tmp_path: Path) -> None:
    site.publish("b.bin", CONTENT)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        with pytest.raises(StorageError, match="cannot write"):
            client.get(Remote("b.bin"), tmp_path / "b.bin")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / ".b.bin.part").read_bytes() == CONTENT[:200_000]


def fetch_index(client: Client) -> str:
    return client.text("sums.txt")


@pytest.mark.parametrize("body", [b"", b" \n", PAGE])
def test_index_must_not_be_html_or_empty(client: Client, site: Site, body: bytes) -> None:
    site.publish("sums.txt", body)
    with pytest.raises(ServiceError, match=r"cannot fetch sums\.txt"):
        fetch_index(client)


def test_truncated_index_is_requested_again(client: Client, site: Site) -> None:
    site.publish("sums.txt", b"abc  name\n", cut(3), serve_file)
    assert fetch_index(client) == "abc  name\n"


def test_damaged_partial_file_facts_are_ignored(client: Client, site: Site, tmp_path: Path) -> None:
    (tmp_path / ".b.bin.part").write_bytes(OTHER[:1000])
    for text in ("{", "[]", json.dumps({"url": "x"})):
        (tmp_path / ".b.bin.part.json").write_text(text)
        site.publish("b.bin", CONTENT)
        assert client.get(Remote("b.bin"), tmp_path / "b.bin").path.read_bytes() == CONTENT
        (tmp_path / "b.bin").rename(tmp_path / ".b.bin.part")


def chunked(*chunks: bytes, end: bool = True) -> Script:
    """Return a response with a body without a length."""

    def run(handler: Handler, content: bytes) -> None:
        handler.begin(200, None, Transfer_Encoding="chunked", ETag='"same"')
        for chunk in chunks:
            handler.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n" if end else b"")
        handler.close_connection = True

    return run


def test_chunked_body_ends_at_its_last_chunk(client: Client, site: Site, tmp_path: Path) -> None:
    pieces = (CONTENT[:1000], CONTENT[1000:])
    site.publish("b.bin", CONTENT, chunked(*pieces, end=False), without_ranges)
    assert client.get(Remote("b.bin"), tmp_path / "b.bin").path.read_bytes() == CONTENT
    assert len(site.seen) == 2
    site.publish("c.bin", CONTENT, chunked(*pieces))
    assert client.get(Remote("c.bin"), tmp_path / "c.bin").path.read_bytes() == CONTENT
    assert len(site.seen) == 3
