"""The commands init and doctor, and the help of every verb."""

from __future__ import annotations

import argparse
import re
from importlib import import_module
from pathlib import Path

import pytest

from orchestrator.cli.main import build_parser, main
from orchestrator.jobs.registry import job_kind
from orchestrator.jobs.resolve import resolve_spec
from orchestrator.jobs.scaffold import template_files
from orchestrator.specs.reference import keys
from orchestrator.specs.resolved import find_project
from orchestrator.specs.site import spec_model
from orchestrator.support.finding import Finding, fail, ok, warn
from tests.run_folders import make_run
from tests.unit.cli.conftest import Command
from tests.unit.cli.frozen_help import FILE, examples, parsers, text


def verbs() -> dict[str, argparse.ArgumentParser]:
    return {name: parser for name, parser in parsers() if " " not in name}


@pytest.mark.parametrize("verb", [name for name, _ in parsers()])
def test_verb_help_has_description_example_and_flags(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser = dict(parsers())[verb]
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    text = capsys.readouterr().out
    assert "\n  orchestrator " in text
    assert len(str(parser.description)) > 20
    assert all(action.help for action in parser._actions)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("verb", [name for name, _ in parsers()])
def test_verb_examples_parse(verb: str) -> None:
    found = examples(dict(parsers())[verb])
    assert found
    for words in found:
        # the words after -- are a command of the user's own, which `main` takes off
        build_parser().parse_args(words[: words.index("--")] if "--" in words else words)
        assert words[: len(verb.split())] == verb.split()


def test_help_equals_frozen_help() -> None:
    """A flag that is removed, or changes its meaning, shows up here first."""
    assert FILE.read_text(encoding="utf-8") == text(), "on purpose? python -m tests.unit.cli.frozen_help"


def verbs_of_runs() -> dict[str, int]:
    """Return the verbs that take RUN, and the number of runs that they need."""
    names = {
        verb: action
        for verb, parser in verbs().items()
        for action in parser._actions
        if action.metavar in {"RUN", "RUN|SWEEP"} and not action.option_strings
    }
    return {verb: action.nargs if isinstance(action.nargs, int) else 1 for verb, action in names.items()}


@pytest.mark.parametrize(("verb", "runs"), sorted(verbs_of_runs().items()))
def test_run_verbs_use_the_given_backend(verb: str, runs: int, home: Path, orchestrator: Command) -> None:
    make_run(home, "one")
    words = (verb, *["one"] * runs)
    refused = orchestrator(*words, "-b", "nowhere")
    assert refused.code == 2
    assert "unknown backend 'nowhere'" in refused.err
    assert "no backend" not in orchestrator(*words, "-b", "local").err


def test_init_project_is_valid(orchestrator: Command) -> None:
    done = orchestrator("init", "my-bert")
    assert (done.code, done.out) == (0, "my-bert/job.yaml\nmy-bert/orchestrator.yaml\nmy-bert/.amlignore\n")
    assert "orchestrator submit pretrain -f my-bert/job.yaml" in done.err
    valid = orchestrator("validate", "pretrain", "-f", "my-bert/job.yaml")
    assert valid.code == 0, valid.err
    assert valid.out.startswith("valid: my-bert-")
    assert valid.err == ""
    project = find_project(Path("my-bert"))
    assert project == Path("my-bert").absolute() / "orchestrator.yaml"
    resolved = resolve_spec("pretrain", project=project, file=Path("my-bert/job.yaml"), environ={"PATH": ""})
    assert list(resolved.changes) == ["name"]  # all other values are the defaults
    assert resolved.warnings == ()


def test_commands_shown_after_init_can_be_pasted(orchestrator: Command) -> None:
    assert "orchestrator submit pretrain -f 'my bert/job.yaml'" in orchestrator("init", "my bert").err


def test_init_in_current_folder_as_json(orchestrator: Command) -> None:
    assert orchestrator("init", "-o", "json").json == {"files": ["job.yaml", "orchestrator.yaml", ".amlignore"]}
    assert {path.name: path.read_text() for path in Path().iterdir()} == template_files("pretrain")


def test_init_overwrites_nothing_and_names_conflicts(orchestrator: Command) -> None:
    Path("job.yaml").write_text("mine\n")
    Path(".amlignore").write_text("mine\n")
    refused = orchestrator("init")
    assert refused.code == 1
    assert "existing  job.yaml, .amlignore" in refused.err
    assert sorted(path.name for path in Path().iterdir()) == [".amlignore", "job.yaml"]
    assert Path("job.yaml").read_text() == "mine\n"
    assert orchestrator("init", "--force").code == 0
    assert Path("job.yaml").read_text() == template_files("pretrain")["job.yaml"]


def test_init_below_a_file_is_a_storage_error(orchestrator: Command) -> None:
    Path("file").touch()
    refused = orchestrator("init", "file/below")
    assert refused.code == 1
    assert refused.err.startswith("error[storage]: cannot write to file/below")


@pytest.mark.parametrize("kind", ["pretrain", "prepare"])
def test_init_full_writes_every_key_and_changes_nothing(orchestrator: Command, kind: str) -> None:
    done = orchestrator("init", "all", "--template", kind, "--full", "-o", "json")
    assert done.json == {"files": ["all/job.yaml", "all/orchestrator.yaml", "all/.amlignore"]}
    text = Path("all/job.yaml").read_text()
    for key in keys(spec_model(job_kind(kind).spec)):
        assert f"# {key.text[:40]}" in text or "[]" in key.name, key.name
    written = resolve_spec(kind, file=Path("all/job.yaml"), environ={"PATH": ""})
    assert written.spec == resolve_spec(kind, environ={"PATH": ""}).spec


def test_init_full_uses_values_of_a_recipe(orchestrator: Command) -> None:
    assert orchestrator("init", "--template", "finetune", "--full", "--recipe", "squad").code == 0
    text = Path("job.yaml").read_text()
    assert "\n  max_length: 384\n" in text
    assert "\n# init_from: required\n" in text
    assert "\nrecipe: squad\n" in text


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--template", "pretran"), "unknown kind of job 'pretran' (did you mean \"pretrain\"?)"),
        (("--full", "--recipe", "bse"), "unknown recipe 'bse' (did you mean \"base\"?)"),
        (("--recipe", "base"), "cannot use --recipe without --full"),
    ],
)
def test_init_refuses_unknown_names_and_writes_nothing(
    orchestrator: Command, words: tuple[str, ...], problem: str
) -> None:
    refused = orchestrator("init", "new", *words)
    assert refused.code == 2
    assert problem in refused.err
    assert not Path("new").exists()


def test_explain_shows_each_meaning_of_a_key(orchestrator: Command) -> None:
    found = orchestrator("explain", "train.micro_batch_size", "-o", "json").json
    assert [entry["kinds"] for entry in found] == [["pretrain"], ["finetune"]]
    pretrain = found[0]
    assert (pretrain["type"], pretrain["default"]) == ("integer | auto | null", "null")
    assert "auto on GPUs" in pretrain["text"]
    recipes = pretrain["recipes"]
    assert (recipes["tiny"], recipes["large"]) == (64, "auto")  # large: from the recipe that it extends
    assert "base" not in pretrain["recipes"]
    text = orchestrator("explain", "optimizer.name", "--kind", "pretrain").out
    assert "optimizer.name\n  type" in text
    assert "large lamb" in text


def test_explain_section_lists_its_keys(orchestrator: Command) -> None:
    found = orchestrator("explain", "checkpoint", "--kind", "pretrain", "-o", "json").json
    assert [entry["key"] for entry in found][:2] == ["checkpoint", "checkpoint.every"]


def test_explain_suggests_similar_key(orchestrator: Command) -> None:
    assert [one["key"] for one in orchestrator("explain", "limits.trials", "-o", "json").json] == ["limits.trials"]
    named = orchestrator("explain", "sweep")
    assert "error[spec]: unknown key 'sweep'\n" in named.err
    assert re.search(r"sections +space\[\], sampling, ", named.err)
    refused = orchestrator("explain", "optimizer.learning_rat")
    assert refused.code == 2
    assert "unknown key 'optimizer.learning_rat' (did you mean \"optimizer.learning_rate\"?)" in refused.err


@pytest.mark.parametrize(
    ("findings", "code"),
    [([ok("a", "fine")], 0), ([ok("a", "fine"), warn("b", "hm", "do")], 0), ([fail("c", "no", "do"), ok("a", "x")], 1)],
)
def test_doctor_with_failure_exits_with_1(
    orchestrator: Command, monkeypatch: pytest.MonkeyPatch, findings: list[Finding], code: int
) -> None:
    monkeypatch.setattr("orchestrator.doctor.examine", lambda **_: iter(findings))
    done = orchestrator("doctor", "-o", "json")
    assert done.code == code
    assert done.json == [finding.model_dump() for finding in findings]


def test_doctor_finding_fits_80_columns_with_usable_fix(orchestrator: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "pip install " + " ".join(["'package>=1.2.3'"] * 9)
    monkeypatch.setattr("orchestrator.doctor.examine", lambda **_: iter([fail("packages", "word " * 40, command)]))
    lines = orchestrator("doctor").out.splitlines()
    assert lines[0].startswith("fail  packages         word word")
    assert max(map(len, lines[:-1])) <= 80
    assert len(lines) > 3
    assert lines[-1].endswith(f"fix              {command}")


def test_no_command_prints_an_overview(orchestrator: Command) -> None:
    done = orchestrator()
    assert (done.code, done.err) == (0, "")
    sections = re.split(r"\n\n(?=\w+\n)", done.out)[1:]
    assert [section.splitlines()[0] for section in sections] == ["start", "watch", "manage", "data", "cloud"]
    assert {line.split()[0] for line in done.out.splitlines() if line.startswith("  ")} == set(verbs())


@pytest.mark.parametrize("verb", [name for name, _ in parsers()])
def test_each_verb_has_a_handler(verb: str) -> None:
    handler = dict(parsers())[verb].get_default("handler")
    if handler:
        module, _, function = handler.partition(".")
        assert callable(getattr(import_module(f"orchestrator.cli.verbs.{module}"), function))
    else:
        assert any(name.startswith(f"{verb} ") for name, _ in parsers())


@pytest.mark.parametrize(
    ("kind", "listed", "hidden"),
    [
        ("pretrain", {"--data", "--store", "--from", "--phase-from", "--tensorboard"}, {"--task", "--input"}),
        ("prepare", {"--data", "--store"}, {"--task", "--model", "--input", "--from", "--phase-from", "--tensorboard"}),
        ("finetune", {"--data", "--task", "--model", "--from"}, {"--input", "--store", "--tensorboard"}),
        ("predict", {"--data", "--input", "--model"}, {"--store", "--from", "--phase-from", "--profile"}),
    ],
)
def test_help_of_a_kind_lists_only_its_flags(
    kind: str, listed: set[str], hidden: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["submit", kind, "--help"])
    assert ended.value.code == 0
    words = set(re.findall(r"--[a-z-]+", capsys.readouterr().out.partition("\nexample")[0]))
    assert listed <= words
    assert not hidden & words
