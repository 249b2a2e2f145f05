"""Convert pytorch_model.bin of a Hugging Face folder to model.safetensors, which contains no program.

    python -m train_jobs.tools.convert --model FOLDER

torch reads the pickle with weights_only: only tensors by name are accepted. model.safetensors is written next to it,
and the pickle stays. Exit codes: 0 done, 2 invalid input, 1 any other error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from train_jobs.artifacts.model_trust import PICKLED, SAFE
from train_jobs.config import ConflictError, DataError, UserError, in_shell
from train_jobs.engine.runtime import boundary, storage
from train_jobs.inference.prediction_files import atomic_file
from train_jobs.models.huggingface import read_pickled_tensors, save_tensors


def convert(folder: Path) -> Path:
    """Write model.safetensors from pytorch_model.bin of a folder; return its path.

    Raises:
        ConflictError: the folder has a model.safetensors.
        DataError: it has no pytorch_model.bin.
        StorageError: the file cannot be written.
        TrainingError: the pickle is damaged, or contains more than named tensors.
    """
    source, target = folder / PICKLED, folder / SAFE
    if target.exists():
        raise ConflictError(f"{target} already exists", fix=f"rm {in_shell(source)}")
    if not source.is_file():
        raise DataError(f"no such file: {source}", fix=f"name a folder with {PICKLED}")
    # Clones, because tied tensors share memory in a state dict, which safetensors refuses.
    tensors = {name: tensor.clone().contiguous() for name, tensor in read_pickled_tensors(source).items()}
    with storage.storage_errors(folder, SAFE), atomic_file(target) as temporary:
        save_tensors(tensors, temporary)
    return target


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, convert the weights and return an exit code."""
    parser = boundary.documented_parser("tools.convert", __doc__)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--json", action="store_true", help="print an error as JSON on stdout too")
    arguments = parser.parse_args(argv)
    try:
        print(convert(arguments.model))
    except UserError as problem:
        if arguments.json:
            print(json.dumps(problem.as_json()))
        print(problem, file=sys.stderr)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
