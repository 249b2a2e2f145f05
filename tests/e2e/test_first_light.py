"""A run from submission to export, as its user sees it; all tests inspect the same run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from orchestrator.backends.folder.run_folder import RunFolder
from tests.conftest import Console, Finished, write_corpus, write_spec
from tests.mlflow_runs import wait_for_copy
from train_jobs.config import PretrainConfig
from train_jobs.config.reported import reported_metrics


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Console, Finished, str]:
    """Return a completed run: console, result of `submit`, name."""
    folder = tmp_path_factory.mktemp("first")
    console = Console(home=folder / "home", cwd=folder)
    write_spec(folder / "job.yaml", data={"text": [str(write_corpus(folder / "corpus.txt"))]})
    done = console("submit", "pretrain", "-f", "job.yaml", "--tag", "purpose=test", "-o", "json")
    assert done.code == 0, done.err
    return console, done, done.json["name"]


def test_submit_prints_one_json_document_when_completed(first: tuple[Console, Finished, str]) -> None:
    _, done, name = first
    status = done.json
    assert status["state"] == "completed"
    assert status["exit_code"] == 0
    assert status["step"] == status["steps"] == 12
    assert status["handle"] == f"local://{name}"
    assert name.startswith("micro-")
    assert status["tags"] == {"purpose": "test"}
    assert "unigram entropy" in done.err  # progress goes to stderr
    assert f"orchestrator report {name}" in done.err or f"orchestrator logs {name}" in done.err


def test_run_folder_is_readable(first: tuple[Console, Finished, str]) -> None:
    console, _, name = first
    folder = console.folder(name)
    for part in ("spec.yaml", "plan.json", "request.json", "config.json", "state.json", "logs/rank-0.log"):
        assert (folder / part).stat().st_size > 0, part
    assert (folder / "code" / "train_jobs" / "pretrain.py").is_file()
    result = json.loads((folder / "outputs" / "result.json").read_text())
    assert result["steps"] == 12
    assert 0 < result["validation_unigram_entropy"] < 10
    reports = [json.loads(line) for line in (folder / "outputs" / "metrics.jsonl").read_text().splitlines()]
    _, best = min(
        (report["metrics"]["validation_loss"], report["step"])
        for report in reports
        if "validation_loss" in report["metrics"]
    )
    kept = {int(path.name[5:]) for path in (folder / "outputs" / "checkpoints").iterdir()}
    assert kept == {8, 12, best}
    config = PretrainConfig.model_validate_json((folder / "config.json").read_text())
    assert set(reported_metrics(config) or ()) <= {name for report in reports for name in report["metrics"]}


def test_each_metric_is_in_mlflow_once(first: tuple[Console, Finished, str]) -> None:
    from mlflow.tracking import MlflowClient

    console, _, name = first
    wait_for_copy(RunFolder(console.folder(name)))
    client = MlflowClient(tracking_uri=f"sqlite:///{console.home / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("bert-pretraining")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == name
    assert run.info.status == "FINISHED"
    assert run.data.params["train.steps"] == "12"
    assert run.data.tags["orchestrator.handle"] == f"local://{name}"
    lines = (console.folder(name) / "outputs" / "metrics.jsonl").read_text().splitlines()
    reports = [json.loads(line) for line in lines]
    written = sorted((key, report["step"]) for report in reports for key in report["metrics"])
    keys = {key for key, _ in written}
    mirrored = [(key, metric.step) for key in keys for metric in client.get_metric_history(run.info.run_id, key)]
    assert sorted(mirrored) == written
    assert {"train_loss", "validation_mlm_loss", "validation_nsp_accuracy", "learning_rate"} <= keys


def test_export_gives_same_logits_in_transformers(first: tuple[Console, Finished, str]) -> None:
    from transformers import AutoTokenizer, BertForPreTraining

    from train_jobs.config import PretrainConfig
    from train_jobs.engine.checkpoint.checkpoints import CheckpointStore
    from train_jobs.models.bert import pretraining_heads

    console, _, name = first
    outputs = console.folder(name) / "outputs"
    theirs, loading = BertForPreTraining.from_pretrained(outputs / "model", output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(outputs / "model")
    batch = tokenizer(
        ["Bace difo gula. Menipo ru.", "Sate"], ["Vizo ba.", "Ce di fo gu la"], padding=True, return_tensors="pt"
    )
    config = PretrainConfig.model_validate_json((console.folder(name) / "config.json").read_text())
    checkpoint = CheckpointStore(outputs / "checkpoints", keep_last=1).newest()
    assert checkpoint is not None
    weights = checkpoint.weights()
    ours = pretraining_heads.BertForPreTraining(config.model, len(weights["bert.embeddings.word_embeddings.weight"]))
    ours.load_state_dict(weights)
    with torch.no_grad():
        expected = theirs.eval()(**batch)
        mask = batch["attention_mask"].bool()
        mlm, nsp = ours.eval()(batch["input_ids"], batch["token_type_ids"], mask)
    assert (mlm - expected.prediction_logits)[mask].abs().max() < 1e-5
    assert (nsp - expected.seq_relationship_logits).abs().max() < 1e-5
    assert np.ptp(mlm.numpy()) > 0.1  # trained weights, not a constant


def test_submit_same_plan_returns_completed_run(first: tuple[Console, Finished, str]) -> None:
    console, _, name = first
    again = console("submit", "pretrain", "-f", "job.yaml", "-n", "other-name", "-o", "json")
    assert again.code == 0, again.err
    assert again.json["name"] == name  # neither names nor tags determine a result
    assert "already exists" in again.err
    assert [run["name"] for run in console("list", "-o", "json").json] == [name]


def test_list_status_logs_and_wait_of_completed_run(first: tuple[Console, Finished, str]) -> None:
    console, _, name = first
    assert name in console("list").out
    assert console("status", "@last", "-o", "json").json["state"] == "completed"
    assert console("status", name[:8], "-o", "json").json["name"] == name
    assert console("status", f"local://{name}").out.startswith(name)
    assert "step 12/12" in console("logs", name).out
    waited = console("wait", name, "-o", "json")
    assert (waited.code, waited.json["state"]) == (0, "completed")
    assert console("cancel", name).out == f"completed  local://{name}\n"  # already finished: unchanged


def test_report_is_one_page_with_curves(first: tuple[Console, Finished, str]) -> None:
    console, _, name = first
    done = console("report", name, "-o", "json")
    assert done.code == 0, done.err
    page = Path(done.json["report"]).read_text()
    assert name in page
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "src=" not in page


def test_resuming_completed_run_is_refused(first: tuple[Console, Finished, str]) -> None:
    console, _, name = first
    refused = console("resume", name)
    assert refused.code == 1
    assert "error[conflict]" in refused.err
    assert "completed" in refused.err


def test_unknown_run_suggests_similar_name(first: tuple[Console, Finished, str]) -> None:
    console, _, name = first
    missing = console("status", name + "x", "-o", "json")
    assert missing.code == 5
    assert missing.json["error"]["kind"] == "not-found"
    assert name in missing.json["error"]["message"]
    assert "Traceback" not in missing.err
