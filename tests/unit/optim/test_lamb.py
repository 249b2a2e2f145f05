"""LAMB against the published algorithm, reimplemented here in fp64 numpy."""

from __future__ import annotations

import io
import itertools
import math

import numpy as np
import pytest
import torch

from train_jobs.optim.lamb import Lamb, clip_by_global_norm_

Array = np.ndarray
SHAPES = {"matrix": (48, 64), "vector": (64,), "scalar": (), "zero_weights": (16, 8), "zero_grads": (8, 16)}
STEPS = 100
SWITCHES = list(itertools.product((True, False), (True, False), (0.01, 0.0)))


def reference(
    weight: Array, grads: list[Array], *, lr: float, decay: float, correct: bool, trust: bool, eps: float = 1e-6
) -> Array:
    """Return one tensor after NVLAMB steps as in its figure, except for eps outside of the root."""
    weight, m, v = weight.copy(), np.zeros_like(weight), np.zeros_like(weight)
    for t, grad in enumerate(grads, start=1):
        m = 0.9 * m + 0.1 * grad
        v = 0.999 * v + 0.001 * np.square(grad)
        m_hat, v_hat = (m / (1 - 0.9**t), v / (1 - 0.999**t)) if correct else (m, v)
        u = m_hat / (np.sqrt(v_hat) + eps) + decay * weight
        w_norm, u_norm = math.sqrt(np.sum(weight**2)), math.sqrt(np.sum(u**2))
        ratio = w_norm / u_norm if trust and w_norm and u_norm else 1.0
        weight = weight - lr * ratio * u
    return weight


def problem(seed: int = 0) -> tuple[dict[str, Array], dict[str, list[Array]]]:
    """Return weights and a fixed sequence of gradients, exact in fp32 so that both precisions get the same."""
    rng = np.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> Array:
        return np.asarray(rng.normal(size=shape), dtype=np.float32).astype(np.float64)

    weights = {name: draw(shape) * 0.0625 for name, shape in SHAPES.items()}
    weights["zero_weights"] *= 0
    grads = {name: [draw(shape) * 0.125 for _ in range(STEPS)] for name, shape in SHAPES.items()}
    grads["zero_grads"] = [grad * 0 for grad in grads["zero_grads"]]
    return weights, grads


def parameters(weights: dict[str, Array], dtype: torch.dtype) -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter(torch.tensor(value, dtype=dtype)) for name, value in weights.items()}


def run(optimizer: Lamb, params: dict[str, torch.nn.Parameter], grads: dict[str, list[Array]], steps: range) -> None:
    for index in steps:
        for name, parameter in params.items():
            parameter.grad = torch.tensor(grads[name][index], dtype=parameter.dtype, device=parameter.device)
        optimizer.step()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize(("correct", "trust", "decay"), SWITCHES)
def test_open_loop_matches_published_algorithm(
    dtype: torch.dtype, tolerance: float, correct: bool, trust: bool, decay: float
) -> None:
    weights, grads = problem()
    params = parameters(weights, dtype)
    lr = 0.005
    optimizer = Lamb(params.values(), lr=lr, weight_decay=decay, bias_correction=correct, trust_ratio=trust)
    run(optimizer, params, grads, range(STEPS))
    for name, start in weights.items():
        expected = reference(start, grads[name], lr=lr, decay=decay, correct=correct, trust=trust)
        actual = params[name].detach().double().numpy()
        error = np.linalg.norm(actual - expected)
        assert error <= tolerance * np.linalg.norm(expected), (name, error / np.linalg.norm(expected))
        moves = name != "zero_grads" or decay > 0
        assert moves == (not np.array_equal(actual, start)), name


def test_first_step_matches_manual_result() -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
    weight.grad = torch.tensor([1.0, -1.0], dtype=torch.float64)
    Lamb([weight], lr=0.1, eps=1e-30, weight_decay=0.0).step()
    # the direction is the sign (1, -1), of norm sqrt 2; the weights have norm 5
    move = 0.1 * 5 / math.sqrt(2)
    assert weight.tolist() == pytest.approx([3 - move, 4 + move], rel=1e-14)


def test_trust_ratio_is_not_clipped() -> None:
    weight = torch.nn.Parameter(torch.full((4,), 1e4, dtype=torch.float64))
    weight.grad = torch.full((4,), 1e-3, dtype=torch.float64)
    Lamb([weight], lr=0.1, eps=1e-30, weight_decay=0.0).step()
    assert weight.tolist() == pytest.approx([0.9e4] * 4, rel=1e-12)


def test_eps_is_outside_of_root() -> None:
    weight = torch.nn.Parameter(torch.tensor(0.0, dtype=torch.float64))
    weight.grad = torch.tensor(2.0, dtype=torch.float64)
    Lamb([weight], lr=1.0, eps=0.5, weight_decay=0.0).step()
    assert weight.item() == pytest.approx(-2 / (2 + 0.5), rel=1e-14)


def test_group_options_and_later_rate_apply() -> None:
    weights, grads = problem()
    params = parameters({name: weights[name] for name in ("matrix", "vector")}, torch.float64)
    plain = {"params": [params["vector"]], "weight_decay": 0.0, "trust_ratio": False}
    optimizer = Lamb([{"params": [params["matrix"]]}, plain], lr=1.0, weight_decay=0.01)
    for group in optimizer.param_groups:
        group["lr"] = 0.002
    run(optimizer, params, grads, range(STEPS))
    for name, decay, trust in (("matrix", 0.01, True), ("vector", 0.0, False)):
        expected = reference(weights[name], grads[name], lr=0.002, decay=decay, correct=True, trust=trust)
        np.testing.assert_allclose(params[name].detach().numpy(), expected, rtol=1e-11, atol=1e-14)


def test_state_round_trip_resumes_bit_exactly() -> None:
    weights, grads = problem()
    straight = parameters(weights, torch.float32)
    run(Lamb(straight.values(), lr=0.005), straight, grads, range(STEPS))

    first = parameters(weights, torch.float32)
    stopped = Lamb(first.values(), lr=0.005)
    run(stopped, first, grads, range(40))
    stream = io.BytesIO()
    torch.save(stopped.state_dict(), stream)
    stream.seek(0)
    second = {name: torch.nn.Parameter(value.detach().clone()) for name, value in first.items()}
    resumed = Lamb(second.values(), lr=123.0)  # the state contains the learning rate
    resumed.load_state_dict(torch.load(stream, map_location="cpu", weights_only=True))
    run(resumed, second, grads, range(40, STEPS))
    for name, value in straight.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_step_never_synchronises_even_after_resume() -> None:
    weights, grads = problem()
    params = {name: torch.nn.Parameter(value.cuda()) for name, value in parameters(weights, torch.float32).items()}
    optimizer = Lamb(params.values(), lr=0.005)
    run(optimizer, params, grads, range(STEPS - 1))
    state = io.BytesIO()
    torch.save(optimizer.state_dict(), state)
    state.seek(0)
    resumed = Lamb(params.values(), lr=0.005)
    resumed.load_state_dict(torch.load(state, map_location="cpu", weights_only=True))
    for name, parameter in params.items():
        parameter.grad = torch.tensor(grads[name][-1], dtype=torch.float32, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        clip_by_global_norm_([parameter.grad for parameter in params.values()], math.inf)
        resumed.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for name, start in weights.items():
        expected = reference(start, grads[name], lr=0.005, decay=0.01, correct=True, trust=True)
        np.testing.assert_allclose(params[name].detach().cpu().numpy(), expected, rtol=1e-4, atol=1e-6)


def test_parameter_without_gradient_is_unchanged() -> None:
    still, moving = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    moving.grad = torch.ones(3)
    optimizer = Lamb([still, moving], lr=0.1)
    optimizer.step()
    assert torch.equal(still, torch.ones(3))
    assert not torch.equal(moving, torch.ones(3))
    still.grad = torch.ones(3)
    optimizer.step()  # its own bias-corrected first step, while the other is at its second
    assert [optimizer.state[parameter]["step"].item() for parameter in (still, moving)] == [1, 2]
    assert still.tolist() == pytest.approx([0.9] * 3, rel=1e-6)


def test_closure_is_run_with_gradients() -> None:
    weight = torch.nn.Parameter(torch.tensor([2.0]))

    def closure() -> float:
        loss = (weight**2).sum()
        loss.backward()
        return float(loss.detach())

    assert Lamb([weight], lr=0.1).step(closure) == 4.0
    assert weight.item() == pytest.approx(1.8, rel=1e-5)
