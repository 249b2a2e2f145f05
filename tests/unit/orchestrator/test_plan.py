"""The plan: its name and hash, text, JSON, and imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator.jobs.base as plan_module
from orchestrator.jobs.base import Plan
from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.snapshot import Snapshot, take_snapshot
from orchestrator.support.errors import ConflictError, DataError, SpecError
from orchestrator.support.formatting import bytes_text
from orchestrator.support.home import home_folder
from tests.conftest import SMALL_TEXT, tmpfs, write_bert
from train_jobs.artifacts import fingerprints
from train_jobs.artifacts.layers import preset_names

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
REPOSITORY = Path(__file__).resolve().parents[3]
VOCABULARY = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a current folder with a text, a vocabulary and a fixed snapshot of some code."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(SMALL_TEXT)
    (tmp_path / "vocab.txt").write_text(VOCABULARY)
    (tmp_path / "train_jobs").mkdir()
    (tmp_path / "train_jobs" / "loop.py").write_text("steps = 1\n")
    monkeypatch.setattr(plan_module, "take_snapshot", lambda **user: take_snapshot(tmp_path / "train_jobs", **user))
    return tmp_path


def plan(*sets: str) -> Plan:
    everything = ["data.text=[text.txt]", "train.micro_batch_size=4", "compute.threads_per_process=1", *sets]
    return make_plan(resolve_spec("pretrain", sets=everything, environ=NO_GPU), home=Path("home").absolute())


def test_name_is_slug_and_eight_digits_of_hash() -> None:
    first = plan()
    assert first.name == f"pretrain-tiny-{first.run_hash}"
    assert len(first.run_hash) == 8
    assert int(first.run_hash, 16) >= 0
    assert plan("name=my-run").name == f"my-run-{first.run_hash}"
    assert plan("recipe=small").name.startswith("pretrain-small-")


@pytest.mark.parametrize(
    "same",
    [
        "name=other",
        "tags.team=nlp",
        "card.license=mit",
        "tracking.experiment=other",
        "tracking.uri=sqlite:///other.db",
        "backend=elsewhere",
        "compute.master_port=29500",
        "compute.price_per_hour=3.5",
        "compute.device=cpu",
        "train.seed=42",
        "metrics.tensorboard=true",
        "profile.steps=3",
        "watchdog.hang_minutes=null",
    ],
)
def test_hash_ignores_settings_without_effect_on_results(same: str) -> None:
    assert plan(same).run_hash == plan().run_hash


@pytest.mark.parametrize(
    "other",
    [
        "train.seed=43",
        "optimizer.betas=[0.9,0.99]",
        "objective.whole_word=true",
        "objective.duplicates=5",
        "train.loss_normalization=micro_batch",
        "checkpoint.every=7",
        "compute.processes_per_node=2",
        "compute.nodes=2",
        "compute.threads_per_process=2",
        "environment.variables.A=1",
        "data.vocabulary=vocab.txt",
        "data.text=[text.txt, vocab.txt]",
        "data.text=[]",
    ],
)
def test_hash_covers_settings_with_effect_on_results(other: str) -> None:
    assert plan(other).run_hash != plan().run_hash


def test_hash_distinguishes_nodes_from_processes() -> None:
    assert plan("compute.processes_per_node=2").run_hash != plan("compute.nodes=2").run_hash


def test_hash_covers_content_and_not_paths(folder: Path) -> None:
    given = "data.vocabulary=vocab.txt"
    before = plan(given).run_hash
    (folder / "moved").mkdir()
    (folder / "moved" / "text.txt").write_bytes((folder / "text.txt").read_bytes())
    (folder / "moved" / "words.txt").write_bytes((folder / "vocab.txt").read_bytes())
    assert plan("data.text=[moved/text.txt]", "data.vocabulary=moved/words.txt").run_hash == before
    (folder / "vocab.txt").write_text(VOCABULARY + "d\n")
    changed = plan(given).run_hash
    assert changed != before
    (folder / "text.txt").write_text(f"{SMALL_TEXT}more\n")
    assert plan(given).run_hash not in {before, changed}


def test_hash_covers_code_and_packages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = plan().run_hash
    monkeypatch.setattr("orchestrator.specs.job.EnvironmentSpec.describe", lambda self: {"torch": "0.1"})
    packages = plan().run_hash
    assert packages != before
    (folder / "train_jobs" / "loop.py").write_text("steps = 2\n")
    assert plan().run_hash not in {before, packages}


def test_plan_is_json_with_origins(folder: Path) -> None:
    document = json.loads(json.dumps(plan("tags.a=b").as_dict()))
    assert document["changes"]["tags.a"] == {"value": "b", "from": "--set"}
    assert document["changes"]["data.text"] == {"value": [str(folder / "text.txt")], "from": "--set"}
    assert document["snapshot"]["files"] == 1
    assert document["snapshot"]["largest"] == [{"path": "train_jobs/loop.py", "size": 10}]
    assert (document["world_size"], document["accumulation_steps"]) == (1, 16)
    assert document["data"]["total_bytes"] == len(SMALL_TEXT)
    assert document["job"]["train"]["micro_batch_size"] == 4


def test_summary_fits_80_columns() -> None:
    made = plan("train.global_batch_size=256", "compute.processes_per_node=2", "data.vocabulary=vocab.txt")
    lines = made.summary().splitlines()
    assert max(len(line) for line in lines) <= 80
    text = " ".join(made.summary().split())
    assert lines[0] == made.name
    assert "train.global_batch_size = 256 (--set)" in text
    assert "batch 256 = 4 x 32 x 2 (global = micro x accumulation x world)" in text
    assert f"1 file, {len(SMALL_TEXT)} B, sha256 {made.data.sha256[:8]}" in text
    assert f"{made.estimates.parameters:,} parameters" in text
    assert text.count("(estimate)") == 3
    assert f"snapshot 1 files, 10 B, digest {made.snapshot.digest[:8]}" in text
    assert "python 3." in text


def test_summary_names_recipe_source_and_prints_yaml() -> None:
    text = plan("recipe=small", "train.steps=1", "objective.next_sentence=false").summary()
    assert "recipe      small  (--set)" in text
    assert "train.steps = 1  (--set)" in text
    assert "objective.next_sentence = false  (--set)" in text


def test_summary_shows_processes_of_sharded_moments() -> None:
    text = " ".join(plan("optimizer.sharded=true", "compute.processes_per_node=4").summary().split())
    assert "state (moments sharded over 4), " in text
    assert "sharded over" not in plan("compute.processes_per_node=4").summary()


def test_auto_micro_batch_is_left_to_the_job() -> None:
    made = plan("train.micro_batch_size=auto", "compute.processes_per_node=2")
    text = " ".join(made.summary().split())
    assert "batch 64 = micro x accumulation x 2 (world); micro is auto: the largest that fits, found" in text
    assert "before the first step, 32 at most" in text
    assert "activations of 32 sequences" in text
    assert made.as_dict()["accumulation_steps"] is None
    assert "activations of" not in plan().summary()
    with pytest.raises(SpecError, match="does not divide into processes"):
        plan("train.micro_batch_size=auto", "compute.processes_per_node=3")


def test_summary_shows_the_schedule() -> None:
    text = " ".join(plan("schedule.name=cosine", "schedule.hours=2.5").summary().split())
    assert (
        "schedule 0.002 after a linear warm-up over 10.0% of the run, then cosine decay, for 2.5 hours at most" in text
    )


def test_run_hash_covers_start_weights_not_location(folder: Path) -> None:
    write_bert(folder / "bert")
    write_bert(folder / "moved" / "bert")
    given, shape = "init_from=bert", ["model.hidden_size=32", "data.sequence_length=32"]
    first = plan(given, *shape)
    assert first.run_hash == plan("init_from=moved/bert", *shape).run_hash
    (folder / "bert" / "model.safetensors").write_bytes(b"other weights")
    assert plan(given, *shape).run_hash != first.run_hash
    assert first.parent is not None
    assert (first.parent.kind, first.parent.name) == ("external", "bert")
    assert first.estimates.parameters == plan("init_from=moved/bert", *shape).estimates.parameters


def test_added_word_is_one_row_more_and_another_run(folder: Path) -> None:
    write_bert(folder / "bert", pieces=40)
    first, more = (plan("init_from=bert", "data.sequence_length=32", f"data.add_tokens={x}") for x in ("[]", "[stent]"))
    assert more.estimates.parameters == first.estimates.parameters + 8 * (32 + 1)  # rows are padded to 8
    assert more.run_hash != first.run_hash
    words = [f"word{number}" for number in range(300)]
    summary = plan("init_from=bert", "data.sequence_length=32", f"data.add_tokens={words}").summary()
    assert '"word4", ... 300 in total]' in " ".join(summary.split())
    assert "word5" not in summary


def test_summary_shows_the_initial_model(folder: Path) -> None:
    write_bert(folder / "bert")
    made = plan("init_from=bert", "data.sequence_length=32", "data.vocab_size=64")
    assert made.parent is not None
    assert f"  from        bert, weights {str(made.parent.weights)[:8]}  (--set)" in made.summary().splitlines()
    assert "init_from =" not in made.summary()
    assert "model.hidden_size" not in made.changes  # chosen by the folder, not by the user
    assert made.warnings[0] == "data.vocab_size has no effect: data.vocabulary has its own size"
    assert "100.0% of the words" in made.warnings[1]  # a vocabulary of a few made-up words
    assert made.as_dict()["parent"]["name"] == "bert"


def test_model_differing_from_lineage_refused_early(folder: Path) -> None:
    write_bert(folder / "bert")
    (folder / "bert" / "lineage.json").write_text("{")
    with pytest.raises(ConflictError, match=r"lineage\.json is truncated"):
        plan("init_from=bert", "data.sequence_length=32")


def test_summary_estimates_disk_space() -> None:
    made = plan("checkpoint.every=50", "checkpoint.keep_every=300")
    text = " ".join(made.summary().split())
    assert "checkpoints every 50 steps and every 10 minutes; kept: last 2, best 1, multiples of 300" in text
    assert f"disk {bytes_text(made.estimates.disk_bytes)} at most: 6 checkpoints of" in text
    assert f"{bytes_text(made.estimates.checkpoint_copy_bytes)} of host memory for checkpoints (estimate)" in text
    assert not any("disk" in warning for warning in made.warnings)
    alone = " ".join(plan("checkpoint.every=null", "checkpoint.keep_best=0").summary().split())
    assert "checkpoints every 10 minutes; kept: last 2 " in alone
    stepwise = plan("checkpoint.every=50", "checkpoint.every_minutes=null", "checkpoint.asynchronous=false")
    assert "checkpoints every 50 steps; kept: last 2, best 1 disk" in " ".join(stepwise.summary().split())
    assert "of host memory" not in stepwise.summary()


def test_small_disk_for_checkpoints_warns(tmp_path: Path) -> None:
    """The warning is about the disk of the home folder, which may not exist yet."""
    with tmpfs(tmp_path / "disk", "100m") as disk:
        home = disk / "not" / "yet"
        resolved = resolve_spec("pretrain", sets=["recipe=tiny", "data.text=[text.txt]"], environ=NO_GPU)
        fits = make_plan(resolved, home=home)
        assert 50e6 < fits.estimates.disk_bytes < 60e6
        assert not any("disk" in warning for warning in fits.warnings)
        (disk / "other").write_bytes(bytes(60_000_000))
        (warning,) = (one for one in make_plan(resolved, home=home).warnings if "disk" in one)
        (same,) = (one for one in make_plan(resolved, home=disk).warnings if "disk" in one)
    need = bytes_text(fits.estimates.disk_bytes)
    assert warning.startswith(f"the disk may fill up with checkpoints: need up to {need}, have 4")
    assert warning.endswith(f"free at {home}")
    assert same.endswith(f"free at {disk}"), "a home on its own disk"


def test_vocabulary_file_sets_the_size_of_the_model() -> None:
    assert plan("data.vocabulary=vocab.txt").estimates.parameters < plan().estimates.parameters


def test_vocabulary_that_is_not_text_is_named(folder: Path) -> None:
    (folder / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(DataError, match=r"vocab\.txt is not UTF-8"):
        plan("data.vocabulary=vocab.txt")


@pytest.mark.parametrize("recipe", preset_names())
def test_every_recipe_plans_with_the_embedded_corpus(recipe: str, folder: Path) -> None:
    resolved = resolve_spec("pretrain", sets=[f"recipe={recipe}"], environ=NO_GPU)
    made = make_plan(resolved, home=folder / "home")
    assert made.name.startswith(f"pretrain-{recipe}-")
    assert set(made.changes) <= {"recipe"}
    train = made.job.train
    if train.micro_batch_size == "auto":
        assert made.accumulation_steps is None
    else:
        assert train.global_batch_size == train.micro_batch_size * made.accumulation_steps * made.world_size
    assert "embedded" in made.data.name
    assert max(len(line) for line in made.summary().splitlines()) <= 80


def test_text_hashes_are_cached_in_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "RECENT", -3600 * 10**9)  # files that were just written are cached too
    plan()
    assert (folder / "home" / "cache" / "fingerprints.json").is_file()


def test_plan_contains_its_snapshot(folder: Path) -> None:
    snapshot = plan().snapshot
    assert isinstance(snapshot, Snapshot)
    snapshot.write(folder / "run")
    assert (folder / "run" / "train_jobs" / "loop.py").read_text() == "steps = 1\n"


def test_home_folder_is_users_unless_variable_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert home_folder({}) == Path("/home/someone/.orchestrator")
    assert home_folder({"ORCHESTRATOR_HOME": ""}) == Path("/home/someone/.orchestrator")
    assert home_folder({"ORCHESTRATOR_HOME": "~/x"}) == Path("/home/someone/x")
    assert home_folder({"ORCHESTRATOR_HOME": "x"}) == Path.cwd() / "x"


def test_planning_imports_no_heavy_module() -> None:
    program = (
        "import sys, pathlib, orchestrator.jobs.resolve as s\n"
        "s.make_plan(s.resolve_spec('pretrain', environ={'PATH': ''}), home=pathlib.Path(sys.argv[1]))\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))\n"
        "print(*sorted(name for name in sys.modules if name.startswith('train_jobs.')))"
    )
    command = [sys.executable, "-c", program, str(Path("home").absolute())]
    answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    packages, jobs = answer.stdout.splitlines()
    heavy = {
        "torch",
        "transformers",
        "mlflow",
        "azure",
        "optuna",
        "numpy",
        "pyarrow",
        "tokenizers",
        "asyncio",
        "http",
        "pathspec",
    }
    assert heavy.isdisjoint(packages.split())
    light = ("train_jobs.config", "train_jobs.artifacts", "train_jobs.readers")
    assert all(name.startswith(light) for name in jobs.split())


def test_variable_named_like_a_secret_is_not_shown(folder: Path) -> None:
    shown = plan("environment.variables.HF_TOKEN=hf_ab", "environment.variables.NCCL_DEBUG=INFO").summary()
    assert "hf_ab" not in shown
    assert "environment.variables.NCCL_DEBUG = INFO" in shown


def test_plan_has_price_if_known() -> None:
    priced = plan("compute.price_per_hour=3.5", "compute.nodes=2")
    assert priced.as_dict()["compute"]["price_per_hour"] == 3.5
    assert "price 2 x $3.50 = $7.00 an hour (compute.price_per_hour)" in " ".join(priced.summary().split())
    assert "  price" not in plan().summary()
    with pytest.raises(SpecError, match="1 problem") as caught:
        plan("compute.price_per_hour=-1")
    assert "compute.price_per_hour" in caught.value.problems[0]
