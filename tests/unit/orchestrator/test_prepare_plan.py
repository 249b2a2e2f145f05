"""Preparation as a job kind: its spec and plan, and what both kinds share."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.ui.completers import assignments, recipes
from orchestrator.cli.ui.spec_flags import kind_or_file
from orchestrator.jobs.base import Plan
from orchestrator.jobs.prepare.plan import PreparePlan
from orchestrator.jobs.prepare.spec import PrepareSpec
from orchestrator.jobs.pretrain.plan import PretrainPlan
from orchestrator.jobs.pretrain.spec import PretrainSpec
from orchestrator.jobs.registry import kind_names
from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.specs.resolved import Flag, Resolved
from orchestrator.support.errors import SpecError
from tests.conftest import write_corpus
from tests.unit.corpus.small_corpora import prepare
from train_jobs.config import DataError, TextConfig
from train_jobs.config.prepare import MIN_BYTES_FOR_WORKERS
from train_jobs.prepare import read_config

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "text.txt")
    return tmp_path


def resolve(kind: str, *sets: str, **more: object) -> Resolved:
    return resolve_spec(kind, sets=sets, environ=NO_GPU, **more)  # type: ignore[arg-type]


def plan(folder: Path, kind: str, *sets: str) -> Plan:
    return make_plan(resolve(kind, *sets), home=folder / "home")


def test_command_line_offers_all_kinds() -> None:
    assert [kind_or_file(name) for name in kind_names()] == kind_names()
    arguments = type("Arguments", (), {"kind": "prepare"})()
    assert recipes(parsed_args=arguments) == ["cased", "uncased"]
    assert "tiny" in recipes()
    offered = assignments("", parsed_args=arguments)
    assert "data.workers=" in offered
    assert "train.steps=" not in offered


def test_relative_paths_start_at_their_source(folder: Path) -> None:
    (folder / "specs").mkdir()
    write_corpus(folder / "specs" / "a.txt")
    spec = "data: {text: [a.txt, {path: a.*, weight: 2}, {path: [../text.txt], format: text}]}\nstore: made\n"
    (folder / "specs" / "job.yaml").write_text(spec)
    found = resolve("prepare", file=Path("specs/job.yaml")).spec
    assert isinstance(found, PrepareSpec)
    assert [source.path for source in found.data.text] == [
        [f"{folder}/specs/a.txt"],
        [f"{folder}/specs/a.*"],
        [f"{folder}/text.txt"],
    ]
    assert found.store == folder / "specs" / "made"
    (folder / "specs" / "job.yaml").write_text("data: {text: [{path: [b.*, c.txt]}]}\n")
    with pytest.raises(SpecError) as caught:
        resolve("prepare", file=Path("specs/job.yaml"))
    assert caught.value.problems == [
        f"specs/job.yaml:1: data.text.0: no file matches {folder}/specs/b.*",
        f"specs/job.yaml:1: data.text.0: no such file or folder: {folder}/specs/c.txt",
    ]


def test_relative_folder_of_a_dataset_starts_at_its_source(folder: Path) -> None:
    """Names on the Hub stay as they are."""
    (folder / "specs" / "books").mkdir(parents=True)
    names = ("./books:en@test", "books", "../specs/books", "owner/books:en")
    sources = ", ".join(f"{{dataset: '{name}'}}" for name in names)
    (folder / "specs" / "job.yaml").write_text(f"data: {{text: [{sources}]}}\n")
    found = resolve("prepare", file=Path("specs/job.yaml")).spec
    assert isinstance(found, PrepareSpec)
    place = f"{folder}/specs/books"
    assert [source.dataset for source in found.data.text] == [f"{place}:en@test", place, place, "owner/books:en"]
    (folder / "specs" / "job.yaml").write_text("data: {text: [{dataset: ./missing@test}]}\n")
    with pytest.raises(SpecError) as caught:
        resolve("prepare", file=Path("specs/job.yaml"))
    assert caught.value.problems == ["specs/job.yaml:1: data.text.0: no such folder: ./missing"]


@pytest.mark.parametrize("kind", ["prepare", "pretrain"])
def test_folder_of_a_dataset_does_not_go_to_azure(folder: Path, kind: str) -> None:
    (folder / "books").mkdir()
    (folder / "books" / "train.jsonl").write_text('{"text": "a"}\n')
    found = plan(folder, kind, "data.text=[{dataset: books}]")
    assert found.needs.undeliverable == (f"data.text: {folder / 'books'} is a dataset on this machine",)
    assert plan(folder, kind, "data.text=[text.txt]").needs.undeliverable == ()


def test_project_defaults_apply_to_matching_kinds(folder: Path) -> None:
    project = folder / "orchestrator.yaml"
    project.write_text(
        "recipe: small\ntrain: {steps: 7}\nstore: made\ndata: {text: [text.txt], sequence_length: 32}\nbackend: debug\n"
    )
    prepared = resolve("prepare", project=project).spec
    assert isinstance(prepared, PrepareSpec)
    assert (prepared.recipe, prepared.backend, prepared.store) == ("uncased", "debug", folder / "made")
    assert len(prepared.data.text) == 1
    trained = resolve("pretrain", project=project).spec
    assert isinstance(trained, PretrainSpec)
    assert (trained.recipe, trained.train.steps, trained.data.sequence_length) == ("small", 7, 32)
    project.write_text("trian: {steps: 7}\n")
    for kind in kind_names():
        with pytest.raises(SpecError, match=r"trian: unknown key"):
            resolve(kind, project=project)


def test_keys_of_other_kind_refused_in_file_and_flag(folder: Path) -> None:
    with pytest.raises(SpecError, match="train: unknown key"):
        resolve("prepare", "train.steps=3")
    with pytest.raises(SpecError, match="init_from: unknown key"):
        resolve("prepare", flags={"init_from": Flag("bert", "--from")})
    with pytest.raises(SpecError, match="a vocabulary trained on the text contains its words"):
        resolve("prepare", "data.add_tokens=[word]")


@pytest.mark.parametrize("kind", ["prepare", "pretrain"])
def test_wrong_vocabulary_is_refused_by_the_plan(folder: Path, kind: str) -> None:
    special = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"
    for content, message in ((f"{special}\na\n", "an empty line"), ("text,label\n", "is not a BERT vocabulary")):
        (folder / "v.txt").write_text(content)
        for text in ("[text.txt]", "[]"):
            with pytest.raises(DataError, match=message):
                plan(folder, kind, f"data.text={text}", "data.vocabulary=v.txt")
    (folder / "v.txt").write_text(f"{special}a\n")
    if kind == "prepare":
        with pytest.raises(DataError, match="some words cannot be tokens") as caught:
            plan(folder, kind, "data.text=[text.txt]", "data.vocabulary=v.txt", "data.add_tokens=[a, Big]")
        problems = '"a" is already in the vocabulary; "Big" is changed by lower-casing: "big"'
        assert caught.value.facts["words"] == problems


def test_names_that_are_not_utf8_are_refused_in_a_spec(folder: Path) -> None:
    """The text files of a run contain the spec; a folder may contain files with such names."""
    (folder / "notes").mkdir()
    write_corpus(folder / "notes" / "caf\udce9.txt")
    assert plan(folder, "prepare", "data.text=[notes]").data.files == 1
    with pytest.raises(SpecError) as caught:
        resolve("prepare", flags={"data.text": Flag(["notes/caf\udce9.txt"], "--data")})
    assert caught.value.problems == ["--data: data.text: a name that is not UTF-8; rename the file or folder"]


def test_words_to_add_are_read_from_a_file(folder: Path) -> None:
    (folder / "v.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (folder / "words.txt").write_text("quokka\n\nzebrafish\n")
    (folder / "job.yaml").write_text("data: {text: [text.txt], vocabulary: v.txt, add_tokens: words.txt}\n")
    sets = ["data.text=[text.txt]", "data.vocabulary=v.txt", "data.add_tokens=words.txt"]
    assert plan(folder, "prepare", *sets).job.data.add_tokens == ["quokka", "zebrafish"]
    in_file = resolve("prepare", file=Path("job.yaml")).spec
    assert isinstance(in_file, PrepareSpec)
    assert in_file.data.add_tokens == read_config("uncased", sets).data.add_tokens == ["quokka", "zebrafish"]
    for read in (lambda *words: resolve("prepare", *words), lambda *words: read_config("uncased", list(words))):
        with pytest.raises(SpecError) as caught:
            read(*sets[:2], "data.add_tokens=gone.txt")
        assert "data.add_tokens: cannot read" in caught.value.problems[0]


def test_store_in_the_folder_of_its_text_is_refused(folder: Path) -> None:
    (folder / "notes").mkdir()
    (folder / "text.txt").rename(folder / "notes" / "text.txt")
    for text in ("notes", "no*"):
        with pytest.raises(DataError, match="the store is in the folder of the text") as caught:
            plan(folder, "prepare", f"data.text=[{text}]", "store=notes/made")
        assert caught.value.facts["reads"] == str(folder / text)
    for store in ("made", "notes2", "notes/.made"):  # hidden files are not read
        assert plan(folder, "prepare", "data.text=[notes]", f"store={store}").steps is None


def test_plan_shows_its_inputs(folder: Path) -> None:
    found = plan(folder, "prepare", "data.text=[text.txt]", "store=made", "data.workers=3")
    assert isinstance(found, PreparePlan)
    assert (found.steps, found.world_size, found.spec.code.entry) == (None, 1, "train_jobs.prepare")
    size = (folder / "text.txt").stat().st_size
    estimates = found.estimates
    assert (estimates.text_bytes, estimates.parts, estimates.workers) == (size, 1, 1)
    assert estimates.disk_bytes == estimates.store_bytes + estimates.steps_bytes
    text = found.summary()
    assert f"store{folder}/madevocabularytrainedhere" in "".join(text.split())  # a long path is wrapped
    assert "of text in 1 part by 1 worker:" in text
    assert max(map(len, text.splitlines())) <= 80
    assert found.name == f"prepare-uncased-{found.run_hash}"


def test_compressed_file_is_estimated_larger(folder: Path) -> None:
    import bz2

    (folder / "dump.bz2").write_bytes(bz2.compress((folder / "text.txt").read_bytes()))
    found = plan(folder, "prepare", "data.text=[dump.bz2]")
    assert isinstance(found, PreparePlan)
    assert found.estimates.text_bytes == 4 * (folder / "dump.bz2").stat().st_size


def test_hash_covers_settings_and_location_of_the_store(folder: Path) -> None:
    def run_hash(*sets: str) -> str:
        return plan(folder, "prepare", "data.text=[text.txt]", *sets).run_hash

    assert run_hash() == run_hash("data.workers=7")
    different = [
        run_hash(),
        run_hash("store=made"),
        run_hash("data.lowercase=false"),
        run_hash("data.clean.min_characters=9"),
        run_hash("data.text=[{path: text.txt, weight: 2}]"),
    ]
    assert len(set(different)) == len(different)


def test_training_on_a_store_uses_its_settings(folder: Path) -> None:
    data = TextConfig(text=["text.txt"], vocab_size=200, lowercase=False, validation_fraction=0.3)
    store = prepare(data, folder / "store")
    small = ("train.steps=5", "data.sequence_length=32")
    found = plan(folder, "pretrain", "data.store=store", *small)
    assert isinstance(found, PretrainPlan)
    assert found.data == store.manifest.data
    assert (found.job.data.lowercase, found.job.data.validation_fraction) == (False, 0.3)
    assert plan(folder, "pretrain", "data.text=[store]", *small).run_hash == found.run_hash
    (folder / "text.txt").unlink()  # the store suffices
    assert plan(folder, "pretrain", "data.store=store", *small).run_hash == found.run_hash
    warned = plan(folder, "pretrain", "data.store=store", "data.lowercase=true", "data.vocab_size=100", *small)
    assert "data.vocab_size has no effect: data.store has its own" in warned.warnings
    with pytest.raises(SpecError, match="a store already contains its text"):
        resolve("pretrain", "data.store=store", "data.text=[store]")
    (folder / "store" / "manifest.json").write_text('{"version": 1}')
    with pytest.raises(DataError) as caught:
        plan(folder, "pretrain", "data.store=store", *small)
    assert caught.value.facts["why"] == "version 1, but this code reads version 3"


def test_store_of_unusual_sentences_warns(folder: Path) -> None:
    """Text whose sentences are not recognised: its next-sentence pairs would be random ones."""
    words = [" ".join(f"{number % 37}-{start}" for number in range(400)) for start in range(200)]
    (folder / "text.txt").write_text("\n\n".join(words))
    prepare(TextConfig(text=["text.txt"], vocab_size=200), folder / "store")
    small = ("data.store=store", "train.steps=5", "data.sequence_length=32")
    (warning,) = [text for text in plan(folder, "pretrain", *small).warnings if "on average" in text]
    assert warning.endswith("tokens on average (usual: 5 to 80): most next-sentence pairs are random")
    assert not [
        text for text in plan(folder, "pretrain", *small, "objective.next_sentence=false").warnings if "average" in text
    ]


def test_plan_on_a_store_says_how_sequences_use_the_text(folder: Path) -> None:
    """Documents of one sentence: all pairs are random. Batches have a number of tokens, whatever the text."""
    lines = [f"The word number {number} of a text stands here." for number in range(300)]
    (folder / "text.txt").write_text("\n\n".join(lines))
    prepare(TextConfig(text=["text.txt"], vocab_size=200), folder / "store")
    settings = ("data.store=store", "train.steps=5", "data.sequence_length=64", "train.batch_tokens=64000")
    pairs = plan(folder, "pretrain", *settings)
    assert isinstance(pairs, PretrainPlan)
    rows = dict(pairs.facts())
    assert rows["sequences"].endswith("of pairs random")
    assert "100% of next-sentence pairs are random at 64 tokens" in " ".join(pairs.warnings)
    assert rows["tokens"].startswith("64,000 a step: ")
    assert pairs.sequences is not None
    used = pairs.job.train.global_batch_size * pairs.sequences.tokens_per_sequence
    assert used == pytest.approx(64_000, rel=0.01)
    full = plan(folder, "pretrain", *settings, "objective.next_sentence=false", "train.global_batch_size=7")
    assert isinstance(full, PretrainPlan)
    assert full.job.train.global_batch_size == 992  # 1,000 full sequences, rounded so that they divide
    assert dict(full.facts())["sequences"] == "filled to 64 tokens over the ends of documents"
    assert "train.global_batch_size has no effect: train.batch_tokens takes its place" in full.warnings
    assert not [text for text in full.warnings if "pairs" in text]


def test_unfinished_store_is_not_a_text(folder: Path) -> None:
    (folder / "store" / "parts").mkdir(parents=True)
    with pytest.raises(DataError, match="is not finished"):
        plan(folder, "pretrain", "data.store=store")


def test_job_file_of_docs_page_is_read_by_job(tmp_path: Path) -> None:
    """The page gives one file to `orchestrator submit` and to `python -m train_jobs.prepare`."""
    page = (Path(__file__).parents[3] / "docs" / "corpus.md").read_text()
    [block] = [block for block in page.split("```") if block.startswith("yaml\n# job.yaml")]
    (tmp_path / "job.yaml").write_text(block.removeprefix("yaml\n"))
    config = read_config(str(tmp_path / "job.yaml"), [])
    assert config.store == Path("stores/mix")
    assert config.data.clean.min_characters == 200
    (tmp_path / "cased.yaml").write_text("recipe: cased\n")
    assert not read_config(str(tmp_path / "cased.yaml"), []).data.lowercase
    (tmp_path / "wrong.yaml").write_text("\nkind: pretrain\n")
    with pytest.raises(SpecError, match="is for another kind of job") as caught:
        read_config(str(tmp_path / "wrong.yaml"), [])
    assert caught.value.problems == [f"{tmp_path}/wrong.yaml:2: kind: must be prepare, not 'pretrain'"]


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ((), None),
        (("data.executor=dask",), "a Dask cluster that the job starts on this node"),
        (("compute.nodes=2",), "processes of the first node; the others wait for it"),
        (
            ("compute.nodes=2", "data.executor=dask"),
            "a Dask cluster that the job starts on 2 nodes, the scheduler on the first",
        ),
        (
            ("data.executor={name: dask, scheduler: 'tls://10.0.0.4:8786'}",),
            "the Dask cluster of tls://10.0.0.4:8786, which must see text and store",
        ),
    ],
)
def test_plan_names_what_runs_the_work(folder: Path, sets: tuple[str, ...], expected: str | None) -> None:
    found = plan(folder, "prepare", "data.text=[text.txt]", "store=made", *sets)
    assert dict(found.facts()).get("executor") == expected


@pytest.mark.parametrize(
    ("sets", "workers"),
    [
        ((), 3),
        (("compute.nodes=2",), 6),
        (("compute.nodes=2", "data.executor=processes"), 3),
        (("data.executor={name: dask, scheduler: 'tls://10.0.0.4:8786'}",), None),
    ],
)
def test_plan_counts_workers_that_run(folder: Path, sets: tuple[str, ...], workers: int | None) -> None:
    once = (folder / "text.txt").read_bytes()
    (folder / "long.txt").write_bytes(once * (3 * MIN_BYTES_FOR_WORKERS // len(once) + 1))
    found = plan(folder, "prepare", "data.text=[long.txt]", "data.workers=3", *sets)
    assert isinstance(found, PreparePlan)
    assert found.estimates.parts >= 6
    assert found.estimates.workers == workers
    row = dict(found.facts())["work"]
    assert row.endswith("the workers of the cluster") if workers is None else f"by {workers} workers:" in row


def test_executor_keeps_hash_of_run(folder: Path) -> None:
    one, other = (plan(folder, "prepare", "data.text=[text.txt]", *sets) for sets in ((), ("data.executor=dask",)))
    assert one.run_hash == other.run_hash


def test_executor_flag_sets_its_name() -> None:
    found = resolve("prepare", flags={"data.executor.name": Flag("dask", "--executor")}).spec
    assert found.data.executor.name == "dask"
