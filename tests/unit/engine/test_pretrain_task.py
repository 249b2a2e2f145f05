"""BERT pretraining as a task of the loop, on a real token store: losses, metrics, validation, resuming."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_bert import ALONE, CPU, NO_PAIRS, by_hand, config_with, totals_of

from tests.conftest import write_corpus
from train_jobs.artifacts.metrics_file import read_reports
from train_jobs.artifacts.sequence_figures import SequenceFigures
from train_jobs.assembly.starting_point import resume, trajectory
from train_jobs.config import ConflictError, PretrainConfig, ProfileConfig, SpecError
from train_jobs.corpus.examples.batches import Batch
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.checkpoint.checkpoints import Cadence, CheckpointStore
from train_jobs.engine.loop.loop import Loop
from train_jobs.engine.loop.policy import LoopPolicy, LoopServices
from train_jobs.engine.reporting.metrics import MetricsLog, ProgressLine
from train_jobs.engine.reporting.profiler import StepProfiler
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.optim.factory import build_optimizer
from train_jobs.pretrain import describe, pretrain, read_config
from train_jobs.tasks.pretraining import BertPretraining


def test_counts_are_masked_tokens_and_pairs(store: TokenStore) -> None:
    task = BertPretraining(config_with(), store, ALONE)
    batch, _ = task.train_batch({})
    masked = int((batch.masked_labels != -100).sum())
    assert task.counts(batch) == [masked, 6]
    assert 6 <= masked < batch.masked_labels.size, "some slots are padding"
    assert BertPretraining(config_with(**NO_PAIRS), store, ALONE).counts(batch) == [masked]


OF_ONE_DOCUMENT = {"objective": {"next_sentence": False, "sequences": "doc-sentences"}}


@pytest.mark.parametrize("sections", [{}, OF_ONE_DOCUMENT])
@pytest.mark.parametrize("micro", [1, 4, 6])
def test_micro_batch_losses_sum_to_global_mean(store: TokenStore, sections: dict[str, Any], micro: int) -> None:
    task = BertPretraining(config_with(**sections), store, ALONE)
    task.model.eval()
    batch, _ = task.train_batch({})
    assert batch.lengths.min() < 32, "some sequences are padded"
    totals = totals_of(task, batch)
    parts = [task.loss(batch.slice(start, min(start + micro, 6)), totals) for start in range(0, 6, micro)]
    loss = sum(part.item() for part, _ in parts)
    mlm, nsp = (value.item() for value in by_hand(task, batch))
    assert loss == pytest.approx(mlm + (0 if sections else nsp), rel=1e-5)
    metrics = task.metrics(sum(sums for _, sums in parts).tolist())  # type: ignore[union-attr]
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["mlm_loss"] == pytest.approx(mlm, rel=1e-5)
    assert ("nsp_loss" in metrics) == (not sections)


def test_micro_batch_gradients_sum_to_global_mean(store: TokenStore) -> None:
    task = BertPretraining(config_with(), store, ALONE)
    batch, _ = task.train_batch({})
    parameters = list(task.model.parameters())
    expected = torch.autograd.grad(sum(by_hand(task, batch)), parameters)
    totals = totals_of(task, batch)
    for start in range(6):
        task.loss(batch.slice(start, start + 1), totals)[0].backward()
    torch.testing.assert_close([p.grad for p in parameters], list(expected), rtol=1e-4, atol=1e-7)


def tokens_computed(task: BertPretraining, batch: Batch) -> int:
    """Return the number of tokens that the first layer processes, including computed padding."""
    seen: list[torch.Size] = []
    layer = task.model.get_submodule("bert.encoder.layer.0")
    with_hook = layer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape[:-1]))
    task.loss(batch, totals_of(task, batch))
    with_hook.remove()
    return seen[0].numel()


def test_padding_is_computed_only_if_configured(store: TokenStore) -> None:
    """One micro batch, so that rounding does not hide the difference."""
    wanted = {"global_batch_size": 64, "micro_batch_size": 64}
    without = BertPretraining(config_with(train=wanted), store, ALONE)
    batch, _ = without.train_batch({})
    everything = BertPretraining(config_with(train={**wanted, "unpad": False}), store, ALONE)
    assert tokens_computed(everything, batch) == 64 * 32
    assert batch.tokens < tokens_computed(without, batch) <= batch.tokens + 64 < 64 * 32
    losses = [task.loss(batch, totals_of(task, batch))[0].item() for task in (without, everything)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_model_with_own_forward_gets_padding(
    store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain_bert.py").write_text(
        "from train_jobs.models.bert.pretraining_heads import BertForPreTraining\n"
        "class PlainBert(BertForPreTraining):\n"
        "    def forward(self, input_ids, token_type_ids, attention_mask=None, masked_positions=None):\n"
        "        return super().forward(input_ids, token_type_ids, attention_mask, masked_positions)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    task = BertPretraining(config_with(model={"name": "plain_bert:PlainBert"}), store, ALONE)
    batch, _ = task.train_batch({})
    assert tokens_computed(task, batch) == batch.input_ids.size


def test_metrics_are_means_over_counts(store: TokenStore) -> None:
    task = BertPretraining(config_with(), store, ALONE)
    found = task.metrics([30.0, 5.0, 10.0, 4.0, 6.0, 8.0])
    assert found == {"loss": 3.5, "mlm_loss": 3.0, "mlm_accuracy": 0.5, "nsp_loss": 0.5, "nsp_accuracy": 0.75}
    without = BertPretraining(config_with(**NO_PAIRS), store, ALONE)
    assert without.metrics([30.0, 5.0, 10.0]) == {"loss": 3.0, "mlm_loss": 3.0, "mlm_accuracy": 0.5}


def test_next_sentence_head_frozen_without_objective(store: TokenStore) -> None:
    task = BertPretraining(config_with(**NO_PAIRS), store, ALONE)
    frozen = {name for name, parameter in task.model.named_parameters() if not parameter.requires_grad}
    assert frozen == {
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
    }
    batch, _ = task.train_batch({})
    task.loss(batch, totals_of(task, batch))[0].backward()
    assert all(p.grad is not None for p in task.model.parameters() if p.requires_grad)


def test_process_shares_form_one_global_batch(store: TokenStore) -> None:
    whole, after = BertPretraining(config_with(), store, ALONE).train_batch({})
    worlds = [World(rank=rank, local_rank=rank, size=4, device=CPU) for rank in range(4)]
    shares = [BertPretraining(config_with(), store, world).train_batch({}) for world in worlds]
    assert all(cursor == after for _, cursor in shares)
    assert sorted(len(batch) for batch, _ in shares) == [1, 1, 2, 2]
    joined = np.concatenate([batch.input_ids for batch, _ in shares])
    assert np.array_equal(joined, whole.input_ids)


def test_cursor_survives_json_and_resumes(store: TokenStore) -> None:
    task = BertPretraining(config_with(), store, ALONE)
    first, cursor = task.train_batch({})
    second, _ = task.train_batch(cursor)
    assert not np.array_equal(first.input_ids, second.input_ids)
    again, _ = BertPretraining(config_with(), store, ALONE).train_batch(cursor)
    assert np.array_equal(second.input_ids, again.input_ids)
    assert all(type(value) is int for value in cursor.values())


def test_equal_seeds_give_equal_weights_on_every_process(store: TokenStore) -> None:
    def weights(seed: int, rank: int) -> torch.Tensor:
        world = World(rank=rank, local_rank=rank, size=2, device=CPU)
        model = BertPretraining(config_with(train={"seed": seed}), store, world).model
        return torch.cat([parameter.flatten() for parameter in model.parameters()])

    assert torch.equal(weights(1, 0), weights(1, 1))
    assert not torch.equal(weights(1, 0), weights(2, 0))


def test_validation_same_for_any_training_seed(store: TokenStore) -> None:
    task = BertPretraining(config_with(), store, ALONE)
    other = BertPretraining(config_with(train={"seed": 1, "micro_batch_size": 3}), store, ALONE)
    other.model.load_state_dict(task.model.state_dict())
    with torch.no_grad():
        task.model.eval()
        other.model.eval()
        first = task.validate(4)
        torch.manual_seed(99)
        task.train_batch({})
        assert task.validate(4) == first
        assert other.validate(4) == pytest.approx(first, rel=1e-5)


def test_each_validation_batch_is_progress(store: TokenStore) -> None:
    world = World(rank=0, local_rank=0, size=1, device=CPU)
    task = BertPretraining(config_with(), store, world)
    task.model.eval()
    with torch.no_grad():
        task.validate(4)
    assert world.activity.beats == 5  # 20 sequences in micro batches of 4


def test_untrained_model_loss_equals_guessing(store: TokenStore) -> None:
    task = BertPretraining(config_with(), store, ALONE)
    task.model.eval()
    with torch.no_grad():
        found = task.validate(4)
    assert found["mlm_loss"] == pytest.approx(math.log(task.model.vocab_size), abs=0.1)
    assert found["nsp_loss"] == pytest.approx(math.log(2), abs=0.05)
    assert found["unigram_entropy"] == pytest.approx(store.manifest.validation_unigram_entropy, abs=0.5)
    assert 0 < found["unigram_entropy"] < math.log(store.manifest.vocab_size)


def test_largest_batch_full_except_one_masked_sequence(store: TokenStore) -> None:
    task = BertPretraining(config_with(), store, ALONE)
    batch = task.largest_batch(3)
    real, _ = task.train_batch({})
    assert {name: array.shape[1:] for name, array in batch.arrays().items()} == {
        name: array.shape[1:] for name, array in real.arrays().items()
    }
    assert [array.dtype for array in batch.arrays().values()] == [array.dtype for array in real.arrays().values()]
    assert batch.lengths.tolist() == [31, 32, 32]
    assert task.counts(batch) == [3 * batch.masked_labels.shape[1], 3]
    loss, _ = task.loss(batch, totals_of(task, batch))
    loss.backward()
    assert math.isfinite(loss.item())


def loop_for(config: PretrainConfig, store: TokenStore, output: Path, device: str = "cpu") -> Loop:
    """Return the loop that pretrain would build."""
    task = BertPretraining(config, store, ALONE)
    return Loop(
        task,
        build_optimizer(config.optimizer, task.model.named_parameters()),
        ALONE,
        LoopPolicy(
            config=config.train,
            precision="fp32",
            schedule=lambda step, time_used: 1e-3,
            max_grad_norm=1.0,
            validate_every=config.validation.every,
            checkpoint_extra={
                "config": trajectory(config, store.manifest.key),
                "threads": torch.get_num_threads(),
                "device": device,
            },
        ),
        LoopServices(
            cadence=Cadence(config.checkpoint),
            checkpoints=CheckpointStore(output / "checkpoints", keep_last=2),
            metrics=MetricsLog(None),
            progress=ProgressLine(config.train.steps),
            stop=StopRequest(),
            profiler=StepProfiler(ProfileConfig(), ALONE, None),
        ),
    )


def test_loop_trains_on_mean_of_means_reports_global_mean(store: TokenStore, tmp_path: Path) -> None:
    train = {"steps": 1, "loss_normalization": "micro_batch"}  # 6 sequences in micro batches of 4 and 2
    loop = loop_for(config_with(train=train), store, tmp_path)
    loop.policy = replace(loop.policy, max_grad_norm=None)  # clipping would change the gradients
    task = loop.task
    assert isinstance(task, BertPretraining)
    whole, _ = task.train_batch({})
    task.model.train()
    micro_batches = [whole.slice(0, 4), whole.slice(4, 6)]
    loss = sum(sum(by_hand(task, batch)) for batch in micro_batches) / 2
    expected = torch.autograd.grad(loss, list(task.model.parameters()))
    mlm, nsp = (value.item() for value in by_hand(task, whole))
    loop.services = replace(loop.services, metrics=MetricsLog(tmp_path / "metrics.jsonl"))
    loop.services.metrics.open(from_step=0)
    loop.run()
    loop.services.metrics.close()
    torch.testing.assert_close(loop.gradients.flat, torch.cat([gradient.flatten() for gradient in expected]))
    reported = next(read_reports(tmp_path / "metrics.jsonl"))[1]["metrics"]
    assert reported["train_mlm_loss"] == pytest.approx(mlm, rel=1e-5)
    assert reported["train_loss"] == pytest.approx(mlm + nsp, rel=1e-5)


@pytest.fixture
def used(store: TokenStore, tmp_path: Path) -> Path:
    """Return the output folder of a completed run."""
    loop = loop_for(config_with(), store, tmp_path)
    loop.run()
    return tmp_path


def test_new_folder_starts_at_first_step(store: TokenStore, tmp_path: Path) -> None:
    loop = loop_for(config_with(), store, tmp_path)
    resume(loop, config_with())
    assert loop.state.step == 0


@pytest.mark.parametrize(
    "sections",
    [
        *({}, {"validation": {"every": 2}}, {"checkpoint": {"every": 3, "keep_last": 5}}, {"train": {"log_every": 1}}),
        {"card": {"license": "mit"}},
        {"optimizer": {"sharded": True}},
        {"metrics": {"tensorboard": True}, "profile": {"steps": 1}, "watchdog": {"hang_minutes": 1}},
    ],
)
def test_used_folder_is_resumed(
    store: TokenStore, used: Path, sections: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_with(**sections)
    loop = loop_for(config, store, used)
    resume(loop, config)
    assert loop.state.step == 4
    assert "resumed at step 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"optimizer": {"learning_rate": 0.5}}, "optimizer.learning_rate: 0.006 -> 0.5"),
        ({"train": {"steps": 8}}, "train.steps: 4 -> 8"),
        ({"train": {"loss_normalization": "micro_batch"}}, "train.loss_normalization: global -> micro_batch"),
        ({"train": {"seed": 1}}, "train.seed: 42 -> 1"),
        ({"objective": {"next_sentence": False}}, "objective.next_sentence: True -> False"),
        ({"objective": {"whole_word": True}}, "objective.whole_word: False -> True"),
        ({"objective": {"duplicates": 5}}, "objective.duplicates: None -> 5"),
        ({"data": {"short_sequence_probability": 0.0}}, "data.short_sequence_probability: 0.5 -> 0.0"),
        ({"init_from": "/some/bert"}, "start.init_from: False -> True"),
    ],
)
def test_resume_with_incompatible_config_is_refused(
    store: TokenStore, used: Path, sections: dict[str, Any], named: str
) -> None:
    config = config_with(**sections)
    loop = loop_for(config, store, used)
    with pytest.raises(ConflictError) as caught:
        resume(loop, config)
    assert caught.value.facts["changed"] == named
    assert loop.state.step == 0


def with_means(micro: int | None) -> PretrainConfig:
    """Return a configuration whose loss is the mean of the means of micro batches."""
    return config_with(train={"micro_batch_size": micro, "loss_normalization": "micro_batch"})


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [(4, None, "4 -> 32"), (4, 32, "4 -> 32"), (4, 2, "4 -> 2"), (None, 4, "32 -> 4")],
)
def test_other_micro_batch_of_mean_of_means_is_refused(
    store: TokenStore, tmp_path: Path, before: int | None, after: int | None, named: str
) -> None:
    loop_for(with_means(before), store, tmp_path).run()
    again = loop_for(with_means(after), store, tmp_path)
    with pytest.raises(ConflictError) as caught:
        resume(again, with_means(after))
    assert caught.value.facts["changed"] == f"train.micro_batch_size: {named}"


@pytest.mark.parametrize(("before", "after"), [(32, None), (None, 32), (None, None)])
def test_default_micro_batch_of_mean_of_means_is_kept(
    store: TokenStore, tmp_path: Path, before: int | None, after: int | None
) -> None:
    loop_for(with_means(before), store, tmp_path).run()
    again = loop_for(with_means(after), store, tmp_path)
    resume(again, with_means(after))
    assert (again.state.step, again.micro_batch_size) == (4, 32)


def test_micro_batch_in_use_is_compared(store: TokenStore, tmp_path: Path) -> None:
    """A checkpoint whose configuration names no micro batch has the size that its loop used."""
    config = with_means(None)
    loop = loop_for(config, store, tmp_path)
    loop.state.micro_batch_size = 4
    loop.run()
    with pytest.raises(ConflictError) as caught:
        resume(loop_for(config, store, tmp_path), config)
    assert caught.value.facts["changed"] == "train.micro_batch_size: 4 -> 32"


@pytest.mark.parametrize(("device", "expected"), [("cpu", 2), ("NVIDIA H200", None)])
def test_probed_micro_batch_is_kept_on_same_device(
    store: TokenStore, tmp_path: Path, device: str, expected: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_with(train={"micro_batch_size": "auto"})
    loop = loop_for(config, store, tmp_path, device)
    loop.state.micro_batch_size = 2
    loop.run()
    again = loop_for(config, store, tmp_path)
    resume(again, config)
    assert again.state.micro_batch_size == expected
    again.find_micro_batch([3])
    assert again.micro_batch_size == (expected or 3)
    assert ("device NVIDIA H200 -> cpu" in capsys.readouterr().out) == (expected is None)


@pytest.mark.parametrize(
    ("kind", "normalization", "given", "origin"),
    [
        ("cpu", "global", 32, "the default on CPUs"),
        ("cuda", "global", None, "auto, the default on GPUs"),
        ("cuda", "micro_batch", 32, "the default with loss_normalization=micro_batch"),
    ],
)
def test_loop_takes_default_micro_batch_of_device(
    store: TokenStore, tmp_path: Path, kind: str, normalization: str, given: int | None, origin: str
) -> None:
    config = config_with(train={"micro_batch_size": None, "loss_normalization": normalization})
    loop = loop_for(config, store, tmp_path)
    loop.world = replace(loop.world, device=torch.device(kind))
    assert (loop.given_micro_batch, loop.micro_batch_origin) == (given, origin)


def test_default_micro_batch_of_gpu_is_not_kept_on_cpu(store: TokenStore, tmp_path: Path) -> None:
    config = config_with(train={"micro_batch_size": None})
    loop = loop_for(config, store, tmp_path, "NVIDIA H200")
    loop.state.micro_batch_size = 2  # as the search found it there
    loop.run()
    again = loop_for(config, store, tmp_path)
    resume(again, config)
    assert again.micro_batch_size == 32


def test_run_with_former_default_micro_batch_resumes(store: TokenStore, tmp_path: Path) -> None:
    """Checkpoints of earlier versions contain 32 where the configuration had no micro batch."""
    before = config_with(train={"micro_batch_size": 32})
    loop_for(before, store, tmp_path).run()
    now = config_with(train={"micro_batch_size": None})
    again = loop_for(now, store, tmp_path)
    resume(again, now)
    assert again.state.step == before.train.steps
    assert again.micro_batch_size == 32


def test_start_prints_probed_micro_batch(store: TokenStore, tmp_path: Path) -> None:
    config = config_with(train={"micro_batch_size": "auto", "global_batch_size": 8})
    loop = loop_for(config, store, tmp_path)
    loop.state.micro_batch_size = 4
    figures = SequenceFigures(
        sequence_length=32, layout="pairs", tokens_per_sequence=28.4, text_used=0.876, random_pairs=0.561
    )
    description = describe(config, store, loop, figures)
    assert "sequences  28 of 32 tokens on average, 88% of the text used per pass, 56% of pairs random" in description
    assert "batch      8 sequences = 4 micro (auto) x 2 accumulation x 1 processes" in description.splitlines()


def test_resume_never_refuses_used_folder(store: TokenStore, used: Path) -> None:
    config = config_with(resume="never")
    with pytest.raises(ConflictError, match="resume is never"):
        resume(loop_for(config, store, used), config)


def test_trajectory_ignores_location_of_text() -> None:
    here, there = (config_with(data={"text": [place]}) for place in ("/here/a.txt", "/there/a.txt"))
    assert trajectory(here, "store") == trajectory(there, "store")
    assert trajectory(here, "store") != trajectory(here, "another")  # the contents do


def test_trajectory_ignores_path_of_initial_model() -> None:
    here, there, none = (config_with(init_from=place) for place in ("/here/bert", "/there/bert", None))
    assert trajectory(here, "store") == trajectory(there, "store") != trajectory(none, "store")


def test_config_is_read_from_recipe_or_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("train:\n  steps: 3\n")
    assert read_config(str(path), []).train.steps == 3
    assert read_config(str(path), ["train.steps=5"]).train.steps == 5
    assert read_config("tiny", ["train.seed=7"]).train.seed == 7
    with pytest.raises(SpecError):
        read_config(str(path), ["train.stpes=5"])


def test_indivisible_batch_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(StopRequest, "listen", lambda self: None)  # pytest keeps its SIGTERM handler
    config = config_with(data={"text": [str(write_corpus(tmp_path / "corpus.txt"))]})
    with pytest.raises(SpecError, match="does not divide"):
        pretrain(config, output=tmp_path / "out", cache=tmp_path / "cache", device="cpu")
    assert not (tmp_path / "out" / "checkpoints").exists()
    assert not (tmp_path / "cache").exists()  # nothing is prepared for an impossible run
