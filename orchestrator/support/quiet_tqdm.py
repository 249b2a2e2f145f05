"""tqdm without its warning in notebooks that have no widgets: its progress bars are never drawn here."""

from __future__ import annotations

import warnings


def load_quietly() -> None:
    """Load tqdm before Optuna or Azure's SDK does: its first import in a notebook without ipywidgets warns.

    The warning is raised only on import, so that a module that is already loaded stays silent.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        import tqdm.auto  # noqa: F401
