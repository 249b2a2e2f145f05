"""Settings that a Hugging Face BERT folder decides, and conflicts with those of the user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import write_bert
from train_jobs.artifacts.files import file_sha256
from train_jobs.artifacts.layers import ConfigLayer, build, merge, read_preset, read_text
from train_jobs.artifacts.lineage import ExternalFacts, Lineage, Link
from train_jobs.artifacts.start_model import (
    initial_lineage,
    initial_weights,
    merge_with_initial_model,
    read_initial_model,
)
from train_jobs.config import ConflictError, PretrainConfig, SpecError

TINY = ConfigLayer("preset tiny", merge(read_preset("tiny")).tree)


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return write_bert(tmp_path / "bert")


def problems_of(folder: Path) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read_initial_model(folder)
    return caught.value.problems


def start(folder: Path, written: str = "") -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return values and problems of the tiny recipe, a file, and the folder as initial model."""
    found = merge_with_initial_model(
        [TINY], [read_text(written, "job.yaml"), ConfigLayer("--from", {"init_from": folder})]
    )
    return found.merged.tree, found.problems


def test_folder_is_read(bert: Path) -> None:
    model = read_initial_model(bert)
    assert model.shape["hidden_size"] == 32
    assert (model.rows, model.pieces, model.lowercase) == (40, 40, True)
    assert model.vocab_sha256 == file_sha256(bert / "vocab.txt")
    assert (model.weights, model.architectures) == ("model.safetensors", ["BertForPreTraining"])


def test_missing_keys_of_old_config_are_bert_base(tmp_path: Path) -> None:
    bert = write_bert(tmp_path / "bert", vocab_size=30_522)
    (bert / "config.json").write_text(json.dumps({"hidden_size": 128}))
    model = read_initial_model(bert)
    assert (model.shape["hidden_size"], model.shape["num_hidden_layers"], model.rows) == (128, 12, 30_522)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model_type": "roberta"}, "model_type is 'roberta', but only 'bert' is supported"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False, but only True is supported"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"vocab_size": "many"}, "rows: Input should be a valid integer"),
        ({"layer_norm_eps": None}, "shape.layer_norm_eps"),
        ({"vocab_size": 39}, "has 40 pieces, but the embedding table has 39 rows"),
    ],
)
def test_untrainable_model_is_refused(tmp_path: Path, config: dict[str, Any], problem: str) -> None:
    assert problem in problems_of(write_bert(tmp_path, **config))[0]


def test_all_missing_files_are_named_together(tmp_path: Path) -> None:
    problems = problems_of(tmp_path)
    assert [problem.partition(" in ")[0] for problem in problems] == [
        "no readable config.json",
        "no weights",
        "no vocab.txt",
    ]
    (tmp_path / "config.json").write_text("{ torn")
    assert problems_of(tmp_path)[0] == f"no readable config.json in {tmp_path}"


@pytest.mark.parametrize(
    ("tokenizer", "fine"),
    [
        ({"do_lower_case": True, "strip_accents": None}, True),
        ({"do_lower_case": True, "strip_accents": True}, True),
        ({"do_lower_case": False, "strip_accents": False}, True),
        ({"do_lower_case": True, "strip_accents": False}, True),
        ({"do_lower_case": False, "strip_accents": True}, True),
        ({"strip_accents": True}, True),
        ({"strip_accents": False}, True),
        ({"tokenize_chinese_chars": False}, False),
        ({"tokenize_chinese_chars": True}, True),
    ],
)
def test_unsupported_tokenizer_is_refused(bert: Path, tokenizer: dict[str, Any], fine: bool) -> None:
    (bert / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    if fine:
        assert read_initial_model(bert).lowercase == tokenizer.get("do_lower_case")
    else:
        assert str(bert / "tokenizer_config.json") in problems_of(bert)[0]


def test_suggested_command_writes_the_vocabulary(bert: Path) -> None:
    """transformers 5 saves tokenizer.json but no vocab.txt."""
    words = (bert / "vocab.txt").read_text()
    ids = {word: number for number, word in enumerate(words.split())}
    (bert / "tokenizer.json").write_text(json.dumps({"model": {"vocab": dict(sorted(ids.items()))}}))
    (bert / "vocab.txt").unlink()
    (problem,) = problems_of(bert)
    command = problem.partition("write it with: ")[2]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(command, shell=True, check=True, env={**os.environ, "PATH": path})
    assert (bert / "vocab.txt").read_text() == words


def test_old_weights_are_used_without_new_ones(bert: Path) -> None:
    (bert / "pytorch_model.bin").write_bytes(b"old")
    assert read_initial_model(bert).weights == "model.safetensors"
    new = initial_weights(bert)
    (bert / "model.safetensors").unlink()
    assert read_initial_model(bert).weights == "pytorch_model.bin"
    assert initial_weights(bert) == file_sha256(bert / "pytorch_model.bin") != new
    (bert / "pytorch_model.bin").unlink()
    assert initial_weights(bert) is None


def test_folder_overrides_recipe_shape_vocabulary_and_case(bert: Path) -> None:
    (bert / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    tree, problems = start(bert)
    assert problems == ()
    assert (tree["model"]["hidden_size"], tree["model"]["max_position_embeddings"]) == (32, 64)
    # dropout comes from training, not from the folder
    assert tree["model"]["hidden_dropout_prob"] == TINY.tree["model"]["hidden_dropout_prob"]
    assert tree["data"]["vocabulary"] == str(bert / "vocab.txt")
    assert tree["data"]["lowercase"] is False


def test_tokenizer_without_case_leaves_it_to_user(bert: Path) -> None:
    (bert / "tokenizer_config.json").unlink()
    tree, problems = start(bert, "data: {lowercase: false}\n")
    assert problems == ()
    assert tree["data"]["lowercase"] is False


def test_conflicting_user_values_are_named_with_line(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("[PAD]\n")
    written = (
        "model:\n  hidden_size: 64\n  intermediate_size: 64\n  num_hidden_layers: 2\n"
        f"data:\n  lowercase: false\n  vocabulary: {tmp_path / 'other.txt'}\n"
    )
    _, problems = start(bert, written)
    assert problems == (
        "job.yaml:2: model.hidden_size: 64, but the initial model has 32",
        "job.yaml:4: model.num_hidden_layers: 2, but the initial model has 1",
        "job.yaml:6: data.lowercase: False, but the initial model has True",
        f"job.yaml:7: data.vocabulary: {tmp_path / 'other.txt'} is not the vocabulary of the initial model",
    )


def test_agreeing_user_values_pass_in_any_notation(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.txt").write_bytes((bert / "vocab.txt").read_bytes())
    tree, problems = start(
        bert, f"model: {{hidden_size: 32, layer_norm_eps: 1e-12}}\ndata: {{vocabulary: {tmp_path / 'copy.txt'}}}\n"
    )
    assert problems == ()
    assert tree["data"]["vocabulary"] == str(tmp_path / "copy.txt")


def test_null_vocabulary_means_vocabulary_of_the_model(bert: Path) -> None:
    tree, problems = start(bert, "data: {vocabulary: null, lowercase: true}\n")
    assert problems == ()
    assert tree["data"]["vocabulary"] == str(bert / "vocab.txt")


@pytest.mark.parametrize(
    ("rows", "step", "advice"),
    [
        (40, 8, None),
        (38, 8, None),
        (64, 64, None),
        (64, 8, "32 does"),
        (48, 8, "16 does"),
        (41, 8, "16 does"),
        (200, 8, "200 does"),
    ],
)
def test_table_rows_may_differ_only_by_padding(tmp_path: Path, rows: int, step: int, advice: str | None) -> None:
    bert = write_bert(tmp_path / "bert", pieces=38, vocab_size=rows)
    _, problems = start(bert, f"model: {{pad_vocab_to_multiple_of: {step}}}\n")
    if advice is None:
        assert problems == ()
    else:
        assert problems[0].startswith(
            f"job.yaml:1: model.pad_vocab_to_multiple_of: {step} does not result in the {rows} rows"
        )
        assert problems[0].endswith(advice)


def test_unusable_folder_is_problem_with_location(tmp_path: Path) -> None:
    _, problems = start(write_bert(tmp_path / "bert", model_type="roberta"))
    (problem,) = problems
    assert problem.startswith("--from: init_from: ")
    assert "'roberta'" in problem


def test_missing_folder_changes_nothing(tmp_path: Path) -> None:
    tree, problems = start(tmp_path / "gone", "model: {hidden_size: 64}\n")
    assert problems == ()
    assert tree["model"]["hidden_size"] == 64


def test_invalid_sections_are_left_to_validation(bert: Path) -> None:
    found = merge_with_initial_model([TINY], [ConfigLayer("--set", {"init_from": str(bert), "model": 3, "data": None})])
    assert found.problems == ()
    with pytest.raises(SpecError):
        build(PretrainConfig, found.merged)


def test_external_model_is_one_link(bert: Path) -> None:
    lineage = initial_lineage(bert)
    assert [link.kind for link in lineage.links] == ["external"]
    assert lineage.head.name == "bert"
    facts = ExternalFacts.model_validate(lineage.head.facts)
    assert facts.weights == file_sha256(bert / "model.safetensors")
    assert facts.vocabulary == file_sha256(bert / "vocab.txt")
    assert (facts.file, facts.architectures, facts.revision) == ("model.safetensors", ["BertForPreTraining"], None)


def test_external_model_in_hub_cache_has_its_hub_name(tmp_path: Path) -> None:
    commit = "86b5e0934494bd15c9632b12f734a8a67f723594"
    folder = write_bert(tmp_path / "hub" / "models--google-bert--bert-base-uncased" / "snapshots" / commit)
    head = initial_lineage(folder).head
    assert (head.name, head.facts["revision"]) == ("google-bert/bert-base-uncased", commit)


def with_lineage(folder: Path, weights: str) -> Link:
    facts = ExternalFacts(weights=weights, file="model.safetensors", architectures=[], vocabulary="", revision=None)
    head = Link.make("pretrain", "alpha", facts)
    (folder / "lineage.json").write_text(Lineage(links=(head,)).text())
    return head


def test_lineage_in_folder_is_extended(bert: Path) -> None:
    head = with_lineage(bert, file_sha256(bert / "model.safetensors"))
    assert initial_lineage(bert).links == (head,)


def test_weights_not_matching_lineage_are_refused(bert: Path) -> None:
    with_lineage(bert, "0" * 64)
    with pytest.raises(ConflictError, match="are not those of its lineage") as caught:
        initial_lineage(bert)
    assert caught.value.facts["need"] == "0" * 64
    assert caught.value.facts["have"] == file_sha256(bert / "model.safetensors")
    assert f"rm {bert / 'lineage.json'}" in str(caught.value.fix)


def test_damaged_lineage_is_refused(bert: Path) -> None:
    (bert / "lineage.json").write_text("{")
    with pytest.raises(ConflictError, match="truncated"):
        initial_lineage(bert)


def test_weight_hashes_are_cached_and_changes_detected(bert: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hashes.json"
    first = initial_weights(bert, cache)
    assert str(first) in cache.read_text()
    (bert / "model.safetensors").write_bytes(b"other weights")
    assert initial_weights(bert, cache) == file_sha256(bert / "model.safetensors") != first
