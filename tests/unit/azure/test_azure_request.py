"""Request bodies compared with golden files, with those of Microsoft's SDK, and with the limits of the service.

UPDATE_GOLDEN=1 pytest tests/unit/azure/test_azure_request.py     rewrites the golden files; read the diff
"""

from __future__ import annotations

import getpass
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.backends.azure.assets import train_image
from orchestrator.backends.azure.clusters import compute_body
from orchestrator.backends.azure.options import AzureSpec
from orchestrator.backends.azure.plan_notes import plan_submission, request_notes
from orchestrator.backends.azure.runs.record import FORMER_TAG, REASON_TAG, RESUMED_TAG
from orchestrator.backends.azure.serverless import exported_file
from orchestrator.backends.azure.submission import (
    AzureRequest,
    job_documents,
    with_secrets,
)
from orchestrator.backends.azure.wire.control_plane import Body, duration
from orchestrator.client import Orchestrator
from orchestrator.jobs.base import Plan
from orchestrator.jobs.pretrain.plan import PretrainPlan
from orchestrator.support.errors import SpecError, UsageError
from tests.conftest import SMALL_TEXT, Console, write_bert, write_spec
from tests.unit.azure.conftest import MakePlan, request_of
from train_jobs.artifacts.tracking.mlflow_copy import LINEAGE_TAG

GOLDEN = Path(__file__).parent / "golden"
SIGNATURE = "c2VjcmV0LXNpZ25hdHVyZQ"
JOBS: dict[str, dict[str, Any]] = {
    "t4": {},
    "nd-h100-2-nodes": {
        "compute.sku": "Standard_ND96isr_H100_v5",
        "compute.nodes": 2,
        "compute.tier": "spot",
        "compute.max_nodes": 4,
        "train.global_batch_size": 64,
        "azure.timeout_hours": 36.5,
        "azure.identity": "managed",
        "environment.variables": {"NCCL_DEBUG": "INFO"},
        "tags": {"team": "nlp"},
    },
    "nd-a100-2-nodes": {
        "compute.sku": "Standard_ND96amsr_A100_v4",
        "compute.nodes": 2,
        "train.global_batch_size": 32,
        "azure.identity": "user",
        "azure.data_mode": "download",
    },
    "cpu-remote-data": {
        "compute.sku": "Standard_DS3_v2",
        "compute.processes_per_node": 2,
        "data.text": [],
        "azure.data": "azureml:corpus:3",
        "azure.preflight": False,
    },
    "own-identity": {
        "azure.identity": "managed",
        "azure.identity_client_id": "00000000-0000-4000-8000-000000000009",
        "azure.ssh_public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGn me@here",
    },
    "serverless-spot": {"compute.cluster": "serverless", "compute.tier": "spot", "compute.nodes": 2},
    "bare-cluster": {
        "compute.sku": None,
        "compute.processes_per_node": 2,
        "azure.environment": "azureml:mine:7",
        "azure.shm_size": "2g",
        "azure.data": "azureml://datastores/corpora/paths/wiki/",
        "data.text": [],
    },
}


def about_settings(plan: Plan) -> list[str]:
    """Return the warnings of a plan, except those about the age of the shipped facts."""
    return [warning for warning in plan.warnings if "days old" not in warning]


def with_placeholders(plan: Plan, request: AzureRequest) -> dict[str, Any]:
    """Return the request; values that differ between checkouts are replaced by placeholders."""
    text = json.dumps(request.model_dump(mode="json"))
    snapshot = plan.snapshot
    image = train_image(plan.compute.device)
    tags = request.job["properties"]["tags"]
    names = {
        snapshot.digest: "SNAPSHOT",
        snapshot.digest[:16]: "SNAPSHOT_16",
        plan.run_hash: "RUN_HASH",
        tags["orchestrator.request"]: "REQUEST",
        tags.get("orchestrator.commit", "no commit"): "COMMIT",
        image.version: "IMAGE",
        json.dumps(image.conda or "no conda")[1:-1]: "CONDA",
        f'"orchestrator.user": "{getpass.getuser()}"': '"orchestrator.user": "USER"',
    }
    for value, name in names.items():
        text = text.replace(value, name)
    document: dict[str, Any] = json.loads(text)
    document["job"]["properties"]["tags"].setdefault("orchestrator.commit", "COMMIT")
    return document


@pytest.mark.parametrize("name", JOBS)
def test_request_equals_golden_file(name: str, make_plan: MakePlan) -> None:
    plan = make_plan(JOBS[name])
    found = with_placeholders(plan, request_of(plan))
    path = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    assert found == json.loads(path.read_text())


def test_user_without_a_name_is_a_number(make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """`docker run --user 54321` gives a number that has no entry in passwd."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert request_of(make_plan()).job["properties"]["tags"]["orchestrator.user"] == "54321"


def test_submission_shows_inputs_outputs_and_options(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan({"azure.shm_size": "2g"})
    submission = plan_submission(plan, request_of(plan), tmp_path)
    assert submission.inputs == plan.needs.inputs
    assert [output.name for output in submission.outputs] == ["run", "stores"]
    assert submission.options == AzureSpec(shm_size="2g")


def without_ids(body: Body) -> Body:
    """Return the body of a job with `azureml:NAME[:VERSION]` in place of Azure's ids, without empty values."""
    from orchestrator.backends.azure.az_yaml import _short

    def short_id(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: short_id(inner) for key, inner in value.items() if inner not in ({}, None)}
        if isinstance(value, str):
            return _short(value).removeprefix("azureml:") if "/datastores/" not in value else value
        return value

    return {key: value for key, value in short_id(body["properties"]).items() if value != {}}


@pytest.mark.parametrize("name", JOBS)
def test_job_file_gives_the_same_body_in_the_sdk(name: str, make_plan: MakePlan, tmp_path: Path) -> None:
    from azure.ai.ml import load_job
    from azure.ai.ml.entities._job.to_rest_functions import to_rest_job_object

    request = request_of(make_plan(JOBS[name]))
    path = tmp_path / "job.yml"
    path.write_text(yaml.safe_dump(exported_file(request.name, request.job), sort_keys=False))
    job = load_job(path)
    assert job.name == request.name
    again = tmp_path / "again.yml"
    job._to_job().dump(again)
    for loaded in (job, load_job(again)):
        theirs = without_ids(to_rest_job_object(loaded).as_dict())
        theirs.pop("isArchived", None)
        assert theirs == without_ids(request.job)


def test_cluster_body_equals_that_of_the_sdk() -> None:
    from azure.ai.ml.entities import AmlCompute

    theirs = AmlCompute(
        name="gpu",
        size="Standard_NC4as_T4_v3",
        tier="low_priority",
        min_instances=1,
        max_instances=4,
        idle_time_before_scale_down=5400,
    )
    ours = compute_body(size="standard_nc4as_t4_v3", tier="spot", min_nodes=1, max_nodes=4, idle_seconds=5400)
    assert ours == theirs._to_rest_object().as_dict()


def test_duration_is_iso_8601() -> None:
    found = [duration(seconds) for seconds in (0, 60, 1800, 5400, 131_400, 21 * 86_400)]
    assert found == ["PT", "PT1M", "PT30M", "PT1H30M", "P1DT12H30M", "P21D"]


def test_later_attempt_differs_only_in_name_and_tag(make_plan: MakePlan) -> None:
    request = request_of(make_plan())
    first, second = request.attempt(1)["properties"], request.attempt(2)["properties"]
    assert second["displayName"] == f"{request.name}-a2"
    assert second["tags"] == {**first["tags"], "orchestrator.attempt": "2"}
    assert {**second, "displayName": "", "tags": ""} == {**first, "displayName": "", "tags": ""}


def test_start_model_and_vocabulary_are_inputs(make_plan: MakePlan, tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "bert", max_position_embeddings=64)
    request = request_of(make_plan({"init_from": str(folder)}))
    command = request.job["properties"]["command"]
    assert "--set 'init_from=${{inputs.start}}'" in command
    assert "--set 'data.vocabulary=${{inputs.job}}/vocab.txt'" in command
    (start,) = [asset for asset in request.assets if asset.name == "orchestrator-start"]
    assert request.job["properties"]["inputs"]["start"]["uri"].endswith(f"orchestrator-start/versions/{start.version}")


def test_texts_keep_their_names_in_one_folder(make_plan: MakePlan, tmp_path: Path) -> None:
    for name in ("a/one.txt", 'a/b/it\'s "two".txt'):
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SMALL_TEXT)
    plan = make_plan({"data.text": [str(tmp_path / "texts" / "a" / "one.txt"), str(tmp_path / "texts" / "a" / "b")]})
    command = request_of(plan).job["properties"]["command"]
    assert 'data.text=["${{inputs.text}}/one.txt", "${{inputs.text}}/b"]' in command


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"compute.cluster": None}, "no cluster to run on"),
        ({"compute.cluster": "1gpu"}, "3 to 24 letters"),
        ({"compute.sku": "Standard_NC24rs_v3"}, "Azure retired it"),
        ({"compute.sku": None}, "GPUs of cluster gpu are unknown"),
        ({"compute.processes_per_node": 2}, "Standard_NC4as_T4_v3 has 1 GPUs"),
        ({"compute.sku": "Standard_DS3_v2", "compute.device": "gpu"}, "has no GPU"),
        ({"compute.sku": "Standard_ND96isr_H100_v5", "compute.nodes": 101, "train.global_batch_size": 8080}, "at most"),
        ({"compute.nodes": 3, "compute.max_nodes": 2}, "max_nodes 2 is less than nodes 3"),
        ({"compute.min_nodes": 3}, "less than nodes 1 or min_nodes 3"),
        ({"compute.idle_seconds": 1}, "greater than or equal to 60"),
        ({"compute.nodes": 0}, "greater than 0"),
        ({"azure.shm_size": "lots"}, "must be auto, or a number"),
        ({"azure.timeout_hours": 0}, "greater than 0"),
        ({"azure.timeout_hours": 600}, "less than or equal to 504"),
        ({"azure.environment": "mine"}, "azureml:NAME:VERSION"),
        ({"azure.data": "azureml:corpus"}, "azureml:NAME:VERSION"),
        ({"azure.data": f"https://x.blob.core.windows.net/c/t?sv=1&sig={SIGNATURE}"}, "would be a secret"),
    ],
)
def test_request_refused_by_service_is_refused_locally(
    overrides: dict[str, Any], words: str, make_plan: MakePlan
) -> None:
    with pytest.raises(SpecError) as failure:
        make_plan(overrides)
    assert words in str(failure.value)
    assert SIGNATURE not in str(failure.value)


def test_spot_job_has_shorter_limit(make_plan: MakePlan) -> None:
    plan = make_plan({"compute.tier": "spot", "azure.timeout_hours": 200})
    with pytest.raises(SpecError, match="Azure ends jobs on spot machines earlier"):
        request_of(plan)


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("my experiment müll/1", "my-experiment-mull-1"),
        ("_a", "a"),
        ("é" * 300, "e" * 256),
        ("日本", "bert-pretraining"),
    ],
)
def test_invalid_experiment_is_refused(name: str, valid: str, make_plan: MakePlan) -> None:
    """Azure answers 400 only once cluster, code and data are there."""
    with pytest.raises(SpecError, match="invalid tracking") as failure:
        request_of(make_plan({"tracking.experiment": name}))
    assert failure.value.fix == f"--set tracking.experiment={valid}"
    request_of(make_plan({"tracking.experiment": valid}))
    make_plan({"tracking.experiment": name, "backend": "local"})


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ({f"t{number}": "x" for number in range(31)}, "31 tags: at most 30"),
        ({"k" * 101: "x"}, "a key of 101 characters"),
        ({"k": "x" * 1001}, "a value of 1001 characters"),
    ],
)
def test_tags_beyond_the_limits_are_refused(tags: dict[str, str], message: str, make_plan: MakePlan) -> None:
    with pytest.raises(SpecError, match="cannot send the tags to Azure") as failure:
        request_of(make_plan(tags=tags))
    assert message in failure.value.problems[0]


def test_most_tags_leave_room_for_a_restart(make_plan: MakePlan) -> None:
    tags = {f"{number:0100}": "x" * 1000 for number in range(30)}
    own = {
        "orchestrator.sweep": "search",
        "orchestrator.trial": "1",
        "orchestrator.warm_start": "earlier",
    }  # of a trial
    attempt = request_of(make_plan(tags={**tags, **own})).attempt(2, {FORMER_TAG: "", REASON_TAG: "", RESUMED_TAG: ""})
    assert len({**attempt["properties"]["tags"], LINEAGE_TAG: ""}) <= 50


def test_text_of_too_many_files_is_refused(make_plan: MakePlan, tmp_path: Path) -> None:
    """A process takes an argument of 128 KiB, and Azure's paths are longer than the bindings that they replace."""
    make_plan()
    names = [f"corpus/{number:040}.txt" for number in range(800)]
    for name in names:
        (tmp_path / name).write_bytes((tmp_path / "corpus" / "notes.txt").read_bytes())
    with pytest.raises(SpecError, match="its command is too long") as failure:
        request_of(make_plan({"data.text": names}))
    assert str(failure.value.fix).startswith("--data FOLDER")
    request_of(make_plan({"data.text": names[:300]}))
    for short in ("corpus", "corpus/*.txt"):
        assert "0000.txt" not in request_of(make_plan({"data.text": [short]})).job["properties"]["command"]


def test_dry_run_needs_neither_network_nor_sdk(tmp_path: Path) -> None:
    console = Console(home=tmp_path / "home", cwd=tmp_path)
    write_spec(tmp_path / "job.yaml", compute={"cluster": "gpu", "sku": "Standard_NC4as_T4_v3"})
    words = ("submit", "pretrain", "-f", "job.yaml", "-b", "azure", "--dry-run")
    shown = console(*words, "-o", "json", PYTHONPROFILEIMPORTTIME="1")
    assert shown.code == 0, shown.err
    assert shown.json["request"]["job"]["properties"]["computeId"].endswith("/workspaces/WORKSPACE/computes/gpu")
    imported = {line.rpartition("|")[2].strip() for line in shown.err.splitlines() if line.startswith("import time:")}
    assert "orchestrator.backends.azure.submission" in imported
    assert not {name for name in imported if name.partition(".")[0] in {"azure", "msal", "mlflow", "torch"}}
    named = console(*words, "-o", "json", ORCHESTRATOR_AZURE_WORKSPACE="place").json
    assert named["request"]["workspace"]["workspace"] == "place"
    file = console(*words, "-o", "yaml")
    assert yaml.safe_load(file.out)["type"] == "command"


def test_azure_keys_have_environment_variables(make_plan: MakePlan, tmp_path: Path) -> None:
    make_plan()
    environ = {"ORCHESTRATOR_AZURE__SHM_SIZE": "2g", "ORCHESTRATOR_AZURE_WORKSPACE": "place"}
    overrides = {"backend": "azure", "compute.cluster": "gpu", "compute.sku": "Standard_NC4as_T4_v3"}
    plan = Orchestrator(home=tmp_path / "home", environ=environ).plan(file=tmp_path / "job.yaml", overrides=overrides)
    assert plan.spec.azure.shm_size == "2g"
    assert about_settings(plan) == []


def test_setting_without_effect_is_a_warning(make_plan: MakePlan) -> None:
    quiet = make_plan()
    assert about_settings(quiet) == []
    changes = {
        "tracking.uri": "sqlite:///x.db",
        "compute.master_port": 6000,
        "environment.variables": {"HF_TOKEN": "x"},
    }
    loud = "\n".join(make_plan(changes).warnings)
    assert "tracking.uri has no effect" in loud
    assert "compute.master_port has no effect" in loud
    assert "HF_TOKEN: variables of a job can be read" in loud
    embedded = make_plan({"data.text": []})
    assert "embedded text" in "\n".join(embedded.warnings)
    bare = {"compute.sku": None, "compute.processes_per_node": 1, "compute.max_nodes": 4}
    assert "compute.max_nodes has no effect: the cluster is left as it is" in make_plan(bare).warnings
    local = "\n".join(make_plan({"backend": "local", "azure.shm_size": "2g"}).warnings)
    assert "azure.shm_size has no effect" in local
    assert "compute.sku has no effect" in local


def test_secret_is_in_the_body_only_on_request(make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = {"environment.secrets": {"DB_PASSWORD": "env:DB_PASSWORD"}}
    with pytest.raises(SpecError, match="cannot send DB_PASSWORD: all users of the workspace could read"):
        request_of(make_plan(secret))
    in_vault = {"environment.secrets": {"DB_PASSWORD": "keyvault:mine/db"}}
    with pytest.raises(SpecError, match="the job has no managed identity"):
        request_of(make_plan(in_vault))
    command = request_of(make_plan({**in_vault, "azure.identity": "managed"})).job["properties"]["command"]
    assert "exec python -m train_jobs.tools.with_secrets DB_PASSWORD=mine/db -- python -m train_jobs" in command

    plan = make_plan({**secret, "azure.secrets_in_body": True})
    request = request_of(plan)
    assert any(note.startswith("exposed: DB_PASSWORD") for note in request_notes(request, plan, Path("/none")))
    monkeypatch.setenv("DB_PASSWORD", "q7Wz!kL0%?")
    sent = with_secrets(request.attempt(2), request.secrets)["properties"]["environmentVariables"]
    assert (sent["DB_PASSWORD"], sent["ORCHESTRATOR_RUN_SECRETS"]) == ("q7Wz!kL0%?", "DB_PASSWORD")
    assert not any("q7Wz" in text for text in job_documents(request, plan).values())
    monkeypatch.delenv("DB_PASSWORD")
    with pytest.raises(UsageError, match="needs DB_PASSWORD"):
        with_secrets(request.attempt(3), request.secrets)


def test_plan_notes_eviction_cost_and_environment(make_plan: MakePlan, tmp_path: Path) -> None:
    from orchestrator.backends.azure.assets import remember_asset

    plan = make_plan({"compute.tier": "spot", "max_restarts": 3, "compute.price_per_hour": 6.0})
    request = request_of(plan)
    notes = dict(note.split(": ", 1) for note in request_notes(request, plan, tmp_path))
    assert "4 steps or 10 minutes, whichever is sooner, less than $0.01" in notes["eviction"]
    assert "evicted time is billed, as is each restart (about 5 minutes to start, $0.50)" in notes["eviction"]
    assert notes["overhead"] == (
        "about $0.70 for 5 minutes to start (assumed) and 120 s idle afterwards, about $0.12 for the image build"
    )
    by_time = make_plan({"compute.tier": "spot", "compute.price_per_hour": 6.0, "checkpoint.every": None})
    notes_by_time = dict(note.split(": ", 1) for note in request_notes(request_of(by_time), by_time, tmp_path))
    assert "(10 minutes, whichever is sooner, up to $1.00)" in notes_by_time["eviction"]
    assert notes["eviction"].endswith("a process that follows the run restarts it each time")
    limited = make_plan({"compute.tier": "spot", "max_restarts": 3, "max_preemptions": 5})
    notes_of_limited = dict(note.split(": ", 1) for note in request_notes(request_of(limited), limited, tmp_path))
    assert notes_of_limited["eviction"].endswith("up to 5 times")
    assert "will build" in notes["image"]
    assert notes["cluster"].startswith("gpu: 0 to 1 x Standard_NC4as_T4_v3, spot")
    (image,) = [asset for asset in request.assets if asset.kind == "environments"]
    remember_asset(tmp_path, request.workspace, image)
    notes = dict(note.split(": ", 1) for note in request_notes(request, plan, tmp_path))
    assert "cached (seen " in notes["image"]
    assert "on stable-ubuntu2204-cu126-py310-torch280:biweekly.202607.1, digest unknown" in notes["image"]
    assert "image build" not in notes["overhead"]
    assert "eviction" not in dict(note.split(": ", 1) for note in request_notes(request, make_plan(), tmp_path))


def test_plan_has_dated_list_price(make_plan: MakePlan) -> None:
    plan = make_plan()
    assert plan.compute.price_per_hour == 0.526
    assert "list price of 2025-01-01 in eastus" in plan.summary()
    assert make_plan({"compute.price_per_hour": 3.0}).run_hash == plan.run_hash


def test_model_and_endpoint_bodies_equal_those_of_sdk() -> None:
    from azure.ai.ml.entities import CodeConfiguration, ManagedOnlineDeployment, ManagedOnlineEndpoint, Model

    from orchestrator.backends.azure.assets import asset_id
    from orchestrator.backends.azure.endpoints import changed
    from orchestrator.backends.azure.runs.models import SCRIPT, deployment_body, endpoint_body, model_body
    from tests.unit.azure.conftest import WORKSPACE

    ours = model_body("workspaceblobstore", "run-1", {"a": "b"})
    place = "azureml://datastores/workspaceblobstore/paths/orchestrator/runs/run-1/outputs/model/"
    theirs = Model(
        name="m", version="1", path=place, type="mlflow_model", tags={"a": "b"}, description="BERT of run run-1"
    )
    assert ours == theirs._to_rest_object().as_dict()
    for traffic in ({}, {"blue": 100}):
        endpoint = ManagedOnlineEndpoint(name="words", auth_mode="key", traffic=traffic)
        body = changed(endpoint_body("eastus"), traffic)
        assert body == endpoint._to_rest_online_endpoint("eastus").as_dict()
    deployment = ManagedOnlineDeployment(
        name="blue",
        endpoint_name="words",
        model=asset_id(WORKSPACE, "models", "m", "1"),
        environment=asset_id(WORKSPACE, "environments", "serve-cpu", "2"),
        code_configuration=CodeConfiguration(
            code=asset_id(WORKSPACE, "codes", "orchestrator-serve", "3"), scoring_script=SCRIPT
        ),
        instance_type="Standard_DS3_v2",
        instance_count=1,
    )
    body = deployment_body("eastus", WORKSPACE, {"name": "m", "version": "1"}, "3", "2", "Standard_DS3_v2")
    assert body == deployment._to_rest_object("eastus").as_dict()


def test_sources_keep_settings_and_job_fetches_datasets(make_plan: MakePlan) -> None:
    lines = {"path": "corpus/notes.txt", "weight": 2.0}
    command = request_of(make_plan({"data.text": [lines]})).job["properties"]["command"]
    (word,) = [word for word in shlex.split(command.replace("&&", "")) if word.startswith("data.text=")]
    (source,) = yaml.safe_load(word.removeprefix("data.text="))
    assert source["path"] == ["${{inputs.text}}/notes.txt"]
    assert source["weight"] == 2.0


@pytest.mark.parametrize(("store", "note"), [("words", "--set 'store=${{outputs.stores}}/words' "), (None, "")])
def test_preparation_writes_store_where_training_reads(
    store: str | None, note: str, make_plan: MakePlan, tmp_path: Path
) -> None:
    make_plan()  # creates the text
    where = {"backend": "azure", "compute.cluster": "cpu", "compute.sku": "Standard_D16s_v5", "compute.nodes": 2}
    text = {"data.text": ["corpus/notes.txt"], "azure.preflight": False, "compute.tier": "spot"}
    orchestrator = Orchestrator(home=tmp_path / "home", environ={})
    plan = orchestrator.plan("prepare", overrides={**where, **text, **({"store": store} if store else {})})
    request = request_of(plan)
    body = request.job["properties"]
    assert body["command"].endswith(
        "exec python -m train_jobs.prepare --config ${{inputs.job}}/config.json "
        f"--set 'data.text=[\"${{{{inputs.text}}}}/notes.txt\"]' {note}"
        "--output ${{outputs.run}} --cache ${{outputs.stores}} --device cpu"
    )
    assert body["outputs"]["stores"]["uri"].endswith("/paths/orchestrator/token-stores/")
    assert (body["resources"]["instanceCount"], body["distribution"]["processCountPerInstance"]) == (2, 1)
    (note,) = [note for note in request_notes(request, plan, tmp_path / "home") if note.startswith("eviction")]
    assert "each loses the parts in progress" in note
    sent = json.loads(job_documents(request, plan)["config.json"])
    assert (sent["store"], sent["data"]["text"]) == (None, [])
    assert plan.compute.price_per_hour is not None


def test_gpu_unsupported_by_torch_is_refused(make_plan: MakePlan) -> None:
    v100 = {"compute.sku": "Standard_ND40rs_v2", "train.global_batch_size": 16}
    plan = make_plan(v100)
    with pytest.raises(SpecError, match="V100 GPUs, which the environment's torch cannot use") as failure:
        request_of(plan)
    assert failure.value.fix == "--sku Standard_ND96asr_v4"
    assert "CUDA 13" in str(failure.value.facts["reason"])
    own = make_plan({**v100, "azure.environment": "azureml:mine:7"})
    assert request_of(own).cluster.body is not None


def test_old_tier_name_is_spot_with_a_warning(make_plan: MakePlan) -> None:
    plan = make_plan({"compute.tier": "spot"})
    for name in ("low-priority", "low_priority"):
        old = make_plan({"compute.tier": name})
        assert (old.spec.compute.tier, old.run_hash) == ("spot", plan.run_hash)
        assert [f"tier {name} is the old name of spot" in warning for warning in old.warnings].count(True) == 1
    assert not any("old name" in warning for warning in plan.warnings)
    assert plan.run_hash == make_plan().run_hash


def test_spot_plan_prices_range_of_refreshed_rate(make_plan: MakePlan, tmp_path: Path) -> None:
    from orchestrator.backends.azure.places import write_cache
    from orchestrator.backends.azure.prices import PRICES_FILE

    entry = {"dedicated": 0.6, "spot": 0.1, "region": "westus", "date": "2026-11-21"}
    write_cache(tmp_path / "home" / PRICES_FILE, {"Standard_NC4as_T4_v3": entry})
    plan = make_plan({"compute.tier": "spot", "recipe": "base"})
    assert (plan.compute.price_per_hour, plan.compute.highest_price_per_hour) == (0.1, 0.6)
    assert "Spot rate of 2026-11-21 in westus" in plan.summary()
    assert isinstance(plan, PretrainPlan)
    span = plan.estimates.span
    assert span is not None
    assert span.cost_least is not None
    assert span.cost_most is not None
    assert span.cost_least / span.seconds_least * 3600 == pytest.approx(0.1)
    assert span.cost_most / span.seconds_most * 3600 == pytest.approx(0.6)
    assert make_plan({"recipe": "base"}).run_hash == plan.run_hash


def test_gpu_base_image_is_that_of_the_facts() -> None:
    from orchestrator.backends.azure.catalogue import base_image

    dockerfile = (Path(__file__).parents[3] / "environments" / "train-gpu" / "Dockerfile").read_text()
    assert f"ARG BASE={base_image('train-gpu').reference}\n" in dockerfile


def test_plan_warns_of_facts_older_than_half_a_year(make_plan: MakePlan, tmp_path: Path) -> None:
    from orchestrator.backends.azure.catalogue import today
    from orchestrator.backends.azure.places import write_cache
    from orchestrator.backends.azure.prices import PRICES_FILE

    def of_prices(plan: Plan) -> list[str]:
        return [warning for warning in plan.warnings if warning.startswith("the prices of ")]

    (warning,) = of_prices(make_plan())
    assert "the prices of 2025-01-01 are " in warning
    assert warning.endswith(" days old: orchestrator skus --refresh")
    assert not of_prices(make_plan({"compute.price_per_hour": 1.0}))
    entry = {"dedicated": 0.6, "region": "westus", "date": today().isoformat()}
    write_cache(tmp_path / "home" / PRICES_FILE, {"Standard_NC4as_T4_v3": entry})
    assert not of_prices(make_plan())


def test_serverless_job_has_size_and_tier_and_no_compute(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan({"compute.cluster": "serverless", "compute.tier": "spot", "compute.idle_seconds": 600})
    request = request_of(plan)
    job = request.job["properties"]
    assert (job["resources"]["instanceType"], job["queueSettings"]) == ("Standard_NC4as_T4_v3", {"jobTier": "Spot"})
    assert "computeId" not in job
    assert any("compute.idle_seconds has no effect: serverless" in warning for warning in plan.warnings)
    notes = dict(note.split(": ", 1) for note in request_notes(request, plan, tmp_path))
    assert notes["cluster"] == "none, serverless machines for this job: 1 x Standard_NC4as_T4_v3, spot"
    with pytest.raises(SpecError, match="serverless compute needs a machine size"):
        make_plan({"compute.cluster": "serverless", "compute.sku": None, "compute.processes_per_node": 1})
