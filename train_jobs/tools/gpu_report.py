"""Checks of a machine's GPUs for training, one JSON object a line: name, level (ok, warn or fail), text, fix.

    python -m train_jobs.tools.gpu_report [--device cpu]

`orchestrator doctor --gpu` prints them. They take about a minute, most of it for the compilation of one layer. With
`--device cpu` the checks that do not need a GPU run, as a rehearsal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist

from train_jobs.config import MachineError, ModelConfig
from train_jobs.config.arithmetic import data_sheet
from train_jobs.engine.runtime import gpu_check
from train_jobs.engine.runtime.devices import autocast, resolve_precision
from train_jobs.models.bert.attention import has_packed_kernel
from train_jobs.models.bert.pretraining_heads import BertForPreTraining

LOW_MEMORY = 14e9  # bytes; BERT-base with AdamW and a micro batch of 32 x 128 needs some 6 GB
LOW_RATE, LOW_LINK = 0.5, 6e9  # of the data sheet's peak; bytes/s: PCIe 3.0 x16 reaches 12e9
TOLERANCE = 0.02  # relative difference of compiled and eager: both compute in bf16 or fp16, in another order
PREFLIGHT_SECONDS = 180.0
TRIES = 3


@dataclass(frozen=True)
class Check:
    """One result."""

    name: str
    level: str
    """ok, warn or fail."""
    text: str
    fix: str | None = None


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurements."""

    side: int
    """Rows of the matrices of a product."""
    copied: int
    """Bytes to copy."""
    hidden: int
    """Hidden size of the layer that is compiled."""


def sizes_for(device: torch.device) -> Sizes:
    """Return sizes that keep a device busy for milliseconds."""
    return Sizes(8192, 1 << 28, 768) if device.type == "cuda" else Sizes(512, 1 << 24, 64)


def driver() -> Check:
    """Check the driver against the CUDA of torch."""
    if gpu_check.built_cuda() is None:
        fix = f"{sys.executable} -m pip install --force-reinstall torch"
        return Check("gpu driver", "fail", f"torch {torch.__version__} is a build without CUDA", fix)
    try:
        gpu_check.require_driver()
    except MachineError as problem:
        facts = ", ".join(f"{label} {value}" for label, value in problem.facts.items())
        return Check("gpu driver", "fail", f"the NVIDIA driver is too old: {facts}", problem.fix)
    supports = gpu_check.driver_cuda()
    if supports is None:
        return Check("gpu driver", "fail", "no NVIDIA driver", "install the driver, or run on a machine with a GPU")
    release = gpu_check.driver_release() or "unknown"
    text = f"{release}, for CUDA {'.'.join(map(str, supports))}; torch {torch.__version__} for {torch.version.cuda}"
    return Check("gpu driver", "ok", text)


def usable(devices: Sequence[torch.device]) -> Iterator[Check]:
    """Check architecture, a first computation and the memory of each GPU."""
    for device in devices:
        name = f"gpu {device.index}"
        try:
            gpu_check.require_usable_gpu(device)
        except MachineError as problem:
            facts = ", ".join(f"{label} {value}" for label, value in problem.facts.items())
            yield Check(name, "fail", f"{problem.message}: {facts}", problem.fix)
            continue
        free, fix = gpu_check.free_memory(device)
        text = f"{torch.cuda.get_device_name(device)}, {free}"
        if fix:
            yield Check(name, "warn", text, fix)
        elif torch.cuda.mem_get_info(device)[1] < LOW_MEMORY:
            yield Check(name, "warn", text, "--set train.micro_batch_size=auto finds what fits")
        else:
            yield Check(name, "ok", text)


def compiler() -> Check:
    """Check what torch.compile needs: Triton builds a small C module with a C compiler and Python's headers."""
    found = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    missing = [] if found else ["C compiler"]
    missing += [] if header.is_file() else [f"Python.h ({header.parent})"]
    if missing:
        fix = "apt-get install gcc python3-dev, or --set train.compile=false"
        return Check("compiler", "warn", f"no {' and no '.join(missing)}: torch.compile fails", fix)
    return Check("compiler", "ok", f"{found}, {header}")


def planner() -> Check:
    """Check that the planning of sequences is compiled."""
    if find_spec("numba") is None:
        text = "numba is not installed: planning 65,536 sequences takes 1 s on every process"
        return Check("planner", "warn", text, f"{sys.executable} -m pip install numba")
    return Check("planner", "ok", "compiled by numba")


def attention(device: torch.device, precision: str) -> Check:
    """Check which attention kernel serves packed sequences."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    if has_packed_kernel(device, dtype, 64):
        return Check("attention", "ok", f"FlashAttention for packed sequences, {precision}")
    text = f"no kernel for packed sequences in {precision}: attention copies to a padded layout, 10 to 30% slower"
    fix = "use a GPU from Ampere on, with train.precision bf16 or fp16"
    return Check("attention", "ok" if device.type == "cpu" else "warn", text, None if device.type == "cpu" else fix)


def matrix_rate(device: torch.device, precision: str, side: int) -> Check:
    """Measure the rate of a matrix product against the data sheet."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    x = torch.randn(side, side, dtype=dtype, device=device)  # not ones: equal numbers need less power
    rate = 2 * side**3 / fastest(lambda: x @ x, device)
    text = f"{rate / 1e12:.3g} TFLOP/s in {precision}"
    peaks = data_sheet(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    if peaks is None:
        return Check("matrix product", "ok", text)
    share = rate / peaks[precision == "fp32"]
    text += f", {share:.0%} of the data sheet"
    fix = "nvidia-smi -q -d PERFORMANCE shows what limits the clock: power, temperature, another program"
    return Check("matrix product", "warn", text, fix) if share < LOW_RATE else Check("matrix product", "ok", text)


def bandwidth(device: torch.device, size: int) -> Check:
    """Measure copies within the device's memory, and from pinned memory of the host."""
    x = torch.empty(size, dtype=torch.uint8, device=device)
    y = torch.empty_like(x)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    inside = 2 * size / fastest(lambda: y.copy_(x), device)  # read and written
    link = size / fastest(lambda: x.copy_(host, non_blocking=True), device)
    text = f"{inside / 1e9:.0f} GB/s in its memory, {link / 1e9:.1f} GB/s from the host"
    if device.type == "cuda" and link < LOW_LINK:
        fix = "nvidia-smi -q | grep -A3 'Link Width' shows the width of the PCIe link"
        return Check("bandwidth", "warn", text, fix)
    return Check("bandwidth", "ok", text)


def compiled_step(device: torch.device, precision: str, hidden: int) -> Check:
    """Compare forward and backward pass of two compiled layers with the same layers in eager mode."""
    shape = ModelConfig(
        hidden_size=hidden,
        num_hidden_layers=2,
        num_attention_heads=max(hidden // 64, 1),
        intermediate_size=4 * hidden,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    model = BertForPreTraining(shape, 1024).to(device)
    ids = torch.arange(8 * 128, device=device).reshape(8, 128) % 1000
    places = torch.arange(20, device=device).expand(8, 20)

    def step() -> float:
        model.zero_grad()
        with autocast(precision, device):
            words, pairs = model(ids, torch.zeros_like(ids), None, places)
        loss = words.float().logsumexp(-1).mean() + pairs.float().square().mean()
        loss.backward()
        return float(loss.detach() + sum(p.grad.float().norm() for p in model.parameters() if p.grad is not None))

    eager, slow = step(), fastest(step, device)
    started = time.perf_counter()
    try:
        model.compile_parts(together=device.type == "cuda")  # as a pretraining does
        found = step()
    except Exception as problem:  # of any of the compilers
        words = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]
        return Check("compiled step", "warn", f"torch.compile fails: {words}", "--set train.compile=false")
    took = time.perf_counter() - started
    text = f"{1000 * fastest(step, device):.2f} ms, eager {1000 * slow:.2f} ms; compiled in {took:.0f} s"
    if not abs(found - eager) <= TOLERANCE * abs(eager):
        return Check("compiled step", "fail", f"{text}: {found:g} instead of {eager:g}", "--set train.compile=false")
    return Check("compiled step", "ok", text)


def links(devices: Sequence[torch.device]) -> Iterator[Check]:
    """Check NCCL, the direct access of GPUs to each other, and an all-reduce over all of them."""
    if not dist.is_nccl_available():
        yield Check("nccl", "fail", "this build of torch has no NCCL", "install a CUDA build of torch")
        return
    version = ".".join(map(str, torch.cuda.nccl.version()))
    if len(devices) < 2:
        yield Check("nccl", "ok", f"{version}; one GPU")
        return
    pairs = [(a, b) for a in devices for b in devices if a != b]
    apart = [f"{a.index}-{b.index}" for a, b in pairs if not torch.cuda.can_device_access_peer(a, b)]
    if apart:
        text = f"GPUs {', '.join(apart[:4])} reach each other only through the host"
        yield Check("peer access", "warn", text, "nvidia-smi topo -m; switch off ACS in the BIOS, or expect slow sums")
    else:
        yield Check("peer access", "ok", f"between all {len(devices)} GPUs")
    words = ("-m", "train_jobs.tools.preflight", "--device", "gpu")
    try:
        done = torchrun(len(devices), *words, seconds=PREFLIGHT_SECONDS)
        said = [line for line in done.stderr.splitlines() if line.startswith("preflight:")]
        problem = None if done.returncode == 0 else (said or done.stderr.splitlines() or ["no message"])[0]
    except subprocess.TimeoutExpired:
        problem = f"no answer within {PREFLIGHT_SECONDS:.0f} s"
    if problem:
        yield Check("nccl", "fail", f"{version}: {problem}", "NCCL_DEBUG=INFO shows why; NCCL_P2P_DISABLE=1 avoids P2P")
    else:
        yield Check("nccl", "ok", f"{version}: an all-reduce over {len(devices)} GPUs")


def torchrun(processes: int, *words: str, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program in processes of torchrun on this machine, and return its output.

    Args:
        processes: number of processes.
        words: the program, as torchrun takes it.
        seconds: timeout. None: none.

    Raises:
        TimeoutExpired: the program did not end in time.
    """
    # torchrun and gloo would look up the name of the machine, which has no address on some of them
    place = ("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(processes))
    environ = {"GLOO_SOCKET_IFNAME": "lo", **os.environ}
    command = [sys.executable, "-m", "torch.distributed.run", *place, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environ)


def fastest(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the fastest of a few calls, the first one not counted."""
    taken = []
    for _ in range(TRIES + 1):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - started)
    return min(taken[1:])


def checks(kind: str) -> Iterator[Check]:
    """Yield the results, in the order in which one would fix the problems.

    Args:
        kind: cpu or gpu.
    """
    yield compiler()
    yield planner()
    device, devices = torch.device("cpu"), [torch.device("cuda", number) for number in range(_count(kind))]
    if kind == "gpu":
        found = driver()
        yield found
        if found.level == "fail":
            return
        if not devices:
            yield Check("gpu", "fail", "torch finds no GPU", "unset CUDA_VISIBLE_DEVICES, or nvidia-smi")
            return
        each = list(usable(devices))
        yield from each
        if any(one.level == "fail" for one in each):
            return
        yield from links(devices)
        device = devices[0]
    precision, sizes = resolve_precision("auto", device), sizes_for(device)
    yield attention(device, precision)
    yield matrix_rate(device, precision, sizes.side)
    yield bandwidth(device, sizes.copied)
    yield compiled_step(device, precision, sizes.hidden)


def _count(kind: str) -> int:
    return torch.cuda.device_count() if kind == "gpu" else 0


def main(argv: list[str] | None = None) -> int:
    """Print the results as JSON lines; return 8 if one failed: this machine cannot run the job."""
    parser = argparse.ArgumentParser(prog="train_jobs.tools.gpu_report", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "gpu"], default="gpu")
    arguments = parser.parse_args(argv)
    failed = False
    for found in checks(arguments.device):
        failed = failed or found.level == "fail"
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(asdict(found)), flush=True)
    return MachineError.exit_code if failed else 0


if __name__ == "__main__":
    sys.exit(main())
