"""The model of many GPUs: parts computed by hand, and results compared with published ones."""

from __future__ import annotations

import pytest

from benchmarks.scaling_model import CLUSTERS, PUBLISHED, Cluster, Work, bert_large, share, speedup, step

CLUSTER = Cluster(
    vm="made up",
    gpu="round",
    peak=1e12,
    utilisation=0.5,
    source="none",
    micro_batch=4,
    link=100e9,
    network=10e9,
    memory=1e12,
)
WORK = Work(sequences=160, flops=1e10, parameters=1_000_000, largest=100_000)


def test_parts_of_a_step_match_hand_computation() -> None:
    one, two = step(CLUSTER, WORK, 1), step(CLUSTER, WORK, 2)
    assert (one.passes, two.passes) == pytest.approx((20 * 1e10 / 0.5e12, 10 * 1e10 / 0.5e12))
    assert one.reduction == pytest.approx(2 * 7 / 8 * 4e6 / 88e9)  # inside a node
    assert two.reduction == pytest.approx(2 * 15 / 16 * 4e6 / 8.8e9)  # over the network
    assert one.optimizer == two.optimizer == pytest.approx(32 * 4e6 / 1e12)
    assert one.seconds == one.passes + one.reduction + one.optimizer


def test_network_is_not_faster_than_links_of_a_node() -> None:
    fast = Cluster(**{**vars(CLUSTER), "network": 900e9})
    assert step(fast, WORK, 2).reduction == pytest.approx(2 * 15 / 16 * 4e6 / 88e9)


def test_uneven_shares_wait_for_the_largest() -> None:
    assert (share(WORK, 1), share(WORK, 3)) == (20, 7)
    assert step(CLUSTER, WORK, 3).passes == pytest.approx(7 * 1e10 / 0.5e12)


def test_sharded_optimizer_is_bounded_by_its_largest_tensor() -> None:
    for nodes, part in ((1, 1 / 8), (4, 0.1)):
        gpus, rate = 8 * nodes, 88e9 if nodes == 1 else 8.8e9
        expected = part * 32 * 4e6 / 1e12 + (gpus - 1) / gpus * 4e6 / rate
        assert step(CLUSTER, WORK, nodes, sharded=True).optimizer == pytest.approx(expected)


def test_reduction_per_micro_batch_multiplies_its_cost() -> None:
    whole, often = step(CLUSTER, WORK, 2), step(CLUSTER, WORK, 2, reductions=3)
    assert often.seconds - whole.seconds == pytest.approx(2 * whole.reduction)
    expected = step(CLUSTER, WORK, 1).seconds / often.seconds  # 10 sequences in micro batches of 4
    assert speedup(CLUSTER, WORK, 2, each_micro_batch=True) == pytest.approx(expected)
    assert speedup(CLUSTER, WORK, 1) == 1


def test_bert_large_matches_the_published_model() -> None:
    work = bert_large()
    assert work.parameters == 336_232_258  # with 30,528 rows
    assert work.flops == pytest.approx(240.5e9, rel=1e-3)
    assert (work.largest, work.bytes) == (30_528 * 1024, 4 * 336_232_258)


def test_model_is_near_nvidias_published_throughput() -> None:
    work, (_, cluster, _) = bert_large(), CLUSTERS
    assert cluster.gpu == "A100"
    for nodes, rate in PUBLISHED.items():
        assert work.sequences / step(cluster, work, nodes).seconds == pytest.approx(rate, rel=0.02)
    assert speedup(cluster, work, 8) / 8 == pytest.approx(PUBLISHED[8] / PUBLISHED[1] / 8, abs=0.002)
