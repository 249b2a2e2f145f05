"""`submit command -- WORDS`: any command with a plan, a snapshot, logs and its own exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli.main import main

SCRIPT = """\
import json, os, sys
print("words", sys.argv[1:], os.environ.get("RANK"), os.environ.get("TOKEN"), flush=True)
folder = os.environ["ORCHESTRATOR_OUTPUTS"]
if os.environ.get("RANK", "0") == "0":
    with open(os.path.join(folder, "metrics.jsonl"), "a") as metrics:
        metrics.write(json.dumps({"step": 2, "loss": 0.5}) + "\\n")
        metrics.write("[]\\n")
    with open(os.path.join(folder, "model.txt"), "w") as model:
        model.write("weights")
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TOKEN", "hidden-value-123")


def status(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """Return the status of the newest run."""
    capsys.readouterr()
    assert main(["status", "@last", "-o", "json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.long
@pytest.mark.parametrize(("backend", "processes"), [("local", "2"), ("debug", "1")])
def test_command_runs_with_its_exit_code(
    backend: str, processes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["submit", "command", "-b", backend, "--processes", processes, "--env", "TOKEN", "--"]
    assert main([*flags, "python", "script.py", "0", "--debug", "-o"]) == 0
    found = status(capsys)
    assert found["state"] == "completed"
    assert found["metrics"] == {"loss": 0.5}
    assert main(["logs", "@last"]) == 0
    text = capsys.readouterr().out
    assert "words ['0', '--debug', '-o']" in text
    name = str(found["name"])
    assert [path for path in (tmp_path / "home").rglob("model.txt") if name in str(path)]
    if backend == "local":  # a debug run shows its output in the user's own terminal
        files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
        assert not [path for path in files if b"hidden-value-123" in path.read_bytes()]
    assert main(["submit", "command", "-b", backend, "--", "python", "script.py", "7"]) == 7
    assert main(["submit", "command", "-b", backend, "--", "no-such-program"]) == 2
    assert "cannot run no-such-program" in capsys.readouterr().err


def test_lines_that_are_no_reports_are_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        '{"step": 1, "loss": 9.0}',
        '{"loss": 1.5}',
        '{"step": "2"}',
        '{"step": 3, "loss": "hidden"}',
        '{"step": 4}',
    ]
    write = (
        f"open(__import__('os').environ['ORCHESTRATOR_OUTPUTS'] + '/metrics.jsonl', 'w').write({chr(10).join(lines)!r})"
    )
    assert main(["submit", "command", "-b", "debug", "--", "python", "-c", write]) == 0
    found = status(capsys)
    assert (found["step"], found["metrics"]) == (4, {"loss": 9.0})
    assert found["warning"] == (
        'metrics.jsonl: 3 lines are not reports such as {"step": 1, "loss": 2.5}; the first one is line 2'
    )


def test_same_command_on_azure_has_the_same_job(capsys: pytest.CaptureFixture[str]) -> None:
    place = ["-b", "azure", "--cluster", "cpu", "--sku", "Standard_D16s_v5"]
    assert main(["submit", "command", *place, "--dry-run", "-o", "json", "--", "python", "script.py", "a b"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "-m train_jobs.command --config" in document["request"]["job"]["properties"]["command"]
    assert document["plan"]["job"] == {"command": ["python", "script.py", "a b"]}


def test_changed_script_is_another_run(capsys: pytest.CaptureFixture[str]) -> None:
    def name(*words: str) -> str:
        assert main(["validate", "command", "-o", "json", "--", *words]) == 0
        return str(json.loads(capsys.readouterr().out)["name"])

    before = name("python", "script.py", "0")
    assert before.startswith("command-script-")
    assert name("python", "script.py", "0") == before
    assert name("python", "script.py", "1") != before
    Path("script.py").write_text("")
    assert name("python", "script.py", "0") != before


def test_changes_that_an_existing_run_does_not_get_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["submit", "command", "--set", "code.folder=null", "--tag", "a=1", "-d"]
    assert main([*words, "--", "true"]) == 0
    assert main(["wait", "@last"]) == 0
    capsys.readouterr()
    changed = ["--tag", "b=2", "--set", "notify.on=[failed]", "--set", "tracking.artifacts=none"]
    assert main([*words, *changed, "--", "true"]) == 0
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    named = warning.removeprefix("warning: ").partition(" has no effect on the existing run")[0].split(", ")
    assert sorted(named) == ['notify.on=["failed"]', 'tags.b="2"', 'tracking.artifacts="none"']


def test_second_spec_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "pretrain", "-f", "a.yaml", "-f", "b.yaml"]) == 2
    assert "one spec file, not both a.yaml and b.yaml" in capsys.readouterr().err


def test_words_of_another_kind_or_verb_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "command"]) == 2
    assert main(["submit", "pretrain", "--", "python"]) == 2
    assert "command: unknown key" in capsys.readouterr().err
    assert main(["list", "--", "python"]) == 2
