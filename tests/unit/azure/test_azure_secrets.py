"""Secrets are never printed or stored; sign-in tries a short chain and prints a line for each failed credential."""

from __future__ import annotations

import time
from email.utils import formatdate
from pathlib import Path

import pytest

from orchestrator.backends.azure.wire import sign_in
from orchestrator.backends.azure.wire.azure_errors import explain, is_transient, retry_after, sign_in_command
from orchestrator.backends.azure.wire.sign_in import VARIABLE, SignIn, chain
from orchestrator.support.errors import (
    AuthError,
    CapacityError,
    ConflictError,
    NotFoundError,
    QuotaError,
    RequestRefused,
    ServiceError,
    UsageError,
)
from orchestrator.support.redact import REDACTED, redact

SECRET = "c2VjcmV0LXNpZ25hdHVyZQ%3D%3D"
THROTTLED = (
    "Number of 'write' requests for subscription 'S' actor 'A' exceeded the limit of '1200' for time interval "
    "'01:00:00'. Please try again after '5' minutes."
)
TOKEN = "eyJhbGciOiJub25lIn0.eyJhdWQiOiJodHRwcyJ9.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "text",
    [
        f"https://a.blob.core.windows.net/c/b?sv=2024&sp=r&sig={SECRET}&se=2026",
        f"https://a.blob.core.windows.net/c/b?sig={SECRET}",
        f"GET ...&SIG={SECRET} failed",
        f"Authorization: Bearer {SECRET}",
        f"authorization: bearer {TOKEN}",
        f"the token {TOKEN} was refused",
        f"AccountName=a;AccountKey={SECRET};EndpointSuffix=core.windows.net",
        f"SharedAccessSignature=sv=1&sig={SECRET}",
        f'{{"access_token": "{SECRET}", "expires_in": 1}}',
        f"{{'sasToken': '{SECRET}'}}",
        f"client_secret={SECRET}&grant_type=client_credentials",
    ],
)
def test_redact_hides_secrets(text: str) -> None:
    hidden = redact(text)
    assert SECRET not in hidden
    assert TOKEN not in hidden
    assert REDACTED in hidden


def test_redact_keeps_other_text() -> None:
    text = "step 10/100  loss 6.1  signature of f(x), bearer of news, sig=1, eyJ is how it begins; /runs/a?tail=5"
    assert redact(text) == text
    line = f"https://a.blob.core.windows.net/c/b?sv=2024&sig={SECRET}&se=2026 was not found"
    assert redact(line) == f"https://a.blob.core.windows.net/c/b?sv=2024&sig={REDACTED}&se=2026 was not found"


@pytest.mark.parametrize(
    ("environ", "links"),
    [
        ({}, ["cli"]),
        ({"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t"}, ["environment", "cli"]),
        ({"AZURE_CLIENT_ID": "c"}, ["cli"]),
        ({"AZURE_FEDERATED_TOKEN_FILE": "f"}, ["workload-identity", "cli"]),
        ({"IDENTITY_ENDPOINT": "http://localhost"}, ["managed-identity", "cli"]),
        ({VARIABLE: "browser"}, ["browser"]),
        ({VARIABLE: "managed-identity", "AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t"}, ["managed-identity"]),
    ],
)
def test_chain_has_only_usable_credentials(environ: dict[str, str], links: list[str]) -> None:
    assert chain(environ) == links


def test_unknown_credential_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown credential 'magic'"):
        chain({VARIABLE: "magic"})


class Credential:
    """Credential that returns a token or raises an error, and counts its calls."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked = 0

    def get_token(self, *scopes: str) -> object:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_sign_in_keeps_first_working_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    from azure.core.exceptions import ClientAuthenticationError

    first = Credential(ClientAuthenticationError(f"no: client_secret={SECRET}\nand more"))
    second = Credential("token")
    monkeypatch.setattr(sign_in, "_credential", {"environment": first, "cli": second}.__getitem__)
    chosen = SignIn({"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t"})
    assert (chosen.get_token("s"), chosen.get_token("s")) == ("token", "token")
    assert (first.asked, second.asked) == (1, 2)
    second.answer = ClientAuthenticationError("az is not installed")
    with pytest.raises(AuthError) as failure:
        SignIn({"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t"}).get_token("s")
    tried = str(failure.value.facts["tried"])
    assert tried == f"environment: no: client_secret={REDACTED}; cli: az is not installed"
    assert failure.value.fix == sign_in_command()


class RefusedError(Exception):
    """Error like azure-core's HttpResponseError."""

    def __init__(self, status: int | None, code: str = "", message: str = "no", after: str = "7") -> None:
        super().__init__(message)
        self.status_code = status
        self.message = message
        self.error = type("Error", (), {"code": code, "message": message})()
        self.response = type("Response", (), {"headers": {"Retry-After": after}})()


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        (RefusedError(None), ServiceError),
        (RefusedError(401), AuthError),
        (RefusedError(403), AuthError),
        (RefusedError(404), NotFoundError),
        (RefusedError(409), ConflictError),
        (RefusedError(429), ServiceError),
        (RefusedError(500), ServiceError),
        (RefusedError(400), RequestRefused),
        (RefusedError(400, "ClusterCoreQuotaReached"), QuotaError),
        (RefusedError(400, "UserError", "The request exceeds the limit of 24 vCPUs."), QuotaError),
        (RefusedError(400, "UserError", "Tag value exceeds the maximum limit of 256 characters"), RequestRefused),
        (RefusedError(429, "SubscriptionRequestsThrottled", THROTTLED), ServiceError),
        (RefusedError(503, "ServiceUnavailable", "Quota service unavailable"), ServiceError),
        (RefusedError(200, "AllocationFailed"), CapacityError),
    ],
)
def test_explain_maps_status_to_error_kind(problem: RefusedError, kind: type[Exception]) -> None:
    found = explain(problem, "job one")
    assert type(found) is kind
    assert found.message.startswith("job one: ")


def test_token_of_another_tenant_names_the_right_one() -> None:
    text = (
        "The access token is from the wrong issuer 'https://sts.windows.net/aaaa/'. It must match the tenant "
        "'https://sts.windows.net/bbbb/' associated with this subscription."
    )
    found = explain(RefusedError(401, "InvalidAuthenticationTokenTenant", text), "clusters")
    assert type(found) is AuthError
    assert "az login --tenant bbbb" in str(found.fix)


def test_reason_is_one_short_line_without_secrets() -> None:
    found = explain(RefusedError(500, "Odd", f"it\n\nfailed: sig={SECRET} Bearer {SECRET} " + "x" * 1000), "job one")
    reason = str(found.facts["reason"])
    assert SECRET not in reason.replace("sig=" + SECRET, "")
    assert "\n" not in reason
    assert len(reason) <= 400


def test_transient_errors_have_a_pause() -> None:
    assert [is_transient(RefusedError(status)) for status in (None, 429, 503, 400, 403)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert retry_after(RefusedError(429)) == 7.0
    assert retry_after(ValueError()) is None
    assert retry_after(RefusedError(429, after=formatdate(time.time() + 60, usegmt=True))) == pytest.approx(60, abs=3)
    assert retry_after(RefusedError(429, after=formatdate(time.time() - 60, usegmt=True))) == 0
    assert retry_after(RefusedError(429, after="soon")) is None


def test_traceback_has_no_secret(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from orchestrator.cli.main import main
    from orchestrator.cli.verbs import cloud

    def fail(arguments: object) -> int:
        raise RuntimeError(f"Max retries exceeded with url: /c/b?sv=1&sig={SECRET}")

    monkeypatch.setattr(cloud, "list_sizes", fail)
    assert main(["--debug", "skus"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert SECRET not in err.partition("error[bug]")[0]


class StorageRefusedError(RefusedError):
    """Refusal of the blob service."""

    request = type("Request", (), {"url": "https://account.blob.core.windows.net/container?comp=list"})()


def test_blob_refusal_names_role_of_the_storage_account() -> None:
    fix = str(explain(StorageRefusedError(403), "datastore folder runs/").fix)
    assert "Storage Blob Data Contributor" in fix
    assert "firewall" in fix
    assert "AzureML Data Scientist" in str(explain(RefusedError(403), "job one").fix)


def test_bad_request_does_not_suggest_to_repeat_it() -> None:
    found = explain(RefusedError(400, "UserError", "Invalid name."), "job one")
    assert (found.message, found.fix) == ("job one: Azure refused the request (HTTP 400)", None)
    assert not is_transient(RefusedError(400))


def test_missing_asset_of_the_sdk_is_not_an_outage() -> None:
    """The SDK raises its own error before it makes a request: it has no status code."""
    from azure.ai.ml.exceptions import AssetException

    problem = AssetException(
        message="Data asset notes:9 does not exist.", no_personal_data_message="", target=None, error_category=None
    )
    found = explain(problem, "job one")
    assert (type(found), found.message) == (NotFoundError, "job one: Azure's client cannot find a part of it")


def test_untrusted_certificate_is_not_a_missing_sign_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError

    text = "HTTPSConnectionPool(...): [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"
    first = Credential(ClientAuthenticationError(text))
    monkeypatch.setattr(sign_in, "_credential", {"environment": first}.__getitem__)
    with pytest.raises(ServiceError, match="cannot verify the certificate") as failure:
        SignIn({"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t"}).get_token("s")
    assert "REQUESTS_CA_BUNDLE" in str(failure.value.fix)
    assert "certificate" in explain(ServiceRequestError(text), "job one").message


def test_sign_in_is_proposed_with_installed_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sign_in_command().startswith("export ORCHESTRATOR_AZURE_SIGN_IN=browser")
    (tmp_path / "az").write_text("#!/bin/sh\n")
    (tmp_path / "az").chmod(0o755)
    assert sign_in_command() == "az login"
