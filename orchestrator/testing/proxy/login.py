"""Where tokens come from: the login service, the instance metadata of a machine in Azure; and who knows a good one."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from urllib.parse import parse_qs

from orchestrator.testing.cloud_state import Place
from orchestrator.testing.proxy.faults import refusal
from orchestrator.testing.proxy.messages import Call, Refusal, Reply

LOGIN_HOST = "login.microsoftonline.com"
METADATA_HOST = "169.254.169.254"
SECRET = "double-client-secret"
LIFETIME = 3600


class Login:
    """Issues tokens to one application by its secret, and to the machine's identity where there is one."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.lifetime = LIFETIME
        self.managed_identity = False
        self._good: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def issued(self) -> list[str]:
        """All tokens that it gave, for tests that look for them where they must not be."""
        with self._lock:
            return list(self._good)

    def answer(self, call: Call) -> Reply:
        """Of the login service."""
        tenant, _, rest = call.path.strip("/").partition("/")
        base = f"https://{LOGIN_HOST}/{tenant}"
        if rest.endswith(".well-known/openid-configuration"):
            return Reply.json(
                {
                    "token_endpoint": f"{base}/oauth2/v2.0/token",
                    "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
                    "device_authorization_endpoint": f"{base}/oauth2/v2.0/devicecode",
                    "issuer": f"{base}/v2.0",
                }
            )
        if tenant == "common" and rest.startswith("discovery/instance"):
            hosts = [LOGIN_HOST, "login.windows.net"]
            network = {"preferred_network": LOGIN_HOST, "preferred_cache": "login.windows.net", "aliases": hosts}
            return Reply.json({"tenant_discovery_endpoint": f"{base}/.well-known", "metadata": [network]})
        if rest == "oauth2/v2.0/token" and call.method == "POST":
            return self._token(tenant, {name: values[0] for name, values in parse_qs(call.body.decode()).items()})
        raise Refusal(404, "NotFound", f"no page {call.path}")

    def _token(self, tenant: str, form: dict[str, str]) -> Reply:
        known = tenant == self.place.tenant and form.get("client_id") == self.place.client
        proof = form.get("client_secret") == SECRET or bool(form.get("client_assertion"))
        if not known or not proof:
            said = "AADSTS7000215: Invalid client secret provided."
            return Reply.json({"error": "invalid_client", "error_description": said, "error_codes": [7000215]}, 401)
        audience = form.get("scope", "").removesuffix("/.default")
        return Reply.json({"token_type": "Bearer", "expires_in": self.lifetime, "access_token": self.issue(audience)})

    def metadata(self, call: Call) -> Reply:
        """Of the machine's own endpoint, in plain HTTP."""
        if not self.managed_identity or not call.path.startswith("/metadata/identity/oauth2/token"):
            return Reply.json({"error": "invalid_request", "error_description": "Identity not found"}, 400)
        resource = call.query.get("resource", "")
        return Reply.json(
            {
                "access_token": self.issue(resource),
                "expires_in": str(self.lifetime),
                "expires_on": str(int(time.time()) + self.lifetime),
                "resource": resource,
                "token_type": "Bearer",
            }
        )

    def issue(self, audience: str, *, seconds: float | None = None) -> str:
        """A token of a JWT's shape: the client reads tenant and audience out of it.

        Args:
            audience: whom it is for.
            seconds: how long it is good; None: `lifetime`.
        """
        ends = time.time() + (self.lifetime if seconds is None else seconds)
        claims = {"aud": audience, "tid": self.place.tenant, "oid": self.place.client, "appid": self.place.client}
        parts = ({"alg": "none", "typ": "JWT"}, {**claims, "exp": int(ends), "jti": secrets.token_hex(16)})
        encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
        token = ".".join((*encoded, secrets.token_urlsafe(32)))
        with self._lock:
            self._good[token] = ends
        return token

    def check(self, call: Call) -> None:
        """Raises Refusal unless the call carries a token that was issued and has not expired."""
        kind, _, token = call.headers.get("authorization", "").partition(" ")
        if kind != "Bearer":
            raise Refusal(401, "AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing.")
        with self._lock:
            ends = self._good.get(token)
        if ends is None or ends < time.time():
            raise refusal(401)

    def expire(self) -> None:
        """No token given so far is good any more, but those of jobs, which the service renews."""
        soon = time.time() + 2 * max(self.lifetime, LIFETIME)
        with self._lock:
            self._good = {token: 0.0 if ends < soon else ends for token, ends in self._good.items()}
