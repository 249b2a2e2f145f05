"""Run every cell of each notebook in a new kernel, with its own folder and home and without network."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

from tests.conftest import MICRO, write_corpus, write_spec

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
sys.path.insert(0, str(NOTEBOOKS.parent / "docs" / "site"))
import tutorials  # noqa: E402  # found by the line above

FOUND = sorted(NOTEBOOKS.glob("*.ipynb"))
SECONDS = 900  # limit of a cell, on a machine that is also busy with other work
NOWHERE = "http://127.0.0.1:9"  # connections to other hosts fail
CHOICES = (
    "ORCHESTRATOR_BACKEND",
    "NOTEBOOK_CONLL",
    "NOTEBOOK_GLUE",
    "NOTEBOOK_MODEL",
    "NOTEBOOK_SKU",
    "NOTEBOOK_SQUAD",
)
OFFLINE = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the working folder of notebooks, with a home in it; nothing is written elsewhere."""
    for name in CHOICES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"ORCHESTRATOR_HOME": str(tmp_path / "home"), "CUDA_VISIBLE_DEVICES": "", **OFFLINE}.items():
        monkeypatch.setenv(name, value)
    before = sorted(NOTEBOOKS.rglob("*"))
    yield tmp_path
    assert sorted(NOTEBOOKS.rglob("*")) == before


def run_all(name: str, folder: Path) -> str:
    """Execute a notebook in this process's environment, and return everything that its cells display."""
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.text if output.output_type == "stream" else f"\n{output.data}\n" for output in shown)


def runs(folder: Path) -> dict[str, str]:
    """Return kind and state of each run."""
    found = {}
    for run in (folder / "home" / "runs").iterdir():
        plan, state = (json.loads((run / name).read_text()) for name in ("plan.json", "state.json"))
        found[run.name] = f"{plan['spec']['kind']} {state['state']}"
    return found


@pytest.mark.long
def test_notebook_prepares_a_corpus(folder: Path) -> None:
    shown = run_all("01-prepare-a-corpus.ipynb", folder)
    assert "valid: " in shown
    assert "notebook-corpus-" in shown
    assert "orchestrator-card" in shown, "plan and run have an HTML representation"
    assert "image/png" in shown
    assert [*runs(folder).values()] == ["prepare completed"]


@pytest.mark.long
def test_notebook_pretrains_a_model_and_tunes_it(folder: Path) -> None:
    check_pretraining(run_all("02-pretrain-bert.ipynb", folder))
    assert (folder / "02-files/model/model.safetensors").is_file()
    shown = run_all("03-glue-sweep.ipynb", folder)
    check_sweep(shown, folder)
    kinds = [*runs(folder).values()]
    assert kinds.count("pretrain completed") == 1, "the model of the previous notebook is found"
    assert sum(kind.startswith("finetune ") for kind in kinds) == 6


def check_pretraining(shown: str) -> None:
    (line,) = (line for line in shown.splitlines() if line.startswith("validation MLM loss"))
    loss, entropy, *_ = (float(word) for word in line.replace(",", "").split() if word[0].isdigit())
    assert loss < entropy, "the model uses context"
    assert "<svg" in shown, "the loss is drawn"
    assert sum(line[:2] == "0." for line in shown.splitlines()) >= 5, "words for the mask"


def check_sweep(shown: str, folder: Path) -> None:
    assert "6 of 6 trials" in shown, "the table"
    states = [line.split()[2] for line in shown.splitlines() if line.startswith("trial ") and line.split()[1].isdigit()]
    assert len(states) == 6
    assert set(states) == {"completed", "stopped"}
    assert shown.count("image/png") == 2, "metric against step, learning rate against metric"
    assert "test sentences classified correctly" in shown
    assert "IProgress" not in shown, "no library warns about missing widgets"
    with zipfile.ZipFile(folder / "03-files/submission.zip") as archive:
        lines = archive.read("CoLA.tsv").decode().splitlines()
    assert lines[0] == "index\tprediction"
    assert {line.split("\t")[1] for line in lines[1:]} == {"0", "1"}


@pytest.mark.slow
def test_notebook_answers_questions_and_finds_entities(folder: Path) -> None:
    check_tasks(run_all("04-questions-and-entities.ipynb", folder), folder)
    assert sorted(runs(folder).values()) == [
        "finetune completed",
        "finetune completed",
        "predict completed",
        "predict completed",
        "pretrain completed",
    ]


def check_tasks(shown: str, folder: Path) -> None:
    (line,) = (line for line in shown.splitlines() if line.startswith("exact match "))
    exact, f1 = (float(word.strip("%,")) for word in line.split() if word[0].isdigit())
    assert f1 > 50
    assert exact > 20
    (line,) = (line for line in shown.splitlines() if line.startswith("f1 "))
    assert float(line.split()[1]) > 0.35
    answers = [json.loads(line)["answer"] for line in (folder / "04-files/answers.jsonl").read_text().splitlines()]
    assert "ValueError" in answers
    found = [json.loads(line)["entities"] for line in (folder / "04-files/names.jsonl").read_text().splitlines()]
    assert len(found) == 3
    assert any(found)


@pytest.mark.slow
def test_notebook_adapts_to_a_domain(folder: Path) -> None:
    check_domain(run_all("05-your-own-domain.ipynb", folder))


def check_domain(shown: str) -> None:
    (line,) = (line for line in shown.splitlines() if line.startswith("held-out perplexity "))
    before, after = (int(word.strip(",")) for word in line.split() if word[0].isdigit())
    assert after < 0.8 * before
    pieces = [float(line.split()[-3]) for line in shown.splitlines() if line.startswith("domain")]
    assert len(pieces) == 2
    assert pieces[1] < pieces[0], "new words take fewer pieces"


@pytest.mark.slow
def test_notebook_classifies_notes(folder: Path) -> None:
    check_classes(run_all("06-classify-your-own-csv.ipynb", folder), folder)
    assert sorted(runs(folder).values()) == ["finetune completed", "predict completed", "pretrain completed"]


def check_classes(shown: str, folder: Path) -> None:
    (line,) = (line for line in shown.splitlines() if "new notes are correct" in line)
    assert float(line.split()[-1].strip("%")) > 70, "chance is 25%"
    lines = (folder / "06-files/labels.csv").read_text().splitlines()
    assert (lines[0].split(",")[:3], len(lines)) == (["id", "label", "probability"], 201)
    assert "95% interval" in shown


@pytest.mark.slow
def test_notebook_runs_in_the_cloud(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the double of Azure, only the environment of the kernel changes."""
    from orchestrator.testing import AzureDouble

    with AzureDouble(folder / "azure") as double:
        monkeypatch.setenv("ORCHESTRATOR_BACKEND", "azure")
        monkeypatch.setenv("ORCHESTRATOR_AZURE_POLL_SECONDS", "0.2")
        monkeypatch.setenv("NOTEBOOK_SKU", "Standard_D16s_v5")
        for notebook in FOUND:
            shown = run_all(notebook.name, folder)
            match notebook.name[:2]:
                case "02":
                    check_pretraining(shown)
                case "03":
                    check_sweep(shown, folder)
                case "04":
                    check_tasks(shown, folder)
                case "05":
                    check_domain(shown)
                case "06":
                    check_classes(shown, folder)
        assert not (folder / "home" / "runs").exists(), "nothing ran here"
        assert len(double.requests("PUT */computes/*")) >= 2, "clusters were provisioned"
        assert (double.violations, double.refused) == ([], [])


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in code] == [[] for _ in code]
    assert {cell.execution_count for cell in code} == {None}


@pytest.mark.slow
def test_run_survives_its_kernel(folder: Path) -> None:
    """`attach("@last")` finds a run whose kernel was killed while the run continued."""
    write_corpus(folder / "notes.txt")
    train = {"train": {**MICRO["train"], "steps": 40}, "data": {**MICRO["data"], "text": ["notes.txt"]}}
    write_spec(folder / "job.yaml", **train)
    submit = (
        "from pathlib import Path\n"
        "from orchestrator import Orchestrator\n"
        "orchestrator = Orchestrator()\n"
        "run = orchestrator.submit(orchestrator.plan(file=Path('job.yaml')))\n"
        "print(run.status().state.terminal)\n"
    )
    attach = (
        "from orchestrator import Orchestrator\n"
        "run = Orchestrator().attach('@last')\n"
        "print(run.watch().state, '<svg' in run._repr_html_())\n"
    )
    assert run_in_kernel(submit, folder) == "False\n"
    assert run_in_kernel(attach, folder).endswith("completed True\n")


def run_in_kernel(code: str, folder: Path) -> str:
    """Return the output of a cell in a new kernel, which is then killed with all its processes."""
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(folder))
    try:
        printed: list[str] = []

        def note(message: dict[str, Any]) -> None:
            assert message["msg_type"] != "error", "\n".join(message["content"]["traceback"])
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                printed.append(message["content"]["text"])

        client.execute_interactive(code, timeout=SECONDS, output_hook=note)
        return "".join(printed)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_recorded_outputs_belong_to_the_cells(path: Path) -> None:
    """The site shows recorded outputs; after a change of a cell they must be recorded again."""
    current = {cell["id"]: "".join(cell["source"]) for cell in tutorials.cells(path) if cell["cell_type"] == "code"}
    stored = tutorials.recorded(path.stem)
    changed = [key for key, cell in stored.items() if cell["source"] != current.get(key)]
    assert (changed, bool(stored) and stored.keys() != current.keys()) == ([], False), (
        f"run python docs/site/tutorials.py {path.stem}"
    )
    assert str(stored).count("/tmp/") == 0, "no path of a machine"
