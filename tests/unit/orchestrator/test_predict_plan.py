"""Predictions and evaluations as job kinds: spec, plan, Azure request, output file."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.backends.azure.options import Workspace
from orchestrator.backends.azure.submission import build_request, job_documents
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.cli.main import main
from orchestrator.client import Orchestrator
from orchestrator.estimates.pace import LAUNCH_OF_FORWARD
from orchestrator.jobs.builders import predict
from orchestrator.jobs.predict.plan import PredictPlan
from orchestrator.jobs.predict.spec import EvaluateSpec, PredictSpec
from orchestrator.jobs.pretrain.spec import PretrainSpec
from orchestrator.jobs.resolve import make_plan, resolve_spec
from orchestrator.run import Run
from orchestrator.specs.resolved import Flag
from orchestrator.support.errors import ConflictError, DataError, SpecError, StorageError
from tests.conftest import files_of, write_bert
from tests.run_folders import make_run

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
AZURE = {"backend": "azure", "compute.cluster": "cpu", "compute.sku": "Standard_D16s_v5", "azure.preflight": False}
WORKSPACE = Workspace(subscription_id="0000-1111", resource_group="group", workspace="place")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_snapshot: None) -> Path:
    monkeypatch.chdir(tmp_path)
    write_bert(tmp_path / "bert", architectures=["BertModel"])
    (tmp_path / "new.tsv").write_text("text\nw1 w2\nw3\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "new.tsv").write_text("text\nw4\n")
    return tmp_path


def plan(kind: str = "predict", home: str = "home", **values: Any) -> PredictPlan:
    given = {"model": "bert", "input": ["new.tsv"], **{key.replace("__", "."): value for key, value in values.items()}}
    flags = {key: Flag(value, f"--{key}") for key, value in given.items() if value is not None}
    found = make_plan(resolve_spec(kind, flags=flags, environ=NO_GPU), home=Path(home))
    assert isinstance(found, PredictPlan)
    return found


def test_plan_shows_rows_model_and_output(folder: Path) -> None:
    found = plan(output="made.tsv")
    assert isinstance(found.spec, PredictSpec)
    assert (found.rows, found.steps, found.counts) == (2, 2, "rows")
    assert (found.delivery, found.job.output) == (folder / "made.tsv", Path("predictions.tsv"))
    assert (found.job.model, found.job.input, found.job.evaluate) == (folder / "bert", [folder / "new.tsv"], False)
    assert found.spec.code.entry == "train_jobs.predict"
    assert found.name == f"predict-new-{found.run_hash}"
    text = found.summary()
    assert "rows        2" in text
    assert "by          bert, weights " in text
    assert f"predictions{folder}/made.tsv" in "".join(text.split())  # a long path is wrapped
    assert plan(output="made.csv").job.output == Path("predictions.csv")
    plain = plan()
    assert (plain.delivery, plain.job.output) == (None, Path("predictions.jsonl"))
    assert "predictions.jsonl in the outputs of the run" in plain.summary()


def test_evaluation_is_a_scored_prediction(folder: Path) -> None:
    found = plan("evaluate")
    assert isinstance(found.spec, EvaluateSpec)
    assert (found.job.evaluate, found.spec.kind, found.name[:13]) == (True, "evaluate", "evaluate-new-")
    assert found.run_hash != plan().run_hash


def test_model_may_be_set_by_file_or_flag(folder: Path) -> None:
    (folder / "specs").mkdir()
    (folder / "specs" / "job.yaml").write_text("model: ../bert\ninput: ../new.tsv\noutput: out.jsonl\n")
    spec = resolve_spec("predict", file=Path("specs/job.yaml"), environ=NO_GPU).spec
    assert isinstance(spec, PredictSpec)
    assert (spec.model, spec.input, spec.delivery) == (
        folder / "bert",
        [folder / "new.tsv"],
        folder / "specs" / "out.jsonl",
    )
    spec = resolve_spec("predict", sets=["model=bert", "input=[new.tsv]"], environ=NO_GPU).spec
    assert isinstance(spec, PredictSpec)
    assert spec.model == folder / "bert"
    found = resolve_spec(
        "predict", sets=["model='@last'", "input=new.tsv"], environ=NO_GPU, model_of=lambda name: folder / name[1:]
    )
    assert found.spec.model_dump()["model"] == folder / "last"


def test_pretraining_section_name_is_not_a_path(folder: Path) -> None:
    spec = resolve_spec("pretrain", sets=["model=bert"], environ=NO_GPU).spec  # a folder of that name exists
    assert isinstance(spec, PretrainSpec)
    assert spec.model.name == "bert"


def test_invalid_specs_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"no such file: .*gone.tsv"):
        plan(input=["gone.tsv"])
    with pytest.raises(SpecError, match=r"more contains no BERT"):
        plan(model="more")
    (folder / "bert" / "model.safetensors").unlink()
    with pytest.raises(SpecError, match=r"bert contains no weights"):
        plan()
    write_bert(folder / "bert", architectures=["BertModel"])
    with pytest.raises(SpecError, match=r"no such folder: .*nowhere"):
        plan(output="nowhere/made.tsv")
    with pytest.raises(SpecError, match=r"--output: output: must end in .jsonl"):
        plan(output="made.doc")
    with pytest.raises(SpecError, match=r"azure.data: predictions read files of this machine only"):
        plan(**{key.replace(".", "__"): value for key, value in AZURE.items()}, azure__data="azureml:a:1")


@pytest.mark.parametrize("link", [None, Path.symlink_to, Path.hardlink_to])
def test_output_that_is_an_input_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, link: Any
) -> None:
    """The predictions replace the file at their path, so no name of an input may be the output."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(folder / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    output, source = folder / "out.tsv", folder / "more" / "new.tsv"
    if link is None:
        output = folder / "more" / ".." / "more" / "new.tsv"
    else:
        link(output, source)
    words = ["predict", "--model", "bert", "--input", "new.tsv", "--input", str(source), "--output", str(output)]
    for command in (["plan"], ["submit", "--dry-run"], ["submit"]):
        assert main([command[0], *words, *command[1:]]) == 2
        assert f"it is the input {source}" in capsys.readouterr().err
    assert source.read_text() == "text\nw4\n"


def test_hash_covers_model_rows_and_format_but_not_paths(folder: Path) -> None:
    before = plan().run_hash
    assert plan(output="elsewhere.jsonl").run_hash == before
    (folder / "new.tsv").rename(folder / "more" / "moved.tsv")
    (folder / "more" / "moved.tsv").rename(folder / "new.tsv")
    assert plan().run_hash == before
    different = [before, plan(output="elsewhere.tsv").run_hash, plan(top_k=1).run_hash]
    (folder / "new.tsv").write_text("text\nw1 w2\n")
    different.append(plan().run_hash)
    write_bert(folder / "bert", weights=b"others", architectures=["BertModel"])
    different.append(plan().run_hash)
    assert len(set(different)) == len(different)


def test_azure_gets_files_and_model(folder: Path) -> None:
    values = {key.replace(".", "__"): value for key, value in AZURE.items()}
    found = plan(input=["new.tsv", "more/new.tsv"], output="made.tsv", **values)
    request = build_request(found, found.name, WORKSPACE)
    words = shlex.split(request.job["properties"]["command"].replace(";", ""))
    (inputs,) = [word for word in words if word.startswith("input=")]
    assert yaml.safe_load(inputs.removeprefix("input=")) == [
        "${{inputs.text}}/0-new.tsv",
        "${{inputs.text}}/1-new.tsv",
    ]
    assert "model=${{inputs.start}}" in words
    assert files_of(found, "text") == {"0-new.tsv": folder / "new.tsv", "1-new.tsv": folder / "more" / "new.tsv"}
    assert {"config.json", "model.safetensors", "vocab.txt"} <= {*files_of(found, "start")}
    sent = json.loads(job_documents(request, found)["config.json"])
    assert (sent["output"], "model" in sent, "input" in sent) == ("predictions.tsv", False, False)


def test_time_on_gpu_is_bounded_by_launches(folder: Path) -> None:
    """However few tokens there are, the host launches the kernels of each layer and batch."""
    (folder / "new.tsv").write_text("text\n" + 1000 * "a few words of text\n")
    azure = {key.replace(".", "__"): value for key, value in AZURE.items()}
    azure["compute__sku"] = "Standard_NC40ads_H100_v5"
    layers = json.loads((folder / "bert" / "config.json").read_text())["num_hidden_layers"]
    few, many = (plan(**azure, batching__batch_tokens=tokens).estimates for tokens in (64, 128))
    assert few.tokens_per_row is not None
    assert few.seconds == pytest.approx(1000 * few.tokens_per_row / 64 * layers * LAUNCH_OF_FORWARD)
    assert many.seconds == pytest.approx(few.seconds / 2)


def test_output_is_a_format_or_a_file(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(folder / "home"))
    words = ["plan", "predict", "--model", "bert", "--input", "new.tsv"]
    assert main([*words, "--output", "made.tsv", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["delivery"] == str(folder / "made.tsv")
    assert main([*words, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["delivery"] is None
    assert main(["plan", "pretrain", "-o", "made.tsv"]) == 2
    assert "invalid choice: 'made.tsv' (choose from text, json, yaml)" in capsys.readouterr().err
    assert main(["plan", "evaluate", "--model", "bert", "--data", "new.tsv", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["job"]["evaluate"] is True


@pytest.fixture
def sdk(folder: Path) -> Orchestrator:
    """Return an SDK with a completed run of the prediction of new.tsv, submitted with the output old.jsonl."""
    found = Orchestrator(home=folder / "home", environ=NO_GPU)
    planned = found.plan(predict("bert", "new.tsv", output="old.jsonl"))
    run = make_run(folder / "home", planned.name, plan=planned.as_dict())
    (run.outputs / "predictions.jsonl").write_text("{}\n")
    (folder / "old.jsonl").write_text("edited")
    return found


def submit_again(sdk: Orchestrator, output: str | None) -> Run:
    """Submit the prediction of the existing run with another output."""
    run = sdk.submit(predict("bert", "new.tsv", output=output))
    assert not run.created
    return run


def test_second_submission_delivers_to_its_own_output(folder: Path, sdk: Orchestrator) -> None:
    assert submit_again(sdk, "new.jsonl").deliver() == folder / "new.jsonl"
    assert (folder / "new.jsonl").read_text() == "{}\n"
    assert submit_again(sdk, None).deliver() is None
    assert (folder / "old.jsonl").read_text() == "edited"
    assert sdk.attach("@last").deliver() == folder / "old.jsonl"
    assert (folder / "old.jsonl").read_text() == "{}\n"


def test_deliver_without_destination_folder_raises(folder: Path, sdk: Orchestrator) -> None:
    (folder / "later").mkdir()
    run = submit_again(sdk, "later/new.jsonl")
    (folder / "later").rmdir()
    with pytest.raises(
        StorageError, match=r"cannot write the predictions to .*later/new.jsonl: No such file"
    ) as failure:
        run.deliver()
    assert failure.value.fix == f"orchestrator download {run.name} predictions"
    with pytest.raises(StorageError, match=r"cannot write the predictions to later/new.jsonl: No such file"):
        run.deliver(Path("later/new.jsonl"))


def test_command_delivers_to_the_output_it_names(
    folder: Path, sdk: Orchestrator, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(folder / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ["submit", "predict", "--model", "bert", "--input", "new.tsv"]
    assert main([*words, "--output", "new.jsonl"]) == 0
    assert f"predictions  {folder}/new.jsonl" in capsys.readouterr().err
    assert (folder / "new.jsonl").read_text() == "{}\n"
    assert main(words) == 0
    assert "predictions  /" not in capsys.readouterr().err
    assert (folder / "old.jsonl").read_text() == "edited"


@pytest.mark.parametrize("command", ["wait", "submit"])
def test_edited_predictions_are_kept(
    folder: Path,
    sdk: Orchestrator,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(folder / "home"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ["wait", "@last"]
    if command == "submit":
        words = ["submit", "predict", "--model", "bert", "--input", "new.tsv", "--output", "old.jsonl"]
    old = folder / "old.jsonl"
    assert main(words) == 0
    assert old.read_text() == "{}\n"
    assert main(words) == 0
    assert f"predictions  {old}" in capsys.readouterr().err
    old.write_text("notes")
    assert main([*words, "-o", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["state"] == "completed"
    assert f"warning: cannot write the predictions to {old}: it has changed since" in err
    assert "download predict-new-" in err
    assert old.read_text() == "notes"
    old.unlink()
    assert main(words) == 0
    assert old.read_text() == "{}\n"


def test_deliver_replaces_edited_file_only_by_name(folder: Path, sdk: Orchestrator) -> None:
    run, old = sdk.attach("@last"), folder / "old.jsonl"
    run.deliver()
    old.write_text("notes")
    with pytest.raises(ConflictError, match="changed since"):
        run.deliver()
    assert old.read_text() == "notes"
    run.deliver(old)
    assert old.read_text() == "{}\n"
    run.deliver()


def test_unchanged_predictions_are_not_copied_again(
    folder: Path, sdk: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sdk.attach("@last")
    run.deliver()
    monkeypatch.setattr(LocalBackend, "fetch", lambda *_, **__: pytest.fail("copied again"))
    assert run.deliver() == folder / "old.jsonl"


def test_edits_after_a_killed_delivery_are_kept(
    folder: Path, sdk: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery is recorded before the file takes its name."""
    run, old = sdk.attach("@last"), folder / "old.jsonl"
    old.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed_after(old, Path.replace))
        with pytest.raises(KeyboardInterrupt):
            run.deliver()
    assert old.read_text() == "{}\n"
    old.write_text("notes")
    with pytest.raises(ConflictError, match="changed since"):
        run.deliver()


def killed_after(path: Path, replace: Any) -> Any:
    """Return a `Path.replace` that interrupts the process once a file has this path."""

    def call(self: Path, target: Path) -> Path:
        moved = Path(replace(self, target))
        if target == path:
            raise KeyboardInterrupt
        return moved

    return call


def test_wait_warns_if_the_output_folder_is_missing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that shares the home may lack the folder: the predictions remain among the outputs."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(folder / "home"))
    elsewhere = {"spec": {"output": "/elsewhere/new.jsonl", "tags": {}}}
    (make_run(folder / "home", "one", plan=elsewhere).outputs / "predictions.jsonl").write_text("{}\n")
    assert main(["wait", "one"]) == 0
    warning = "warning: predictions not written: no such folder: /elsewhere; orchestrator download one predictions"
    assert warning in capsys.readouterr().err


def test_length_beyond_trained_positions_is_refused(folder: Path) -> None:
    """A plan refuses untrained positions; without a length, the job reads only the trained ones."""
    config = json.loads((folder / "bert" / "config.json").read_text())
    (folder / "bert" / "config.json").write_text(json.dumps({**config, "trained_positions": 32}))
    with pytest.raises(SpecError, match=r"64 is more than the 32 positions that .*bert was trained on") as caught:
        plan(data__max_length=64)
    assert caught.value.fix is not None
    assert "--set data.max_length=32; or train" in caught.value.fix
    assert "stretch_positions=64" in caught.value.fix
    assert plan(data__max_length=32).rows == 2
    (folder / "bert" / "config.json").write_text(
        json.dumps({**config, "trained_positions": 32, "stretched_positions": 48})
    )
    assert plan(data__max_length=48).rows == 2
