"""Specs from several sources: precedence, error reports, and the base of relative paths."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from orchestrator.jobs.pretrain.spec import PretrainSpec
from orchestrator.jobs.resolve import resolve_spec
from orchestrator.specs.job import EnvironmentSpec
from orchestrator.specs.resolved import Flag, find_project
from orchestrator.support.errors import SpecError
from tests.conftest import write_bert
from train_jobs.artifacts.layers import read_file
from train_jobs.artifacts.yaml_values import SpecDumper
from train_jobs.config import PretrainConfig
from train_jobs.config.prepare import SourceConfig

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems_of(**arguments: object) -> list[str]:
    arguments.setdefault("environ", NO_GPU)
    with pytest.raises(SpecError) as caught:
        resolve_spec("pretrain", **arguments)
    return caught.value.problems


def test_each_source_overrides_the_one_below_it(folder: Path) -> None:
    (folder / "orchestrator.yaml").write_text("train:\n  log_every: 1\n")
    (folder / "job.yaml").write_text("# a comment\ntrain:\n  log_every: 2\n")
    sources = [
        ({}, 25, "preset tiny:"),
        ({"project": folder / "orchestrator.yaml"}, 1, "orchestrator.yaml:2"),
        ({"file": Path("job.yaml")}, 2, "job.yaml:3"),
        ({"environ": {**NO_GPU, "ORCHESTRATOR_TRAIN__LOG_EVERY": "3"}}, 3, "ORCHESTRATOR_TRAIN__LOG_EVERY"),
        ({"flags": {"train.log_every": Flag(4, "--log-every")}}, 4, "--log-every"),
        ({"sets": ["train.log_every=5"]}, 5, "--set"),
    ]
    given: dict[str, object] = {"environ": NO_GPU}
    for addition, value, origin in sources:
        given |= addition
        resolved = resolve_spec("pretrain", **given)
        assert resolved.spec.train.log_every == value
        assert resolved.origins["train.log_every"].startswith(origin)
        if addition:
            assert resolved.changes["train.log_every"].model_dump(by_alias=True) == {"value": value, "from": origin}
        else:
            assert resolved.changes == {}


def test_keys_missing_in_a_higher_source_are_kept(folder: Path) -> None:
    (folder / "job.yaml").write_text("optimizer: {learning_rate: 0.5}\n")
    optimizer = resolve_spec("pretrain", file=Path("job.yaml"), environ=NO_GPU).spec.optimizer
    assert (optimizer.learning_rate, optimizer.betas) == (0.5, (0.9, 0.98))  # 0.98 comes from the recipe tiny


@pytest.mark.parametrize(
    "given",
    [
        {"file": Path("job.yaml")},
        {"environ": {**NO_GPU, "ORCHESTRATOR_RECIPE": "small"}},
        {"flags": {"recipe": Flag("small", "--recipe")}},
        {"sets": ["recipe=small"]},
    ],
    ids=["file", "environment", "flag", "set"],
)
def test_recipe_is_chosen_by_any_source(folder: Path, given: dict[str, object]) -> None:
    (folder / "job.yaml").write_text("recipe: small\n")
    resolved = resolve_spec("pretrain", **{"environ": NO_GPU, **given})
    assert resolved.spec.model.hidden_size == 512
    assert list(resolved.changes) == ["recipe"]
    assert resolved.origins["model.hidden_size"].startswith("preset small:")


def test_value_equal_to_the_preset_is_not_a_change() -> None:
    assert resolve_spec("pretrain", sets=["model.hidden_size=128"], environ=NO_GPU).changes == {}


def test_all_problems_are_named_together_with_lines(folder: Path) -> None:
    (folder / "job.yaml").write_text(
        "recipe: tinny\n"
        "name: No Good\n"
        "train:\n"
        "  stpes: 5\n"
        "  precision: bf17\n"
        "data:\n"
        "  text: [gone.txt]\n"
        "  vocabulary: gone/vocab.txt\n"
        "compute:\n"
        "  nodes: 0\n"
        "  processes_per_node: many\n"
    )
    problems = problems_of(file=Path("job.yaml"), sets=["checkpoint.evry=3"])
    expected = [
        "job.yaml:1: unknown recipe 'tinny' (did you mean \"tiny\"?) (known: base, base-512, base-azureml, "
        "base-google, continue, large, large-azureml, large-google, large-nvidia-phase1, large-nvidia-phase2, "
        "small, small-512, tiny)",
        "job.yaml:2: name: must be lower-case",
        'job.yaml:4: train.stpes: unknown key (did you mean "steps"?)',
        "job.yaml:5: train.precision: must be",
        f"job.yaml:7: data.text.0: no such file or folder: {folder}/gone.txt",
        f"job.yaml:8: data.vocabulary: no such file: {folder}/gone/vocab.txt",
        "job.yaml:10: compute.nodes: must be greater than 0, not 0",
        "job.yaml:11: compute.processes_per_node: must be a whole number above 0, or \"auto\", not 'many'",
        '--set: checkpoint.evry: unknown key (did you mean "every"?)',
    ]
    for start in expected:
        assert [problem.startswith(start) for problem in problems].count(True) == 1, (start, problems)
    assert len(problems) == len(expected)


def test_unreadable_files_are_problems_like_others(folder: Path) -> None:
    (folder / "job.yaml").write_text("train: [1,\n")
    problems = problems_of(file=Path("job.yaml"), sets=["nonsense"], environ={"ORCHESTRATOR_SEED": "", **NO_GPU})
    assert [problem.partition(" ")[0] for problem in problems] == ["job.yaml:2:", "--set"]


@pytest.mark.parametrize("text", ["recipe: tinny\n", "recipe: [\n"])
def test_batch_is_not_checked_without_its_recipe(folder: Path, text: str) -> None:
    (folder / "job.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        resolve_spec("pretrain", file=Path("job.yaml"), sets=["train.micro_batch_size=48"], environ=NO_GPU)
    assert "job.yaml:" in str(caught.value)
    assert "global_batch_size" not in str(caught.value)


def test_missing_spec_file_has_a_fix() -> None:
    with pytest.raises(SpecError, match=r"no such file: job\.yaml\n *fix +orchestrator init"):
        resolve_spec("pretrain", file=Path("job.yaml"), environ=NO_GPU)


def test_unknown_kind_is_refused_with_known_ones() -> None:
    with pytest.raises(SpecError, match=r'unknown kind of job \'pretain\' \(did you mean "pretrain"\?\)'):
        resolve_spec("pretain")


def test_spec_of_another_kind_is_refused(folder: Path) -> None:
    (folder / "job.yaml").write_text("kind: finetune\n")
    assert problems_of(file=Path("job.yaml"))[0].startswith("job.yaml:1: kind: must be 'pretrain'")


def test_variables_parsed_as_yaml_free_mappings_keep_case() -> None:
    environ = {
        **NO_GPU,
        "ORCHESTRATOR_OPTIMIZER__BETAS": "[0.5, 0.6]",
        "ORCHESTRATOR_DATA__LOWERCASE": "false",
        "ORCHESTRATOR_ENVIRONMENT__VARIABLES__NCCL_DEBUG": "1",
        "ORCHESTRATOR_TAGS__Team": "nlp",
    }
    spec = resolve_spec("pretrain", environ=environ).spec
    assert spec.optimizer.betas == (0.5, 0.6)
    assert spec.data.lowercase is False
    assert spec.environment.variables == {"NCCL_DEBUG": "1"}
    assert spec.tags == {"Team": "nlp"}


def test_assignment_of_a_section_keeps_its_other_keys() -> None:
    sets = ["train.seed=7", "train={steps: 5, log_every: 2}", "train.log_every=3", "optimizer={betas: [0.1, 0.2]}"]
    spec = resolve_spec("pretrain", sets=[*sets, "optimizer.eps=1e-3", "optimizer=lamb"], environ=NO_GPU).spec
    assert (spec.train.seed, spec.train.steps, spec.train.log_every) == (7, 5, 3)
    assert (spec.optimizer.name, spec.optimizer.betas, spec.optimizer.eps) == ("lamb", (0.1, 0.2), 1e-3)


WRITTEN = {"version": "1.10", "commit": "012e4567", "octal": "012", "at": "1:30", "count": "1_000", "off": "no"}


def test_tags_and_variables_keep_the_written_text(folder: Path) -> None:
    """YAML 1.1 reads these as other values; a tag and a variable are text."""
    text = "".join(f"  {key}: {value}\n" for key, value in (WRITTEN | {"day": "2026-11-27", "e": "1e-7"}).items())
    (folder / "job.yaml").write_text(f"tags:\n{text}environment:\n  variables:\n{text.replace('  ', '    ')}")
    environ = {**NO_GPU, "ORCHESTRATOR_TAGS__from_variable": "1.10"}
    sets = ["tags.from_set=1.10", "tags.at=2:30", "tags={off: 1.50}", "environment.variables.count=x"]
    spec = resolve_spec("pretrain", file=Path("job.yaml"), environ=environ, sets=sets).spec
    more = {"day": "2026-11-27", "e": "1e-7"}
    assert spec.environment.variables == WRITTEN | more | {"count": "x"}
    assert spec.tags == WRITTEN | more | {"from_variable": "1.10", "from_set": "1.10", "at": "2:30", "off": "1.50"}


@pytest.mark.parametrize("label", ["1", "yes", "010", "1.0", "1e5"])
def test_label_and_column_may_look_like_other_values(folder: Path, label: str) -> None:
    (folder / "train.tsv").write_text("text\tlabel\n")
    sets = ["task=own", "data.train=train.tsv", "init_from=.", f"data.label={label}", f"data.positive_label={label}"]
    data = resolve_spec("finetune", sets=sets, environ=NO_GPU).spec.data
    assert (data.label, data.positive_label) == (label, label)


def test_number_with_exponent_is_a_number_where_it_can_be(folder: Path) -> None:
    """JSON and YAML 1.2 need no dot and no sign; a job reads its config.json, where Python wrote 1e-07."""
    options = "optimizer.options={eps: 1e-7, a: 1.5E3, b: [2e0, 12e4567], c: '1e-7'}"
    sets = [options, "optimizer.name=torch.optim:RAdam", "train.steps=1e2", "name=1e5"]
    spec = resolve_spec("pretrain", sets=sets, environ=NO_GPU).spec
    assert spec.optimizer.options == {"eps": 1e-7, "a": 1500.0, "b": [2.0, "12e4567"], "c": "1e-7"}
    assert (spec.train.steps, spec.name) == (100, "1e5")
    (folder / "config.json").write_text(spec.model_dump_json())
    assert read_file(folder / "config.json").tree["optimizer"]["options"] == spec.optimizer.options
    (folder / "spec.yaml").write_text(yaml.dump(spec.model_dump(mode="json"), Dumper=SpecDumper))
    assert resolve_spec("pretrain", file=Path("spec.yaml"), environ=NO_GPU).spec == spec


def test_unknown_variable_warns_reserved_one_ignored() -> None:
    environ = {
        **NO_GPU,
        "ORCHESTRATOR_TRAIN__STPES": "5",
        "ORCHESTRATOR_HOME": "/x",
        "ORCHESTRATOR_DEBUG": "1",
        "ORCHESTRATOR_RUN_NAME": "x",
        "ORCHESTRATOR_AZURE_WORKSPACE": "x",
        **{f"ORCHESTRATOR_{name}": "/x" for name in ("CLOCK", "CODE", "MACHINE_METADATA", "OUTPUTS", "TRACKING")},
    }
    (warning,) = resolve_spec("pretrain", environ=environ).warnings
    assert warning.startswith("ORCHESTRATOR_TRAIN__STPES is ignored")
    assert '(did you mean "ORCHESTRATOR_TRAIN__STEPS"?)' in warning


def test_variable_that_is_not_yaml_is_a_problem() -> None:
    problems = problems_of(environ={**NO_GPU, "ORCHESTRATOR_TRAIN__STEPS": "[", "ORCHESTRATOR_NAME": "{"})
    assert [problem.split()[0] for problem in problems] == ["ORCHESTRATOR_NAME", "ORCHESTRATOR_TRAIN__STEPS"]


def test_profiled_steps_must_be_steps_of_the_run() -> None:
    sets = ["train.steps=12", "profile.steps=2"]
    assert resolve_spec("pretrain", sets=[*sets, "profile.start=11"], environ=NO_GPU).spec.profile.first == 11
    assert resolve_spec("pretrain", sets=["profile.start=null", "train.steps=1"], environ=NO_GPU).warnings == ()
    (problem,) = problems_of(sets=[*sets, "profile.start=12"])
    assert problem == "profile: steps 12 to 13 exceed train.steps 12"
    (problem,) = problems_of(sets=["train.steps=12", "profile.steps=10"])
    assert problem == "profile: steps 4 to 13 exceed train.steps 12"


@pytest.mark.parametrize(
    ("sets", "ignored"),
    [
        (["optimizer.trust_ratio=all"], "optimizer.trust_ratio"),
        (["schedule.name=constant", "schedule.power=2"], "schedule.power"),
        (["schedule.name=cosine", "schedule.continuous=false"], "schedule.continuous"),
        (["schedule.decay_rate=0.9"], "schedule.decay_rate"),
        (["schedule.decay_steps=10"], "schedule.decay_steps"),
        (["data.vocabulary=vocab.txt", "data.vocab_size=100"], "data.vocab_size"),
        (["train.precision=bf16", "train.max_consecutive_skips=3"], "train.max_consecutive_skips"),
        (["train.loss_normalization=micro_batch"], "train.loss_normalization"),
        (["profile.start=3"], "profile.start"),
        (["optimizer.sharded=true"], "optimizer.sharded"),
        (["train.cuda_graphs=true", "train.micro_batch_size=32"], "train.cuda_graphs"),
    ],
)
def test_setting_without_effect_is_a_warning(folder: Path, sets: list[str], ignored: str) -> None:
    (folder / "vocab.txt").write_text("[PAD]\n")
    (warning,) = resolve_spec("pretrain", sets=sets, environ=NO_GPU).warnings
    assert warning.startswith(f"{ignored} has no effect: ")


@pytest.mark.parametrize(
    ("sets", "asked"),
    [
        (["objective.masked_lm_probability=0.4"], 51),
        (["data.sequence_length=512"], 77),
        (["objective.masked_lm_probability=0.16"], None),  # 20 of 128, the maximum
        (["objective.masked_lm_probability=0.4", "objective.max_predictions=null"], None),
        (["objective.max_predictions=10"], None),  # no more than requested
    ],
)
def test_rate_capped_by_predictions_warns(sets: list[str], asked: int | None) -> None:
    warnings = resolve_spec("pretrain", sets=["recipe=large", *sets], environ=NO_GPU).warnings
    limits = f"objective.max_predictions=20 limits each sequence to fewer than the {asked} predictions"
    expected = [limits] if asked else []
    assert [warning.partition(" of ")[0] for warning in warnings] == expected


def test_relative_paths_start_at_file_or_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("project/specs/a.txt", "project/b.txt", "project/work/c.txt", "project/specs/vocab.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text\n")
    (folder / "project/orchestrator.yaml").write_text("data: {text: [b.txt]}\n")
    (folder / "project/specs/job.yaml").write_text("data: {text: [a.txt, ../b.txt], vocabulary: vocab.txt}\n")
    monkeypatch.chdir(folder / "project/work")
    project = find_project(Path.cwd())
    assert project == folder / "project/orchestrator.yaml"

    data = resolve_spec("pretrain", project=project, environ=NO_GPU).spec.data
    assert data.text == [SourceConfig(path=[str(folder / "project/b.txt")])]
    data = resolve_spec("pretrain", project=project, file=Path("../specs/job.yaml"), environ=NO_GPU).spec.data
    assert [source.path for source in data.text] == [
        [str(folder / "project/specs/a.txt")],
        [str(folder / "project/b.txt")],
    ]
    assert data.vocabulary == folder / "project/specs/vocab.txt"
    data = resolve_spec("pretrain", flags={"data.text": Flag(["c.txt"], "--data")}, environ=NO_GPU).spec.data
    assert data.text[0].path == [str(folder / "project/work/c.txt")]


def test_start_model_path_relative_to_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("specs/bert", "work/bert"):
        write_bert(folder / name)
    (folder / "specs/job.yaml").write_text("init_from: bert\ndata: {sequence_length: 32}\n")
    monkeypatch.chdir(folder / "work")
    given = {"file": Path("../specs/job.yaml"), "environ": NO_GPU}
    spec = resolve_spec("pretrain", **given).spec
    assert spec.init_from == folder / "specs/bert"
    assert spec.data.vocabulary == folder / "specs/bert/vocab.txt"
    assert spec.model.hidden_size == 32
    flags = {"init_from": Flag("./bert", "--from")}
    assert resolve_spec("pretrain", flags=flags, **given).spec.init_from == folder / "work/bert"


@pytest.mark.parametrize("named", ["alpha", "local://alpha", "'@last'"])
def test_start_model_may_be_a_run(folder: Path, named: str) -> None:
    write_bert(folder / "runs/alpha/outputs/model")
    asked = []

    def model_of(run: str) -> Path:
        asked.append(run)
        return folder / "runs/alpha/outputs/model"

    (folder / "job.yaml").write_text(f"data: {{sequence_length: 32}}\ninit_from: {named}\n")
    resolved = resolve_spec("pretrain", file=Path("job.yaml"), environ=NO_GPU, model_of=model_of)
    assert resolved.spec.init_from == folder / "runs/alpha/outputs/model"
    assert asked == [named.strip("'")]
    change = resolved.changes["init_from"].model_dump(by_alias=True)
    assert change == {"value": str(resolved.spec.init_from), "from": "job.yaml:2"}


def test_folder_wins_over_run_and_later_layer_over_both(folder: Path) -> None:
    write_bert(folder / "alpha")
    (folder / "job.yaml").write_text("init_from: beta\ndata: {sequence_length: 32}\n")

    def model_of(run: str) -> Path:
        raise AssertionError(run)

    flags = {"init_from": Flag("alpha", "--from")}
    resolved = resolve_spec("pretrain", file=Path("job.yaml"), flags=flags, environ=NO_GPU, model_of=model_of)
    assert resolved.spec.init_from == folder / "alpha"


def test_missing_start_model_is_a_problem_like_others(folder: Path) -> None:
    (folder / "job.yaml").write_text("train: {stpes: 5}\ninit_from: ./gone/bert\n")
    problems = problems_of(file=Path("job.yaml"))
    assert f"job.yaml:2: init_from: no such folder: {folder}/gone/bert" in problems
    assert any("stpes" in problem for problem in problems)
    deep = problems_of(sets=["init_from=gone/deep/bert"], model_of=Path)  # a name has at most one slash
    assert deep == [f"--set: init_from: no such folder: {folder}/gone/deep/bert"]
    write_bert(folder / "bert")
    sets = ["init_from=bert", "model.hidden_size=64", "data.sequence_length=32", "train.stpes=5"]
    assert [problem.partition(":")[2].strip() for problem in problems_of(sets=sets)] == [
        "model.hidden_size: 64, but the initial model has 32",
        'train.stpes: unknown key (did you mean "steps"?)',
    ]


def test_indivisible_batch_names_nearest_valid_ones() -> None:
    with pytest.raises(SpecError) as caught:
        resolve_spec("pretrain", sets=["compute.processes_per_node=3", "compute.device=cpu"], environ=NO_GPU)
    assert caught.value.facts["nearest"] == "192"
    assert caught.value.fix == "--set train.global_batch_size=192"


def test_missing_gpu_is_refused_with_location() -> None:
    with pytest.raises(SpecError, match=r"compute\.device is gpu, but no GPU is visible") as caught:
        resolve_spec("pretrain", flags={"compute.device": Flag("gpu", "--device")}, environ=NO_GPU)
    assert str(caught.value.facts["where"]) == "--device"
    assert caught.value.fix == "--set compute.device=cpu"


@pytest.mark.parametrize("name", ["Upper", "under_score", "-a", "a--b", "", "a" * 41, "a b", "a\n"])
def test_names_invalid_as_host_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must be lower-case letters and digits"):
        PretrainSpec(name=name)


def test_job_gets_only_its_own_part_of_the_spec() -> None:
    spec = resolve_spec("pretrain", sets=["train.seed=7", "tags.a=b"], environ=NO_GPU).spec
    job = spec.job_config()
    assert type(job) is PretrainConfig
    assert job.train.seed == 7
    assert PretrainConfig.model_validate_json(job.model_dump_json()) == job


def test_environment_variables_need_valid_names() -> None:
    assert problems_of(sets=['environment.variables={"A B": x}'])[0].startswith("--set: environment.variables.A B")


def test_environment_lists_installed_versions() -> None:
    import pydantic

    described = EnvironmentSpec().describe()
    assert described["pydantic"] == pydantic.VERSION
    assert set(described) == {"python", "torch", "transformers", "tokenizers", "numpy", "pyarrow", "pydantic"}


def test_phase_start_is_relative_path_or_run(folder: Path) -> None:
    asked = []

    def outputs_of(run: str) -> Path:
        asked.append(run)
        return folder / "gone"

    (folder / "job.yaml").write_text("phase_from: ./outputs\n")
    assert problems_of(file=Path("job.yaml")) == [f"job.yaml:1: phase_from: no such folder: {folder}/outputs"]
    flags = {"phase_from": Flag("alpha", "--phase-from")}
    problems = problems_of(file=Path("job.yaml"), flags=flags, outputs_of=outputs_of)
    assert (asked, problems) == (["alpha"], [f"--phase-from: phase_from: no such folder: {folder}/gone"])
