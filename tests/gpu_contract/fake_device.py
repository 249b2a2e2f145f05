"""A CUDA device without CUDA, and a record of what a program does with it.

`load` must run before torch is imported, so scenes run in a process of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import shutil
import subprocess
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCENES = (
    "pretrain-lamb-bf16-packed",
    "pretrain-adamw-fp16-padded",
    "pretrain-lamb-bf16-packed-2",
    "pretrain-adamw-fp16-packed-2",
    "pretrain-lamb-bf16-packed-2-overlap",
    "glue-adamw-bf16-packed",
    "squad-lamb-fp16-padded",
    "entities-adamw-bf16-packed",
    "pretrain-adamw-fp16-fallback",
    "pretrain-adamw-fp32-fallback",
    "glue-adamw-fp16-fallback",
)
"""KIND-OPTIMIZER-PRECISION-LAYOUT, the number of processes if there are several, and whether sums overlap.

Layout fallback: packed sequences without a kernel for them, as on a T4 or in fp32.
"""
SOURCE = Path(__file__).with_name("fakecuda.cpp")


def torch_folder() -> Path:
    """Return the folder of torch, without importing it."""
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def build(folder: Path) -> Path:
    """Compile the library into a folder.

    Raises:
        OSError: there is no compiler, or it cannot compile the file; the message has the reason.
    """
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise OSError("neither g++ nor clang++ is installed")
    library = folder / "libfakecuda.so"
    include = torch_folder() / "include"
    command = [compiler, "-shared", "-fPIC", "-std=c++20", f"-I{include}", str(SOURCE), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{compiler} cannot compile {SOURCE.name}: {done.stderr[-500:]}")
    return library


def load(library: Path) -> None:
    """Load the device into this process."""
    for name in ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(torch_folder() / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class Record:
    """Counts of what a program did with the device, by stage of the loop."""

    def __init__(self) -> None:
        self.stage = "other"
        self.operators: Counter[str] = Counter()
        """Operators that may launch kernels: views do not count."""
        self.reads: Counter[str] = Counter()
        """Reads that make the host wait for the device."""
        self.copies: list[tuple[str, bool, bool]] = []
        """Stage, whether the host's memory is pinned, and whether the host goes on: each copy to the device."""
        self.slow_lists: Counter[str] = Counter()
        """`_foreach_` calls that launch a kernel for each tensor."""
        self.pinned: set[int] = set()

    @contextlib.contextmanager
    def doing(self, stage: str) -> Iterator[None]:
        """Attribute what the body does to a stage."""
        before, self.stage = self.stage, stage
        yield
        self.stage = before

    def clear(self) -> None:
        """Forget everything but which buffers are pinned."""
        for found in (self.operators, self.reads, self.slow_lists):
            found.clear()
        self.copies.clear()

    def summary(self) -> dict[str, Any]:
        """Return the counts, JSON-safe."""
        return {
            "operators": dict(self.operators),
            "reads": dict(self.reads),
            "copies": list(self.copies),
            "slow_lists": dict(self.slow_lists),
        }


@contextlib.contextmanager
def recorded() -> Iterator[Record]:
    """Run the body on fake tensors, and record its use of the device."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    record = Record()

    def is_there(value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "cuda"

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = func._schema.name.removeprefix("aten::")
            if name == "_local_scalar_dense":
                if is_there(args[0]):
                    record.reads[record.stage] += 1
                return 1.0  # fake tensors have no numbers
            if name.startswith("_foreach_"):
                _check_lists(name, args, record)
            if func.namespace != "prim" and not _makes_view(func) and any(map(is_there, _flat(args))):
                record.operators[record.stage] += 1
            found = func(*args, **kwargs)
            if kwargs.get("pin_memory"):
                record.pinned.add(found.untyped_storage()._cdata)
            if name in ("_to_copy", "copy_"):
                _note_copy(name, args, kwargs, found)
            return found

    def _note_copy(name: str, args: Any, kwargs: Any, found: Any) -> None:
        source, target = (args[0], found) if name == "_to_copy" else (args[1], args[0])
        queued = bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
        if is_there(target) and not is_there(source):
            pinned = source.untyped_storage()._cdata in record.pinned
            record.copies.append((record.stage, pinned, queued))
        elif is_there(source) and not is_there(target) and not queued:
            record.reads[record.stage] += 1

    def read_list(tensor: Any) -> list[float]:
        # One read of a vector; torch's own fake one reads number by number. On the device: no failures, a loss of 1.
        if not is_there(tensor):
            return tensor.constant.tolist() if tensor.constant is not None else [0.0] * tensor.numel()
        record.reads[record.stage] += 1
        return [0.0, *[1.0] * (tensor.numel() - 1)]

    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="CUDA is not available")
        original, FakeTensor.tolist = FakeTensor.tolist, read_list
        stack.callback(setattr, FakeTensor, "tolist", original)
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(Watch())
        yield record


@contextlib.contextmanager
def autocast(precision: str) -> Iterator[None]:
    """Switch real autocast on; torch's own context looks for a real device."""
    import torch

    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", precision != "fp32")
    torch.set_autocast_dtype("cuda", {"fp16": torch.float16}.get(precision, torch.bfloat16))
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


def _makes_view(func: Any) -> bool:
    """Return whether an operator returns another view of its input, without a kernel."""
    aliases = [found.alias_info for found in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


def _check_lists(name: str, args: Any, record: Record) -> None:
    """Count a call whose lists of tensors differ in shape, stride or dtype: torch then takes its slow path."""
    import torch

    lists = [one for one in args if isinstance(one, (list, tuple)) and one and isinstance(one[0], torch.Tensor)]
    for tensors in zip(*lists, strict=True):
        kinds = {(one.shape, one.stride(), one.dtype, one.device) for one in tensors}
        if len(kinds) > 1 and tensors[0].device.type == "cuda":
            record.slow_lists[name] += 1
            return
