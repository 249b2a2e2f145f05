"""Follow docs/extending.md: write its blocks into a copy of the packages, and use the result."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.documents import ROOT

PAGE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(
    r"^```(?:python|yml)\n# (?P<path>\S+?)(?P<where>, at the end of \w+)?\n(?P<text>.*?)^```", re.M | re.S
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy both packages and add the code of the page."""
    folder = tmp_path_factory.mktemp("checkout")
    for package in ("orchestrator", "train_jobs"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for found in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        path, text = folder / found["path"], found["text"]
        if found["where"]:
            text = insert_into(path.read_text(), found["where"].rpartition(" ")[2], text)
        path.write_text(text)
    return folder


def insert_into(text: str, name: str, lines: str) -> str:
    """Return the module with lines added to the end of the fields of a class, or of the elements of a tuple."""
    (found,) = [
        node
        for node in ast.parse(text).body
        if (isinstance(node, ast.ClassDef) and node.name == name)
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name)
    ]
    if isinstance(found, ast.Assign):
        assert isinstance(found.value, ast.Tuple)
        last = found.value.elts[-1]
    else:
        fields = [number for number, node in enumerate(found.body) if isinstance(node, ast.AnnAssign)]
        last = found.body[fields[-1] + 1]  # the docstring under the last field
    assert last.end_lineno is not None
    before, after = text.splitlines(keepends=True)[: last.end_lineno], text.splitlines(keepends=True)[last.end_lineno :]
    return "".join([*before, lines, *after])


def command(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ORCHESTRATOR_")}
    environ = {**kept, "PYTHONPATH": str(checkout), "ORCHESTRATOR_HOME": str(checkout / "home")}
    return subprocess.run(
        [sys.executable, "-m", "orchestrator.cli.main", *words],
        capture_output=True,
        text=True,
        cwd=checkout,
        env={**environ, "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )


def test_added_recipe_is_planned_and_explained(checkout: Path) -> None:
    done = command(checkout, "plan", "pretrain", "--recipe", "notes", "-o", "json")
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["plan"]["job"]
    assert (job["train"]["steps"], job["data"]["sequence_length"], job["model"]["hidden_size"]) == (20_000, 64, 512)
    (steps,) = json.loads(command(checkout, "explain", "train.steps", "-o", "json").stdout)
    assert steps["recipes"]["notes"] == 20_000


def test_added_key_is_validated_explained_and_hashed(checkout: Path) -> None:
    key = "data.most_documents"
    (meaning, *_) = json.loads(command(checkout, "explain", key, "-o", "json").stdout)
    assert (meaning["type"], meaning["default"]) == ("integer, above 0 | null", "null")
    assert meaning["text"] == "Documents to read at most. None: all."
    refused = command(checkout, "validate", "pretrain", "--set", f"{key}=0")
    assert refused.returncode == 2
    assert f"--set: {key}: must be greater than 0, not 0" in refused.stderr
    names = [
        json.loads(command(checkout, "plan", "pretrain", "-o", "json", *sets).stdout)["plan"]["name"]
        for sets in ((), ("--set", f"{key}=5"))
    ]
    assert names[0] != names[1]


def test_added_verb_is_offered_and_runs(checkout: Path) -> None:
    assert "greet" in command(checkout, "--help").stdout
    assert command(checkout, "greet", "Ada").stdout == "Hello, Ada\n"
    assert json.loads(command(checkout, "greet", "Ada", "-o", "json").stdout) == {"greeting": "Hello, Ada"}


def test_page_names_only_files_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:orchestrator|train_jobs|tests|docs)/[\w./-]+)`", text))
    made = {found["path"] for found in BLOCK.finditer(text)}
    made.add("train_jobs/recipes/KIND/NAME.yaml")  # a placeholder for such a name
    assert {path for path in named - made if not (ROOT / path).exists()} == set()
    assert named  # otherwise the pattern is outdated
