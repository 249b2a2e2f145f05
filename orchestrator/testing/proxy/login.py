"""Issue and check tokens: the login service, and the instance metadata of a machine in Azure."""

from __future__ import annotations

import base64
import json
import secrets
import time
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from orchestrator.testing.cloud_state import WorkspaceAddress
from orchestrator.testing.proxy.messages import Call, Refusal, Reply

LOGIN_HOST = "login.microsoftonline.com"
METADATA_HOST = "169.254.169.254"
SECRET = "double-client-secret"
JOB_IDENTITY = "/msi/token"
LIFETIME = 3600  # seconds that a token is valid, about as on Azure


@dataclass
class Login:
    """Issues tokens to one application by its secret, and to the machine's identity if it has one."""

    place: WorkspaceAddress
    lifetime: int = LIFETIME
    """Seconds that a token is valid."""
    managed_identity: bool = False
    """Whether the machine has an identity."""
    job_secret: str = field(default_factory=lambda: secrets.token_hex(16))
    """Header that a job sends to its identity endpoint."""
    expiry: dict[str, float] = field(default_factory=dict)
    """Token -> when it expires, in seconds since the epoch."""

    def answer(self, call: Call) -> Reply:
        """Answer a call of the login service.

        Raises:
            Refusal: unknown path.
        """
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
            network = {
                "preferred_network": LOGIN_HOST,
                "preferred_cache": "login.windows.net",
                "aliases": [LOGIN_HOST, "login.windows.net"],
            }
            return Reply.json({"tenant_discovery_endpoint": f"{base}/.well-known", "metadata": [network]})
        if rest == "oauth2/v2.0/token" and call.method == "POST":
            return self._token(tenant, {name: values[0] for name, values in parse_qs(call.body.decode()).items()})
        raise Refusal(404, "NotFound", f"no page {call.path}")

    def _token(self, tenant: str, form: dict[str, str]) -> Reply:
        known = tenant == self.place.tenant and form.get("client_id") == self.place.client
        proof = form.get("client_secret") == SECRET or bool(form.get("client_assertion"))
        if not known or not proof:
            return Reply.json(
                {
                    "error": "invalid_client",
                    "error_description": "AADSTS7000215: Invalid client secret provided.",
                    "error_codes": [7000215],
                },
                401,
            )
        audience = form.get("scope", "").removesuffix("/.default")
        return Reply.json({"token_type": "Bearer", "expires_in": self.lifetime, "access_token": self.issue(audience)})

    def metadata(self, call: Call) -> Reply:
        """Answer a call of the machine's metadata endpoint, or of a job's identity endpoint, over plain HTTP."""
        if call.path == JOB_IDENTITY and call.headers.get("secret") == self.job_secret:
            token = self.issue(call.query.get("resource", ""))
            expires = str(int(time.time()) + self.lifetime)
            return Reply.json({"access_token": token, "expires_on": expires, "token_type": "Bearer"})
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
        """Return a new token in the format of a JWT, from which the client reads tenant and audience.

        Args:
            audience: the service that it is for.
            seconds: how long it is valid; None: `lifetime`.
        """
        ends = time.time() + (self.lifetime if seconds is None else seconds)
        claims = {"aud": audience, "tid": self.place.tenant, "oid": self.place.client, "appid": self.place.client}
        parts = ({"alg": "none", "typ": "JWT"}, {**claims, "exp": int(ends), "jti": secrets.token_hex(16)})
        encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
        token = ".".join((*encoded, secrets.token_urlsafe(32)))
        self.expiry[token] = ends
        return token

    def check(self, call: Call) -> None:
        """Check that a call has a valid token.

        Raises:
            Refusal: the token is missing, unknown or expired.
        """
        kind, _, token = call.headers.get("authorization", "").partition(" ")
        if kind != "Bearer":
            raise Refusal(401, "AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing.")
        if self.expiry.get(token, 0.0) < time.time():
            raise Refusal.usual(401)

    def expire(self) -> None:
        """Expire all tokens except those of jobs, which the service renews."""
        # tokens of jobs are recognised by their long lifetime
        soon = time.time() + 2 * max(self.lifetime, LIFETIME)
        self.expiry.update({token: 0.0 for token, ends in list(self.expiry.items()) if ends < soon})
