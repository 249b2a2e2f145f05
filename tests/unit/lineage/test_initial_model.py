"""Settings that a Hugging Face BERT folder decides, and conflicts with those of the user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, BertTokenizer

from tests.conftest import write_bert
from train_jobs.artifacts import fingerprints
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
from train_jobs.corpus.tokenize.vocabulary import load_vocabulary
from train_jobs.inference.model_folder import read_folder

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


def add_tokens(folder: Path, *tokens: str, first: int = 40) -> dict[str, int]:
    """Write the tokenizer.json of a tokenizer with added tokens, and return their ids."""
    pieces = {word: number for number, word in enumerate((folder / "vocab.txt").read_text().split())}
    added = {token: first + number for number, token in enumerate(tokens)}
    document = {
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "model": {"type": "WordPiece", "vocab": pieces},
        "added_tokens": [{"content": token, "id": number} for token, number in added.items()],
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return added


def run_suggested(problem: str) -> None:
    """Run the command in a problem."""
    command = problem.partition("write it with: ")[2]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(command, shell=True, check=True, env={**os.environ, "PATH": path})


@pytest.mark.parametrize("file", ["tokenizer.json", "added_tokens.json"])
def test_added_tokens_must_be_in_the_vocabulary(tmp_path: Path, file: str) -> None:
    bert = write_bert(tmp_path / "my bert", vocab_size=44)
    added = add_tokens(bert, "w2", "covid19", "[E1]")
    if file == "added_tokens.json":
        (bert / "tokenizer.json").unlink()
        added = {"covid19": 40, "[E1]": 41}
        (bert / file).write_text(json.dumps(added))
    (problem,) = problems_of(bert)
    assert "vocab.txt lacks added tokens: covid19 [E1] (training never finds [E1] in a text)" in problem
    run_suggested(problem)
    assert read_initial_model(bert).pieces == 40 + len(added) - ("w2" in added)
    assert (bert / "vocab.txt").read_text().split()[-2:] == ["covid19", "[E1]"]


def test_added_tokens_decoder_is_read(bert: Path) -> None:
    settings = {"added_tokens_decoder": {"0": {"content": "[PAD]"}, "40": {"content": "covid19"}}}
    (bert / "tokenizer_config.json").write_text(json.dumps(settings))
    assert problems_of(bert) == [f"{bert / 'vocab.txt'} lacks added tokens: covid19"]


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_tokenizer_of_other_class_is_refused(bert: Path, file: str) -> None:
    document = {**json.loads((bert / file).read_text()), "tokenizer_class": "BertJapaneseTokenizer"}
    (bert / file).write_text(json.dumps(document))
    assert "tokenizer_class is 'BertJapaneseTokenizer'" in problems_of(bert)[0]
    with pytest.raises(SpecError, match="cannot predict") as caught:
        read_folder(bert)
    assert "BertJapaneseTokenizer" in caught.value.problems[0]


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"normalizer": {"type": "Sequence"}}, "normalizer is 'Sequence', but only 'BertNormalizer'"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer is 'Whitespace'"),
        ({"model": {"type": "BPE"}}, "model is 'BPE'"),
        ({"normalizer": {"type": "BertNormalizer", "handle_chinese_chars": False}}, "handle_chinese_chars is False"),
        ({"normalizer": {"type": "BertNormalizer", "clean_text": False}}, "clean_text is False"),
    ],
)
def test_other_rules_of_a_general_tokenizer_are_refused(bert: Path, part: dict[str, Any], problem: str) -> None:
    (bert / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    rules = {"normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"}}
    (bert / "tokenizer.json").write_text(json.dumps({**rules, "model": {"type": "WordPiece"}}))
    read_initial_model(bert)
    (bert / "tokenizer.json").write_text(json.dumps({**rules, **part}))
    assert any(problem in found for found in problems_of(bert))


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("settings", [{}, {"strip_accents": False}, {"tokenizer_class": "PreTrainedTokenizerFast"}])
def test_text_is_read_as_transformers_does(tmp_path: Path, settings: dict[str, Any], lowercase: bool) -> None:
    """The class decides which of two differing files has the rule."""
    bert, text = write_bert(tmp_path), "Caf\u00e9 W1 w1"
    pieces = [*(bert / "vocab.txt").read_text().split()[:-3], "W1", "Caf\u00e9", "caf\u00e9"]
    (bert / "vocab.txt").write_text("\n".join(pieces) + "\n")
    BertTokenizer(vocab=str(bert / "vocab.txt"), do_lower_case=lowercase).save_pretrained(bert)
    (bert / "tokenizer_config.json").write_text(json.dumps({"unk_token": "[UNK]", **settings}))
    expected = AutoTokenizer.from_pretrained(bert).tokenize(text)
    model = read_initial_model(bert)
    trained = load_vocabulary(model.vocabulary, **model.rule()._asdict())
    for tokenizer in (trained, read_folder(bert).tokenizer()):
        assert tokenizer.encode(text, add_special_tokens=False).tokens == expected


def test_vocabulary_must_begin_with_padding(bert: Path) -> None:
    pieces = (bert / "vocab.txt").read_text().split()
    (bert / "vocab.txt").write_text("\n".join([pieces[1], pieces[0], *pieces[2:]]) + "\n")
    assert "its first piece is '[UNK]', but only [PAD] is supported" in problems_of(bert)[0]


def test_suggested_command_writes_the_vocabulary(bert: Path) -> None:
    """transformers 5 saves tokenizer.json but no vocab.txt."""
    words = (bert / "vocab.txt").read_text()
    ids = {word: number for number, word in enumerate(words.split())}
    (bert / "tokenizer.json").write_text(json.dumps({"model": {"vocab": dict(sorted(ids.items()))}}))
    (bert / "vocab.txt").unlink()
    (problem,) = problems_of(bert)
    run_suggested(problem)
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


def test_weight_hashes_are_cached_and_changes_detected(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints, "RECENT", -3600 * 10**9)  # files that were just written are cached too
    cache = tmp_path / "hashes.json"
    first = initial_weights(bert, cache)
    assert str(first) in cache.read_text()
    (bert / "model.safetensors").write_bytes(b"other weights")
    assert initial_weights(bert, cache) == file_sha256(bert / "model.safetensors") != first
