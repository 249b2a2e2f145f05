"""Every documented command line is valid; those that finish within seconds are executed."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
import yaml
from documents import DOCUMENTS, PROGRAMS, ROOT, blocks, command_lines

from orchestrator.cli.main import build_parser, main
from orchestrator.testing import AzureDouble
from tests.conftest import MICRO, write_corpus
from tests.unit.finetuning.finetune_jobs import write_conll
from train_jobs import finetune, predict, prepare, pretrain
from train_jobs.tools import onnx, serve

COMMANDS = sorted({words: place for place, words in reversed([*command_lines()])}.items())
NOT_PLANNED = {
    "google-bert/": "asks the Hugging Face Hub",
    "--allow-pickle": "a downloaded model, see tests/unit/lineage/test_model_trust.py",
    "--require-signature": "a signed model, see tests/unit/lineage/test_model_trust.py",
    "--model RUN": "a fine-tuned run, which takes its time",
    "--model wards": "the same; docs/site/recording.py runs it",
    "--model reviews": "the same",
    "models:/": "a registered model, see tests/unit/orchestrator/test_model_registry.py",
    "s3://": "an object store, see tests/object_store.py",
    "/shared/": "a cluster with a shared disk, see tests/faults/test_dask.py",
    "large-nvidia-phase2": "a phase of 512 tokens goes on from one of BERT-large",
    "-b polite": "a backend of another package, which tests/contract installs",
    "hidden_size=64": "shows an error",
    "ORCHESTRATOR_": "a variable, not a command",
}
EXECUTED = {
    "cost",
    "data",
    "diff",
    "doctor",
    "download",
    "explain",
    "init",
    "list",
    "logs",
    "report",
    "skus",
    "status",
    "wait",
}
NOT_EXECUTED = {  # part of a command line -> the test that executes its equivalent
    "attach ": "tests/pains/test_detach.py",
    "cancel ": "tests/contract/test_backends.py",
    "completion ": "tests/unit/cli/test_completion.py",
    "data fetch": "tests/unit/fetch/test_fetch_command.py",
    "debug ": "tests/e2e/test_looking_inside.py",
    "--mlflow ": "tests/unit/orchestrator/test_mlflow_runs.py",
    "home ": "tests/unit/orchestrator/test_other_users.py",
    "mlflow ": "tests/unit/orchestrator/test_mlflow_sync.py",
    "model endpoints": "tests/wire/test_azure_endpoints.py",
    "model rollback": "tests/wire/test_azure_endpoints.py",
    "model traffic": "tests/wire/test_azure_endpoints.py",
    "model deploy ": "tests/contract/test_backends.py",
    "model convert ": "tests/unit/lineage/test_model_trust.py",
    "model delete ": "tests/contract/test_backends.py",
    "model register ": "tests/e2e/test_registered_model.py",
    "model sign ": "tests/unit/lineage/test_model_trust.py",
    "model verify ": "tests/unit/lineage/test_model_trust.py",
    "preempt ": "tests/contract/test_backends.py",
    "prune --purge": "tests/e2e/test_private_text.py",
    "resume ": "tests/contract/test_backends.py",
    "skus --refresh": "tests/unit/orchestrator/test_sizes.py",
    "supervise ": "tests/wire/test_azure_runs.py",
    "report search-": "tests/unit/cli/test_named_sweeps.py",
    "sweep ": "tests/e2e/test_sweep.py",
}
IN_THE_CLOUD = ("cluster ", "-b azure")
VERBS = {verb for action in build_parser()._actions if action.dest == "verb" for verb in action.choices or ()}
JOBS = {job.__name__.removeprefix("train_jobs."): job for job in (finetune, onnx, predict, prepare, pretrain, serve)}


def words_of(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    while re.match(r"[A-Z_]+=", words[0]):  # variables of the command's environment
        words.pop(0)
    return words


@pytest.mark.parametrize(("line", "place"), COMMANDS)
def test_documented_program_is_known(line: str, place: str) -> None:
    assert words_of(line)[0] in PROGRAMS, place


@pytest.mark.parametrize(("line", "place"), [one for one in COMMANDS if one[0].startswith("orchestrator ")])
def test_documented_command_line_parses(line: str, place: str) -> None:
    arguments, unknown = build_parser().parse_known_args(words_of(line)[1:])
    assert (arguments.verb, unknown) == (words_of(line)[1], []), place


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the project folder of the documents, and a home with runs called novels and mybert."""
    folder = tmp_path_factory.mktemp("documented")
    for name in ("notes", "letters", "books", "wiki", "dumps"):
        (folder / name).mkdir()
        write_corpus(folder / name / "text.txt")
    (folder / "words.txt").write_text("tachycardia\nstent\n")
    for place, columns in (("data/glue/MRPC", "header"), ("own", "review\tstars")):
        (folder / place).mkdir(parents=True)
        for split in ("train", "dev"):
            (folder / place / f"{split}.tsv").write_text(f"{columns}\nGood.\t1\nBad.\t0\n")
    reviews = "train: train.tsv\nvalidation: dev.tsv\ntext: review\nlabel: stars\n"
    (folder / "own" / "reviews.yaml").write_text(reviews)
    (folder / "notes.jsonl").write_text("".join(json.dumps({"note": f"note {number}"}) + "\n" for number in range(100)))
    rows = "".join(f"{number},note {number},{number % 3}\n" for number in range(100))
    (folder / "wards.csv").write_text(f"id,note,ward\n{rows}")
    (folder / "data" / "conll").mkdir()
    for seed, name in enumerate(("train", "valid", "test")):
        write_conll(folder / "data" / "conll" / f"{name}.txt", 20, seed)
    (folder / "docs").symlink_to(ROOT / "docs")
    (folder / "job.env").write_text("HF_TOKEN=hf_documented\n")
    (folder / "job.env").chmod(0o600)
    (folder / "mine").mkdir()
    (folder / "mine" / "mine.py").write_text("from train_jobs.pretrain import main\n")
    job = next(block.text for block in blocks("yaml") if block.text.startswith("# job.yaml\n"))
    (folder / "job.yaml").write_text(job)
    sweep = next(block.text for block in blocks("yaml") if block.text.startswith("# sweep.yaml\n"))
    (folder / "sweep.yaml").write_text(sweep)
    micro = {**MICRO, "data": {**MICRO["data"], "text": ["books"]}}
    micro["model"] = {**MICRO["model"], "max_position_embeddings": 512}
    (folder / "micro.yaml").write_text(yaml.safe_dump(micro))
    before, place = dict(os.environ), Path.cwd()
    os.environ.update(
        {"ORCHESTRATOR_HOME": str(folder / "home"), "CUDA_VISIBLE_DEVICES": "", "HF_TOKEN": "hf_documented"}
    )
    os.chdir(folder)
    try:
        assert main(["submit", "pretrain", "-f", "micro.yaml", "-n", "novels"]) == 0
        assert main(["submit", "pretrain", "-f", "micro.yaml", "-n", "mybert", "--set", "train.seed=2"]) == 0
        assert (
            main(["submit", "prepare", "--data", "wiki", "--store", "stores/wiki", "--set", "data.vocab_size=256"]) == 0
        )
        assert main(["submit", "pretrain", "-f", "micro.yaml", "-n", "last", "--set", "train.seed=1"]) == 0
        yield folder
    finally:
        os.chdir(place)
        os.environ.clear()
        os.environ.update(before)


def planned_commands() -> list[tuple[str, str]]:
    verbs = ("submit", "plan", "validate")
    found = [one for one in COMMANDS if one[0].startswith("orchestrator ") and words_of(one[0])[1] in verbs]
    return [one for one in found if not any(part in one[0] for part in NOT_PLANNED)]


@pytest.mark.long  # `runs` are created first
@pytest.mark.parametrize(("line", "place"), planned_commands())
def test_documented_submission_plans_in_dry_run(
    line: str, place: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = words_of(line)[1:]
    if words[0] == "submit" and "--dry-run" not in words:
        words.append("--dry-run")
    code = main([word.replace("SUBSCRIPTION", "s") for word in words])
    assert code == 0, f"{place}: {capsys.readouterr().err}"


@pytest.mark.slow
@pytest.mark.parametrize("document", ["README.md", "docs/sdk.md"])
def test_sdk_example_runs(document: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = (block.text for block in blocks("python") if block.document == document)
    exec(example.replace('"train.steps": 500', '"train.steps": 2, "train.micro_batch_size": 8'), {})
    assert "data" in capsys.readouterr().out


def commands_of(verbs: Collection[str]) -> list[tuple[str, str]]:
    """Return commands of these verbs, one per line of each verb."""
    lines = [(part.strip(), place) for line, place in COMMANDS for part in line.split("#")[0].split(";")]
    return sorted(
        {
            line: place for line, place in lines if line.split()[:1] == ["orchestrator"] and words_of(line)[1] in verbs
        }.items()
    )


def executed_commands() -> list[tuple[str, str]]:
    left_out = (*NOT_EXECUTED, *IN_THE_CLOUD)
    return [one for one in commands_of(EXECUTED) if not any(part in one[0] for part in left_out)]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "place"), executed_commands())
def test_documented_command_runs(line: str, place: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([word.replace("RUN", "novels") for word in words_of(line)[1:]])
    output = capsys.readouterr()
    expected = "no run is running" if "--state running" in line else output.out
    assert code == 0, f"{place}: {output.err}"
    assert expected, f"{place} prints nothing"
    assert expected in output.out + output.err


@pytest.mark.slow
def test_documented_azure_commands_run_on_the_double(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        line for line, _ in commands_of({"cluster", "doctor", "list"}) if any(part in line for part in IN_THE_CLOUD)
    ]
    assert {words_of(line)[1] for line in lines} == {"cluster", "doctor", "list"}
    with AzureDouble(project / "azure", run_jobs=False) as double:
        place = {
            "SUBSCRIPTION_ID": double.place.subscription,
            "RESOURCE_GROUP": double.place.resource_group,
            "WORKSPACE": double.place.workspace,
        }
        for name, value in place.items():
            monkeypatch.setenv(f"ORCHESTRATOR_AZURE_{name}", value)
        for line in lines:  # in alphabetical order: create, list, scale
            yes = ["-y"] if "cluster create" in line or "cluster scale" in line else []
            assert main([*words_of(line)[1:], *yes]) == 0, f"{line}: {capsys.readouterr().err}"
        assert (double.refused, double.violations) == ([], [])


def test_commands_not_run_here_are_run_elsewhere() -> None:
    planned_verbs = {"submit", "plan", "validate"}
    rest = [line for line, _ in commands_of(VERBS - planned_verbs) if line not in dict(executed_commands())]
    rest = [line for line in rest if not any(part in line for part in IN_THE_CLOUD)]
    assert [line for line in rest if not any(part in line for part in NOT_EXECUTED)] == []
    for part, file in NOT_EXECUTED.items():
        assert part.split()[-1].lstrip("-") in (ROOT / file).read_text(), part


def inline_commands() -> list[tuple[str, str]]:
    """Return commands in running text and tables; for `a|b` the first alternative."""
    found = {}
    for path in DOCUMENTS:
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for command in re.findall(r"`orchestrator ([^`]+)`", text):
            found.setdefault(re.sub(r"\\\|\w+", "", " ".join(command.split())), path.name)
    return sorted(found.items())


@pytest.mark.parametrize(("line", "place"), inline_commands())
def test_inline_commands_use_existing_verbs_and_options(line: str, place: str) -> None:
    parser, words = build_parser(), [word for word in words_of(line) if word != "..."]
    words = words[: words.index("--")] if "--" in words else words  # the rest is a command of the user's own
    while words and not words[0].startswith("-"):
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if not below:
            break
        if words[0] == "VERB":
            return
        assert words[0] in below[0].choices, place
        parser = below[0].choices[words.pop(0)]
    known = {option for action in parser._actions for option in action.option_strings}
    assert [word for word in words if re.fullmatch("--?[a-z][a-z-]*", word) and word not in known] == [], place


def plain_jobs() -> list[tuple[str, str]]:
    return [one for one in COMMANDS if "train_jobs." in one[0] and words_of(one[0])[0] in {"python", "torchrun"}]


@pytest.mark.parametrize(("line", "place"), plain_jobs())
def test_plain_job_accepts_its_arguments(line: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = words_of(line)
    module = words[words.index("-m") + 1]
    job = JOBS[module.removeprefix("train_jobs.")]
    with pytest.raises(SystemExit) as ended:
        job.main([*words[words.index(module) + 1 :], "--help"])
    assert ended.value.code == 0, place
    known = capsys.readouterr().out
    given = {word for word in words[words.index(module) + 1 :] if word.startswith("--")}
    assert not [flag for flag in given if flag not in known], place


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text()
    return {line.split(":")[0] for line in text.splitlines() if ":" in line and line[:1].isalpha()}


def test_documented_make_targets_exist() -> None:
    named = {words_of(line)[1] for line, _ in COMMANDS if line.startswith("make ")}
    assert named
    assert named <= make_targets()


def test_unplanned_files_have_a_valid_reason() -> None:
    lines = [line for line, _ in COMMANDS]
    assert [part for part in NOT_PLANNED if not any(part in line for line in lines)] == []
