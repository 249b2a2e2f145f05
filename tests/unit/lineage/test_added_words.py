"""Words added to the vocabulary of an initial model: which are valid, how their rows are initialized."""

from __future__ import annotations

import json
from pathlib import Path
from unicodedata import category, ucd_3_2_0

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer

from tests.conftest import MICRO, write_bert, write_corpus
from train_jobs.artifacts.fingerprints import fingerprint
from train_jobs.artifacts.text_rule import bert_rule
from train_jobs.artifacts.word_rules import word_problems
from train_jobs.config import DataError, PretrainConfig, SpecError
from train_jobs.config.prepare import SourceConfig
from train_jobs.corpus.preparation import store_key
from train_jobs.corpus.tokenize.vocabulary import load_vocabulary
from train_jobs.engine.runtime.stop import StopRequest
from train_jobs.pretrain import pretrain, read_config

WORDS = ["bafo", "zozozo"]


def write_model(folder: Path) -> Path:
    """Write a random BERT with a vocabulary that spells the corpus of `write_corpus` by syllables."""
    write_bert(folder, pieces=40)
    syllables = ["ba", "ce", "di", "fo", "gu", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "zo"]
    pieces = [
        "[PAD]",
        "[unused0]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        ".",
        *syllables,
        *(f"##{s}" for s in syllables),
    ]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    torch.manual_seed(3)
    model = transformers.BertForPreTraining(transformers.BertConfig.from_pretrained(folder))
    torch.nn.init.normal_(model.cls.predictions.bias)
    model.save_pretrained(folder)
    return folder


def problems_of(*sets: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read_config("tiny", ["data.sequence_length=32", *sets])
    return caught.value.problems


def test_words_that_tokenizer_never_finds_are_unfit() -> None:
    """Check words without a tokenizer, as planning must, for characters of unchanged category since Unicode 3.2."""
    planes = [*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x110000, 97)]
    odd = [chr(code) for code in planes if "Cn" != ucd_3_2_0.category(chr(code)) == category(chr(code))]
    for lowercase in (True, False):
        tokenizer = plain_tokenizer(lowercase=lowercase)
        for word in [*odd, *(f"a{character}b" for character in odd)]:
            normal = tokenizer.normalizer.normalize_str(word)
            found = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)] == [word]
            fit = not list(word_problems([word], (), bert_rule(lowercase=lowercase)))
            assert found == fit, (word.encode(), lowercase)


def plain_tokenizer(*, lowercase: bool) -> Tokenizer:
    """Return BERT's tokenizer with the smallest vocabulary."""
    from train_jobs.corpus.tokenize.vocabulary import SPECIAL_PIECES, _tokenizer

    return _tokenizer({piece: number for number, piece in enumerate(SPECIAL_PIECES)}, bert_rule(lowercase=lowercase))


def test_every_invalid_word_is_named(tmp_path: Path) -> None:
    model = write_model(tmp_path / "bert")
    words = ["ba", "bafo", "BaFo", "caf\u00e9", "co-op", "a.", "two words", "bafo", "x" * 101, "a\u200bb", ""]
    (tmp_path / "words.txt").write_text("bafo\n\n zozozo \nce\n", encoding="utf-8")
    assert problems_of(f"init_from={model}", f"data.add_tokens={json.dumps(words)}") == [
        f"--set: data.add_tokens: {problem}"
        for problem in (
            '"ba" is already in the vocabulary',
            '"BaFo" is changed by lower-casing: "bafo"',
            '"caf\u00e9" is changed by lower-casing: "cafe"',
            '"co-op" is split at "-" before the lookup',
            '"a." is split at "." before the lookup',
            '"two words" has white space, which separates words',
            '"bafo" is a duplicate',
            f'"{"x" * 101}" has 101 characters, but BERT maps words of more than 100 to [UNK]',
            '"a\u200bb" has U+200B, which the tokenizer removes',
            '"" is empty',
        )
    ]
    assert problems_of(f"init_from={model}", f"data.add_tokens={tmp_path / 'words.txt'}") == [
        '--set: data.add_tokens: "ce" is already in the vocabulary'
    ]
    assert problems_of(f"init_from={model}", f"data.add_tokens={tmp_path / 'gone.txt'}") == [
        f"--set: data.add_tokens: cannot read {tmp_path / 'gone.txt'}: No such file or directory"
    ]
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    assert problems_of(f"init_from={model}", f"data.add_tokens={tmp_path / 'latin.txt'}") == [
        f"--set: data.add_tokens: cannot read {tmp_path / 'latin.txt'}: not UTF-8"
    ]


def test_cased_model_accepts_capitals(tmp_path: Path) -> None:
    model = write_model(tmp_path / "bert")
    (model / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    config = read_config("tiny", ["data.sequence_length=32", f"init_from={model}", "data.add_tokens=[BaFo, caf\u00e9]"])
    assert config.data.add_tokens == ["BaFo", "caf\u00e9"]


def test_added_words_need_an_initial_model() -> None:
    (problem,) = problems_of("data.add_tokens=[bafo]")
    assert "data.add_tokens requires init_from, whose vocabulary it extends" in problem


def test_other_added_words_give_another_store(tmp_path: Path) -> None:
    corpus, model = write_corpus(tmp_path / "corpus.txt"), write_model(tmp_path / "bert")
    found = fingerprint([SourceConfig(path=[str(corpus)])])

    def key(*words: str) -> str:
        config = PretrainConfig.model_validate(
            {"data": {"vocabulary": model / "vocab.txt", "add_tokens": words}, "init_from": model}
        )
        return store_key(config.data, found)

    assert len({key(), key("bafo"), key("zozozo"), key("bafo", "zozozo"), key("zozozo", "bafo")}) == 5


def test_tokenizer_refuses_words_never_produced(tmp_path: Path) -> None:
    model = write_model(tmp_path / "bert")
    with pytest.raises(DataError, match="some words cannot be tokens") as caught:
        load_vocabulary(model / "vocab.txt", lowercase=True, words=["bafo", "ba", "a b"])
    assert '"ba" is already in the vocabulary; "a b" has white space' in str(caught.value.facts["words"])


def test_run_with_added_words_initializes_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a learning rate near zero, new rows keep their initial values; tokenizer, config and weights agree."""
    monkeypatch.setattr(StopRequest, "listen", lambda self: None)  # keep pytest's SIGTERM handler
    model, corpus = write_model(tmp_path / "bert"), write_corpus(tmp_path / "corpus.txt")
    job = {
        **{section: MICRO[section] for section in ("validation", "checkpoint")},
        "data": {"sequence_length": 32, "validation_fraction": 0.2, "text": [str(corpus)], "add_tokens": WORDS},
        "init_from": str(model),
        "train": {**MICRO["train"], "steps": 1, "precision": "fp32"},
        "optimizer": {"learning_rate": 1e-30, "weight_decay": 0.0},
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    pretrain(
        read_config(str(tmp_path / "job.json"), []), output=tmp_path / "out", cache=tmp_path / "stores", device="cpu"
    )
    export = tmp_path / "out" / "model"
    old, new = (load_file(folder / "model.safetensors") for folder in (model, export))
    before = (model / "vocab.txt").read_text().split()
    assert (export / "vocab.txt").read_text().split() == [*before, *WORDS]
    spelled = {"bafo": ["ba", "##fo"], "zozozo": ["zo", "##zo", "##zo"]}
    for key in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        torch.testing.assert_close(new[key][: len(before)], old[key][: len(before)], rtol=0, atol=1e-20)
        for number, word in enumerate(WORDS, start=len(before)):
            mean = old[key][[before.index(piece) for piece in spelled[word]]].mean(dim=0)
            torch.testing.assert_close(new[key][number], mean)
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    loaded = transformers.BertForPreTraining.from_pretrained(export)
    assert tokenizer.tokenize("Bafo zozozo bafoba [unused0]") == ["bafo", "zozozo", "bafo", "##ba", *["[UNK]"] * 3]
    assert tokenizer.convert_tokens_to_ids("zozozo") == len(before) + 1
    assert loaded.config.vocab_size == len(new["cls.predictions.bias"]) == 40
    manifest = json.loads(next((tmp_path / "stores").glob("*/manifest.json")).read_text())
    assert manifest["vocab_size"] == len(before) + 2

    # the export can be an initial model again, unchanged or with more words
    again = read_config("tiny", [f"init_from={export}", "data.sequence_length=32", "data.add_tokens=[dice]"])
    assert again.data.vocabulary == export / "vocab.txt"
