"""Logged models of MLflow 3 as inputs of the runs that started from them: the lineage that MLflow's page draws.

A fine-tuning may be copied to MLflow before or after the model that it started from is registered, so both moments
call `link_start`.
"""

from __future__ import annotations

from typing import Any

from train_jobs.artifacts.tracking.mlflow_copy import search_all

CHECKPOINT_TAG = "orchestrator.checkpoint"
"""Tag of a logged model with the weights of a checkpoint: its step. The final model of a run has none."""
START_ID_TAG = "orchestrator.parent_run_id"
"""Tag of a run with the id of the MLflow run whose model it started from."""
ABSENT = "ENDPOINT_NOT_FOUND"  # the server is older than MLflow 3


def link_start(client: Any, run_id: str, source: str) -> bool:
    """Make the final model of an MLflow run an input of a run that started from it; return whether it has become one.

    Args:
        client: MLflow's client.
        run_id: id of the run that started from the model.
        source: id of the run that made the model; nothing is linked until its model is registered.
    """
    from mlflow.entities import LoggedModelInput
    from mlflow.exceptions import MlflowException

    try:
        experiment = client.get_run(source).info.experiment_id
        models = client.search_logged_models([experiment], f"source_run_id = '{source}'")
    except MlflowException as problem:
        if problem.error_code != ABSENT:
            raise
        return False
    inputs = client.get_run(run_id).inputs
    known = {one.model_id for one in (inputs.model_inputs if inputs else ())}
    final = [one.model_id for one in models if CHECKPOINT_TAG not in one.tags and str(one.status) == "READY"]
    missing = [one for one in final if one not in known]
    if missing:
        client.log_inputs(run_id, models=[LoggedModelInput(one) for one in missing])
    return bool(missing)


def runs_that_started_from(client: Any, source: str) -> list[str]:
    """Return the ids of the MLflow runs that started from the model of a run, in every experiment of its store."""
    experiments = [one.experiment_id for one in search_all(client.search_experiments)]
    found = search_all(client.search_runs, experiments, f"tags.`{START_ID_TAG}` = '{source}'")
    return [one.info.run_id for one in found]
