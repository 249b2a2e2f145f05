"""The lineage of a run as the job writes it: inputs, starts, results, and the commands to reproduce it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from lineage_runs import METRICS, TAGS, attempt, config_of

from orchestrator.jobs.resolve import resolve_spec
from orchestrator.specs.resolved import Flag
from tests.conftest import write_bert
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.lineage import DataFacts, Lineage, PretrainFacts, read_lineage
from train_jobs.config import ConflictError, PretrainConfig, SpecError
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.runtime.distributed import World
from train_jobs.pretrain import read_config
from train_jobs.records import pretraining_lineage
from train_jobs.records.commands import nearest_recipe
from train_jobs.records.pretraining_lineage import TrainingStart

MODEL = torch.nn.Linear(3, 2)
Complete = Callable[..., Lineage]


def begin(notes: Path, store: TokenStore, output: Path, *, step: int = 0, **sections: Any) -> Lineage:
    """Start a run in `output`."""
    output.mkdir(exist_ok=True)
    start = TrainingStart(attempt(step=step), MODEL, ["cls.predictions.bias"], output, TAGS)
    return pretraining_lineage.begin(config_of(notes, **sections), store, start, store.folder.parent)


def facts_of(found: Lineage) -> PretrainFacts:
    return PretrainFacts.model_validate(found.head.facts)


def test_inputs_are_written_at_the_start(notes: Path, store: TokenStore, tmp_path: Path) -> None:
    found = begin(notes, store, tmp_path)
    assert read_lineage(tmp_path / "lineage.json") == found
    assert [(link.kind, link.name) for link in found.links] == [("data", "notes.txt"), ("pretrain", "alpha-1234abcd")]
    assert found.head.inputs == (found.links[0].hash,)
    facts = facts_of(found)
    assert (facts.run, facts.run_hash, facts.snapshot) == ("local://alpha-1234abcd", "1234abcd", "5" * 64)
    assert (facts.commit, facts.dirty) == ("6" * 40, True)
    assert (facts.parameters, facts.absent, facts.attempts) == (8, ["cls.predictions.bias"], [attempt()])
    assert (facts.ended, facts.steps, facts.metrics, facts.weights) == (None, None, None, None)
    assert {"python", "torch", "tokenizers"} <= facts.packages.keys()


def test_text_is_named_by_content_and_name(notes: Path, store: TokenStore, tmp_path: Path) -> None:
    data = DataFacts.model_validate(begin(notes, store, tmp_path).links[0].facts)
    manifest = store.manifest
    assert (data.text, data.store, data.vocabulary) == (manifest.data.sha256, manifest.key, manifest.vocab_sha256)
    assert data.documents == {split: counts.documents for split, counts in manifest.splits.items()}
    assert sum(data.documents.values()) == 60
    (source,) = data.sources
    assert (source.name, source.files, source.total_bytes) == ("notes.txt", 1, notes.stat().st_size)
    assert source.sha256 == manifest.data.sha256
    assert data.license is None


def test_sources_are_distinguished(notes: Path, store: TokenStore, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "letters" / name).write_text(f"The letter {name}.\n")
    config = config_of(notes, data={"text": [str(notes), str(tmp_path / "letters")]}, card={"data_license": "cc0-1.0"})
    link = pretraining_lineage.data_link(config, store, tmp_path)
    data = DataFacts.model_validate(link.facts)
    assert link.name == "notes.txt, letters"
    assert [(source.name, source.files) for source in data.sources] == [("notes.txt", 1), ("letters", 2)]
    assert data.sources[0].sha256 == store.manifest.data.sha256 != data.sources[1].sha256
    assert data.license == "cc0-1.0"


def test_embedded_corpus_has_name_and_licence(store: TokenStore, tmp_path: Path) -> None:
    link = pretraining_lineage.data_link(PretrainConfig(), store, tmp_path)
    assert link.name.startswith("embedded (Python 3.")
    assert DataFacts.model_validate(link.facts).license == "PSF-2.0"


def test_lineage_has_no_local_path(notes: Path, store: TokenStore, tmp_path: Path) -> None:
    bert = write_bert(tmp_path / "secret" / "bert")
    text = begin(
        notes, store, tmp_path / "out", init_from=str(bert), data={"vocabulary": str(bert / "vocab.txt")}
    ).text()
    assert str(tmp_path) not in text
    assert str(notes.parent) not in text
    assert '"vocabulary": "vocab.txt"' in text


def test_plain_torchrun_has_no_submission_facts(notes: Path, store: TokenStore, tmp_path: Path) -> None:
    found = pretraining_lineage.begin(
        config_of(notes), store, TrainingStart(attempt(), MODEL, [], tmp_path, {}), store.folder.parent
    )
    facts = facts_of(found)
    assert found.head.name == tmp_path.name
    assert (facts.run, facts.run_hash, facts.snapshot, facts.commit, facts.dirty) == (None,) * 5


def test_clean_commit_is_recorded(notes: Path, store: TokenStore, tmp_path: Path) -> None:
    tags = {**TAGS, "orchestrator.commit": "6" * 40}
    found = pretraining_lineage.begin(
        config_of(notes), store, TrainingStart(attempt(), MODEL, [], tmp_path, tags), store.folder.parent
    )
    assert (facts_of(found).commit, facts_of(found).dirty) == ("6" * 40, False)


def test_results_are_written_into_the_model_folder(complete: Complete, tmp_path: Path) -> None:
    found = complete()
    begun = read_lineage(tmp_path / "out" / "lineage.json")
    assert begun is not None
    facts = facts_of(found)
    assert (facts.steps, facts.sequences, facts.metrics) == (5, 40, METRICS)
    assert facts.weights == file_sha256(tmp_path / "out" / "model" / "model.safetensors")
    assert str(facts.ended) > facts.attempts[0].started
    assert found.head.hash != begun.head.hash
    assert found.links[:-1] == begun.links[:-1]
    assert (tmp_path / "out" / "model" / "README.md").read_text().startswith("---\n")


def test_non_finite_figure_is_omitted(complete: Complete) -> None:
    metrics = facts_of(complete(metrics={**METRICS, "mlm_loss": float("nan"), "nsp_loss": float("inf")})).metrics
    assert metrics == {**METRICS, "mlm_loss": None, "nsp_loss": None}


def test_resumed_run_keeps_ancestors_and_counts_starts(
    notes: Path, store: TokenStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bert = write_bert(tmp_path / "bert")
    first = begin(notes, store, tmp_path / "out", init_from=str(bert))
    (bert / "config.json").unlink()
    again = begin(notes, store, tmp_path / "out", step=3, init_from=str(bert), card={"license": "mit"}, resume="never")
    assert again.links[:-1] == first.links[:-1]
    assert again.head.inputs == first.head.inputs
    facts = facts_of(again)
    assert [start.step for start in facts.attempts] == [0, 3]
    assert facts.config["card"]["license"] == "mit"  # the wording may change at any time
    assert facts.config["resume"] == "auto"
    assert "warning" not in capsys.readouterr().out


def test_changed_initial_model_is_a_warning(
    notes: Path, store: TokenStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bert = write_bert(tmp_path / "bert")
    first = begin(notes, store, tmp_path / "out", init_from=str(bert))
    (bert / "model.safetensors").write_bytes(b"other")
    again = begin(notes, store, tmp_path / "out", step=3, init_from=str(bert))
    assert again.links[:-1] == first.links[:-1]
    assert f"warning: {bert} is not the model that this run started with" in capsys.readouterr().out
    (bert / "model.safetensors").unlink()
    begin(notes, store, tmp_path / "out", step=6, init_from=str(bert))
    assert capsys.readouterr().out == ""


def test_restarted_completed_run_is_open_again(
    notes: Path, store: TokenStore, complete: Complete, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "lineage.json").write_text(complete().text())
    facts = facts_of(begin(notes, store, tmp_path / "out", step=5))
    assert (facts.ended, facts.weights, facts.metrics, len(facts.attempts)) == (None, None, None, 2)


def test_fresh_start_in_used_folder_drops_old_lineage(notes: Path, store: TokenStore, tmp_path: Path) -> None:
    begin(notes, store, tmp_path)
    assert len(facts_of(begin(notes, store, tmp_path)).attempts) == 1


@pytest.mark.parametrize("damage", ["{", "links"])
def test_lost_lineage_starts_again_with_a_warning(
    notes: Path, store: TokenStore, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lineage.json"
    begin(notes, store, tmp_path)
    path.write_text(path.read_text().replace("notes.txt", "other.txt") if damage == "links" else damage)
    found = begin(notes, store, tmp_path, step=3)
    assert [link.kind for link in found.links] == ["data", "pretrain"]
    assert [start.step for start in facts_of(found).attempts] == [3]
    assert "warning: the lineage of this run starts again: error[conflict]" in capsys.readouterr().out


def test_initial_model_lineage_comes_first(notes: Path, store: TokenStore, complete: Complete, tmp_path: Path) -> None:
    parent = complete()
    model = write_bert(tmp_path / "out" / "model", weights=b"trained")
    found = begin(notes, store, tmp_path / "child", init_from=str(model), card={"data_license": "mit"})
    kinds = [(link.kind, link.name) for link in found.links]
    assert kinds == [
        ("data", "notes.txt"),
        ("pretrain", "alpha-1234abcd"),
        ("data", "notes.txt"),
        ("pretrain", "alpha-1234abcd"),
    ]
    assert found.links[:2] == parent.links
    assert [link.hash for link in found.parents(found.head)] == [found.links[2].hash, parent.head.hash]
    assert facts_of(found).config["init_from"] == "alpha-1234abcd"


def test_text_shared_with_parent_is_one_link(
    notes: Path, store: TokenStore, complete: Complete, tmp_path: Path
) -> None:
    parent = complete()
    model = write_bert(tmp_path / "out" / "model", weights=b"trained")
    found = begin(notes, store, tmp_path / "child", init_from=str(model))
    assert len(found.links) == 3
    assert found.head.inputs == (parent.links[0].hash, parent.head.hash)


def test_false_initial_lineage_stops_the_run(
    notes: Path, store: TokenStore, complete: Complete, tmp_path: Path
) -> None:
    complete()
    model = write_bert(tmp_path / "out" / "model", weights=b"something else")
    with pytest.raises(ConflictError):
        begin(notes, store, tmp_path / "child", init_from=str(model))


@pytest.mark.parametrize("content", [None, "{", "[]", '{"a": 1}'])
def test_unreadable_tags_are_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tags.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SpecError, match=f"ORCHESTRATOR_RUN_TAGS {path}"):
        pretraining_lineage.read_tags({"ORCHESTRATOR_RUN_TAGS": str(path)})


def test_tags_are_optional(tmp_path: Path) -> None:
    assert pretraining_lineage.read_tags({}) == pretraining_lineage.read_tags({"ORCHESTRATOR_RUN_TAGS": ""}) == {}
    (tmp_path / "tags.json").write_text(json.dumps(TAGS))
    assert pretraining_lineage.read_tags({"ORCHESTRATOR_RUN_TAGS": str(tmp_path / "tags.json")}) == TAGS


def test_start_has_facts_of_this_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    found = pretraining_lineage.this_attempt(World(rank=0, local_rank=0, size=8, device=torch.device("cpu")), "bf16", 7)
    assert (found.step, found.processes, found.nodes, found.device, found.precision) == (7, 8, 2, "cpu", "bf16")
    assert found.threads == torch.get_num_threads()
    assert found.hardware
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    alone = pretraining_lineage.this_attempt(World(rank=0, local_rank=0, size=1, device=torch.device("cpu")), "bf16", 0)
    assert (alone.processes, alone.nodes) == (1, 1)


VARIED: dict[str, Any] = {
    "train": {"steps": 7, "global_batch_size": 64, "micro_batch_size": 8, "precision": "bf16"},
    "optimizer": {"name": "adamw", "learning_rate": 1e-5, "betas": [0.5, 0.6], "max_grad_norm": None},
    "objective": {"next_sentence": False},
    "card": {"description": "for tests", "license": "mit"},
}


def test_orchestrator_command_reproduces_the_job(
    notes: Path, store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(notes.parent)  # names are placeholders for the user's paths
    found = begin(notes, store, tmp_path, **VARIED)
    program, submit, kind, *words = facts_of(found).commands["orchestrator"]
    assert (program, submit, kind) == ("orchestrator", "submit", "pretrain")
    sets = [value for flag, value in zip(words[::2], words[1::2], strict=True) if flag == "--set"]
    given = {flag: value for flag, value in zip(words[::2], words[1::2], strict=True) if flag != "--set"}
    assert given.keys() == {"--recipe", "--data", "--processes"}
    assert not any(value.startswith(("card.", "resume")) for value in sets)  # they do not change results
    flags = {
        "recipe": Flag(given["--recipe"], "--recipe"),
        "data.text": Flag([given["--data"]], "--data"),
        "compute.processes_per_node": Flag(int(given["--processes"]), "--processes"),
    }
    resolved = resolve_spec("pretrain", flags=flags, sets=sets, environ={"CUDA_VISIBLE_DEVICES": ""})
    wanted = config_of(notes, **VARIED)
    assert resolved.spec.job_config().model_copy(update={"card": wanted.card}) == wanted
    compute = resolved.compute
    assert (compute.world_size, compute.device, compute.threads_per_process) == (1, "cpu", 7)


def test_plain_command_reproduces_the_job(
    notes: Path, store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(notes.parent)
    found = begin(notes, store, tmp_path, **VARIED)
    words = facts_of(found).commands["torchrun"]
    assert words[:6] == ["OMP_NUM_THREADS=7", "torchrun", "--nproc-per-node", "1", "-m", "train_jobs.pretrain"]
    assert words[-4:] == ["--device", "cpu", "--output", "output"]
    recipe = words[words.index("--config") + 1]
    sets = [value for flag, value in pairwise(words) if flag == "--set"]
    wanted = config_of(Path("notes.txt"), **VARIED)
    assert read_config(recipe, sets).model_copy(update={"card": wanted.card}) == wanted


def test_commands_from_start_model_omit_its_settings(
    notes: Path, store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bert = write_bert(tmp_path / "bert")
    monkeypatch.chdir(tmp_path)
    config = read_config("tiny", [f"data.text=[{notes}]", "init_from=bert", "data.sequence_length=32"])
    start = TrainingStart(attempt(processes=8, nodes=2, device="cuda"), MODEL, [], tmp_path, {})
    found = pretraining_lineage.begin(config, store, start, store.folder.parent)
    commands = facts_of(found).commands
    assert commands["orchestrator"] == [
        *("orchestrator", "submit", "pretrain", "--recipe", "tiny", "--data", "notes.txt", "--from", "bert"),
        *("--processes", "4", "--set", "compute.device=gpu", "--set", "compute.nodes=2"),
        *("--set", "data.sequence_length=32"),
    ]
    assert commands["torchrun"] == [
        *("torchrun", "--nnodes", "2", "--node-rank", "RANK", "--master-addr", "HOST", "--master-port", "29500"),
        *("--nproc-per-node", "4", "-m", "train_jobs.pretrain", "--config", "tiny"),
        *("--set", "data.text=[notes.txt]", "--set", "init_from=bert", "--set", "data.sequence_length=32"),
        *("--device", "gpu", "--output", "output"),
    ]
    assert bert.is_dir()


@pytest.mark.parametrize("recipe", ["tiny", "small", "base", "large"])
def test_recipe_is_nearest_to_itself(recipe: str) -> None:
    assert nearest_recipe(read_config(recipe, []).model_dump(mode="json")) == (recipe, [])
