"""Notebooks without widgets: nobody needs to hear of it from a library whose progress bar is never drawn here."""

from __future__ import annotations

import warnings


def load_quietly() -> None:
    """Loads tqdm, which Optuna and Azure's SDK would: in a notebook without ipywidgets it complains, the first time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        import tqdm.auto  # noqa: F401
