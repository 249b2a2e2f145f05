"""The SDK for a user's script: clean under mypy --strict, every public name documented."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator
from orchestrator import Orchestrator, Run, Sweep, UserError
from orchestrator.runs.status import Handle
from orchestrator.support.errors import SpecError
from tests.conftest import SMALL_TEXT, write_bert
from tests.mistakes import TRAIN

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = '''\
"""What a user's own script does: plans, submits, follows, sweeps, predicts."""

from pathlib import Path
from typing import Any, assert_type

from orchestrator import Orchestrator, Plan, Run, RunState, RunStatus, Sweep, UserError


def pretrain(orchestrator: Orchestrator, text: Path) -> Run:
    plan = orchestrator.plan(overrides={"recipe": "tiny", "data.text": [str(text)], "train.steps": 500})
    assert_type(plan, Plan)
    print(plan.summary(), plan.name)
    run = orchestrator.submit(plan)
    assert_type(run, Run)
    for line in run.logs(tail=20, all_ranks=True):
        print(line.rank, line.text)
    return run


def score(run: Run) -> float:
    status = run.wait(timeout=6 * 3600)
    assert_type(status, RunStatus)
    run.raise_for_status()
    if status.state is not RunState.COMPLETED or status.model is None:
        raise SystemExit(status.exit_code)
    for path in run.download("model", to=Path("out")):
        print(path.name)
    hours: float = run.cost().node_hours
    return status.metrics["validation_mlm_loss"] / max(hours, 1e-9)


def sweep(orchestrator: Orchestrator, file: Path) -> dict[str, Any]:
    found = orchestrator.sweeps.submit(orchestrator.sweeps.plan(file=file))
    assert_type(found, Sweep)
    found.wait()
    return found.best_spec()


def predict(orchestrator: Orchestrator, model: str, rows: Path) -> Path | None:
    plan = orchestrator.plan("predict", overrides={"model": model, "input": [str(rows)], "output": "labels.jsonl"})
    run = orchestrator.submit(plan)
    run.wait()
    return run.deliver()


def main() -> None:
    orchestrator = Orchestrator("local", home=Path("home"))
    try:
        print(score(pretrain(orchestrator, Path("notes"))))
    except UserError as problem:
        print(problem.kind, problem.message, problem.fix)
        raise SystemExit(problem.exit_code) from problem
    print([status.name for status in orchestrator.runs(states=[RunState.RUNNING], limit=5)])
    print(orchestrator.attach("@last").handle)


main()
'''
WRONG = """\
from orchestrator import Orchestrator

run = Orchestrator().attach("@last")
run.wait(timeout="6h")
run.state
"""


@pytest.fixture(scope="module")
def mypy_outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return mypy's output for each script, run outside of the checkout like a user's."""
    folder = tmp_path_factory.mktemp("script")
    outputs = {}
    for name, text in (("right", SCRIPT), ("wrong", WRONG)):
        (folder / f"{name}.py").write_text(text)
        command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--follow-imports=silent"]
        found = subprocess.run(
            [*command, f"{name}.py"], cwd=folder, env={"MYPYPATH": str(ROOT)}, capture_output=True, text=True
        )
        outputs[name] = found.stdout + found.stderr
    return outputs


@pytest.mark.slow  # mypy reads all modules of the SDK
def test_valid_script_passes_mypy_strict_invalid_fails(mypy_outputs: dict[str, str]) -> None:
    assert mypy_outputs["right"] == ""
    lines = mypy_outputs["wrong"].splitlines()
    assert [line.split(":")[1] for line in lines] == ["4", "5"]


def undocumented(found: type) -> list[str]:
    """Return public methods and properties without a docstring, or with an argument that it does not name."""
    lacking = []
    for name, member in vars(found).items():
        if name.startswith("_"):
            continue
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not callable(function):
            continue
        text = inspect.getdoc(function) or ""
        names = [one for one in inspect.signature(function).parameters if one not in {"self", "cls"}]
        unexplained = [one for one in names if not any(f"{quote}{one}" in text for quote in (" ", "`", "\n"))]
        lacking += [f"{found.__name__}.{name}: {unexplained or 'no docstring'}"] if unexplained or not text else []
    return lacking


@pytest.mark.parametrize("found", [Orchestrator, Run, Sweep], ids=lambda found: found.__name__)
def test_every_public_method_documents_its_arguments(found: type) -> None:
    assert undocumented(found) == []


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name in orchestrator.__all__ if not (getattr(orchestrator, name).__doc__ or "").strip()] == []


@pytest.mark.parametrize("word", [None, "0"])
def test_library_telemetry_off_unless_enabled(word: str | None) -> None:
    names = ("MLFLOW_DISABLE_TELEMETRY", "ORT_DISABLE_TELEMETRY")
    environ = {key: value for key, value in os.environ.items() if key not in names}
    environ |= dict.fromkeys(names, word) if word else {}
    look = f"import os, orchestrator; orchestrator.Orchestrator(); print([os.environ[name] for name in {names}])"
    done = subprocess.run([sys.executable, "-c", look], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(["true", "1"] if word is None else [word, word])


def test_jobs_by_function_equal_those_by_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_bert(Path("bert"))
    Path("train.csv").write_text(TRAIN)
    Path("notes.jsonl").write_text("".join(json.dumps({"note": note}) + "\n" for note in SMALL_TEXT.split("\n\n")))
    sdk = Orchestrator(home="home")
    short = {"data.max_length": 32}
    job = orchestrator.finetune("bert", "train.csv", text="note", label="ward", settings=short)
    by_keys = sdk.plan(
        "finetune",
        overrides={"init_from": "bert", "data": "train.csv", "data.text": "note", "data.label": "ward", **short},
    )
    assert sdk.plan(job).run_hash == by_keys.run_hash
    text = sdk.plan(orchestrator.pretrain(Path("notes.jsonl"), column="note", steps=3))
    assert (text.steps, text.data.files) == (3, 1)
    Path("job.yaml").write_text("train: {steps: 7}\n")
    assert sdk.plan(file="job.yaml").steps == 7
    with pytest.raises(UserError, match="cannot submit 'pretrain': it is not a plan") as refused:
        sdk.submit("pretrain")  # type: ignore[arg-type]
    assert refused.value.fix == "submit(orchestrator.plan('pretrain'))"


@pytest.mark.parametrize("kind", ["pretrain", "prepare"])
def test_no_files_is_not_the_embedded_text(tmp_path: Path, kind: str) -> None:
    describe = getattr(orchestrator, kind)
    for nothing in ([], (), sorted(tmp_path.glob("*.txt"))):
        with pytest.raises(SpecError, match=rf"cannot {kind} from no files") as refused:
            describe(nothing, column="note")
        assert refused.value.facts == {"where": f"orchestrator.{kind}(): data"}
        assert "check the pattern" in str(refused.value)
    assert describe(None).values == describe().values == {}


def test_objects_name_run_and_home(tmp_path: Path) -> None:
    sdk = Orchestrator("local", home=tmp_path / "home")
    assert repr(sdk) == f"Orchestrator('local', home='{tmp_path}/home')"
    assert repr(Run(None, Handle.parse("local://one"))) == "Run('local://one')"  # type: ignore[arg-type]


def test_sdk_former_names_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[list[Run]] = []
    monkeypatch.setattr("orchestrator.reports.pages.comparison.write_report", lambda runs, to: compared.append(runs))
    monkeypatch.setattr(Run, "_report", lambda run, **_: run)
    first, second = (Run(None, Handle.parse(f"local://{name}")) for name in ("one", "two"))  # type: ignore[arg-type]
    first.report(beside=[second])  # type: ignore[call-arg]
    first.report(compare_with=[second])
    assert compared == [[first, second]] * 2
    assert Sweep.way_on is Sweep.resume_command
