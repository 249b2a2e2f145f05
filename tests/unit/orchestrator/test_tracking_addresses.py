"""Addresses of tracking servers: what reaches MLflow's client and the job, and that no credentials are written down."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from orchestrator.backends.folder.mlflow_sync import sync_run
from orchestrator.backends.folder.run_folder import FolderRequest
from orchestrator.backends.folder.supervision import TrackedRun
from orchestrator.cli.main import main
from orchestrator.support.errors import ServiceError
from orchestrator.support.secret_sources import without_credentials
from tests.conftest import Console
from tests.mlflow_runs import make_tracked_run

TOKEN = "dapi-quokka-4711"
PASSWORD = "quokka-4711"


class Workspace(BaseHTTPRequestHandler):
    """A workspace of Databricks that refuses every request and records paths and credentials."""

    seen: ClassVar[list[tuple[str, str | None]]] = []

    code, error = 403, {"error_code": "PERMISSION_DENIED", "message": "Invalid access token."}

    def do_GET(self) -> None:
        self.seen.append((self.path.partition("?")[0], self.headers["Authorization"]))
        body = json.dumps(self.error).encode()
        self.send_response(self.code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def workspace() -> Iterator[str]:
    """Yield the address of a workspace."""
    Workspace.seen.clear()
    with HTTPServer(("127.0.0.1", 0), Workspace) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("uri", ["databricks", "databricks://team"])
def test_databricks_address_reaches_its_workspace(
    uri: str, workspace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's client finds workspace and token itself: in its variables, or in the profile that the address names."""
    for name in ("DATABRICKS_HOST", "DATABRICKS_TOKEN", "DATABRICKS_CONFIG_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    profiles = tmp_path / "profiles"
    profiles.write_text(f"[team]\nhost = {workspace}\ntoken = {TOKEN}\n" if "team" in uri else "")
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", str(profiles))
    if uri == "databricks":
        monkeypatch.setenv("DATABRICKS_HOST", workspace)
        monkeypatch.setenv("DATABRICKS_TOKEN", TOKEN)
    run = make_tracked_run(tmp_path / "home", uri=uri)
    with pytest.raises(ServiceError, match="cannot copy run to MLflow") as refused:
        sync_run(run)
    assert str(refused.value.fix).startswith("export DATABRICKS_HOST and DATABRICKS_TOKEN, or choose a profile")
    assert refused.value.facts == {"where": uri, "reason": "the server refused the credentials"}
    calls = {seen for seen in Workspace.seen if "/api/" in seen[0]}
    assert calls == {("/api/2.0/mlflow/experiments/get-by-name", f"Bearer {TOKEN}")}
    assert [path for path in run.path.rglob("*") if path.is_file() and TOKEN in path.read_text()] == []


@pytest.mark.parametrize("uri", ["databricks", "databricks://team", "https://mlflow.example/sub/path", "http://h:5000"])
def test_address_passes_through_untouched(uri: str, tmp_path: Path) -> None:
    """From the command line to the plan, the request, the process that copies, and the environment of the job."""
    console = Console(home=tmp_path / "home", cwd=tmp_path)
    done = console("plan", "pretrain", "--set", f"tracking.uri={uri}", "-o", "json")
    assert done.json["plan"]["spec"]["tracking"]["uri"] == uri, done.err
    run = make_tracked_run(tmp_path / "home", uri=uri)
    request = FolderRequest.model_construct(**json.loads((run.path / "request.json").read_text()))
    assert TrackedRun(run, request).variables()["MLFLOW_TRACKING_URI"] == uri


@pytest.mark.parametrize(
    "uri",
    [
        "https://token@h/",
        "me:abc@h:5000",
        "HTTPS://me:a/b#c@h/",
        "https://h/?token=abc",
        "https://h/#abc",
        "postgresql://me:a/b@h/mlflow",
        "postgresql://h/mlflow?user=me&password=abc",
        "mssql+pyodbc:///?odbc_connect=Server%3Dh%3BPWD%3Dabc",
    ],
)
def test_credentials_in_an_address_are_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="must not contain credentials"):
        without_credentials(uri)


@pytest.mark.parametrize(
    "uri", ["sqlite:////a@b/mlflow.db", "./a:b@c/mlflow.db", "postgresql://me@h:5432/mlflow?sslmode=require&sslkey=/a"]
)
def test_address_of_a_database_is_valid(uri: str) -> None:
    assert without_credentials(uri) == uri


@pytest.mark.parametrize("form", ["https://h/?token={}", "postgresql://me:{}@h/mlflow"])
def test_credentials_in_an_address_are_not_shown(form: str, tmp_path: Path) -> None:
    console, uri = Console(home=tmp_path / "home", cwd=tmp_path), form.format(PASSWORD)
    planned = console("plan", "pretrain", "--set", f"tracking.uri={uri}")
    copied = console("mlflow", "sync", "--all", "--to", uri)
    assert (planned.code, copied.code) == (2, 2)
    for done in (planned, copied):
        assert "must not contain credentials" in done.err
        assert "MLFLOW_TRACKING_USERNAME" in done.err
        assert PASSWORD not in done.err


@pytest.mark.parametrize(
    ("uri", "problem", "fix"),
    [
        ("foo://x", "MLflow does not support it", "--to http://HOST:5000, sqlite:///FILE or databricks"),
        ("file:///missing", "MLflow does not support it", "--to http://HOST:5000, sqlite:///FILE or databricks"),
        ("mysql+pymysql://h/db", "its driver pymysql is not installed", "install pymysql in the environment of "),
        ("mysql+unknown://h/db", "MLflow does not support it", "--to http://HOST:5000, sqlite:///FILE or databricks"),
    ],
)
def test_unusable_address_is_a_usage_error(
    uri: str,
    problem: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The message concerns the address: no server is away, and waiting changes nothing."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pymysql", None)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    assert main(["mlflow", "sync", "--all", "--to", uri]) == 2
    shown = capsys.readouterr().err
    assert f"error[usage]: cannot use the tracking URI {uri}: {problem}\n" in shown
    assert fix in shown


def test_token_of_a_runs_server_reaches_no_other_one(
    workspace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mlflow sync --to` signs in with the variables of the command, not with the secrets of the runs."""
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN", raising=False)
    monkeypatch.setenv("TOKEN_OF_MINE", TOKEN)
    run = make_tracked_run(tmp_path / "home", uri="http://127.0.0.1:9")
    request = run.read_json("request.json") | {"secrets": {"MLFLOW_TRACKING_TOKEN": "env:TOKEN_OF_MINE"}}
    (run.path / "request.json").write_text(json.dumps(request))
    with pytest.raises(ServiceError):
        sync_run(run, workspace)
    assert {credentials for _, credentials in Workspace.seen} == {None}
    (run.path / "request.json").write_text(json.dumps(request | {"tracking_uri": workspace}))
    with pytest.raises(ServiceError):
        sync_run(run, workspace)
    assert Workspace.seen[-1][1] == f"Bearer {TOKEN}"


class MovedServer(Workspace):
    """A server that redirects requests below /old, and answers as MLflow does to a POST that became a GET."""

    code, error = 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "Invalid value 0 for 'max_results'."}

    def do_POST(self) -> None:
        self.send_response(301)
        self.send_header("Location", f"http://{self.headers['Host']}{self.path.replace('/old', '/new')}")
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_redirecting_server_is_reported_with_its_new_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    with HTTPServer(("127.0.0.1", 0), MovedServer) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{httpd.server_address[1]}"
        code = main(["mlflow", "sync", "--all", "--to", f"{address}/old"])
        httpd.shutdown()
        thread.join()
    errors = capsys.readouterr().err
    assert code == 2
    assert f"the server redirects to {address}/new" in errors
    assert f"fix  --to {address}/new" in errors
