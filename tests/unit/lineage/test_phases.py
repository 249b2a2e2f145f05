"""A second phase of pretraining by the complete job: what it inherits, refuses and records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

from tests.conftest import MICRO, Console, write_bert, write_corpus
from train_jobs.artifacts.lineage import PretrainFacts, read_lineage
from train_jobs.artifacts.start_model import read_initial_model
from train_jobs.artifacts.start_phase import find_checkpoint, phase_lineage, read_phase, verify_phase
from train_jobs.assembly.starting_point import check_start
from train_jobs.config import ConflictError, PretrainConfig, SpecError
from train_jobs.corpus.preparation import store_key
from train_jobs.pretrain import find_store, main, pretrain, read_config

SECTIONS = {section: MICRO[section] for section in ("model", "data", "validation")}
TRAIN = {**MICRO["train"], "steps": 4, "precision": "fp32"}
SECOND = ["data.sequence_length=16", "train.global_batch_size=12", "train.steps=4", "checkpoint.every=2"]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the outputs of a first phase: LAMB, four steps, checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("phases")
    text = [str(write_corpus(folder / "corpus.txt"))]
    job = {**SECTIONS, "data": {**SECTIONS["data"], "text": text}, "train": TRAIN, "checkpoint": {"every": 2}}
    pretrain(PretrainConfig.model_validate(job), output=folder / "first", cache=folder / "stores", device="cpu")
    return folder / "first"


@pytest.fixture
def copied(first: Path, tmp_path: Path) -> Path:
    """Return a copy of it that a test may damage."""
    return Path(shutil.copytree(first, tmp_path / "mine"))


def job(first: Path, *sets: str, **sections: Any) -> PretrainConfig:
    """Return the configuration of a second phase, which names only the outputs of the first one."""
    path = first.parent / "job.json"
    given = {"train": TRAIN, "data": {"text": [str(first.parent / "corpus.txt")], "validation_fraction": 0.2}}
    path.write_text(json.dumps({**given, "validation": MICRO["validation"], "phase_from": str(first), **sections}))
    return read_config(str(path), [*SECOND, *sets])


def problems_of(first: Path, *sets: str, **sections: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        job(first, *sets, **sections)
    return caught.value.problems


def test_export_states_trained_positions(first: Path, tmp_path: Path) -> None:
    """The first phase trains 32 of 64 positions; a shorter second phase keeps them, a longer one adds to them."""
    pretrain(job(first), output=tmp_path / "shorter", cache=tmp_path / "stores", device="cpu")
    longer = job(first, "data.sequence_length=48")
    pretrain(longer, output=tmp_path / "longer", cache=tmp_path / "stores", device="cpu")
    for outputs, trained in ((first, 32), (tmp_path / "shorter", 32), (tmp_path / "longer", 48)):
        assert read_initial_model(outputs / "model").trained_positions == trained
        assert AutoTokenizer.from_pretrained(outputs / "model").model_max_length == trained
        assert AutoConfig.from_pretrained(outputs / "model").max_position_embeddings == 64


def test_model_from_elsewhere_keeps_its_positions(first: Path, tmp_path: Path) -> None:
    bert = Path(shutil.copytree(first / "model", tmp_path / "bert"))
    (bert / "lineage.json").unlink()
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps({**config, "trained_positions": None}))
    text = {"text": [str(first.parent / "corpus.txt")], "validation_fraction": 0.2, "sequence_length": 32}
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"init_from": str(bert), "data": text, "train": TRAIN, "checkpoint": {"every": 4}}))
    pretrain(read_config(str(path), []), output=tmp_path / "out", cache=tmp_path / "stores", device="cpu")
    assert read_initial_model(tmp_path / "out" / "model").trained_positions == 64


def test_second_phase_takes_shape_vocabulary_and_case(first: Path) -> None:
    config = job(first)
    assert config.phase_from == first / "checkpoints" / "step-00000004"
    assert (config.model.hidden_size, config.data.vocab_size, config.data.sequence_length) == (32, 256, 16)
    assert config.data.vocabulary == first / "model" / "vocab.txt"
    assert config.model.hidden_dropout_prob == PretrainConfig().model.hidden_dropout_prob  # not in the weights


def test_every_contradicting_value_is_named(first: Path, tmp_path: Path) -> None:
    other = write_bert(tmp_path / "bert") / "vocab.txt"
    sets = ["model.hidden_size=64", "data.lowercase=false", f"data.vocabulary={other}", "optimizer.name=adamw"]
    assert problems_of(first, *sets) == [
        "--set: model.hidden_size: 64, but the earlier phase has 32",
        "--set: data.lowercase: False, but the earlier phase has True",
        f"--set: data.vocabulary: {other} is not the vocabulary of the earlier phase",
        "--set: optimizer.name: adamw, but the earlier phase has the moments of lamb; to use only its weights,"
        " give init_from instead of phase_from",
    ]


def test_weights_only_and_with_moments_exclude_each_other(first: Path) -> None:
    (problem,) = problems_of(first, f"init_from={first / 'model'}")
    assert "init_from and phase_from are both given" in problem


def test_required_signature_refuses_earlier_phase(first: Path, tmp_path: Path, console: Console) -> None:
    """A checkpoint has no signature, so that its weights would be loaded unverified."""
    config = job(first, f"trust.require_signature={tmp_path / 'signing.pub'}")
    with pytest.raises(SpecError, match="cannot verify the signature of the earlier phase: a checkpoint has none"):
        check_start(config, resumes=False)
    check_start(config, resumes=True)
    corpus = str(first.parent / "corpus.txt")
    (tmp_path / "signing.pub").touch()
    sets = (*SECOND, "optimizer.name=lamb", "train.micro_batch_size=12")
    start = ("--phase-from", str(first), *(word for value in sets for word in ("--set", value)))
    for words in (start, ("--recipe", "small-512")):
        refused = console("plan", "pretrain", "--data", corpus, "--require-signature", "signing.pub", *words)
        assert (refused.code, "a checkpoint has none" in refused.err) == (2, True), refused.err


def test_newest_complete_checkpoint_is_used(copied: Path) -> None:
    newest, older = (copied / "checkpoints" / f"step-0000000{step}" for step in (4, 2))
    assert find_checkpoint(copied) == find_checkpoint(copied / "checkpoints") == find_checkpoint(newest) == newest
    assert find_checkpoint(older) == older
    state = (newest / "state.json").read_bytes()
    (newest / "state.json").write_bytes(state[:-1])
    assert find_checkpoint(copied) == older
    (newest / "COMMIT.json").unlink()
    assert find_checkpoint(copied) == older
    shutil.rmtree(older)
    with pytest.raises(SpecError, match=f"no checkpoint in {copied}"):
        find_checkpoint(copied)
    assert problems_of(copied) == [f"{copied.parent / 'job.json'}:1: phase_from: no checkpoint in {copied}"]


def test_checkpoint_differing_from_its_commit_is_refused(copied: Path, tmp_path: Path) -> None:
    shutil.copy(Path(__file__), tmp_path / "corpus.txt")
    path = copied / "checkpoints" / "step-00000004" / "optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConflictError, match="the checkpoint of the earlier phase is damaged") as caught:
        verify_phase(read_phase(path.parent))
    assert caught.value.facts["where"] == path
    write_corpus(tmp_path / "corpus.txt")
    with pytest.raises(ConflictError, match="the checkpoint of the earlier phase is damaged"):
        pretrain(job(copied), output=tmp_path / "second", cache=tmp_path / "stores", device="cpu")


def test_other_vocabulary_is_refused(copied: Path, tmp_path: Path) -> None:
    """Only the hash of the vocabulary is known of an unfinished run."""
    shutil.rmtree(copied / "model")
    write_corpus(tmp_path / "corpus.txt", seed=5)
    config = job(copied)
    assert config.data.vocabulary is None
    with pytest.raises(ConflictError, match="the earlier phase was trained with another vocabulary"):
        pretrain(config, output=tmp_path / "second", cache=tmp_path / "stores", device="cpu")


def test_text_is_not_tokenised_again(copied: Path, tmp_path: Path, first: Path) -> None:
    """The vocabulary of the first phase is now a file, yet the key of the store is unchanged."""
    write_corpus(tmp_path / "corpus.txt")
    stores = Path(shutil.copytree(first.parent / "stores", tmp_path / "stores"))
    config = job(copied)
    assert config.data.vocabulary is not None
    store = find_store(config, stores)
    assert [store.folder] == [path.parent for path in stores.glob("*/manifest.json")]
    assert store.manifest.key != store_key(config.data, store.manifest.data)
    with (copied / "model" / "vocab.txt").open("a") as vocabulary:
        vocabulary.write("more\n")
    other = find_store(config, stores)
    assert other.manifest.content != store.manifest.content
    assert other.manifest.vocab_size == store.manifest.vocab_size + 1
    for change in ({"lowercase": False}, {"validation_fraction": 0.3}, {"add_tokens": ["bazo"]}):
        changed = config.model_copy(update={"data": config.data.model_copy(update=change)})
        assert find_store(changed, stores).folder not in {store.folder, other.folder}


def test_second_phase_and_its_restart(copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(tmp_path / "corpus.txt")
    config, phase = job(copied, "schedule.warmup_fraction=0.5"), read_phase(find_checkpoint(copied))
    folders = {"output": tmp_path / "second", "cache": tmp_path / "stores", "device": "cpu"}
    pretrain(config, **folders)
    out = capsys.readouterr().out
    line = f"phase      weights and moments of step 4 from {phase.folder}, SHA-256 {phase.facts.weights[:8]}\n"
    assert line in out
    reports = [json.loads(line) for line in (tmp_path / "second" / "metrics.jsonl").read_text().splitlines()]
    assert [report["step"] for report in reports if "train_loss" in report["metrics"]] == [2, 4]
    rates = [report["metrics"]["learning_rate"] for report in reports if "learning_rate" in report["metrics"]]
    assert rates == [pytest.approx(6e-3 * 0.5**0.5), 0.0]  # a new schedule from step 0

    lineage = read_lineage(tmp_path / "second" / "model" / "lineage.json")
    earlier = read_lineage(copied / "lineage.json")
    assert lineage is not None
    assert earlier is not None
    assert [link.kind for link in lineage.links] == ["data", "pretrain", "data", "pretrain"]
    assert lineage.parents(lineage.head)[1] == earlier.head
    facts = PretrainFacts.model_validate(lineage.head.facts)
    assert facts.phase == phase.facts
    assert facts.phase is not None
    assert (facts.phase.step, facts.phase.optimizer) == (4, "lamb")
    assert facts.phase.moments == phase.files["optimizer.safetensors"]
    words = facts.commands["orchestrator"]
    assert words[words.index("--phase-from") + 1] == "first"
    assert "phase_from=first" in facts.commands["torchrun"]
    assert not any("model.hidden_size" in word for word in facts.commands["torchrun"])
    card = (tmp_path / "second" / "model" / "README.md").read_text()
    assert f"step 4 of the base model's training: its weights (SHA-256 `{facts.phase.weights[:12]}`)" in card

    weights = load_file(tmp_path / "second" / "model" / "model.safetensors")
    shutil.rmtree(tmp_path / "second" / "checkpoints" / "step-00000004")
    shutil.rmtree(copied / "checkpoints")
    pretrain(config, **folders)
    out = capsys.readouterr().out
    assert "resumed at step 2" in out
    assert "phase      weights" not in out
    again = load_file(tmp_path / "second" / "model" / "model.safetensors")
    assert all(weights[name].equal(again[name]) for name in weights)


def test_checkpoint_without_lineage_is_external_model(copied: Path) -> None:
    (copied / "lineage.json").unlink()
    phase = read_phase(find_checkpoint(copied))
    head = phase_lineage(phase).head
    assert (head.kind, head.name, head.weights) == ("external", "step-00000004", phase.files["model.safetensors"])
    assert head.facts["vocabulary"] == phase.vocabulary


def test_missing_first_phase_stops_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", "tiny", "--set", f"phase_from={tmp_path / 'gone'}", "--output", str(tmp_path / "out")]
    assert main(words) == 2
    assert f"error[spec]: no such folder: {tmp_path / 'gone'}" in capsys.readouterr().err
    assert not (tmp_path / "out" / "token-stores").exists()
