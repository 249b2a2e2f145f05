"""Recipes that continue another one: both plans, whose values they have, and refusals of half a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import Orchestrator
from orchestrator.cli.main import main
from orchestrator.jobs.phases import Phases
from tests.conftest import write_corpus
from train_jobs.artifacts.layers import read_preset
from train_jobs.config import SpecError
from train_jobs.pretrain import read_config
from train_jobs.records.commands import nearest_recipe


@pytest.fixture
def orchestrator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Orchestrator:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "corpus.txt")
    return Orchestrator(home=tmp_path / "home", environ={"CUDA_VISIBLE_DEVICES": ""})


def test_values_apply_to_both_phases_except_those_of_one(orchestrator: Orchestrator) -> None:
    sets = ["model.hidden_size=64", "train.steps=10", "earlier.train.steps=90", "train.seed=7", "tags={team.x: nlp}"]
    found = orchestrator.plan_phases(overrides={"recipe": "small-512", "data.text": ["corpus.txt"]}, sets=sets)
    assert isinstance(found, Phases)
    assert (found.earlier.spec.recipe, found.later.spec.recipe) == ("small", "small-512")
    assert found.completed is None
    for plan, steps, length, micro in ((found.earlier, 90, 128, 256), (found.later, 10, 512, 64)):
        assert (plan.job.train.steps, plan.job.data.sequence_length) == (steps, length)
        assert (plan.job.train.micro_batch_size, plan.job.train.seed, plan.job.model.hidden_size) == (micro, 7, 64)
        assert plan.spec.tags == {"team.x": "nlp"}
    assert found.earlier.changes["train.steps"].origin == "--set"


def test_recipe_with_its_start_is_one_plan(orchestrator: Orchestrator) -> None:
    found = orchestrator.plan_phases(overrides={"recipe": "small", "data.text": ["corpus.txt"]})
    assert not isinstance(found, Phases)
    assert found.name == orchestrator.plan(overrides={"recipe": "small", "data.text": ["corpus.txt"]}).name


def test_later_phase_without_a_start_is_refused(orchestrator: Orchestrator) -> None:
    """Its positions would be trained from random weights by a schedule that was made to continue a run."""
    with pytest.raises(SpecError, match="recipe base-512 continues a run of recipe base"):
        orchestrator.plan(overrides={"recipe": "base-512"})
    with pytest.raises(SpecError, match="recipe base-512 continues a run of recipe base"):
        read_config("base-512", [])
    Path("sweep.yaml").write_text(
        "trial: {recipe: base-512}\nspace: {optimizer.learning_rate: [1.0e-5, 2.0e-5]}\nlimits: {trials: 2}\n"
    )
    with pytest.raises(SpecError, match="recipe base-512 continues a run of recipe base"):
        orchestrator.sweeps.plan(file=Path("sweep.yaml"))


def test_repeating_command_of_one_phase_names_one_recipe() -> None:
    """A run of 512 tokens from random weights is closest to base-512, whose command would run base first."""
    job = read_config("base", ["data.sequence_length=512", "optimizer.learning_rate=2.0e-5", "train.steps=100000"])
    assert nearest_recipe(job.model_dump(mode="json"))[0] not in {"base-512", "small-512", "large-nvidia-phase2"}
    started = {**job.model_dump(mode="json"), "phase_from": "base-run"}
    assert nearest_recipe(started)[0] == "base-512"


def test_recipe_layers_have_no_key_continues() -> None:
    assert all("continues" not in layer.tree for layer in read_preset("base-512"))


def test_plan_for_azure_names_the_second_command(
    orchestrator: Orchestrator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    azure = "azure: {subscription_id: 0000-1111, resource_group: group, workspace: place}\n"
    (tmp_path / "job.yaml").write_text(f"recipe: small-512\ndata: {{text: [corpus.txt]}}\n{azure}")
    words = ["-b", "azure", "--cluster", "gpu", "--sku", "Standard_NC24ads_A100_v4"]
    assert main(["plan", "pretrain", "-f", "job.yaml", *words]) == 0
    out = " ".join(capsys.readouterr().out.split())
    first = out.split()[4]
    assert first.startswith("pretrain-small-")
    assert f"another command after phase 1: orchestrator download {first} --all" in out
    assert f"--phase-from {first}" in out
