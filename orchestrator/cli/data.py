"""data: what runs are fed with."""

from __future__ import annotations

from typing import Any


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the parser."""
    from orchestrator.cli import stores
    from orchestrator.cli.arguments import HelpFormatter

    data = verbs.add_parser(
        "data",
        help="look at prepared text",
        description="Look at data that runs are fed with.",
        epilog="example:\n  orchestrator data show stores/wiki",
        formatter_class=HelpFormatter,
    )
    actions = data.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True, help="what to do")
    stores.add_actions(actions)
