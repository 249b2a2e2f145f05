"""Wikipedia, GLUE, SQuAD and models from a server on loopback."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.fetch import datasets, fetch
from orchestrator.fetch import glue_archives as glue
from orchestrator.fetch.datasets import mirrors_of
from orchestrator.fetch.remote_file import Checksum, Remote
from orchestrator.support.errors import ConflictError, DataError, NotFoundError, ServiceError, SpecError, UsageError
from tests.conftest import SHARED
from tests.unit.fetch.conftest import QUICK, Site, cut
from train_jobs.config.tasks import OfficialFile

INDEX, DUMP = b"BZh index", b"BZh dump" * 10_000
REAL = SHARED / "data" / "glue"


def get(site: Site, name: str, to: Path, date: str = "latest") -> list[tuple[str, bool, str]]:
    found = fetch(name, to=to, mirrors=[site.url], date=date, transfer=QUICK)
    return [(file.path.relative_to(to.parent).as_posix(), file.new, file.checked) for file in found]


def publish_dump(site: Site, wiki: str = "dewiki", date: str = "20260101", asked: str = "latest") -> list[str]:
    files = {
        f"{wiki}-{date}-pages-articles-multistream.xml.bz2": DUMP,
        f"{wiki}-{date}-pages-articles-multistream-index.txt.bz2": INDEX,
        f"{wiki}-{date}-pages-articles.xml.bz2": b"not wanted",
    }
    for name, content in files.items():
        site.publish(f"{wiki}/{date}/{name}", content)
    sums = "".join(f"{hashlib.sha1(content).hexdigest()}  {name}\n" for name, content in files.items())
    site.publish(f"{wiki}/{asked}/{wiki}-{asked}-sha1sums.txt", sums.encode())
    return list(files)


def test_wikipedia_latest_dump_is_fetched(site: Site, tmp_path: Path) -> None:
    dump, index, _ = publish_dump(site)
    site.scripts[f"dewiki/20260101/{dump}"] = [cut(1000)]
    expected = [(f"dumps/{index}", True, "sha1"), (f"dumps/{dump}", True, "sha1")]
    assert get(site, "wikipedia:de", tmp_path / "dumps") == expected
    assert (tmp_path / "dumps" / dump).read_bytes() == DUMP
    again = [(name, False, checked) for name, _, checked in expected]
    assert get(site, "wikipedia:de", tmp_path / "dumps") == again


def interrupt(site: Site, folder: Path) -> tuple[str, str]:
    """Interrupt a fetch of the newest dump, after which the mirror publishes a newer one."""
    dump, index, _ = publish_dump(site)
    site.scripts[f"dewiki/20260101/{dump}"] = [cut(1000)] * QUICK.tries
    with pytest.raises(ServiceError):
        fetch("wikipedia:de", to=folder, mirrors=[site.url], transfer=QUICK._replace(tries=1))
    site.scripts[f"dewiki/20260101/{dump}"] = []
    publish_dump(site, date="20260201")
    return dump, index


def test_interrupted_dump_continues_after_a_newer_one(site: Site, tmp_path: Path) -> None:
    dump, index = interrupt(site, tmp_path / "w")
    publish_dump(site, asked="20260101")
    site.seen.clear()
    notices: list[str] = []
    found = fetch("wikipedia:de", to=tmp_path / "w", mirrors=[site.url], transfer=QUICK._replace(notice=notices.append))
    assert [(file.path.name, file.new) for file in found] == [(index, False), (dump, True)]
    assert "bytes=1000-" in site.ranges()
    left = " ".join(str(tmp_path / "w" / name) for name in (index, f".{dump}.part", f".{dump}.part.json"))
    assert notices == [
        f"continuing the interrupted dump of 20260101; for the newest, give its --date, or first: rm {left}"
    ]
    assert get(site, "wikipedia:de", tmp_path / "w")[1][0].startswith("w/dewiki-20260201")


def test_interrupted_dump_yields_to_a_given_date(site: Site, tmp_path: Path) -> None:
    interrupt(site, tmp_path / "w")
    publish_dump(site, date="20260201", asked="20260201")
    assert get(site, "wikipedia:de", tmp_path / "w", "20260201")[1][1]


def test_leftovers_of_dump_gone_from_the_mirror_are_named(site: Site, tmp_path: Path) -> None:
    dump, index = interrupt(site, tmp_path / "w")
    notices: list[str] = []
    found = fetch("wikipedia:de", to=tmp_path / "w", mirrors=[site.url], transfer=QUICK._replace(notice=notices.append))
    assert all(file.new and file.path.name.startswith("dewiki-20260201") for file in found)
    left = [str(tmp_path / "w" / name) for name in (index, f".{dump}.part", f".{dump}.part.json")]
    assert notices == [f"no mirror has the interrupted dump of 20260101; delete it: rm {' '.join(left)}"]


@pytest.mark.parametrize("latest", ["latest", "20260101"])
def test_interrupted_dump_that_is_still_the_newest_continues(site: Site, tmp_path: Path, latest: str) -> None:
    dump, *_ = interrupt(site, tmp_path / "w")
    publish_dump(site, asked=latest)
    publish_dump(site)
    assert get(site, "wikipedia:de", tmp_path / "w")[1] == (f"w/{dump}", True, "sha1")
    assert "bytes=1000-" in site.ranges()


def test_wikipedia_dump_by_date_and_hyphenated_language(site: Site, tmp_path: Path) -> None:
    publish_dump(site, "zh_min_nanwiki", "20250601", "20250601")
    assert len(get(site, "wikipedia:zh-min-nan", tmp_path / "dumps", "20250601")) == 2


def test_wikipedia_defaults_to_english(site: Site, tmp_path: Path) -> None:
    publish_dump(site, "enwiki")
    assert get(site, "wikipedia", tmp_path / "w")[0][0].startswith("w/enwiki-20260101")


def test_missing_or_unfinished_dump_is_refused(site: Site, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no dump tlhwiki of latest") as caught:
        get(site, "wikipedia:tlh", tmp_path / "w")
    assert caught.value.fix == f"choose one of {site.url}/tlhwiki/"
    site.publish("dewiki/latest/dewiki-latest-sha1sums.txt", b"0" * 40 + b"  dewiki-20260101-stubs.xml.gz\n")
    with pytest.raises(DataError, match="does not list dewiki-DATE-pages-articles-multistream-index"):
        get(site, "wikipedia:de", tmp_path / "w")


def test_dump_with_wrong_checksum_is_never_stored(site: Site, tmp_path: Path) -> None:
    dump, index, _ = publish_dump(site)
    site.publish(f"dewiki/20260101/{dump}", DUMP[:-1])
    with pytest.raises(DataError, match="wrong sha1 checksum") as caught:
        get(site, "wikipedia:de", tmp_path / "w")
    assert str(caught.value.facts["need"]) == f"sha1 {hashlib.sha1(DUMP).hexdigest()}"
    assert caught.value.facts["where"] == f"{site.url}/dewiki/20260101/{dump}"
    assert [path.name for path in (tmp_path / "w").iterdir() if not path.name.startswith(".")] == [index]


@pytest.mark.parametrize(
    ("name", "date", "message"),
    [
        ("wikipedia:de/../x", "latest", "invalid language of a Wikipedia"),
        ("wikipedia:DE", "latest", "invalid language of a Wikipedia"),
        ("wikipedia:de", "yesterday", "not of the form YYYYMMDD"),
        ("squad", "20260101", "squad has no dates"),
        ("squad:v3", "latest", "unknown version 'v3' of SQuAD"),
        ("glue:MRPCC", "latest", "unknown task 'MRPCC' of GLUE"),
        ("what?", "latest", "cannot fetch 'what\\?'"),
        ("owner/model:part", "latest", "cannot fetch"),
    ],
)
def test_unknown_names_are_refused(site: Site, tmp_path: Path, name: str, date: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        get(site, name, tmp_path / "x", date)
    assert site.seen == []
    assert not (tmp_path / "x").exists()


def questions(count: int) -> bytes:
    paragraphs = [{"context": "c", "qas": [{"id": str(n)}]} for n in range(count)]
    return json.dumps({"data": [{"paragraphs": paragraphs}]}).encode()


@pytest.fixture
def small_squad(site: Site, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[OfficialFile, ...]]:
    """Publish files in SQuAD's format with a few questions."""
    files = {}
    for version in datasets.SQUAD_FILES:
        content = {f"{split}-{version}.json": questions(count) for split, count in (("train", 5), ("dev", 2))}
        files[version] = tuple(
            OfficialFile((name,), body.count(b"id"), hashlib.sha256(body).hexdigest(), size=len(body))
            for name, body in content.items()
        )
        for name, body in content.items():
            site.publish(name, body)
    monkeypatch.setattr(datasets, "SQUAD_FILES", files)
    return files


def test_squad_is_fetched_and_its_questions_counted(
    site: Site, tmp_path: Path, small_squad: dict[str, tuple[OfficialFile, ...]]
) -> None:
    assert [name for name, *_ in get(site, "squad:v2.0", tmp_path / "s")] == ["s/train-v2.0.json", "s/dev-v2.0.json"]
    found = get(site, "squad", tmp_path / "s")
    assert found[1:] == [
        ("s/dev-v1.1.json", True, "sha256, 2 questions"),
        ("s/train-v2.0.json", False, "sha256, 5 questions"),
        ("s/dev-v2.0.json", False, "sha256, 2 questions"),
    ]


def test_squad_with_wrong_number_of_questions_is_refused(
    site: Site, tmp_path: Path, small_squad: dict[str, tuple[OfficialFile, ...]]
) -> None:
    small_squad["v1.1"] = (replace(small_squad["v1.1"][0], rows=6),)
    with pytest.raises(DataError, match="wrong number of questions") as caught:
        get(site, "squad:v1.1", tmp_path / "s")
    assert caught.value.facts == {"need": 6, "have": 5}


def test_shipped_squad_facts_have_published_sizes() -> None:
    assert [file.rows for files in datasets.SQUAD_FILES.values() for file in files] == [87_599, 10_570, 130_319, 11_873]
    assert list(glue.TASKS) == ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI", "AX"]
    sums = [remote.checksum for task in glue.TASKS.values() for remote in task.files]
    assert {len(checksum.value) for checksum in sums if checksum} == {64}
    assert len(set(sums)) == 12


@pytest.mark.skipif(not REAL.exists(), reason=f"no GLUE in {REAL}")
@pytest.mark.parametrize("task", ["CoLA", "SST-2", "MRPC", "STS-B", "WNLI"])
def test_original_files_have_published_numbers_of_rows(task: str) -> None:
    assert glue._count_all(glue.TASKS[task], REAL / task) == sum(glue.TASKS[task].rows.values())


def publish_task(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, str], rows: dict[str, int]
) -> bytes:
    """Publish an archive with a folder of files and unneeded entries."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for file, text in files.items():
            packed.writestr(f"{name}/{file}", text)
            packed.writestr(f"__MACOSX/{name}/._{file}", "no")
            packed.writestr(f"{name}/original/{file}", "no")
        packed.writestr("../outside.tsv", "no")
    content = buffer.getvalue()
    site.publish(f"glue/data/{name}.zip", content)
    remote = Remote(f"glue/data/{name}.zip", Checksum("sha256", hashlib.sha256(content).hexdigest()), len(content))
    monkeypatch.setattr(glue, "TASKS", {name: glue.TaskArchive(name, (remote,), rows)})
    return content


FILES = {
    "train.tsv": 'sentence\tlabel\n"Open quote\t1\nbroken row\nlast one\t0',
    "dev.tsv": "sentence\tlabel\na\t1\n",
    "test.tsv": "index\tsentence\n0\tx\n1\ty\n",
}
ROWS = {"train.tsv": 2, "dev.tsv": 1, "test.tsv": 2}


def test_glue_task_is_unpacked_and_its_rows_counted(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_task(site, monkeypatch, "SST-2", FILES, ROWS)
    assert get(site, "glue:SST-2", tmp_path / "glue") == [("glue/SST-2", True, "sha256, 5 rows")]
    assert {path.name: path.read_text() for path in (tmp_path / "glue" / "SST-2").iterdir()} == FILES
    assert [path.name for path in (tmp_path / "glue").iterdir()] == ["SST-2"]
    assert [path.name for path in tmp_path.iterdir()] == ["glue"]
    assert get(site, "glue", tmp_path / "glue") == [("glue/SST-2", False, "5 rows")]
    (tmp_path / "glue" / "SST-2" / "dev.tsv").write_text("sentence\tlabel\n")
    with pytest.raises(ConflictError, match="exists, with other content") as caught:
        get(site, "glue", tmp_path / "glue")
    assert caught.value.facts["have"] == 0


@pytest.mark.parametrize(
    ("files", "rows", "message"),
    [
        (FILES, {**ROWS, "train.tsv": 3}, "train.tsv has the wrong number of rows"),
        (FILES, {**ROWS, "dev_matched.tsv": 3}, "has no file dev_matched.tsv"),
    ],
)
def test_archive_with_wrong_rows_or_files_is_never_stored(
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    rows: dict[str, int],
    message: str,
) -> None:
    publish_task(site, monkeypatch, "SST-2", files, rows)
    with pytest.raises(DataError, match=message):
        get(site, "glue", tmp_path / "glue")
    assert [path.name for path in (tmp_path / "glue").iterdir()] == [glue.ARCHIVES]


def test_invalid_archive_is_refused(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_task(site, monkeypatch, "SST-2", FILES, ROWS)
    remote = Remote("glue/data/x.zip", Checksum("sha256", hashlib.sha256(b"PK no").hexdigest()))
    site.publish("glue/data/x.zip", b"PK no")
    monkeypatch.setitem(glue.TASKS, "SST-2", glue.TaskArchive("SST-2", (remote,), ROWS))
    with pytest.raises(DataError, match="cannot unpack"):
        get(site, "glue", tmp_path / "glue")


def test_mrpc_is_built_from_microsofts_pairs(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    pairs = [f'{n % 2}\t{n}\t{n + 100}\tA "quote {n}\tB\u2028 {n}' for n in range(5)]
    contents = {
        "train.txt": (header + "\r\n".join(pairs) + "\r\n").encode(),
        "test.txt": (header + "1\t7\t8\tX\tY\r\n0\t9\t10\tZ\tW").encode(),
        "ids.tsv": b"1\t101\n3\t103\n",
    }
    remotes = []
    for name, content in contents.items():
        site.publish(name, content)
        remotes.append(Remote(name, Checksum("sha256", hashlib.sha256(content).hexdigest())))
    task = glue.TaskArchive("MRPC", tuple(remotes), {"train.tsv": 3, "dev.tsv": 2, "test.tsv": 2})
    monkeypatch.setattr(glue, "TASKS", {"MRPC": task})
    get(site, "glue:MRPC", tmp_path / "glue")
    folder = tmp_path / "glue" / "MRPC"
    head = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    assert (folder / "train.tsv").read_text() == head + "".join(f"{pairs[n]}\n" for n in (0, 2, 4))
    assert (folder / "dev.tsv").read_text() == head + "".join(f"{pairs[n]}\n" for n in (1, 3))
    tested = "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\tX\tY\n1\t9\t10\tZ\tW\n"
    assert (folder / "test.tsv").read_text() == tested


def hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a model in the cache of the Hub."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub"))
    repository = folder / "hub" / "models--owner--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (folder / "blob").write_text("{}")
    (snapshot / "config.json").symlink_to(folder / "blob")
    for name in ("tokenizer_config.json", "vocab.txt", "model.safetensors"):
        (snapshot / name).write_text(name)
    return snapshot


def test_model_fetched_by_hub_client_and_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = hub(tmp_path, monkeypatch)
    [cached] = fetch("owner/tiny")
    assert (cached.path, cached.new, cached.bytes) == (snapshot, False, 2 + 21 + 9 + 17)
    [copied] = fetch("owner/tiny", to=tmp_path / "model")
    assert copied.path == tmp_path / "model"
    assert not (tmp_path / "model" / "config.json").is_symlink()
    assert sorted(path.name for path in copied.path.iterdir())[-1] == "vocab.txt"
    with pytest.raises(ConflictError, match="already exists"):
        fetch("owner/tiny", to=tmp_path / "model")
    with pytest.raises(SpecError, match="cannot download the model owner/other, and it is not in the cache"):
        fetch("owner/other")


def test_mirror_of_the_hub_becomes_client_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub(tmp_path, monkeypatch)
    monkeypatch.setenv("HF_ENDPOINT", "https://huggingface.co")
    fetch("owner/tiny", mirrors=["https://hub.example.org"])
    assert os.environ["HF_ENDPOINT"] == "https://hub.example.org"


def test_user_mirrors_come_first(tmp_path: Path) -> None:
    shipped = mirrors_of("wikipedia", None)
    assert shipped[0] == "https://dumps.wikimedia.org"
    assert mirrors_of("wikipedia", tmp_path) == shipped
    (tmp_path / "mirrors.yaml").write_text("wikipedia:\n  - https://mirror.example.org\n")
    assert mirrors_of("wikipedia", tmp_path) == ("https://mirror.example.org", *shipped)
    assert mirrors_of("squad", tmp_path) == mirrors_of("squad", None)
    (tmp_path / "mirrors.yaml").write_text("wikpedia: [x]\nglue: []\n")
    with pytest.raises(SpecError) as caught:
        mirrors_of("wikipedia", tmp_path)
    assert caught.value.problems == [
        f"{tmp_path / 'mirrors.yaml'}:2: glue: list should have at least 1 item after validation, not 0",
        f'{tmp_path / "mirrors.yaml"}:1: wikpedia: unknown key (did you mean "wikipedia"?)',
    ]


def test_user_mirror_is_requested(site: Site, tmp_path: Path) -> None:
    (tmp_path / "mirrors.yaml").write_text(f"wikipedia: [{site.url}]\n")
    publish_dump(site)
    found = fetch("wikipedia:de", to=tmp_path / "w", home=tmp_path, transfer=QUICK)
    assert len(found) == 2


def test_unreachable_server_is_a_service_error(site: Site, tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="sha1sums"):
        fetch("wikipedia:de", to=tmp_path, mirrors=["http://127.0.0.1:9"], transfer=QUICK)
