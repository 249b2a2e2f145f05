"""User-defined classes: valid names, refusals of the job, and the results of the examples."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.conftest import MICRO, write_corpus
from train_jobs.artifacts.layers import ConfigLayer, build, merge, read_assignments, read_preset, read_text
from train_jobs.assembly.parts import export_settings, load_parts
from train_jobs.config import DataError, ModelConfig, PretrainConfig, SpecError, TrainingError
from train_jobs.corpus.examples.pairs import with_checks
from train_jobs.corpus.preparation import prepare_store
from train_jobs.corpus.store.token_store import TokenStore
from train_jobs.engine.checkpoint.checkpoints import CheckpointStore
from train_jobs.engine.runtime.distributed import World
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.models.bert.pretraining_heads import BertForPreTraining
from train_jobs.models.huggingface import TokenizerFiles, export
from train_jobs.optim.factory import parameter_groups
from train_jobs.pretrain import main
from train_jobs.tasks.pretraining import BertPretraining

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
ALONE = World(rank=0, local_rank=0, size=1, device=torch.device("cpu"))
SHAPE = {key: value for key, value in MICRO["model"].items() if key != "hidden_dropout_prob"}


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield an importable folder, like the snapshot, with the examples also on the path."""
    before = set(sys.modules)
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in set(sys.modules) - before:
        place = getattr(sys.modules[name], "__file__", None)
        if place and Path(place).parent in (folder, EXAMPLES):
            del sys.modules[name]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """Return the store of a small text."""
    folder = tmp_path_factory.mktemp("own")
    data = {**MICRO["data"], "text": [str(write_corpus(folder / "corpus.txt"))]}
    config = PretrainConfig.model_validate({"data": data})
    return prepare_store(config.data, folder / "store", progress=lambda _: None)


def config_with(**sections: Any) -> PretrainConfig:
    layer = ConfigLayer(
        "test", {"model": SHAPE, "data": MICRO["data"], "train": {**MICRO["train"], "precision": "fp32"}}
    )
    return build(PretrainConfig, merge([layer, ConfigLayer("given", sections)]))


def refused(**sections: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        load_parts(config_with(**sections))
    return caught.value


def test_plain_text_sets_name_and_keeps_other_settings() -> None:
    written = read_text("optimizer: lion:Lion\nschedule: cosine\n", "job.yaml")
    sets = read_assignments(["optimizer.learning_rate=0.5", "objective=my.own:Goal", "optimizer=lion:Lion2"], "--set")
    merged = merge([*read_preset("base"), written, sets])
    config = build(PretrainConfig, merged)
    assert (config.optimizer.name, config.optimizer.learning_rate, config.optimizer.eps) == ("lion:Lion2", 0.5, 1e-6)
    assert (config.schedule.name, config.schedule.warmup_fraction) == ("cosine", 0.01)
    assert (config.objective.name, config.model.name) == ("my.own:Goal", "bert")
    assert str(merged.origin(("schedule", "name"))) == "job.yaml:2"


@pytest.mark.parametrize("name", ["lion", "lion:", ":Lion", "a/b:C", "a.b:c.d", "1a:B", "a..b:C", "a:B C"])
def test_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        config_with(optimizer=name)
    (problem,) = caught.value.problems
    assert problem.startswith("given: optimizer.name: must be adamw, lamb or MODULE:NAME of your own code")


def test_misspelled_name_is_suggested_and_options_refused() -> None:
    with pytest.raises(SpecError) as caught:
        config_with(optimizer="adam", schedule={"options": {"power": 2}})
    assert 'did you mean "adamw"?' in caught.value.problems[0]
    assert "options are only for a class or function of your own, and name is polynomial" in caught.value.problems[1]


def test_missing_module_or_name_lists_known_ones(code: Path) -> None:
    gone = refused(optimizer="my_lion:Lion")
    assert gone.message == "optimizer.name: no module my_lion"
    assert gone.fix == "give the folder of my_lion.py: --code DIR"
    assert refused(optimizer="lion.inner:Lion").message == "optimizer.name: no module lion.inner"
    name = refused(optimizer="lion:Loin")
    assert name.message == 'optimizer.name: lion has no Loin (did you mean "Lion"?)'
    assert "Lion" in str(name.facts["known"])
    (code / "broken.py").write_text("import no_such_package\n")
    broken = refused(schedule="broken:rate")
    assert broken.message == "schedule.name: cannot import broken"
    assert "No module named 'no_such_package'" in str(broken.facts["why"])


def test_unsuitable_object_states_requirements(code: Path) -> None:
    (code / "odd.py").write_text(
        "import torch\n"
        "number = 3\n"
        "def no_optimizer(params, *, lr): return 7\n"
        "def rate(*, step): return 1.0\n"
        "def text(**progress): return 'fast'\n"
        "def nan(**progress): return float('nan')\n"
        "def fails(**progress): raise ZeroDivisionError('oh')\n"
        "def no_model(config, rows): pass\n"
        "class Blank: pass\n"
        "class Labels: labels = {'mlm': 'input_ids'}\n"
        "class NoPlan:\n    labels = {'mlm': 'masked_labels'}\n    def losses(self, model, batch, *, padded): ...\n"
        "class Narrow(NoPlan):\n    def plan(self, block): ...\n"
        "class NoLosses:\n    labels = {'mlm': 'masked_labels'}\n    def plan(self, block, **given): ...\n"
        "class Other(torch.nn.Module):\n    def __init__(self, config, rows): super().__init__()\n"
    )
    assert refused(optimizer="odd:number").message == "optimizer.name: odd:number is of type int"
    assert (
        refused(optimizer="odd:no_optimizer").message
        == "optimizer.name: odd:no_optimizer returns an object of type int"
    )
    options = refused(optimizer={"name": "lion:Lion", "options": {"momentum": 1}})
    assert "unexpected keyword argument 'momentum'" in options.message
    assert "betas" in str(options.facts["have"])
    assert refused(optimizer={"name": "torch.optim:RAdam", "options": {"eps": -1.0}}).message.startswith(
        "optimizer: torch.optim:RAdam failed: ValueError: Invalid epsilon"
    )
    assert "unexpected keyword argument 'total_steps'" in refused(schedule="odd:rate").message
    assert refused(schedule="odd:text").facts["have"] == "'fast' at step 1"
    assert refused(schedule="odd:nan").message == "schedule.name: odd:nan returns an invalid learning rate"
    assert refused(schedule="odd:fails").message == "schedule: odd:fails failed: ZeroDivisionError: oh"
    assert refused(model="odd:no_model").message == "model.name: odd:no_model is not a subclass of torch.nn.Module"
    assert "takes no weights from init_from" in refused(model="odd:Other", init_from="/some/bert").message
    assert "has no valid labels" in refused(objective="odd:Blank").message
    assert refused(objective="odd:Labels").facts["have"] == "{'mlm': 'input_ids'}"
    assert refused(objective="odd:NoPlan").message == "objective.name: odd:NoPlan has no method plan"
    assert refused(objective="odd:NoLosses").message == "objective.name: odd:NoLosses has no method losses"
    assert "cannot call plan of odd:Narrow" in refused(objective="odd:Narrow").message


def test_job_refuses_invalid_class_before_reading_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StopRequest, "listen", lambda self: None)  # pytest keeps its SIGTERM handler
    assert main(["--config", "tiny", "--set", "optimizer=gone:Lion", "--output", str(tmp_path / "out")]) == 2
    assert "error[spec]: optimizer.name: no module gone" in capsys.readouterr().err
    assert not (tmp_path / "out" / "token-stores").exists()


def test_lion_matches_reference() -> None:
    """Algorithm 2 of the paper, in fp64."""
    weight = torch.nn.Parameter(torch.tensor([[0.5, -2.0], [1.0, 0.25]], dtype=torch.float64))
    parts = load_parts(
        config_with(optimizer={"name": "lion:Lion", "options": {"betas": [0.8, 0.9]}, "weight_decay": 0.1})
    )
    optimizer = parts.optimizer([("dense.weight", weight)])
    expected, momentum = weight.detach().clone(), torch.zeros(2, 2, dtype=torch.float64)
    for step, rate in enumerate((0.1, 0.01, 0.02)):
        gradient = torch.tensor([[1.0, -0.5], [0.25, -2.0]], dtype=torch.float64) * (-1) ** step
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = gradient.clone()
        optimizer.step()
        update = torch.sign(0.8 * momentum + 0.2 * gradient)
        expected = expected - rate * (update + 0.1 * expected)
        momentum = 0.9 * momentum + 0.1 * gradient
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=0)


def test_own_optimizer_gets_standard_parameter_groups() -> None:
    task_model = BertForPreTraining(ModelConfig(**SHAPE), 64)
    made = load_parts(config_with(optimizer="lion:Lion")).optimizer(task_model.named_parameters())
    decays = [(group["weight_decay"], group["param_names"]) for group in made.param_groups]
    groups = parameter_groups(task_model.named_parameters(), 0.01)
    assert decays == [(group["weight_decay"], [name for name, _ in group["params"]]) for group in groups]


def test_torch_optimizer_state_restored_from_checkpoint(tmp_path: Path, code: Path) -> None:
    (code / "notes.py").write_text(
        "import torch\n"
        "class Notes(torch.optim.SGD):\n"
        "    def step(self, closure=None):\n"
        "        super().step(closure)\n"
        "        for group in self.param_groups:\n"
        "            for weight in group['params']:\n"
        "                self.state[weight] |= {'seen': [1, [2.5], True], 'bad': self.bad}\n"
        "    bad = None\n"
    )
    weight = torch.nn.Parameter(torch.ones(2, 2))
    for name, keys in (("torch.optim:RAdam", {"step", "exp_avg", "exp_avg_sq"}), ("notes:Notes", {"seen", "bad"})):
        parts = load_parts(config_with(optimizer=name))
        optimizer, again = (parts.optimizer([("dense.weight", weight)]) for _ in range(2))
        weight.grad = torch.ones(2, 2)
        optimizer.step()
        store = CheckpointStore(tmp_path / name.replace(":", "-"), keep_last=1)
        store.save(1, weights={"w": weight.detach()}, optimizer=optimizer.state_dict(), state={})
        found = store.newest()
        assert found is not None
        again.load_state_dict(found.optimizer())
        assert again.state[weight].keys() >= keys
        for key, value in optimizer.state[weight].items():
            kept = again.state[weight][key]
            assert torch.equal(kept, value) if isinstance(value, torch.Tensor) else kept == value
    for bad in ({1, 2}, "text", [1, "text"], {"a": 1}):
        type(optimizer).bad = bad
        optimizer.step()
        with pytest.raises(TrainingError, match="cannot save the state of the optimizer") as caught:
            store.save(2, weights={}, optimizer=optimizer.state_dict(), state={})
        assert caught.value.facts["have"] == f"{bad!r} as dense.weight.bad"


def test_example_schedule_matches_formula() -> None:
    options = {"warmup": 0.25, "decay": 0.5}
    schedule = {"name": "warmup_stable_decay:warmup_stable_decay", "options": options}
    parts = load_parts(config_with(schedule=schedule, optimizer={"learning_rate": 2.0}, train={"steps": 8}))
    assert [parts.schedule(step, 0.0) for step in range(8)] == [1.0, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0]
    assert parts.schedule(0, 0.75) == 1.0


def test_sentence_order_pairs_are_adjacent_or_swapped(store: TokenStore) -> None:
    parts = load_parts(config_with(objective="sentence_order:SentenceOrder"))
    block, given = store.block("train", 0), {"sequence_length": 32, "short_sequence_probability": 0.3}
    rows = parts.plan(block, rng=np.random.default_rng(3), **given)
    assert np.array_equal(rows, parts.plan(block, rng=np.random.default_rng(3), **given))
    assert not np.array_equal(rows, parts.plan(block, rng=np.random.default_rng(4), **given))
    swapped = rows[:, 4] == 1
    assert 0.3 < swapped.mean() < 0.7
    assert np.array_equal(rows[~swapped, 1], rows[~swapped, 2])
    assert np.array_equal(rows[swapped, 3], rows[swapped, 0])
    starts = block.sentence_offsets[block.document_offsets]
    first, last = np.minimum(rows[:, 0], rows[:, 2]), np.maximum(rows[:, 1], rows[:, 3])
    assert (np.searchsorted(starts, first, "right") == np.searchsorted(starts, last, "left")).all()  # one document
    assert (last - first).max() == 29
    rows = parts.plan(block, sequence_length=32, short_sequence_probability=0.0, rng=np.random.default_rng(3))
    first, last = np.minimum(rows[:, 0], rows[:, 2]), np.maximum(rows[:, 1], rows[:, 3])
    whole = np.isin(first, block.sentence_offsets) & np.isin(last, block.sentence_offsets)
    assert ((last - first == 29) | whole).all()  # nothing is truncated that fits
    assert len(rows) > 2 * len(block.document_offsets)  # a document gives more than one example
    always = load_parts(config_with(objective={"name": "sentence_order:SentenceOrder", "options": {"swapped": 1.0}}))
    assert (always.plan(block, rng=np.random.default_rng(3), **given)[:, 4] == 1).all()


def test_own_objective_names_terms_and_gets_gradients(store: TokenStore) -> None:
    task = BertPretraining(config_with(objective="sentence_order:SentenceOrder"), store, ALONE)
    batch, _ = task.train_batch({})
    totals = torch.tensor(task.counts(batch))
    assert totals.tolist() == [(batch.masked_labels >= 0).sum(), 8]
    loss, sums = task.loss(batch, totals)
    loss.backward()
    assert task.model.cls.seq_relationship.weight.grad.count_nonzero()
    found = task.metrics(sums.tolist())
    assert found.keys() == {"loss", "mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy"}
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    validated = task.validate(4)
    rates = {"mlm_base_rate", "sop_base_rate"}
    assert validated.keys() == {*found, *rates, "unigram_entropy", "unigram_margin_error"}
    assert 0.5 <= validated["sop_base_rate"] <= 1.0


def test_objective_without_pairs_freezes_head(store: TokenStore, code: Path) -> None:
    (code / "single.py").write_text(
        "from sentence_order import SentenceOrder\n"
        "class Single(SentenceOrder):\n    labels = {'mlm': 'masked_labels'}\n"
    )
    task = BertPretraining(config_with(objective="single:Single"), store, ALONE)
    assert not any(parameter.requires_grad for parameter in task.model.bert.pooler.parameters())
    batch, _ = task.train_batch({})
    with pytest.raises(
        SpecError, match="invalid objective 'single:Single': its losses do not match its labels"
    ) as caught:
        task.loss(batch, torch.tensor(task.counts(batch)))
    assert (caught.value.facts["need"], caught.value.facts["have"]) == ("mlm", "mlm, sop")


@pytest.mark.parametrize(
    ("rows", "have"),
    [
        ([[0, 1, 1, 2, 0]], "a list"),
        (np.zeros((2, 4), np.int64), "int64 [2, 4]"),
        (np.array([[0, 1, 1, 2, 0]], np.int32), "int32 [1, 5]"),
        (np.array([[0, 2, 2, 5, 0], [3, 3, 3, 4, 1]]), "the row [3, 3, 3, 4, 1]"),
        (np.array([[0, 2, 9, 11, 0]]), "the row [0, 2, 9, 11, 0]"),
        (np.array([[8, 11, 0, 0, 0]]), "the row [8, 11, 0, 0, 0]"),
        (np.array([[-1, 2, 2, 3, 0]]), "the row [-1, 2, 2, 3, 0]"),
        (np.array([[0, 2, 3, 2, 0]]), "the row [0, 2, 3, 2, 0]"),
        (np.array([[0, 3, 3, 6, 0]]), "the row [0, 3, 3, 6, 0]"),
        (np.array([[0, 7, 0, 0, 0]]), "the row [0, 7, 0, 0, 0]"),
    ],
)
def test_invalid_plan_is_refused(rows: Any, have: str) -> None:
    class TenTokens:
        tokens = np.zeros(10)

    given = {"sequence_length": 8, "short_sequence_probability": 0.0, "rng": np.random.default_rng(0)}
    with pytest.raises(SpecError, match=r"my:Plan plans invalid examples") as caught:
        with_checks(lambda block, **_: rows, "my:Plan")(TenTokens(), **given)  # type: ignore[arg-type]
    assert caught.value.facts["have"] == have
    for fits in ([[0, 2, 2, 5, 0]], [[5, 10, 0, 5, 1]][:0], [[4, 10, 10, 10, 0]]):
        plan = np.array(fits, np.int64).reshape(-1, 5)
        assert with_checks(lambda block, plan=plan, **_: plan, "my:Plan")(TenTokens(), **given) is plan  # type: ignore[arg-type]


def test_plans_of_own_objective_are_checked(store: TokenStore, code: Path) -> None:
    (code / "blank.py").write_text(
        "from sentence_order import SentenceOrder\n"
        "class Blank(SentenceOrder):\n    def plan(self, block, **given): return []\n"
    )
    task = BertPretraining(config_with(objective="blank:Blank"), store, ALONE)
    with pytest.raises(SpecError, match="blank:Blank plans invalid examples"):
        task.train_batch({})


def test_objective_without_examples_is_refused(store: TokenStore, code: Path) -> None:
    (code / "none.py").write_text(
        "import numpy as np\n"
        "from sentence_order import SentenceOrder\n"
        "class None_(SentenceOrder):\n    def plan(self, block, **given): return np.zeros((0, 5), np.int64)\n"
    )
    task = BertPretraining(config_with(objective="none:None_"), store, ALONE)
    with pytest.raises(DataError, match="cannot build any example from the text"):
        task.train_batch({})


def test_bert_variant_matches_transformers(tmp_path: Path, store: TokenStore) -> None:
    config = config_with(model="relu_bert:ReluBert")
    parts = load_parts(config)
    model = parts.model(config.model, 256, 42).eval()
    plain = load_parts(config_with()).model(config.model, 256, 42).eval()
    drawn = plain.state_dict()
    assert all(torch.equal(value, drawn[name]) for name, value in model.state_dict().items())
    export(
        model,
        tmp_path / "export",
        config=config.model,
        vocab_size=256,
        tokenizer=TokenizerFiles(store.vocabulary, lowercase=True),
        config_entries=export_settings(model, config.model),
    )
    loaded = transformers.BertForPreTraining.from_pretrained(tmp_path / "export").eval()
    assert loaded.config.hidden_act == "relu"
    ids = torch.randint(5, 200, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        mine, other = (each(ids, torch.zeros_like(ids))[0] for each in (model, plain))
        theirs = loaded(ids, token_type_ids=torch.zeros_like(ids)).prediction_logits
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
    assert not torch.allclose(mine, other, atol=1e-3)


def test_own_model_initialises_weights_and_names_itself(tmp_path: Path, code: Path) -> None:
    (code / "bag.py").write_text(
        "import torch\n"
        "class Bag(torch.nn.Module):\n"
        "    def __init__(self, config, vocab_size, *, width=4):\n"
        "        super().__init__()\n"
        "        self.table = torch.nn.Embedding(vocab_size, width)\n"
        "        self.out = torch.nn.Linear(width, vocab_size)\n"
        "        self.pair = torch.nn.Linear(width, 2)\n"
        "    def forward(self, input_ids, token_type_ids, attention_mask, masked_positions):\n"
        "        bag = self.table(input_ids).mean(dim=1)\n"
        "        return self.out(bag)[:, None].expand(-1, masked_positions.shape[1], -1), self.pair(bag)\n"
    )
    config = config_with(model={"name": "bag:Bag", "options": {"width": 8}})
    parts = load_parts(config)
    first, again, other = (parts.model(config.model, 64, seed) for seed in (1, 1, 2))
    assert first.table.weight.shape == (64, 8)
    assert torch.equal(first.table.weight, again.table.weight)
    assert not torch.equal(first.table.weight, other.table.weight)
    document = export_settings(first, config.model)
    assert document == {"architectures": ["bag:Bag"], "model_type": "bag:Bag", "options": {"width": 8}}
    assert json.loads(json.dumps(document)) == document
