"""Pain 17: a mistake in a config that raises a traceback or is silently ignored."""

from __future__ import annotations

import pytest

from tests.conftest import Console

WRONG = (
    "recipe: tinny\n"
    "train:\n"
    "  stpes: 10\n"
    "  global_batch_size: many\n"
    "model:\n"
    "  hidden_size: 100\n"
    "  num_attention_heads: 3\n"
    "colour: blue\n"
)


def test_each_invalid_key_and_value_is_named_with_line(console: Console) -> None:
    (console.cwd / "job.yaml").write_text(WRONG)
    done = console("submit", "pretrain", "-f", "job.yaml", "--set", "optimizer.name=adam")
    assert (done.code, done.out) == (2, "")
    assert "error[spec]: the spec has 6 problems\n" in done.err
    assert "job.yaml:1: unknown recipe 'tinny' (did you mean \"tiny\"?)" in done.err
    assert 'job.yaml:3: train.stpes: unknown key (did you mean "steps"?)' in done.err
    assert "job.yaml:4: train.global_batch_size: " in done.err
    assert "job.yaml:5: model: hidden_size 100 does not divide into 3 attention heads" in done.err
    assert "job.yaml:8: colour: unknown key" in done.err
    assert "--set: optimizer.name: " in done.err
    assert '(did you mean "adamw"?)' in done.err
    assert "Traceback" not in done.err
    assert not (console.home / "runs").exists()


def test_config_error_as_json(console: Console) -> None:
    (console.cwd / "job.yaml").write_text(WRONG)
    done = console("validate", "pretrain", "-f", "job.yaml", "-o", "json")
    assert done.code == 2
    assert done.json["error"]["kind"] == "spec"
    assert len(done.json["error"]["problems"]) == 5


@pytest.mark.parametrize(
    ("where", "words", "variables"),
    [
        ("orchestrator.yaml:2", (), {}),
        ("job.yaml:2", ("-f", "job.yaml"), {}),
        ("--set", ("--set", "train.stpes=1"), {}),
        ("--set", ("--set", "train.steps=ten"), {}),
        ("ORCHESTRATOR_TRAIN__STEPS", (), {"ORCHESTRATOR_TRAIN__STEPS": "ten"}),
        ("--processes", ("--processes", "0"), {}),
        ("--max-restarts", ("--max-restarts", "-1"), {}),
    ],
)
def test_config_error_names_its_source(
    console: Console, where: str, words: tuple[str, ...], variables: dict[str, str]
) -> None:
    if ".yaml" in where:
        (console.cwd / where.partition(":")[0]).write_text("train:\n  stpes: 1\n")
    done = console("plan", "pretrain", *words, **variables)
    assert (done.code, done.out) == (2, "")
    problem = done.err.splitlines()[1].strip()
    assert problem.startswith(f"{where}: ")
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("train: [", "job.yaml:1: expected"),
        ("- a\n- b\n", "job.yaml:1: not a mapping"),
        ("train: 5\n", "job.yaml:1: train: "),
        ("train:\n  steps: 1\n  steps: 2\n", "job.yaml:3: train.steps: duplicate key (first on line 2)"),
    ],
)
def test_file_that_is_not_spec_is_refused_with_line(console: Console, text: str, problem: str) -> None:
    (console.cwd / "job.yaml").write_text(text)
    done = console("validate", "pretrain", "-f", "job.yaml")
    assert done.code == 2
    assert f"  {problem}" in done.err
    assert "Traceback" not in done.err


def test_unknown_variable_gives_warning(console: Console) -> None:
    done = console("validate", "pretrain", ORCHESTRATOR_TRIAN__STEPS="1")
    assert done.code == 0
    assert done.err.startswith("warning: ORCHESTRATOR_TRIAN__STEPS is ignored")
    assert '(did you mean "ORCHESTRATOR_TRAIN__STEPS"?)' in done.err


def test_internal_error_is_one_line(console: Console) -> None:
    """The error also explains how to report it; --debug adds the traceback."""
    words = ("list", "-o", "text")
    (console.cwd / "sitecustomize.py").write_text(
        "import orchestrator.client\norchestrator.client.Orchestrator.iter_runs = lambda *_, **__: 1 / 0\n"
    )
    broken = {"PYTHONPATH": f"{console.cwd}:{console.environ().get('PYTHONPATH', '')}"}
    done = console(*words, **broken)
    assert done.code == 1
    assert done.err.startswith("error[bug]: ZeroDivisionError: division by zero\n")
    assert "Traceback" not in done.err
    assert "orchestrator --debug list" in done.err
    assert "Traceback" in console("--debug", *words, **broken).err
