"""Sweep specs: all problems are reported together with their lines, and no trial is invalid."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli.main import main
from orchestrator.cli.ui.completers import assignments
from orchestrator.jobs.pretrain.spec import PretrainSpec
from orchestrator.specs.resolved import Flag
from orchestrator.specs.space import Parameter
from orchestrator.specs.sweep_spec import SweepSpec
from orchestrator.support.errors import DataError, SpecError
from orchestrator.sweeps.design.checks import policy_warnings
from orchestrator.sweeps.design.sweep_plan import SWEEP_PRESETS, ResolvedSweep, SpecContext, on_service, resolve_sweep
from orchestrator.sweeps.driver import trials
from orchestrator.sweeps.driver.planning import plan_sweep
from orchestrator.sweeps.driver.trials import TrialPlanner
from tests.conftest import write_bert, write_spec
from tests.unit.sweeps.conftest import NO_GPU
from train_jobs.artifacts.layers import preset_names, read_preset

RATE: dict[str, Any] = {"optimizer.learning_rate": {"low": 1e-5, "high": 1e-3, "log": True}}


def resolve(document: dict[str, Any] | None = None, **more: Any) -> ResolvedSweep:
    """Return a sweep of these keys, written to sweep.yaml."""
    if document is not None:
        Path("sweep.yaml").write_text(yaml.safe_dump({"limits": {"trials": 4}, **document}, sort_keys=False))
        more["file"] = Path("sweep.yaml")
    return resolve_sweep(context=SpecContext(environ=NO_GPU), **more)


def problems_of(document: dict[str, Any], **more: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        resolve(document, **more)
    return caught.value.problems or [caught.value.message]


def test_kind_of_trials_at_top_is_the_only_problem() -> None:
    """The keys of a job there are in the wrong place for the same reason."""
    with pytest.raises(SpecError) as caught:
        resolve({"kind": "finetune", "trial": {"task": "MRPC", "train": {"epochs": 3}}, "space": RATE})
    line = "sweep.yaml:3: kind: finetune is the kind of a trial, and this is the file of a sweep"
    assert caught.value.problems == [line]
    assert caught.value.fix == "remove it, and write trial: {kind: finetune}"
    (other,) = problems_of({"kind": ["finetune"], "trial": {"recipe": "tiny"}, "space": RATE})
    assert "kind: must be 'sweep'" in other


def test_choice_with_an_exponent_is_a_number() -> None:
    """A warm start compares it with the numbers of earlier trials."""
    Path("sweep.yaml").write_text("space: {optimizer.learning_rate: [1e-4, 3e-4]}\nlimits: {trials: 2}\n")
    found = resolve(file=Path("sweep.yaml"), sets=["space.optimizer.eps=[1e-7]"])
    options = {path: [option.value for option in parameter.options] for path, parameter in found.spec.space.items()}
    assert options == {"optimizer.learning_rate": [1e-4, 3e-4], "optimizer.eps": [1e-7]}
    assert found.tree["space"] == options


def test_all_problems_are_named_together_with_lines() -> None:
    Path("sweep.yaml").write_text(
        "recipe: learning-rat\n"
        "trial:\n"
        "  recipe: tiny\n"
        "  train: {stpes: 4}\n"
        "space:\n"
        "  optimizer.learning_rate: {low: -11, high: -7, log: true}\n"
        "  train.steps: {low: 9, high: 5}\n"
        "sampling: randm\n"
        "early_termination: {policy: bandit}\n"
        "limits: {trails: 4}\n"
    )
    with pytest.raises(SpecError) as caught:
        resolve(file=Path("sweep.yaml"))
    expected = [
        "sweep.yaml:1: unknown sweep preset 'learning-rat' (did you mean \"learning-rate\"?) (known: learning-rate)",
        "sweep.yaml:6: space.optimizer.learning_rate: low -11 has no logarithm: with log: true, bounds are values "
        "and not logarithms (did you mean low: 1.67e-05, high: 0.000912?)",
        "sweep.yaml:7: space.train.steps: low 9 is above high 5",
        "sweep.yaml:8: sampling.name: must be 'random'",
        "sweep.yaml:9: early_termination: policy bandit needs slack_factor or slack_amount",
        'sweep.yaml:10: limits.trails: unknown key (did you mean "trials"?)',
        'sweep.yaml:4: train.stpes: unknown key (did you mean "steps"?)',
    ]
    found = caught.value.problems
    assert [any(problem.startswith(start) for problem in found) for start in expected] == [True] * 7, found
    assert len(found) == 7


def test_resolve_reports_all_unknown_settings_together() -> None:
    found = problems_of(
        {
            "space": {
                "train.seed": [1, 2],
                "model.droput": [0.1],
                "train.precision": ["bf16", "fp64"],
                "compute.nodes": [1, 2],
                "train.steps": {"low": 10, "high": 100},
                "model.hidden_dropout_prob": {"low": 0.0, "high": 1.0},
                "optimizer": [{"name": "adamw", "lr": [1]}, {"name": "lamb"}],
                "data.sequence_length": [{"a": 1}],
                "model.layer_norm_eps": {"mean": 0.0, "sd": 1e-12},
            },
            "objective": {"metric": "val_loss"},
        }
    )
    expected = [
        "space.train.seed: a seed cannot be a parameter: seeds: [1, 2, 3] repeats every point with each seed",
        "space.model.droput: a pretrain job has no setting model.droput",
        "space.train.precision: train.precision cannot be 'fp64': must be 'auto', 'bf16', 'fp16' or 'fp32'",
        "space.compute.nodes: cannot vary compute.nodes: the job does not read it",
        "space.train.steps: train.steps cannot be 44.37694",
        "space.model.hidden_dropout_prob: model.hidden_dropout_prob cannot be 1.0: must be less than 1",
        "space.optimizer: a pretrain job has no setting optimizer.lr",
        "space.data.sequence_length: data.sequence_length is not a section of a pretrain job",
        "space.model.layer_norm_eps: model.layer_norm_eps cannot be -",
        'objective.metric: this pretrain job does not report val_loss (did you mean "validation_loss"?)',
    ]
    assert [any(start in problem for problem in found) for start in expected] == [True] * len(expected), found
    assert len(found) == len(expected)
    assert any(problem.endswith("q: 1 draws whole numbers") for problem in found)
    assert all(problem.startswith("sweep.yaml:") for problem in found)


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ({"low": 1}, "a range needs both low and high"),
        ({"low": 2, "high": 2}, "low and high are both 2: write the plain value 2"),
        ({"low": 0, "high": 1, "log": True}, "low 0 has no logarithm"),
        ({"low": 0, "high": 1, "q": 0}, "q 0 is not above 0"),
        ({"low": 0, "high": 1, "q": 2}, "q 2 is more than the range, 0 to 1"),
        ({"low": 0, "high": 1, "choice": [1]}, "cannot combine low and high and choice"),
        ({"log": True}, "no distribution: give one of {low, high}"),
        ({"mean": 1}, "a normal distribution needs both mean and sd"),
        ({"mean": 1, "sd": 0}, "sd 0 is not above 0"),
        (
            {"mean": 1000, "sd": 100, "log": True, "q": 1},
            "mean 1000 and sd 100 give values beyond the largest number: with log: true, both are those of the natural "
            "logarithm (did you mean mean: 6.91, sd: 0.1?)",
        ),
        ({"mean": 1, "sd": 1000, "log": True}, "both are those of the natural logarithm"),
        ({"mean": -1000, "sd": 1, "log": True}, "mean -1000 and sd 1 give values that are almost 0"),
        ({"choice": []}, "choice has no options"),
        ([], "choice has no options"),
        ({"choice": [1], "q": 1}, "q needs a range or a normal distribution"),
        ({"randint": 3, "log": True}, "log needs a range"),
        ({"randint": 0}, "randint 0 is less than 1"),
        ({"randint": 10**17}, "is more than 9007199254740992"),
        ({"low": True, "high": 3}, "low must be a number"),
        ({"low": "a", "high": 3}, "low: must be a number"),
        ([{"x": {"low": 3, "high": 1}}], "choice.0.space.x: low 3 is above high 1"),
    ],
)
def test_invalid_parameters_are_refused(parameter: Any, message: str) -> None:
    (problem,) = problems_of({"space": {"optimizer.weight_decay": parameter}})
    assert problem.startswith("sweep.yaml:")
    assert message in problem


@pytest.mark.parametrize("parameter", [{"mean": -1000, "sd": 1, "log": True}, {"randint": 2**54}])
def test_stored_parameter_that_plans_refuse_is_read(parameter: dict[str, Any]) -> None:
    """Earlier versions planned it, and `list` reads all sweeps."""
    assert Parameter.model_validate(parameter).undrawable is not None


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"space": {}}, "space: no parameters"),
        (
            {"space": RATE, "sampling": "grid"},
            "grid sampling needs choices, optimizer.learning_rate is a",
        ),
        ({"space": RATE, "limits": {"trials": None}}, "limits.trials: random sampling needs a number of trials"),
        ({"space": RATE, "seeds": [1, 1]}, "seeds: a repeated seed"),
        ({"space": RATE, "limits": {"trials": 1001}}, "less than or equal to 1000"),
        (
            {
                "space": {"train.steps": [*range(1, 41)], "train.log_every": {"randint": 30}},
                "sampling": "grid",
                "limits": {},
            },
            "limits.trials: the grid has 1200 points, a sweep can have at most 1000 trials",
        ),
        (
            {"space": {"optimizer.weight_decay": {"randint": 10**15}}, "sampling": "grid", "limits": {}},
            "limits.trials: the grid has 1000000000000000 points, a sweep can have at most 1000 trials",
        ),
        ({"space": RATE, "driver": "service"}, "driver: backend local of the trial has no sweep service"),
        ({"space": RATE, "driver": "azure"}, "driver: backend local of the trial has no sweep service"),
        (
            {"space": {**RATE, "optimizer": ["lamb", "adamw"]}},
            "space.optimizer.learning_rate: is also set by optimizer",
        ),
        (
            {"space": RATE, "seeds": [1, 2, 3], "early_termination": {"policy": "wilcoxon", "p_value": 0.1}},
            "wilcoxon at p_value 0.1 needs at least 4 seeds, there are 3",
        ),
        (
            {"space": RATE, "seeds": [1, 2, 3], "early_termination": {"policy": "wilcoxon", "p_value": 0.125}},
            "needs at least 4 seeds, there are 3",  # with three seeds, the smallest p is 1 / 8, not below 0.125
        ),
        ({"space": RATE, "early_termination": "truncation"}, "policy truncation needs percentage"),
        (
            {"space": RATE, "early_termination": {"policy": "median", "percentage": 5, "slack_amount": 1}},
            "policy median does not use slack_amount, percentage",
        ),
        (
            {"space": RATE, "early_termination": {"policy": "bandit", "slack_factor": 1, "slack_amount": 1}},
            "policy bandit needs slack_factor or slack_amount, not both",
        ),
        ({"space": {"train.global_batch_size": [64, 100]}}, "2 of 4 trials cannot run"),
        ({"space": RATE, "trial": {"kind": "pretrian"}}, "unknown kind of job 'pretrian' (did you mean \"pretrain\"?)"),
        ({"space": RATE, "trial": "gone.yaml"}, "trial: no such file: "),
    ],
)
def test_contradictory_keys_are_refused(document: dict[str, Any], message: str) -> None:
    found = problems_of(document)
    assert any(message in problem for problem in found), found


def test_invalid_combinations_are_counted_with_the_first() -> None:
    space = {"model.hidden_size": [64, 96], "model.num_attention_heads": [2, 5]}
    (problem,) = problems_of({"space": space, "sampling": "grid", "limits": {}})
    assert "2 of 4 trials cannot run, the first with model.hidden_size=64, model.num_attention_heads=5" in problem
    assert "does not divide into 5 attention heads" in problem


def test_metric_of_user_code_is_accepted() -> None:
    Path("mine").mkdir()
    Path("mine/own.py").write_text("")
    trial = {"code": {"folder": "mine", "entry": "own"}}
    found = resolve({"space": RATE, "trial": trial, "objective": {"metric": "reward"}})
    assert found.spec.objective.metric == "reward"
    assert found.trial.spec.code.folder == Path.cwd() / "mine"


def test_trial_may_be_a_file_with_overrides() -> None:
    Path("jobs").mkdir()
    Path("jobs/text.txt").write_text("Some text.\n")
    write_spec(Path("jobs/job.yaml"), data={"text": ["text.txt"]})
    found = resolve({"space": RATE, "trial": "jobs/job.yaml"}, sets=["trial.train.steps=7", "limits.trials=9"])
    assert found.trial.spec.model.hidden_size == 32
    assert found.trial.spec.train.steps == 7
    assert [source.path for source in found.trial.spec.data.text] == [[str(Path.cwd() / "jobs" / "text.txt")]]
    assert found.spec.limits.trials == 9
    assert found.trial.origins["model.hidden_size"].startswith("jobs/job.yaml:")
    assert found.trial.origins["train.steps"] == "--set"


def test_nested_sections_equal_dotted_settings() -> None:
    nested = {"optimizer": {"learning_rate": {"low": 1e-5, "high": 1e-3}, "name": ["lamb", "adamw"]}}
    found = resolve({"space": nested}, sets=["space.optimizer.learning_rate.log=true", "space.train.log_every=3"])
    assert list(found.spec.space) == ["optimizer.learning_rate", "optimizer.name", "train.log_every"]
    assert found.spec.space["optimizer.learning_rate"].log
    (problem,) = problems_of({"space": {"optimizer": {"learning_rate": {"low": 3, "high": 1}}}})
    assert problem.startswith("sweep.yaml:5: space.optimizer.learning_rate:")


def test_flags_variables_and_project_apply_to_the_trial() -> None:
    Path("orchestrator.yaml").write_text("train: {log_every: 3}\n")
    Path("sweep.yaml").write_text(yaml.safe_dump({"space": RATE, "limits": {"trials": 2}}))
    found = resolve_sweep(
        file=Path("sweep.yaml"),
        flags={"backend": Flag("debug", "--backend")},
        context=SpecContext(
            environ={**NO_GPU, "ORCHESTRATOR_TRAIN__STEPS": "5"}, project=Path.cwd() / "orchestrator.yaml"
        ),
    )
    job = found.trial.spec
    assert (job.train.log_every, job.train.steps, job.backend) == (3, 5, "debug")


@pytest.mark.parametrize(
    ("driver", "backend", "service"),
    [("auto", "local", False), ("auto", "azure", True), ("here", "azure", False), ("azure", "azure", True)],
)
def test_driver_follows_key_and_backend(driver: str, backend: str, service: bool) -> None:
    compute = {"cluster": "gpu", "sku": "Standard_NC4as_T4_v3"}
    found = resolve({"space": RATE, "driver": driver, "trial": {"backend": backend, "compute": compute}})
    assert on_service(found.spec, found.trial.spec.backend) is service


@pytest.mark.parametrize("name", preset_names(SWEEP_PRESETS))
def test_shipped_preset_sets_every_key_but_its_name(name: str) -> None:
    (layer,) = read_preset(name, SWEEP_PRESETS)
    sections = {key: info.annotation for key, info in SweepSpec.model_fields.items()}
    assert set(layer.tree) == set(sections) - {"kind", "recipe", "name"}
    for key in ("sampling", "early_termination", "limits", "objective"):
        assert set(layer.tree[key]) == set(sections[key].model_fields)


def write_mrpc() -> Path:
    """Create a GLUE folder with a row of MRPC."""
    glue = Path("glue")
    (glue / "MRPC").mkdir(parents=True)
    for split in ("train", "dev"):
        (glue / "MRPC" / f"{split}.tsv").write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\ta\tb\n")
    return glue


def test_documented_example_accepts_finetuning_flags(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    bert, glue = write_bert(Path("bert")), write_mrpc()
    flags = ["--recipe", "learning-rate", "--task", "MRPC", "--model", str(bert), "--data", str(glue)]
    assert main(["validate", "sweep", *flags, "--set", "trial.data.max_length=64"]) == 0
    assert capsys.readouterr().out.startswith("valid: sweep-finetune-mrpc-")


def test_documented_example_is_a_preset() -> None:
    bert, glue = write_bert(Path("bert")), write_mrpc()
    sets = ["recipe=learning-rate", "trial.task=MRPC", f"trial.init_from={bert.resolve()}", f"trial.data={glue}"]
    found = resolve(sets=sets)
    rate = found.spec.space["optimizer.learning_rate"]
    assert (found.spec.sampling.name, rate.bounds, rate.log) == ("random", (1e-6, 1e-4), True)
    assert (found.spec.early_termination.policy, found.spec.early_termination.slack_factor) == ("bandit", 0.1)
    assert (found.spec.objective.metric, found.spec.objective.goal) == ("validation_score", "maximize")
    assert (found.trial.spec.kind, found.trial.spec.task) == ("finetune", "MRPC")
    assert found.trial.spec.data.glue == glue.resolve()


def test_finetuning_has_its_own_seeds_settings_and_metrics() -> None:
    bert = write_bert(Path("bert"))
    for name in ("train.tsv", "dev.tsv"):
        Path(name).write_text("text\tlabel\na\t1\nb\t0\n")
    trial = {
        "kind": "finetune",
        "init_from": str(bert),
        "data": {"train": "train.tsv", "validation": "dev.tsv"},
    }
    space = {"train.epochs": [2, 3], "seeds": [[1], [2]], "model.hidden_size": [4], "train.global_batch_size": [8, 9]}
    found = problems_of({"trial": trial, "space": space, "objective": {"metric": "validation_pearson"}})
    expected = [
        "space.seeds: a seed cannot be a parameter",
        "space.model.hidden_size: a finetune job has no setting model.hidden_size",
        "objective.metric: this finetune job does not report validation_pearson",
    ]
    assert [any(start in problem for problem in found) for start in expected] == [True] * 3, found
    space = {"train.global_batch_size": [64, 65]}
    (problem,) = problems_of({"trial": trial, "space": space, "sampling": "grid", "limits": {}})
    assert "1 of 2 trials cannot run, the first with train.global_batch_size=65" in problem


def finetuning(**more: Any) -> dict[str, Any]:
    """Return a fine-tuning of own tables, which are written to the current folder."""
    for name in ("train", "dev"):
        Path(f"{name}.tsv").write_text("text\tlabel\n" + "alpha\t0\nbeta\t1\n" * 16)
    data = {"train": "train.tsv", "validation": "dev.tsv", "max_length": 32}
    return {"kind": "finetune", "task": "own", "init_from": str(write_bert(Path("bert"))), "data": data, **more}


def test_several_seeds_of_a_trial_become_those_of_the_sweep() -> None:
    """A job with all of them reports each seed once: the sweep would judge a trial by its luckiest seed."""
    score = {"metric": "validation_score", "goal": "maximize"}
    found = resolve({"trial": finetuning(seeds=[7, 8, 9]), "space": RATE, "objective": score})
    assert (found.spec.seeds, found.trial.spec.seeds) == ([7, 8, 9], [7])
    record, plan = plan_sweep(found, Path("home"))
    assert (record.spec.seeds, record.trial["seeds"], plan.job.seeds) == ([7, 8, 9], [7], [7])
    assert record.changes["seeds"]["value"] == [7]
    own = resolve({"trial": finetuning(seeds=[7, 8, 9]), "space": RATE, "objective": score, "seeds": [1, 2]})
    assert (own.spec.seeds, own.trial.spec.seeds) == ([1, 2], [7])
    one = resolve({"trial": finetuning(seeds=[7]), "space": RATE, "objective": score})
    assert (one.spec.seeds, one.trial.spec.seeds, "seeds" in one.tree) == ([], [7], False)


SCORE = {"metric": "validation_score", "goal": "maximize"}


def test_path_choices_start_at_the_file_and_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = finetuning()
    space = {"data.train": ["train.tsv", str(tmp_path / "dev.tsv")], "data.validation": "dev.tsv"}
    document = {"trial": trial, "space": space, "objective": SCORE}
    resolve(document)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    found = resolve(file=Path("../sweep.yaml"), sets=["space.init_from={choice: [../bert]}"])
    options = {path: [option.value for option in parameter.options] for path, parameter in found.spec.space.items()}
    train, dev = str(tmp_path / "train.tsv"), str(tmp_path / "dev.tsv")
    expected = {"data.train": [train, dev], "data.validation": [dev], "init_from": [str(tmp_path / "bert")]}
    assert options == expected
    assert plan_sweep(found, tmp_path / "home")[0].spec.space == found.spec.space
    monkeypatch.chdir(tmp_path)
    space = {"data.train": ["train.tsv", "missing.tsv"], "init_from": ["bert", "./none"]}
    assert problems_of({**document, "space": space}) == [
        f"sweep.yaml:12: space.data.train: no such file or folder: {tmp_path / 'missing.tsv'}",
        f"sweep.yaml:15: space.init_from: no such folder: {tmp_path / 'none'}",
    ]


def test_text_options_keep_the_text_of_the_file() -> None:
    trial = yaml.safe_dump({"trial": finetuning(), "objective": SCORE, "limits": {"trials": 2}})
    space = "data.positive_label: [yes, 012], data.text: {choice: [1.10]}, train.epochs: [1, 2]"
    Path("sweep.yaml").write_text(f"{trial}space: {{{space}}}\n")
    found = resolve(file=Path("sweep.yaml"), sets=["space.data.label=on"])
    options = {path: [option.value for option in parameter.options] for path, parameter in found.spec.space.items()}
    assert options == {
        "data.positive_label": ["yes", "012"],
        "data.text": ["1.10"],
        "train.epochs": [1, 2],
        "data.label": ["on"],
    }
    assert plan_sweep(found, Path("home"))[0].spec.space == found.spec.space


def test_vanished_file_is_a_failure_of_its_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver fails the trial on an error of data, and ends the sweep on others."""
    trial = finetuning()
    space = {"data.train": ["train.tsv", "other.tsv"]}
    (tmp_path / "other.tsv").write_text((tmp_path / "train.tsv").read_text())
    found = resolve({"trial": trial, "space": space, "objective": SCORE})
    planner = TrialPlanner(plan_sweep(found, tmp_path / "home")[0], tmp_path / "home", {})
    planner.plan(0, {"data.train": str(tmp_path / "other.tsv")}, None)
    (tmp_path / "other.tsv").unlink()
    with pytest.raises(DataError, match=r"cannot read .*/other\.tsv: No such file"):
        planner.plan(1, {"data.train": str(tmp_path / "other.tsv")}, None)
    monkeypatch.setattr(trials, "make_plan", lambda *_, **__: Path("dev.tsv/part").stat())
    with pytest.raises(DataError, match=r"cannot read dev\.tsv/part: Not a directory"):
        planner.plan(2, {}, None)


def test_names_of_runs_are_choices_of_models() -> None:
    other = write_bert(Path("other"))
    document = {"trial": finetuning(), "space": {"init_from": ["bert", "run-7"]}, "objective": SCORE}
    Path("sweep.yaml").write_text(yaml.safe_dump({"limits": {"trials": 2}, **document}))
    asked = []

    def model_of(name: str, **more: Any) -> Path:
        asked.append(name)
        return other.absolute()

    found = resolve_sweep(file=Path("sweep.yaml"), context=SpecContext(environ=NO_GPU, model_of=model_of))
    folders = [str(Path(name).absolute()) for name in ("bert", "other")]
    assert ([option.value for option in found.spec.space["init_from"].options], asked) == (folders, ["run-7"])
    assert found.tree["space"] == {"init_from": folders}


def test_service_refuses_several_seeds_of_a_trial() -> None:
    compute = {"cluster": "gpu", "sku": "Standard_NC4as_T4_v3"}
    trial = finetuning(seeds=[7, 8], backend="azure", compute=compute)
    (found,) = problems_of({"trial": trial, "space": RATE, "objective": {"metric": "validation_loss"}})
    assert found.startswith("sweep.yaml:")
    assert "trial.seeds: Azure's sweep service judges every run by itself: seeds: [7], or --set driver=here" in found


def test_shell_completes_keys_of_a_sweep() -> None:
    found = assignments("", argparse.Namespace(kind="sweep"))
    assert {"limits.trials=", "objective.metric=", "sampling.name="} <= set(found)
    assert "sampling.name=sobol" in assignments("sampling.name=", argparse.Namespace(kind="sweep"))


def test_driver_azure_of_earlier_versions_means_service() -> None:
    """Files and records of earlier versions contain this value; the plan warns about it."""
    compute = {"cluster": "gpu", "sku": "Standard_NC4as_T4_v3"}
    found = resolve({"space": RATE, "driver": "azure", "trial": {"backend": "azure", "compute": compute}})
    assert found.spec.driver == "service"
    record, _ = plan_sweep(found, Path("home"))
    assert "driver: azure is now called service" in record.warnings
    assert (record.sweep["driver"], record.spec.driver) == ("azure", "service")


@pytest.mark.parametrize(
    ("regression", "policy", "metric", "expected"),
    [
        (True, {"slack_factor": 0.1}, "score", True),
        (True, {"slack_factor": 0.1}, "spearman", True),
        (True, {"slack_amount": 0.1}, "score", False),
        (True, {"slack_factor": 0.1}, "loss", False),
        (False, {"slack_factor": 0.1}, "score", False),
    ],
)
def test_ratio_of_a_correlation_is_a_warning_of_the_plan(
    regression: bool, policy: dict[str, float], metric: str, expected: bool
) -> None:
    """Azure's ratio stops every trial while the best is below 0; the plan names what to use instead."""
    model = write_bert(Path("bert"))
    for name in ("train", "dev"):
        Path(f"{name}.tsv").write_text("text\tlabel\n" + "alpha\t0\nbeta\t1\n" * 16)
    data = {"train": "train.tsv", "validation": "dev.tsv", "regression": regression, "max_length": 32}
    sweep = resolve(
        {
            "trial": {"kind": "finetune", "task": "own", "init_from": str(model), "data": data},
            "space": RATE,
            "early_termination": {"policy": "bandit", **policy},
            "objective": {"metric": f"validation_{metric}", "goal": "maximize"},
        }
    )
    record, _ = plan_sweep(sweep, Path("home"))
    found = [warning for warning in record.warnings if "slack_factor" in warning]
    assert len(found) == expected
    if expected:
        assert f"validation_{metric} can be negative: while the best trial is below 0" in found[0]
        assert "use slack_amount, or policy asha" in found[0]


def test_ratio_of_an_unknown_metric_is_a_warning() -> None:
    job = PretrainSpec.model_validate({"objective": {"name": "mine:Objective"}})
    policy = {"policy": "bandit", "slack_factor": 0.1}
    (found,) = policy_warnings(SweepSpec.model_validate({"space": RATE, "early_termination": policy}), job)
    assert found.startswith("early_termination.slack_factor: if validation_loss can be negative, while")
