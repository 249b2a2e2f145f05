"""The documentation site: it builds without a warning, all links work, and it documents all of the code."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from documents import DOCUMENTS, ROOT, blocks

import orchestrator
from orchestrator.jobs.registry import all_kinds, kind_names
from orchestrator.jobs.resolve import resolve_spec
from orchestrator.specs.sweep_spec import SweepSpec
from orchestrator.support import errors
from train_jobs.config import FinetuneConfig, PredictConfig

NOT_HERE = ("no such file or folder", "no file matches")  # readers have them
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site with `make docs`, which fails on a broken link to a page or a heading."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    return folder


def words_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8")))


def test_site_documents_every_key_verb_and_error_kind(site: Path) -> None:
    from orchestrator.cli.main import build_parser

    for kind, found in all_kinds().items():
        text = words_of(site / "reference" / kind / "index.html")
        keys = found.spec.model_json_schema()["properties"]
        assert [key for key in keys if key not in text] == []
        assert "train.global_batch_size" in text or kind != "pretrain"
    commands = words_of(site / "reference" / "commands" / "index.html")
    verbs = next(action for action in build_parser()._actions if action.dest == "verb")
    assert [verb for verb in verbs.choices or () if f"usage: orchestrator {verb}" not in commands] == []
    trouble = words_of(site / "troubleshooting" / "index.html")
    assert [name for name in errors.__all__ if getattr(errors, name).kind not in trouble] == []
    sdk = words_of(site / "sdk" / "index.html")
    assert [name for name in ("Orchestrator", "Run", "Plan", "RunStatus", "RunState") if name not in sdk] == []
    assert {"Orchestrator", "Run", "Plan", "RunStatus", "RunState"} <= {*orchestrator.__all__}


def test_troubleshooting_lists_every_error_of_the_code() -> None:
    sys.path.insert(0, str(ROOT / "docs" / "site"))
    import error_index

    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    assert error_index.updated(page) == page, "run python docs/site/error_index.py"
    assert "| cannot " in page


def test_every_key_has_a_help_text(site: Path) -> None:
    empty = re.compile(r"<tr>\s*<td><code>([^<]+)</code></td>\s*<td>.*?</td>\s*<td></td>", re.DOTALL)
    pages = [site / "reference" / kind / "index.html" for kind in kind_names()]
    assert [key for page in pages for key in empty.findall(page.read_text())] == []


def test_pages_load_without_network(site: Path) -> None:
    """Pages load nothing from other hosts; links that a reader may click are allowed."""
    loaded = re.compile(r"<(?:script|img|link)[^>]+(?:src|href)=\"(https?://[^\"]+)\"")
    found = {url for page in site.rglob("*.html") for url in loaded.findall(page.read_text(encoding="utf-8"))}
    assert found == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_exist(document: Path) -> None:
    targets = [target.partition("#")[0] for target in LINK.findall(document.read_text(encoding="utf-8"))]
    files = [target for target in targets if target and not target.startswith(("http://", "https://"))]
    assert [target for target in files if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_every_page_is_in_the_contents(path: Path) -> None:
    contents = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert path.name in str(contents)


def spec_blocks() -> list[tuple[str, str]]:
    return [(block.place, block.text) for block in blocks("yaml")]


@pytest.mark.parametrize(("place", "text"), spec_blocks())
def test_documented_specs_are_valid(place: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (tmp_path / "job.yaml").write_text(text)
    problems = []
    for kind in kind_names():
        try:
            resolve_spec(kind, file=tmp_path / "job.yaml", environ={})
        except errors.SpecError as problem:
            if wrong := [one for one in problem.problems if not any(words in one for words in NOT_HERE)]:
                problems.append(f"{kind}: {wrong}")
    plain = {"finetune": FinetuneConfig, "predict": PredictConfig, "sweep": SweepSpec}
    for name, config in plain.items():
        try:
            config.model_validate(yaml.safe_load(text.replace("trial: job.yaml", "trial: {}")))
        except ValueError as problem:
            problems.append(f"{name}: {problem}")
    try:
        FinetuneConfig.model_validate({"task": "own", "init_from": "model", "data": yaml.safe_load(text)})
    except ValueError as problem:
        problems.append(f"file of a task: {problem}")
    assert len(problems) <= len(kind_names()) + len(plain), "\n".join([place, *problems])
