"""Sources by URL: the same files, documents and stores as from a disk, over a network with faults."""

from __future__ import annotations

import bz2
import gzip
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from tests.conftest import Console
from tests.object_store import BUCKET, ObjectStore
from tests.prepare_jobs import command, finished
from tests.unit.corpus.small_corpora import contents, documents_of, prepare
from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.artifacts.text_files import source_files
from train_jobs.config import DataError, PretrainConfig, TextConfig
from train_jobs.config.prepare import PrepareConfig, SourceConfig
from train_jobs.corpus.sources.text_parts import plan_parts, read_part
from train_jobs.readers.text_check import check_text

LARGE = 12_000_000  # bytes: two parts
SHARE = 0.05  # of the requests fail
MOST_READ = 1.5  # bytes that were sent of a large file, relative to its size: a truncated answer is sent again


def article(number: int) -> str:
    text = documents_of(number, 1)[0]
    return f"<page><title>T{number}</title><ns>0</ns><revision><text>{text}</text></revision></page>\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write files of all formats."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "deep").mkdir()
    paragraphs = "\n\n".join(documents_of(1, 40))
    large = "".join(f"Chapter {number}.\n\n{paragraphs}\n\n" for number in range(LARGE // len(paragraphs) + 1))
    (folder / "large.txt").write_text(large)
    (folder / "b.txt.gz").write_bytes(gzip.compress("\n\n".join(documents_of(2)).encode()))
    (folder / "deep" / "c.txt").write_text("\n\n".join(documents_of(3)) + "\n")
    (folder / "deep" / "utf16.txt").write_text("\n\n".join(documents_of(4)), encoding="utf-16")
    (folder / "d.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents_of(5)))
    pq.write_table(pa.table({"text": documents_of(6)}), folder / "e.parquet", row_group_size=7)
    streams = [f"<mediawiki>{article(7)}", *map(article, range(8, 14)), f"{article(14)}</mediawiki>"]
    packed = [bz2.compress(text.encode()) for text in streams]
    (folder / "f-multistream.xml.bz2").write_bytes(b"".join(packed))
    offsets = [sum(map(len, packed[:number])) for number in range(len(packed))]
    index = "".join(f"{offset}:{number}:T\n" for number, offset in enumerate(offsets))
    (folder / "f-multistream-index.txt").write_text(index)
    (folder / ".hidden.txt").write_text("hidden\n")
    (folder / "notes.md").write_text("no text\n")
    with pa.CompressedOutputStream(str(folder / "g.txt.zst"), "zstd") as stream:
        stream.write("\n\n".join(documents_of(15)).encode())
    return folder


def text_at(*paths: object) -> list[SourceConfig]:
    return [SourceConfig(path=[str(path) for path in paths], name="text")]


@pytest.mark.parametrize("pattern", ["", "/*.txt*", "/**/*.txt", "/deep", "/*"])
def test_urls_list_the_files_of_paths(objects: ObjectStore, folder: Path, pattern: str) -> None:
    url = objects.put_folder(folder, "text")
    local = [(file.path.name, *file[1:]) for file in source_files(text_at(f"{folder}{pattern}")[0])]
    assert local == [(file.path.name, *file[1:]) for file in source_files(text_at(f"{url}{pattern}")[0])]
    assert local


def test_parts_and_documents_are_those_of_paths(objects: ObjectStore, folder: Path) -> None:
    local, remote = text_at(folder), text_at(objects.put_folder(folder, "text"))
    parts = plan_parts(local), plan_parts(remote)
    assert [part.name for part in parts[0]] == [part.name for part in parts[1]]
    assert any("bytes" in part.name for part in parts[0])
    objects.read.clear()
    for one, another in zip(*parts, strict=True):
        assert list(read_part(local, one)) == list(read_part(remote, another))
    assert objects.read["text/large.txt"] == (folder / "large.txt").stat().st_size  # no worker reads another's range


@pytest.mark.long
def test_store_is_that_of_paths_despite_faults(objects: ObjectStore, folder: Path, tmp_path: Path) -> None:
    url = objects.put_folder(folder, "text")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    finished(command([str(folder)], tmp_path / "local", "data.workers=2"))
    objects.share = SHARE
    finished(command([url], tmp_path / "remote", "data.workers=2"), TMPDIR=str(scratch))
    assert len(objects.faults) == 3, objects.faults
    local, remote = contents(tmp_path / "local" / "store"), contents(tmp_path / "remote" / "store")
    manifests = [json.loads(store.pop("manifest.json")) for store in (local, remote)]
    assert local == remote
    for manifest in manifests:  # the text is named by its content, or by its version
        del manifest["data"], manifest["key"], manifest["sha256"]
    assert {key for key in manifests[0] if manifests[0][key] != manifests[1][key]} <= {"content"}
    assert not list(scratch.iterdir())
    assert objects.read["text/large.txt"] < MOST_READ * (folder / "large.txt").stat().st_size


def test_plan_reads_only_beginnings(objects: ObjectStore, folder: Path, console: Console) -> None:
    large = folder / "large.txt"
    url = objects.put("text/large.txt", large.read_bytes() * 4)
    shown = console("submit", "prepare", "--data", url, "--store", "store", "--dry-run", "-o", "json")
    assert shown.code == 0, shown.err
    plan = shown.json["plan"]
    assert plan["data"]["total_bytes"] == 4 * large.stat().st_size
    assert plan["job"]["data"]["text"] == [url]
    assert objects.read["text/large.txt"] < large.stat().st_size


def test_changed_object_is_other_text(objects: ObjectStore, tmp_path: Path) -> None:
    text = "\n\n".join(documents_of(1))
    sources = text_at(objects.put("a.txt", text.encode()))
    before = fingerprint(sources)
    assert fingerprint(sources) == before
    [part] = plan_parts(sources)
    objects.put("a.txt", text[::-1].encode())  # of the same size
    assert fingerprint(sources).sha256 != before.sha256
    with pytest.raises(DataError, match="has changed since the job was planned"):
        list(read_part(sources, part))


def test_dump_without_index_is_one_part(objects: ObjectStore, folder: Path) -> None:
    url = objects.put("f-multistream.xml.bz2", (folder / "f-multistream.xml.bz2").read_bytes())
    [part] = plan_parts(text_at(url))
    assert len(list(read_part(text_at(url), part))) == 8


def test_moved_objects_are_the_same_text(objects: ObjectStore) -> None:
    urls = [objects.put(f"{prefix}/a.txt", b"One.\n\nTwo.\n") for prefix in ("here", "there/deep")]
    assert fingerprint(text_at(urls[0])).sha256 == fingerprint(text_at(urls[1])).sha256


def test_file_and_memory_urls_are_read(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("\n\n".join(documents_of(1)))
    fsspec.filesystem("memory").pipe_file("/text/a.txt", (text / "a.txt").read_bytes())
    data = [TextConfig(text=text_at(path), vocab_size=200) for path in (text, f"file://{text}", "memory://text")]
    stores = [prepare(one, tmp_path / f"store-{number}").folder for number, one in enumerate(data)]
    first, *others = [
        {name: content for name, content in contents(store).items() if "json" not in name} for store in stores
    ]
    assert others == [first, first]


def test_problems_of_objects_are_listed_together(objects: ObjectStore) -> None:
    objects.put("text/a.txt", b"caf\xe9\n")
    objects.put("text/b.jsonl", b'{"text": "one"}\n{"body": "two"}\n')
    with pytest.raises(DataError) as raised:
        check_text(text_at(f"s3://{BUCKET}/text"))
    assert raised.value.problems == [
        f"s3://{BUCKET}/text/a.txt:1: is not UTF-8\nfix  in a copy of the file, which then replaces it:"
        " iconv -f latin1 -t utf-8 a.txt > a.utf8.txt",
        f"s3://{BUCKET}/text/b.jsonl:2: no field 'text'; have body\nfix  --column body",
    ]


@pytest.mark.parametrize("url", ["s3://key:secret-word@bucket/a", "s3://bucket/a?sig=secret-word"])
def test_secrets_in_urls_are_refused(url: str, console: Console) -> None:
    with pytest.raises(ValidationError, match="must not contain a password"):
        SourceConfig(path=[url])
    done = console("submit", "prepare", "--data", url, "--dry-run")
    assert done.code == 2
    assert "set credentials in the environment" in done.err
    assert "secret-word" not in done.out + done.err


def test_paths_and_urls_are_two_sources() -> None:
    with pytest.raises(ValidationError, match="give two sources"):
        SourceConfig(path=["a.txt", "s3://bucket/a.txt"])


def test_training_refuses_store_at_url() -> None:
    with pytest.raises(ValidationError, match="must be a folder on a disk"):
        PretrainConfig(data={"store": "s3://bucket/store"})  # type: ignore[arg-type]


def test_own_cluster_refuses_store_at_url() -> None:
    with pytest.raises(ValidationError, match="nodes meet on a shared disk"):
        PrepareConfig(store="s3://bucket/store", data={"executor": "dask"})  # type: ignore[arg-type]


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(DataError, match="the package gcsfs is not installed") as raised:
        source_files(text_at("gs://bucket/a.txt")[0])
    assert raised.value.fix == "pip install 'bert-orchestrator[remote]'"


def test_missing_object_and_credentials_are_named(objects: ObjectStore, console: Console) -> None:
    url = objects.put("a.txt", b"One.\n\nTwo.\n")
    gone = console("submit", "prepare", "--data", f"{url}.gz", "--dry-run")
    assert (gone.code, f"no such file or folder: {url}.gz" in gone.err) == (2, True)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        console.variables[name] = ""
    refused = console("submit", "prepare", "--data", url, "--dry-run", AWS_EC2_METADATA_DISABLED="true")
    assert refused.code == 2
    assert f"{url}: access denied: Unable to locate credentials" in refused.err
    assert "set AWS_PROFILE" in refused.err


def test_store_by_url_is_not_text(objects: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(documents_of(1)))
    store = prepare(TextConfig(text=text_at(tmp_path / "a.txt"), vocab_size=200), tmp_path / "store")
    url = objects.put_folder(store.folder, "store")
    with pytest.raises(DataError, match="is a token store, and training maps its files"):
        source_files(text_at(url)[0])
