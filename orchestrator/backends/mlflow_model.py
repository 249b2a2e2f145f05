"""A run's exported model as an MLflow model: the files to add to its folder, which is the root of the MLflow model.

The folder remains a Hugging Face folder, so its weights are linked and not copied. MLmodel has two flavours:
`transformers`, and `python_function`, which runs a copy of `train_jobs.inference.standalone_predictor` and returns the
records of `orchestrator submit predict`. Neither needs this package. MLflow's own `save_model` requests a model card
from the Hugging Face Hub and writes the path of the folder on this machine; this module does neither.
"""

from __future__ import annotations

import json
import platform
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from orchestrator.support.errors import NotFoundError
from train_jobs.artifacts.lineage import LINEAGE_FILE, Lineage
from train_jobs.artifacts.model_tokenizer import TOKENIZER, VOCABULARY
from train_jobs.artifacts.start_model import CONFIG
from train_jobs.config.tasks import sentence_task

MLMODEL = "MLmodel"
PREDICTOR = "predictor.py"
REQUIREMENTS, CONDA, PYTHON = "requirements.txt", "conda.yaml", "python_env.yaml"
EXAMPLE, SERVED_EXAMPLE = "input_example.json", "serving_input_example.json"
COMPONENTS = "components"
CARD = "README.md"
TOKENIZER_FILES = (TOKENIZER, "tokenizer.json", VOCABULARY, "special_tokens_map.json")
READ = (CONFIG, *TOKENIZER_FILES, CARD, LINEAGE_FILE)
"""Files of an export that `model_files` reads."""
ADDED = (MLMODEL, PREDICTOR, REQUIREMENTS, CONDA, PYTHON, EXAMPLE, SERVED_EXAMPLE)
"""Files that `model_files` adds next to those of the export; a folder `components` too."""
INSTALLED = ("mlflow", "pandas", "safetensors")  # packages of the model that a plan does not record
RECORDED = ("torch", "transformers", "tokenizers", "numpy")


class Head(NamedTuple):
    """Names that MLflow and transformers have for a model with a head, and made-up input and output."""

    task: str
    """Task of transformers' pipeline."""
    pipeline: str
    """Class of that pipeline."""
    model: str
    """Class of transformers that loads the model."""
    example: Mapping[str, str]
    """Made-up input: column -> text."""
    record: Mapping[str, Any]
    """Made-up prediction, from which the signature of outputs is inferred."""


ENTITY = {"type": "PER", "text": "Anna", "probability": 0.98, "begin": 0, "end": 4}
CANDIDATE = {"text": "at nine", "probability": 0.9, "start_logit": 5.1, "end_logit": 4.8}
MASKED = Head(
    "fill-mask",
    "FillMaskPipeline",
    "BertForMaskedLM",
    {"text": "The library opens at [MASK] in the morning."},
    {"masks": [[{"token": "nine", "probability": 0.7}]]},
)
HEADS = {
    "BertForPreTraining": MASKED,
    "BertForMaskedLM": MASKED,
    "BertForSequenceClassification": Head(
        "text-classification",
        "TextClassificationPipeline",
        "BertForSequenceClassification",
        {"text": "The library opens at nine.", "pair": "The library is open in the morning."},
        {"label": "yes", "probability": 0.9},
    ),
    "BertForTokenClassification": Head(
        "token-classification",
        "TokenClassificationPipeline",
        "BertForTokenClassification",
        {"text": "Anna reads in the library of Leeds."},
        {"entities": [ENTITY]},
    ),
    "BertForQuestionAnswering": Head(
        "question-answering",
        "QuestionAnsweringPipeline",
        "BertForQuestionAnswering",
        {"question": "When does the library open?", "context": "The library opens at nine in the morning."},
        {"answer": "at nine", "begin": 18, "end": 25, "probability": 0.9, "candidates": [CANDIDATE]},
    ),
}
"""Class of a model in config.json -> its names."""


def model_files(
    export: Mapping[str, bytes], environment: Mapping[str, str], metadata: Mapping[str, str], **identity: str | None
) -> dict[str, bytes]:
    """Return the files that make an exported Hugging Face folder an MLflow model: relative name -> content.

    Args:
        export: small files of the folder, those of `READ` that exist.
        environment: versions of Python and packages, as a plan records them.
        metadata: facts for MLmodel: the run, the hash of its weights.
        identity: `run_id` and `model_id` of MLflow, where known.

    Raises:
        NotFoundError: the folder has no model that MLflow could serve.
    """
    from mlflow.models import Model

    config = json.loads(export.get(CONFIG, b"{}"))
    head = HEADS.get(next(iter(config.get("architectures") or []), ""))
    if head is None or "tokenizer.json" not in export:
        raise NotFoundError(
            "the run's model cannot become an MLflow model: it has no head that MLflow can serve",
            facts={"need": ", ".join(HEADS), "have": config.get("architectures") or "no config.json"},
            fix="fine-tune it first",
        )
    pairs, record = _of_pairs(export), _record(head, config)
    # MLflow drops columns that the signature lacks, so it has a second text unless the model is known to take one
    columns = {name: text for name, text in head.example.items() if name != "pair" or pairs is not False}
    pinned, python = _requirements(environment)
    model = Model(
        **identity,
        signature=_signature(columns, record, pairs=pairs),
        metadata={**metadata, **_card_facts(export)},
        saved_input_example_info={
            "artifact_path": EXAMPLE,
            "serving_input_path": SERVED_EXAMPLE,
            "type": "dataframe",
            "pandas_orient": "split",
        },
    )
    tokenizer = json.loads(export[TOKENIZER]).get("tokenizer_class", "BertTokenizer") if TOKENIZER in export else ""
    model.add_flavor(
        "transformers",
        transformers_version=environment.get("transformers", version("transformers")),
        code=None,
        task=head.task,
        instance_type=head.pipeline,
        pipeline_model_type=head.model,
        # mandatory; MLflow itself writes the path of the folder on this machine
        source_model_name=metadata.get("run", "bert"),
        model_binary=".",
        components=["tokenizer"],
        tokenizer_type=tokenizer or "BertTokenizer",
    )
    model.add_flavor(
        "python_function",
        loader_module="mlflow.pyfunc.model",
        python_version=python,
        env={"conda": CONDA, "virtualenv": PYTHON},
        model_code_path=PREDICTOR,
        artifacts={"model": {"path": ".", "uri": "."}},
        streamable=False,
    )
    split = {"columns": [*columns], "data": [[*columns.values()]]}
    return {
        MLMODEL: model.to_yaml().encode(),
        PREDICTOR: _predictor(),
        REQUIREMENTS: "".join(f"{line}\n" for line in pinned).encode(),
        CONDA: _yaml(
            {
                "name": "mlflow-env",
                "channels": ["conda-forge"],
                "dependencies": [f"python={python}", "pip", {"pip": pinned}],
            }
        ),
        PYTHON: _yaml({"python": python, "build_dependencies": ["pip"], "dependencies": [f"-r {REQUIREMENTS}"]}),
        EXAMPLE: json.dumps(split).encode(),
        SERVED_EXAMPLE: json.dumps({"dataframe_split": split}, indent=1).encode(),
        **{f"{COMPONENTS}/tokenizer/{name}": export[name] for name in TOKENIZER_FILES if name in export},
    }


def _of_pairs(export: Mapping[str, bytes]) -> bool | None:
    """Return whether a model was fine-tuned on pairs of texts, by its lineage; None: it states no task."""
    lineage = Lineage.model_validate_json(export[LINEAGE_FILE]) if LINEAGE_FILE in export else None
    facts = lineage.head.facts if lineage is not None else {}
    task = sentence_task(str(facts.get("task")))
    if task is not None:
        return task.pair is not None
    data = (facts.get("config") or {}).get("data") if "task" in facts else None
    return data.get("pair") is not None if isinstance(data, dict) else None


def _record(head: Head, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a made-up prediction with the model's own labels."""
    record = dict(head.record)
    if "label" not in record:
        return (
            record if config.get("null_threshold") is None or "answer" not in record else {**record, "null_odds": -3.2}
        )
    if config.get("problem_type") == "regression":
        return {"value": 3.4}
    names = [str(name) for name in (config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}).values()]
    return {**record, "label": names[0], "probabilities": dict.fromkeys(names, 1 / len(names))}


def _signature(columns: Mapping[str, str], record: Mapping[str, Any], *, pairs: bool | None) -> Any:
    """Return the signature of inputs, outputs and parameters, inferred from made-up values.

    Args:
        columns: made-up input.
        record: made-up prediction.
        pairs: whether texts have a second one. None: some may.
    """
    from mlflow.models import infer_signature
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, Schema

    params = {"top_k": 0} if {"masks", "probabilities"} & record.keys() else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # integers cannot be missing values: begin and end of an answer
        found = infer_signature([dict(columns)], [record], params)
    if len(columns) > 1 and ("pair" not in columns or pairs):
        return found
    # a column without a name takes a plain list of texts as well as a table
    named = [ColSpec("string", "text"), ColSpec("string", "pair", required=False)]
    return ModelSignature(Schema(named if "pair" in columns else [ColSpec("string")]), found.outputs, found.params)


def _card_facts(export: Mapping[str, bytes]) -> dict[str, str]:
    """Return licence and base model from the front matter of the model card; a key is absent if it states none."""
    parts = export.get(CARD, b"").decode("utf-8", errors="replace").split("---\n")
    card = yaml.safe_load(parts[1]) if len(parts) > 2 and not parts[0].strip() else None
    known = card if isinstance(card, dict) else {}
    return {key: str(known[key]) for key in ("license", "base_model") if known.get(key)}


def _requirements(environment: Mapping[str, str]) -> tuple[list[str], str]:
    """Return pinned requirements, and the version of Python."""
    pins = {name: environment[name] for name in RECORDED if environment.get(name, "absent") != "absent"}
    for name in (*RECORDED, *INSTALLED):
        pins.setdefault(name, version(name))
    # no index has the local part of a version, such as +cpu
    return [f"{name}=={pin.partition('+')[0]}" for name, pin in sorted(pins.items())], environment.get(
        "python", platform.python_version()
    )


def _predictor() -> bytes:
    spec = find_spec("train_jobs")
    assert spec is not None, "train_jobs is installed"
    return Path(str(spec.origin)).parent.joinpath("inference", "standalone_predictor.py").read_bytes()


def _yaml(document: Mapping[str, Any]) -> bytes:
    return str(yaml.safe_dump(document, sort_keys=False)).encode()


def read_export(folder: Path) -> dict[str, bytes]:
    """Return the small files of an exported folder, for `model_files`."""
    return {name: path.read_bytes() for name in READ if (path := folder / name).is_file()}
