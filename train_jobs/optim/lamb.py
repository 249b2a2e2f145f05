"""LAMB (You et al. 2020, arXiv 1904.00962) as in NVLAMB (NVIDIA DeepLearningExamples, lamb_amp_opt), and clipping.

On a GPU, one call of an operation updates all tensors of a group that fit in a chunk, because launches cost most. There
torch's fused Adam computes moments and direction in one pass over memory. It is applied to a tensor that contains the
negative decay instead of the weights, which makes that the negative update. On a CPU every operation costs a pass over
main memory, so each tensor is updated by one compiled loop (`lamb_loops`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from train_jobs.optim.lamb_loops import COMPILE_FROM, Factors, compiled_update

_BLOCK = 1024  # elements whose squares are summed together on the CPU
_CHUNK = 2**26  # elements: 256 MB of temporary memory, so that neither launches nor memory matter
_SMALL = 2**16  # elements: tensors of one shape up to this size are scaled together
_NEVER_CORRECTED = 1e9  # step after which 1 - beta^step is 1 for any beta


class Lamb(torch.optim.Optimizer):
    """Adam with decoupled weight decay whose update of each tensor is scaled to the norm of its weights.

    With g the gradient, already clipped over all tensors (`clip_by_global_norm_`, step 2 of NVLAMB), at step t:

        m = b1 m + (1 - b1) g                  v = b2 v + (1 - b2) g^2
        m_hat = m / (1 - b1^t)                 v_hat = v / (1 - b2^t)
        u = m_hat / (sqrt(v_hat) + eps) + weight_decay w
        w = w - lr r u      r = |w| / |u| of the tensor if neither norm is zero, else 1

    r is not clipped: the paper leaves bounds on |w| open, NVIDIA's kernels have none. A step never waits for the
    device: norms and counters stay there, in `state[p]` as `step` (fp32, 0-dim), `exp_avg` (m) and `exp_avg_sq` (v).
    Weights must be fp32 or fp64: updates are smaller than the last bit of 16-bit weights. Parameters without a gradient
    are skipped.

    Args:
        params: parameters or groups of them; a group may override every option below. The parameters of a group have
            one device and one dtype.
        lr: learning rate.
        betas: decay rates b1 and b2 of the moments m and v.
        eps: added to sqrt(v_hat), outside of the root.
        weight_decay: factor of the decoupled weight decay.
        bias_correction: False: m_hat is m and v_hat is v.
        trust_ratio: False: r is 1 (AdamW). NVIDIA's PyTorch recipe turns it off for parameters without weight decay
            (lamb_amp_opt/csrc/multi_tensor_lamb.cu, LAMBStage2Functor with use_nvlamb off): biases and
            LayerNorm. The paper (algorithm 2) and NVIDIA's TensorFlow recipe do not.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        trust_ratio: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "trust_ratio": trust_ratio,
            "capturable": True,  # makes load_state_dict put the step counters on the device, as fp32
        }
        super().__init__(params, defaults)

    @property
    def temporary_bytes(self) -> int:
        """Most bytes that a step allocates and frees again."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        largest = max(parameter.numel() for parameter in parameters)
        total = sum(parameter.numel() for parameter in parameters)
        elements = max(largest, min(total, _CHUNK)) if parameters[0].is_cuda else largest
        return elements * parameters[0].element_size()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update the weights from their gradients, which are useless afterwards on a CPU.

        Args:
            closure: computes the gradients first, as with any torch optimizer.

        Returns:
            The result of `closure`; None without one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # all parameters, whether this process updates them or not: `optimizer.sharded` must not change a bit
        sizes = (parameter.numel() for group in self.param_groups for parameter in group["params"])
        compiled = sum(sizes) >= COMPILE_FROM
        for group in self.param_groups:
            tensors = [self._tensors_of(parameter) for parameter in group["params"] if parameter.grad is not None]
            if not tensors:
                continue
            torch._foreach_add_([one.step for one in tensors], 1)
            if not group["bias_correction"]:
                never = torch.full_like(tensors[0].step, _NEVER_CORRECTED)
                tensors = [one._replace(step=never) for one in tensors]
            if tensors[0].weight.device.type == "cpu":
                _update_on_cpu(tensors, group, compiled=compiled)
            else:
                for chunk in _chunks(tensors):
                    _update_together(chunk, group)
        return loss

    def _tensors_of(self, parameter: Tensor) -> _Tensors:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        assert parameter.grad is not None
        return _Tensors(parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"], state["step"])


class _Tensors(NamedTuple):
    """A parameter with a gradient, its moments, and the number of its step."""

    weight: Tensor
    grad: Tensor
    first: Tensor
    second: Tensor
    step: Tensor


def _update_on_cpu(tensors: Sequence[_Tensors], group: dict[str, Any], *, compiled: bool) -> None:
    """Update tensors by the compiled loop, which overwrites gradients, each in one thread.

    Tensors that are not contiguous, and all of a small model or without Numba, are updated by torch's operations.
    """
    update = compiled_update() if compiled else None
    fit = [update is not None and all(part.is_contiguous() for part in one[:4]) for one in tensors]
    for one, fits in zip(tensors, fit, strict=True):
        if not fits:
            _update_together([one], group)
    if update is None or not any(fit):
        return
    beta1, beta2 = group["betas"]

    def run(one: _Tensors) -> None:
        arrays = [part.detach().view(-1).numpy() for part in one[:4]]
        step, number = float(one.step), arrays[0].dtype.type
        factors = Factors(
            *map(
                number,
                (
                    1 - beta1,
                    beta2,
                    1 - beta2,
                    1 / (1 - beta1**step),
                    (1 - beta2**step) ** -0.5,
                    group["eps"],
                    -group["weight_decay"],
                ),
            )
        )
        update(*arrays, factors, float(group["lr"]), bool(group["trust_ratio"]))

    # A tensor belongs to one thread: the number of threads does not change a bit. Largest first, so that all threads
    # end at about the same time.
    order = sorted((one for one, fits in zip(tensors, fit, strict=True) if fits), key=lambda one: -one.weight.numel())
    threads = min(torch.get_num_threads(), len(order))
    if threads == 1:
        for one in order:
            run(one)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="lamb") as pool:
        list(pool.map(run, order))  # the list raises what a thread raised


def _update_together(tensors: Sequence[_Tensors], group: dict[str, Any]) -> None:
    """Update tensors by multi-tensor operations, as on a GPU.

    Every list that they take has tensors of equal shapes, strides and dtypes, one by one: with 0-dim tensors as
    factors, torch would launch a kernel for each tensor instead.
    """
    weights = [one.weight for one in tensors]
    updates = list(torch._foreach_mul(weights, -group["weight_decay"]))
    _add_direction([one._replace(weight=update) for one, update in zip(tensors, updates, strict=True)], group)
    if group["trust_ratio"]:
        _apply_scaled(weights, updates, _ratios(l2_norms(weights), l2_norms(updates)), group["lr"])
    else:
        torch._foreach_add_(weights, updates, alpha=group["lr"])


def _add_direction(tensors: Sequence[_Tensors], group: dict[str, Any]) -> None:
    """Update the moments, and subtract Adam's direction from `weight`, which contains the negative decay."""
    # The order is NVLAMB's: moments of the clipped gradient, Adam's direction, then decay, then the ratio of the norm
    # with the decay in it. Decay after the ratio would be another optimizer.
    targets, grads, first, second, steps = ([one[field] for one in tensors] for field in range(5))
    beta1, beta2 = group["betas"]
    torch._fused_adam_(
        targets,
        grads,
        first,
        second,
        [],
        steps,
        lr=1.0,
        beta1=beta1,
        beta2=beta2,
        weight_decay=0.0,
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


def _apply_scaled(weights: list[Tensor], updates: list[Tensor], ratios: Tensor, rate: float) -> None:
    """Add `rate` times the ratio of each tensor times its update to the weights; `ratios` are on the device."""
    by_shape: dict[torch.Size, list[int]] = {}
    for number, weight in enumerate(weights):
        if weight.numel() > _SMALL:  # a kernel of its own is long enough to hide its launch
            weight.addcmul_(updates[number], ratios[number], value=rate)
        else:
            by_shape.setdefault(weight.shape, []).append(number)
    small: list[Tensor] = []
    scaled: list[Tensor] = []
    for shape, numbers in by_shape.items():
        if _consecutive(numbers):
            factors = ratios[numbers[0] : numbers[-1] + 1]
        else:
            factors = torch.stack([ratios[number] for number in numbers])
        stacked = torch.stack([updates[number] for number in numbers])
        scaled += stacked.mul_(factors.view(-1, *(1 for _ in shape))).unbind()
        small += [weights[number] for number in numbers]
    if small:
        torch._foreach_add_(small, scaled, alpha=rate)


def _consecutive(numbers: list[int]) -> bool:
    return numbers[-1] - numbers[0] + 1 == len(numbers)


def _chunks(tensors: list[_Tensors]) -> Iterator[list[_Tensors]]:
    """Yield tensors in groups of up to `_CHUNK` elements; a larger tensor is a group of its own."""
    chunk: list[_Tensors] = []
    elements = 0
    for one in tensors:
        if chunk and elements + one.weight.numel() > _CHUNK:
            yield chunk
            chunk, elements = [], 0
        chunk.append(one)
        elements += one.weight.numel()
    if chunk:
        yield chunk


def _ratios(weights: Tensor, updates: Tensor) -> Tensor:
    """Return |w| / |u| from both norms; 1 where either is zero."""
    # A tensor of zeros, such as a bias at the start, would otherwise never move: its ratio would be 0. The branch is a
    # masked_fill, since an `if` would read the norms on the host.
    return (weights / updates).masked_fill((weights == 0) | (updates == 0), 1.0)


def l2_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return the L2 norms of tensors, [len(tensors)].

    On the CPU torch sums squares one after another: in fp32 the norm of an embedding table of 23 M elements is 0.13%
    too small and depends on the number of threads. There, a norm is the norm of the norms of blocks, which is correct
    to 1e-6 for any number of threads. GPU kernels sum in blocks themselves.
    """
    if all(tensor.is_cuda for tensor in tensors):
        return torch.stack(torch._foreach_norm(list(tensors)))
    return torch.stack([_norm_by_blocks(tensor.reshape(-1)) for tensor in tensors])


def _norm_by_blocks(flat: Tensor) -> Tensor:
    return _joint_norm([_block_norms(flat)], flat)


def _block_norms(flat: Tensor) -> Tensor:
    """Return the norms of the whole blocks of a vector, [blocks]."""
    return torch.linalg.vector_norm(flat[: len(flat) // _BLOCK * _BLOCK].view(-1, _BLOCK), dim=1)


def _joint_norm(blocks: list[Tensor], flat: Tensor) -> Tensor:
    """Return the norm of a vector from those of its whole blocks and from its rest."""
    rest = torch.linalg.vector_norm(flat[len(flat) // _BLOCK * _BLOCK :])
    return torch.linalg.vector_norm(torch.cat([*blocks, rest[None]]))


@torch.no_grad()
def clip_by_global_norm_(grads: Sequence[Tensor], max_norm: float) -> Tensor:
    """Scale gradients in place so that their joint L2 norm is at most `max_norm`.

    NVLAMB, step 2: g / (norm / max_norm) where norm > max_norm, else g unchanged; no epsilon. Call it once per
    optimizer step, after accumulation, reduction and unscaling. It does not wait for the device.

    Args:
        grads: at least one gradient, all on one device. If one is not finite, neither is the returned norm, and
            `grads` must not be used.
        max_norm: the bound; math.inf to measure only.

    Returns:
        The norm before clipping, a 0-dim tensor.
    """
    grads = list(grads)
    norm = torch.linalg.vector_norm(l2_norms(grads))
    # On a GPU always divide: the comparison would make the host wait for the device. On the CPU reading the norm is
    # free, and dividing by 1 is not. `not <=`, so that NaN takes the branch too.
    if norm.is_cuda or not norm <= max_norm:
        torch._foreach_div_(grads, (norm / max_norm).clamp(min=1.0))
    return norm
