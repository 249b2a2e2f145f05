"""The double's Key Vaults: read a secret with a token (GET secrets/NAME)."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.testing.proxy.login import Login
from orchestrator.testing.proxy.messages import Call, Refusal, Reply

VAULT_DOMAIN = "vault.azure.net"


@dataclass
class KeyVaults:
    """All Key Vaults that the workspace's identities may read.

    Args:
        login: checks tokens.
    """

    login: Login
    values: dict[str, str] = field(default_factory=dict)
    """`VAULT/SECRET` -> value."""

    def answer(self, call: Call) -> Reply:
        """Answer a call of one vault.

        Raises:
            Refusal: no valid token, no such secret, or another operation.
        """
        self.login.check(call)
        vault, name = call.host.removesuffix(f".{VAULT_DOMAIN}"), call.path.removeprefix("/secrets/").strip("/")
        value = self.values.get(f"{vault}/{name}")
        if call.method != "GET" or value is None:
            raise Refusal(404, "SecretNotFound", f"A secret with (name/id) {name} was not found in this key vault.")
        return Reply.json({"value": value, "id": f"https://{call.host}/secrets/{name}/1", "attributes": {}})
