"""The double starts, protects its secrets, refuses unknown clients, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from wire_entities import cluster, job, prepare

from orchestrator.testing import AzureDouble
from orchestrator.testing.proxy.server import redacted
from tests.conftest import wait_for


def processes_of(home: Path) -> list[str]:
    """Return command lines of processes with a job of that double in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"AZURE_DOUBLE_JOB={home}/".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
    return found


def test_closed_double_leaves_nothing(tmp_path: Path, client: Any, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://before")
    monkeypatch.delenv("AZURE_CLIENT_ID", raising=False)
    environment = dict(os.environ)
    threads = set(threading.enumerate())
    with AzureDouble() as azure:
        home = azure.home
        ml = client(azure)
        prepare(ml, tmp_path)
        sleeps = {"command": "setsid sleep 600 & sleep 600", "inputs": {}, "outputs": {}}
        ml.jobs.create_or_update(job("one", code, **sleeps))
        azure.wait("one", ["Running"])
        wait_for(lambda: len(processes_of(home)) >= 4, what="four processes")
        assert os.environ["AZURE_CLIENT_ID"] == azure.place.client
        idle = requests.Session()
        idle.get("https://prices.azure.com/api/retail/prices").close()  # the connection stays open
    idle.close()
    assert not home.exists()
    assert set(threading.enumerate()) == threads
    assert {name: value for name, value in os.environ.items() if name != "AZUREML_CURRENT_CLOUD"} == {
        name: value for name, value in environment.items() if name != "AZUREML_CURRENT_CLOUD"
    }
    assert processes_of(home) == []


def test_unknown_clients_are_refused_and_named(azure: AzureDouble) -> None:
    for url in ("https://example.com/", "http://example.org/path"):
        try:
            requests.get(url, timeout=10).close()
        except requests.exceptions.ProxyError:
            continue
    assert azure.refused == ["example.com", "example.org"]
    azure._proxy.refused.clear()


def test_client_that_distrusts_the_authority_stops(azure: AzureDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(requests.exceptions.SSLError):
        requests.get("https://management.azure.com/")


def test_variables_alone_direct_a_process_to_the_double(azure: AzureDouble) -> None:
    program = (
        "import json, urllib.request\n"
        "with urllib.request.urlopen('https://prices.azure.com/api/retail/prices') as reply:\n"
        "    print(len(json.load(reply)['Items']))\n"
    )
    kept = {"PATH": os.environ["PATH"], **azure.environment()}
    done = subprocess.run([sys.executable, "-c", program], env=kept, capture_output=True, text=True, check=True)
    assert done.stdout == "100\n"


def test_requests_are_recorded_without_their_secrets(azure: AzureDouble, ml: Any, code: Path, tmp_path: Path) -> None:
    prepare(ml, tmp_path)
    ml.jobs.create_or_update(job("one", code))
    (token,) = azure.requests("POST login.microsoftonline.com/*/token")
    assert (token.body["client_secret"], token.body["grant_type"]) == ("REDACTED", "client_credentials")
    uploads = azure.requests("PUT *.blob.*/code/job.py")
    assert [(call.query.get("sig"), call.body, call.size > 100) for call in uploads] == [
        ("REDACTED", None, True),
        ("REDACTED", None, False),  # its metadata
    ]
    (put,) = azure.requests("PUT */jobs/one")
    assert put.body["properties"]["command"] == "python job.py ${{inputs.data}} ${{outputs.model}}"
    requests = repr(azure.requests())
    assert len(azure.secrets) > 5
    assert not [secret for secret in azure.secrets if secret in requests]


def test_redaction_reaches_every_depth() -> None:
    document = {"a": [{"sasUri": "https://x/y?sv=1&sig=abc%3D&se=2"}, {"key": "k"}], "access_token": "t"}
    assert redacted(document) == {
        "a": [{"sasUri": "https://x/y?sv=1&sig=REDACTED&se=2"}, {"key": "REDACTED"}],
        "access_token": "REDACTED",
    }


def test_wrong_body_is_refused_and_recorded(azure: AzureDouble, ml: Any) -> None:
    bearer = {"Authorization": f"Bearer {azure.login.issue('https://management.azure.com')}"}
    url = f"https://management.azure.com{azure.place.workspace_path}/computes/gpu?api-version=2023-08-01-preview"
    wrong = {"properties": {"computeType": "AmlCompute", "nodes": 3}}
    with requests.put(url, json=wrong, headers=bearer) as reply:
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "InvalidRequestContent")
    (problem,) = azure.violations
    assert problem.endswith("/computes/gpu: properties: Additional properties are not allowed ('nodes' was unexpected)")
    with requests.put(url, json=wrong) as reply:
        assert reply.status_code == 401


def test_unsupported_request_is_named(azure: AzureDouble, ml: Any) -> None:
    with pytest.raises(ResourceNotFoundError, match=r"the double does not know GET .*/batchEndpoints"):
        list(ml.batch_endpoints.list())
    assert azure.violations == []


def test_lists_come_in_pages(azure: AzureDouble, ml: Any) -> None:
    azure.manager.page_size = 2
    for number in range(5):
        ml.compute.begin_create_or_update(cluster(f"gpu{number}", max_instances=1)).result()
    assert [found.name for found in ml.compute.list()] == [f"gpu{number}" for number in (4, 3, 2, 1, 0)]
    assert len(azure.requests("GET */computes")) == 3


def test_size_and_tier_of_a_cluster_never_change(azure: AzureDouble, ml: Any) -> None:
    ml.compute.begin_create_or_update(cluster()).result()
    ml.compute.begin_create_or_update(cluster(max_instances=1)).result()
    assert ml.compute.get("gpu").max_instances == 1
    for change in ({"size": "Standard_NC4as_T4_v3"}, {"tier": "low_priority"}):
        with pytest.raises(HttpResponseError, match="Cannot change vm"):
            ml.compute.begin_create_or_update(cluster(**change)).result()


def test_bug_of_the_double_is_not_hidden(tmp_path: Path) -> None:
    azure = AzureDouble(tmp_path / "azure")
    azure.score_with("x", lambda document: document)
    azure.manager.login.check = None  # type: ignore[method-assign, assignment]
    proxies = {"https": azure.environment()["HTTPS_PROXY"]}
    url = f"https://management.azure.com{azure.place.workspace_path}?api-version=x"
    with requests.get(url, proxies=proxies, verify=azure.environment()["REQUESTS_CA_BUNDLE"]) as reply:
        assert reply.json()["error"]["code"] == "DoubleCrashed"
    azure.jobs.submit("one", {"jobType": "Command"})  # the client can't send that: it has no command
    assert azure.wait("one") == "Failed"
    assert azure.job("one").error == {"code": "DoubleCrashed", "message": "KeyError('command')"}
    with pytest.raises(RuntimeError, match="crashed"):
        azure.close()
    azure.close()


def test_process_that_forgets_close_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "from orchestrator.testing import AzureDouble\n"
        "double = AzureDouble()\n"
        "work = {'jobType': 'Command', 'command': 'sleep 600'}\n"
        "double.jobs.submit('one', work)\n"
        "double.wait('one', ['Running'])\n"
        "print(double.home)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    home = Path(done.stdout.strip())
    assert not home.exists()
    assert processes_of(home) == []
