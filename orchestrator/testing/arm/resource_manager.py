"""Who answers on `management.azure.com`: checks the token, the version, the workspace; then the resource's own part."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.testing.blobs.containers import Storage
from orchestrator.testing.cloud_state import PROVIDER, Document, State
from orchestrator.testing.jobs.job_table import Jobs
from orchestrator.testing.proxy.login import Login
from orchestrator.testing.proxy.messages import Call, Refusal, Reply
from orchestrator.testing.proxy.routing import Routes
from orchestrator.testing.schemas.schema import mismatches

POLL_MILLISECONDS = 20
Table = Routes["ResourceManager"]


class ResourceManager:
    """The control plane of the one workspace.

    Args:
        state: what was put so far.
        login: knows good tokens.
        storage: the workspace's account.
        jobs: runs what is submitted.
        routes: what answers below the subscription, and below the workspace (`all_routes`).
    """

    def __init__(
        self, state: State, login: Login, storage: Storage, jobs: Jobs, *, routes: tuple[Table, Table]
    ) -> None:
        self.state = state
        self.login = login
        self.storage = storage
        self.jobs = jobs
        self._above_workspace, self._of_workspace = routes
        self.violations: list[str] = []
        self.page_size = 50
        self.scoring: dict[str, Callable[[Any], Any]] = {}
        self.scoring_key = secrets.token_urlsafe(32)

    def answer(self, call: Call) -> Reply:
        """One call.

        Raises:
            Refusal: as Azure would refuse it, or because the double does not know the call.
        """
        self.login.check(call)
        if "api-version" not in call.query:
            raise Refusal(400, "MissingApiVersionParameter", "The api-version query parameter is required.")
        below = self._below_workspace(call.path)
        with self.state.lock:
            if below is None:
                return self._above_workspace.answer(self, call, self._below_subscription(call.path))
            return self._of_workspace.answer(self, call, below)

    def _below_subscription(self, path: str) -> str:
        prefix = f"/subscriptions/{self.state.place.subscription}"
        if not path.lower().startswith(prefix.lower()):
            raise Refusal(404, "SubscriptionNotFound", f"The subscription of {path} could not be found.")
        return path[len(prefix) :].strip("/")

    def _below_workspace(self, path: str) -> str | None:
        """Path below the workspace; None: the call is about something above."""
        head, marker, tail = path.partition("/workspaces/")
        if not marker:
            return None
        place = self.state.place
        name, _, below = tail.partition("/")
        if not f"{head}/".lower().startswith(f"/subscriptions/{place.subscription}/".lower()):
            raise Refusal(404, "SubscriptionNotFound", f"The subscription of {path} could not be found.")
        if not f"{head}/".lower().startswith(f"{place.group_path}/".lower()):
            group = head.partition("/resourceGroups/")[2].partition("/")[0]
            raise Refusal(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")
        if name.lower() != place.workspace.lower():
            group, kind = place.resource_group, f"{PROVIDER}/workspaces"
            said = f"The Resource '{kind}/{name}' under resource group '{group}' was not found."
            raise Refusal(404, "ResourceNotFound", said)
        return below.strip("/")

    def body(self, call: Call, resource: str) -> Document:
        """The body of a PUT, held against its schema.

        Raises:
            Refusal: it does not fit; the problems are kept in `violations` too.
        """
        body = call.json
        try:
            problems = mismatches(resource, call.query["api-version"], body)
        except (KeyError, FileNotFoundError):
            problems = [f"no schema of {resource} at {call.query['api-version']}"]
        if problems:
            self.violations += [f"{call.line}: {problem}" for problem in problems]
            raise Refusal(400, "InvalidRequestContent", "; ".join(problems))
        found: Document = body
        return found

    def get(self, path: str, what: str) -> Document:
        """A resource.

        Raises:
            Refusal: there is none.
        """
        if (found := self.state.resources.get(path)) is None:
            raise Refusal(404, "ResourceNotFound", f"{what} '{path.rpartition('/')[2]}' was not found.")
        return found

    def accepted(self, operation: str, kind: str, *, status: int = 202, document: Document | None = None) -> Reply:
        """The answer to what takes a while: where to ask, and how soon again."""
        place = self.state.place
        url = f"https://management.azure.com{place.locations_path}/{kind}/{operation}?api-version=2023-08-01-preview"
        headers = {"Azure-AsyncOperation": url, "Location": url, "retry-after-ms": str(POLL_MILLISECONDS)}
        reply = Reply(status) if document is None else Reply.json(document, status)
        reply.headers.update(headers)
        return reply


def page(call: Call, documents: Iterable[Document], size: int) -> Reply:
    """A part of a list, and where the next is, as ARM pages."""
    found = list(documents)
    first = int(call.query.get("$skip") or 0)
    last = first + size
    answer: Document = {"value": found[first:last]}
    if last < len(found):
        query = "&".join(f"{name}={value}" for name, value in {**call.query, "$skip": str(last)}.items())
        answer["nextLink"] = f"https://{call.host}{call.path}?{query}"
    return Reply.json(answer)
