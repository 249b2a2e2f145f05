"""The model card: metadata for the Hub, and text that names known and unknown facts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from lineage_runs import METRICS, TAGS

from tests.conftest import write_bert
from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.artifacts.lineage import Attempt, DataFacts, Kind, Lineage, Link, PretrainFacts
from train_jobs.config.fields import Config
from train_jobs.records.markdown import escaped, plain
from train_jobs.records.pretraining_card import model_card

Complete = Callable[..., Lineage]
HOSTILE = (
    "---\nlicense: mit # <img src=x onerror=alert(1)> | *a* _b_ `c` [d](e) \\ {f}: \u00e9\u202e\x07 & ~g~ $h$\n---"
)


class Facts(Config):
    """Facts of another model."""

    weights: str = "a" * 64


def with_head(lineage: Lineage, *, parents: list[Link] | None = None, name: str | None = None, **facts: Any) -> Lineage:
    """Return the same lineage with a different head."""
    head = lineage.head
    changed = PretrainFacts.model_validate({**head.facts, **facts})
    inputs = lineage.parents(head) if parents is None else [*lineage.parents(head), *parents]
    again = Link.make("pretrain", name or head.name, changed, parents=inputs)
    return Lineage(links=(*lineage.links[:-1], *(parents or []), again))


def table(card: str) -> dict[str, str]:
    """Return label -> value of all rows of two cells."""
    return dict(re.findall(r"^\| (\S[^|]*) \| ([^|]*) \|$", card, re.MULTILINE))


def test_metadata_is_valid_for_the_hub(complete: Complete) -> None:
    card = ModelCard(model_card(complete(card={"license": "apache-2.0", "language": ["en", "de"]})))
    data = card.data
    assert (data.library_name, data.pipeline_tag, data.license) == ("transformers", "fill-mask", "apache-2.0")
    assert data.language == ["en", "de"]
    assert data.tags == ["bert", "masked-language-modeling"]
    assert data.model_name == "alpha-1234abcd"
    assert "base_model" not in data.to_dict()
    results = {result.metric_type: result for result in data.eval_results}
    assert {kind: result.metric_value for kind, result in results.items()} == {"loss": 3.25, "accuracy": 0.5}
    (loss,) = (result for result in data.eval_results if result.metric_type == "loss")
    assert (loss.task_type, loss.dataset_name, loss.dataset_split) == ("fill-mask", "notes.txt", "validation")


def test_unknown_facts_are_omitted_or_marked(complete: Complete) -> None:
    text = model_card(complete(tags={}))
    header = yaml.safe_load(text.split("---\n")[1])
    assert header.keys() == {"library_name", "pipeline_tag", "tags", "model-index"}
    assert "Licence of the model: not stated." in text
    assert table(text)["Licence of the text"] == "not stated"
    assert "Code: commit unknown, snapshot unknown." in text


def test_embedded_corpus_is_english_under_python_licence(complete: Complete) -> None:
    found = complete()
    data = DataFacts.model_validate({**found.links[0].facts, "license": "PSF-2.0"})
    config = {**found.head.facts["config"], "data": {**found.head.facts["config"]["data"], "text": []}}
    facts = PretrainFacts.model_validate({**found.head.facts, "config": config})
    embedded = Link.make("data", fingerprint([]).name, data)
    text = model_card(Lineage(links=(embedded, Link.make("pretrain", "x", facts, parents=[embedded]))))
    assert ModelCard(text).data.language == ["en"]
    assert table(text)["Licence of the text"] == "PSF-2.0"
    assert ModelCard(text).data.license is None  # the licence of the text is not that of the model


def test_card_has_figures_of_data_and_training(complete: Complete, notes: Path) -> None:
    found = complete(train={"global_batch_size": 8, "micro_batch_size": 4}, optimizer={"name": "adamw"})
    rows = table(model_card(found))
    data = found.links[0].facts
    train, held_out = data["documents"]["train"], data["documents"]["validation"]
    assert rows["Documents"] == f"{train} for training, {held_out} held out ({held_out / 60:.1%})"
    assert rows["Source"].startswith(f"notes.txt: 1 file, {notes.stat().st_size:,} bytes, SHA-256 `")
    assert f"`{data['sources'][0]['sha256'][:12]}`" in rows["Source"]
    assert rows["Vocabulary"].startswith("256 WordPiece pieces, lower case, accents stripped, SHA-256 `")
    assert rows["Steps"] == "5 of 8 sequences, 40 in all"
    assert rows["Optimizer"] == "AdamW, weight decay 0.01, gradients clipped at 1"
    assert rows["Learning rate"] == (
        "0.006 after a linear warm-up over 28.4% of the steps, then polynomial decay of power 0.5"
    )
    assert (rows["Precision"], rows["Hardware"]) == ("fp32", "1 process on A CPU")
    assert rows["Time"].endswith(f"s from 2026-11-21T10:00:00+00:00 to {found.head.facts['ended']}")


def test_card_has_no_path_of_the_user(complete: Complete, notes: Path, tmp_path: Path) -> None:
    text = model_card(complete(data={"vocabulary": str(write_bert(tmp_path / "bert") / "vocab.txt")}))
    assert str(notes.parent) not in text
    assert str(tmp_path) not in text


def test_card_shows_other_settings(complete: Complete) -> None:
    found = complete(
        schedule={"name": "constant"}, optimizer={"max_grad_norm": None}, objective={"next_sentence": False}
    )
    starts = [Attempt.model_validate({**found.head.facts["attempts"][0], "step": step}) for step in (0, 1200)]
    last = starts[1].model_copy(update={"processes": 16, "nodes": 2, "hardware": "A GPU", "precision": "bf16"})
    text = model_card(with_head(found, attempts=[starts[0], last], ended="2026-11-21T10:20:30+00:00"))
    rows = table(text)
    assert rows["Optimizer"] == "LAMB, weight decay 0.01, gradients not clipped"
    assert rows["Learning rate"].endswith("then constant")
    assert (rows["Precision"], rows["Hardware"]) == ("bf16", "16 processes on 2 nodes with A GPU")
    assert rows["Time"] == (
        "1,230 s from 2026-11-21T10:00:00+00:00 to 2026-11-21T10:20:30+00:00, started 2 times, the last at step 1,200"
    )
    assert "next-sentence prediction on" not in text
    assert "with masked language modelling on notes.txt." in text


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (3.25, "is 0.7500 below unigram entropy"),
        (4.0, "no better than word frequencies"),
        (5.0, "1.0000 above unigram entropy"),
        (float("nan"), "was not compared with the unigram entropy"),
    ],
)
def test_loss_is_compared_with_unigram_entropy(complete: Complete, loss: float, sentence: str) -> None:
    text = model_card(complete(metrics={**METRICS, "mlm_loss": loss}))
    assert sentence in text
    assert (": this model predicts from context" in text) == (loss < 4.0)
    shown = "not finite" if loss != loss else f"{loss:.4f} nats"
    assert table(text)["Masked language model, loss, held-out text"] == shown


def test_non_finite_figure_is_not_in_the_metadata(complete: Complete) -> None:
    text = model_card(complete(metrics={**METRICS, "mlm_loss": float("nan")}))
    assert [result.metric_type for result in ModelCard(text).data.eval_results] == ["accuracy"]
    none = model_card(complete(metrics={"mlm_loss": float("nan"), "unigram_entropy": 4.0}))
    assert "model-index" not in yaml.safe_load(none.split("---\n")[1])


def test_results_are_all_measured_metrics(complete: Complete) -> None:
    rows = table(model_card(complete()))
    assert rows["Unigram entropy of the same tokens, held-out text"] == "4.0000 nats"
    assert rows["Masked language model, accuracy, held-out text"] == "50.0%"
    assert rows["Next-sentence prediction, accuracy, held-out text"] == "75.0%"
    without = model_card(complete(metrics={"mlm_loss": 3.0, "unigram_entropy": 4.0}))
    assert "| Next-sentence" not in without


@pytest.mark.parametrize("kind", ["external", "pretrain"])
def test_base_model_is_in_metadata_and_text(complete: Complete, kind: Kind) -> None:
    base = Link.make(kind, "google-bert/bert-base-uncased", Facts())
    text = model_card(with_head(complete(), parents=[base], absent=["cls.seq_relationship.weight"]))
    assert ModelCard(text).data.base_model == "google-bert/bert-base-uncased"
    assert "pretrained further from google-bert/bert-base-uncased" in text
    assert "may have been among those that the base model was trained on" in text
    assert table(text)["Drawn, for the base model lacks them"] == "`cls.seq_relationship.weight`"
    assert "pretrained from drawn weights" in model_card(complete())
    assert "base model" not in model_card(complete())


def test_code_and_commands_can_be_pasted(complete: Complete) -> None:
    found = complete()
    text = model_card(found)
    assert f"Code: commit `{'6' * 40}`, with changes that are not in it, snapshot `{'5' * 40}`." in text
    assert f"torch {found.head.facts['packages']['torch']}".replace("_", "\\_") in text
    commands = re.findall(r"^```shell\n(.*?)\n```$", text.replace("\\\n", ""), re.MULTILINE | re.DOTALL)
    assert [shlex.split(command) for command in commands] == list(found.head.facts["commands"].values())
    clean = model_card(complete(tags={**TAGS, "orchestrator.commit": "6" * 40}))
    assert f"commit `{'6' * 40}`, snapshot" in clean


def test_every_link_is_in_the_lineage_table(complete: Complete) -> None:
    found = complete()
    data, head = found.links
    text = model_card(found)
    assert f"| data | notes.txt | `{data.hash[:12]}` |  |" in text
    assert f"| pretrain | alpha-1234abcd | `{head.hash[:12]}` | `{data.hash[:12]}` |" in text


def test_same_lineage_gives_identical_bytes(complete: Complete) -> None:
    found = complete()
    assert model_card(found) == model_card(Lineage.model_validate_json(found.text()))


def test_hostile_text_is_escaped(complete: Complete) -> None:
    found = complete(
        card={"license": HOSTILE, "data_license": HOSTILE, "description": HOSTILE},
        tags={**TAGS, "orchestrator.run": HOSTILE, "orchestrator.commit": HOSTILE, "orchestrator.snapshot": HOSTILE},
    )
    text = model_card(with_head(found, parents=[Link.make("external", HOSTILE, Facts())]))
    card = ModelCard(text)
    assert card.data.license == HOSTILE
    assert card.data.base_model == plain(HOSTILE)
    assert card.data.model_name == plain(HOSTILE)
    body = card.content.split("---\n", 2)[2]
    assert "\u202e" not in body
    assert "\x07" not in body
    unescaped = re.sub(r"\\.", "", body)
    assert "<img" not in unescaped
    assert "](e)" not in unescaped
    assert "*a*" not in unescaped
    rows = [line for line in unescaped.splitlines() if line.startswith("| ")]
    assert {line.count("|") for line in rows} == {3, 5}
    headings = [line for line in body.splitlines() if line.startswith("#")]
    assert headings[1:] == [
        "## Use",
        "## Data",
        "## Training",
        "## Results",
        "## Limits",
        "## Weights",
        "## Reproduce",
        "## Lineage",
    ]


def test_name_with_backticks_does_not_end_its_block(complete: Complete) -> None:
    found = complete()
    commands = {"orchestrator": ["orchestrator", "--data", "```\n# not a heading\n```"]}
    text = model_card(with_head(found, commands=commands))
    assert "````shell\norchestrator \\\n    --data '``` # not a heading ```'\n````" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain words, 3.14 (yes)", "plain words, 3.14 (yes)"),
        ("- item", "\\- item"),
        ("+ item", "\\+ item"),
        ("12. item", "12\\. item"),
        ("3) item", "3\\) item"),
        ("# title", "\\# title"),
        ("> quote", "\\> quote"),
        ("two\nlines", "two lines"),
        ("a|b", "a\\|b"),
        ("a_b", "a\\_b"),
        ("", ""),
    ],
)
def test_text_is_shown_unchanged(text: str, shown: str) -> None:
    assert escaped(text) == shown
