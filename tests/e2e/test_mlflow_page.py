"""Runs, datasets, models and sweeps in MLflow's own page, in Debian's Chromium driven by Playwright."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.mlflow_page import CHROMIUM, MlflowPage, mlflow_page
from tests.mlflow_scene import BEST, OTHER, PRETRAINED, RATES, SWEEP, build_scene
from tests.mlflow_servers import MlflowServer, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
    pytest.mark.skipif(find_spec("playwright") is None, reason="playwright is not installed: pip install playwright"),
    # MLflow's, of its own classes, when it is imported
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowPage]:
    home, place = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORCHESTRATOR_HOME", str(home))
        with running(MlflowServer(Path(place))) as server, mlflow_page(build_scene(home, server.uri)) as page:
            yield page


def test_page_shows_what_runs_recorded(page: MlflowPage) -> None:
    page.runs()
    shown = page.text()
    assert {name for name in (BEST, OTHER, PRETRAINED, SWEEP[:12]) if name in shown} == {
        BEST,
        OTHER,
        PRETRAINED,
        SWEEP[:12],
    }
    assert "novels.txt" in shown
    page.run(BEST)
    shown = page.text()
    for text in ("finetune with recipe tiny", f"orchestrator report {BEST}", "validation_score", "book-tags"):
        assert text in shown
    page.dataset()
    for text in ("2 datasets used", "2048", "train.jsonl"):
        assert text in page.text()
    page.version()
    assert "Schema" in page.text()
    page.compare(*page.scene.trials)
    for text in ("Comparing 6 Runs", "Parallel Coordinates Plot", "optimizer.learning_rate", "train.epochs"):
        assert text in page.text()


def test_trials_of_a_sweep_have_contours_and_groups(page: MlflowPage) -> None:
    page.compare(*page.scene.trials)
    page.contour("optimizer.learning_rate", "train.epochs", "validation_score")
    page.runs()
    assert page.scene.trials[0] not in page.text(), "trials are nested below their sweep"
    page.group("orchestrator.trial_state", "stopped")
    for trial in page.scene.trials:
        page.wait(trial)
    groups = dict(block.split("\n", 1) for block in page.text().split("Group: ")[1:])
    assert [trial for trial in page.scene.trials if trial in groups["stopped"]] == page.scene.trials[:1]
    assert [trial for trial in page.scene.trials if trial in groups["completed"]] == page.scene.trials[1:]
    page.sweep_curves("optimizer.learning_rate", "0.001", "validation_score")
    shown = page.text()
    for rate in RATES:
        assert f"{rate} (validation_score)" in shown
