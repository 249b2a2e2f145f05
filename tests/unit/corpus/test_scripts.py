"""Rules for words by script, and the ids of `transformers` for the exported tokenizer."""

from __future__ import annotations

import itertools
import json
import lzma
from pathlib import Path

import pytest
from fuzzed_text import fuzzed_strings
from test_word_ids import DATA, assert_equal
from transformers import AutoTokenizer

from tests.unit.corpus.scripts_text import SENTENCES
from tests.unit.corpus.small_corpora import prepare
from train_jobs.artifacts.start_model import read_initial_model
from train_jobs.artifacts.text_rule import LetterCounts, TextRule, count_letters, resolve_rule
from train_jobs.artifacts.text_sample import split_words
from train_jobs.artifacts.vocabulary_file import pieces_of
from train_jobs.config import ModelConfig, TextConfig
from train_jobs.corpus.tokenize.vocabulary import (
    SPECIAL_PIECES,
    UNK,
    bert_rule,
    load_vocabulary,
    pre_tokenizer,
    rule_of,
    save_vocabulary,
    train_vocabulary,
)
from train_jobs.corpus.tokenize.word_encoder import WordPieceTokenizer
from train_jobs.inference.model_folder import read_folder
from train_jobs.models.bert.pretraining_heads import BertForPreTraining
from train_jobs.models.huggingface import TokenizerFiles, export

PUD = DATA / "multilingual" / "pud"
real_data = pytest.mark.skipif(not PUD.is_dir(), reason="the real data is missing: ../shared/data/multilingual")
RULES = [TextRule(low, strip, split) for low in (True, False) for strip in (True, False) for split in (True, False)]
SHAPE = ModelConfig(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=64,
    pad_vocab_to_multiple_of=1,
)


def exported(folder: Path, text: str, rule: TextRule, size: int = 2000) -> Path:
    """Write the export of an untrained model with a vocabulary of the text, and return its folder."""
    tokenizer = train_vocabulary([text], size=size, **rule._asdict())
    vocabulary = save_vocabulary(tokenizer, folder)
    rows = tokenizer.get_vocab_size()
    model = BertForPreTraining(SHAPE, rows)
    export(
        model, folder / "model", config=SHAPE, vocab_size=rows, tokenizer=TokenizerFiles(vocabulary, **rule._asdict())
    )
    return folder / "model"


def automatic(text: str, **settings: object) -> TextRule:
    return resolve_rule(TextConfig(**settings), count_letters(text))


def assert_consumers_agree(folder: Path, rule: TextRule, lines: list[str]) -> None:
    """Compare the ids of the store, of fine-tuning, of prediction and of `transformers`."""
    ours = load_vocabulary(folder / "vocab.txt", **rule._asdict())
    assert_equal(ours, WordPieceTokenizer(ours), lines)
    initial = read_initial_model(folder)
    assert initial.rule() == rule
    theirs, served = AutoTokenizer.from_pretrained(folder), read_folder(folder, "auto").tokenizer()
    from_vocabulary = read_folder(folder, "auto").tokenizer(rule.lowercase)
    for line in lines:
        ids = ours.encode(line).ids
        assert from_vocabulary.encode(line, add_special_tokens=False).ids == ids, line
        assert theirs(line, add_special_tokens=False)["input_ids"] == ids, line
        assert served.encode(line, add_special_tokens=False).ids == ids, line


@pytest.mark.parametrize("rule", RULES)
def test_export_has_same_ids_in_every_script(tmp_path: Path, rule: TextRule) -> None:
    lines = list(SENTENCES.values())
    folder = exported(tmp_path, "\n".join(lines), rule)
    fuzzed = [line for line in fuzzed_strings(300, seed=3) if not any(piece in line for piece in SPECIAL_PIECES)]
    assert_consumers_agree(folder, rule, [*lines, *fuzzed])
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs("a", "a")["token_type_ids"][-1] == 1
    assert theirs.model_max_length == SHAPE.max_position_embeddings


@real_data
@pytest.mark.parametrize("language", ["en", "de", "ru", "hi", "th", "ar", "zh", "es"])
def test_export_has_same_ids_on_real_text(tmp_path: Path, language: str) -> None:
    text = (PUD / f"{language}.txt").read_text(encoding="utf-8")
    rule = automatic(text)
    folder = exported(tmp_path, text, rule, size=30_522)
    assert_consumers_agree(folder, rule, text.split("\n"))
    articles = lzma.decompress((DATA / "multilingual" / "xquad" / f"{language}.jsonl.xz").read_bytes()).decode()
    lines = [json.dumps(json.loads(line), ensure_ascii=False) for line in articles.split("\n") if line]
    assert_consumers_agree(folder, rule, lines[:5])
    ids = load_vocabulary(folder / "vocab.txt", **rule._asdict()).encode(text)
    assert ids.tokens.count(UNK) < 0.002 * len(ids)


@pytest.mark.parametrize("rule", RULES)
def test_fuzzed_strings_have_same_ids_by_every_rule(rule: TextRule) -> None:
    strings = list(fuzzed_strings(2000, seed=5))
    tokenizer = train_vocabulary([*strings, *SENTENCES.values()], size=3000, **rule._asdict())
    assert_equal(tokenizer, WordPieceTokenizer(tokenizer), strings)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("strip", [True, False])
def test_each_character_near_thai_has_same_ids(strip: bool, split: bool) -> None:
    """Every character between letters, marks and stackers of scripts without blanks."""
    characters = [chr(code) for code in range(0x3400) if chr(code) != "\n"]
    lines = [f"a\u0e01{one}\u0e01\u1780\u17d2{one}\u1781 \u304b{one}\u3099b{one}\u0e31\u0e01" for one in characters]
    tokenizer = train_vocabulary(lines, size=9000, lowercase=True, strip_accents=strip, split_unspaced=split)
    assert_equal(tokenizer, WordPieceTokenizer(tokenizer), lines)


def test_scripts_without_blanks_are_cut_into_characters() -> None:
    rule = TextRule(lowercase=True, strip_accents=False, split_unspaced=True)

    def parts(text: str) -> list[str]:
        found = [word for word, _ in pre_tokenizer(rule).pre_tokenize_str(text)]
        assert split_words(text, rule) == found
        return found

    assert parts("\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48ab") == ["\u0e17\u0e35\u0e48", "\u0e19\u0e35\u0e48", "ab"]
    assert parts("\u1781\u17d2\u1789\u17bb\u17c6\u1780") == ["\u1781\u17d2\u1789\u17bb\u17c6", "\u1780"]  # stacked
    assert parts("\u30b3\u30fc\u304b\u3099") == ["\u30b3", "\u30fc", "\u304b\u3099"]
    assert parts("\u0f44\u0f0b\u0f41\u0f44") == ["\u0f44", "\u0f0b", "\u0f41\u0f44"]  # Tibetan by its tsheg


@pytest.mark.parametrize(
    ("language", "strips", "splits"),
    [
        *((language, False, False) for language in ("de", "es", "ru", "ar", "hi", "ko", "tr", "vi", "bo")),
        *((language, False, True) for language in ("th", "ja", "lo", "km", "my")),
        ("zh", True, False),
    ],
)
def test_auto_rule_keeps_letters_of_script(language: str, strips: bool, splits: bool) -> None:
    rule = automatic(SENTENCES[language])
    assert rule == TextRule(True, strips, splits)
    if not strips and language != "bo":
        assert not automatic(SENTENCES[language], lowercase=False).strip_accents


def test_auto_rule_of_english_is_that_of_bert() -> None:
    english = "The house by the sea was cold, and nobody had been to the caf\u00e9 for weeks. " + "It was late. " * 20
    assert automatic(english) == bert_rule(lowercase=True)
    assert automatic(english, lowercase=False) == bert_rule(lowercase=False)
    assert automatic(SENTENCES["th"], strip_accents=True, split_unspaced=False) == TextRule(True, True, False)


@pytest.mark.parametrize("rule", RULES)
def test_vocabulary_keeps_its_own_rule(tmp_path: Path, rule: TextRule) -> None:
    text = "\n".join(SENTENCES.values())
    path = save_vocabulary(train_vocabulary([text], size=2000, **rule._asdict()), tmp_path)
    data = TextConfig(vocabulary=path, lowercase=rule.lowercase)
    found = resolve_rule(data, LetterCounts(), pieces_of(path))
    assert found == (rule if rule.lowercase else rule._replace(strip_accents=False))  # BERT's cased rule never strips


@pytest.mark.skipif(not (DATA / "bert").is_dir(), reason="Google's vocabularies are not here")
@pytest.mark.parametrize(("name", "lowercase"), [("uncased", True), ("cased", False)])
def test_google_vocabularies_keep_published_rule(name: str, lowercase: bool) -> None:
    pieces = pieces_of(DATA / "bert" / f"vocab_{name}.txt")
    data = TextConfig(vocabulary=DATA / "bert" / f"vocab_{name}.txt", lowercase=lowercase)
    assert resolve_rule(data, count_letters(SENTENCES["th"]), pieces) == bert_rule(lowercase=lowercase)


def test_rule_of_tokenizer_round_trips() -> None:
    for rule in RULES:
        assert rule_of(train_vocabulary(SENTENCES.values(), size=500, **rule._asdict())) == rule


def test_alphabet_covers_scripts_of_many_characters() -> None:
    text = " ".join(chr(0xAC00 + 7 * number) * 2 for number in range(1500))
    tokenizer = train_vocabulary([text], size=8000, lowercase=True, strip_accents=False)
    assert tokenizer.encode(text).tokens.count(UNK) == 0


@pytest.mark.parametrize(("language", "workers"), [("th", 1), ("th", 2), ("hi", 1), ("ko", 1)])
def test_store_follows_script_of_text(tmp_path: Path, language: str, workers: int) -> None:
    """The store's rule and ids; the number of workers changes nothing."""
    letters = SENTENCES[language].replace(" ", "")
    documents = [f"{SENTENCES[language]} {letters[number % 7 :]} n{number}" for number in range(120)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    data = TextConfig(text=[tmp_path / "text.txt"], vocab_size=300, workers=workers)
    store = prepare(data, tmp_path / "store", min_worker_bytes=0)
    assert store.manifest.rule == automatic("".join(documents))
    assert not store.manifest.rule.strip_accents
    tokenizer = load_vocabulary(store.vocabulary, **store.manifest.rule._asdict())
    block = store.block("train", 0)
    expected = {tuple(tokenizer.encode(document).ids) for document in documents}
    ends = [*(int(block.sentence_offsets[start]) for start in block.document_offsets)]
    found = {tuple(block.tokens[start:end].tolist()) for start, end in itertools.pairwise(ends)}
    assert found <= expected
    assert len(found) > 100
    assert store.manifest.steps[-1].settings == store.manifest.rule._asdict()


def test_job_warns_of_stripped_letters(tmp_path: Path) -> None:
    """Text on another machine is not measured in the plan: the job reports it."""
    text = "\n\n".join(f"{SENTENCES['hi']} n{number}" for number in range(120))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    data, lines = TextConfig(text=[tmp_path / "text.txt"], vocab_size=300, strip_accents=True), list[str]()
    prepare(data, tmp_path / "stripped", say=lines.append)
    assert "words: lower case, accents stripped" in lines
    assert [line for line in lines if line.startswith("warning: stripping accents drops or takes apart 1")]
    lines.clear()
    prepare(data.model_copy(update={"strip_accents": "auto"}), tmp_path / "kept", say=lines.append)
    assert "words: lower case, accents kept" in lines
    assert not [line for line in lines if line.startswith("warning")]


def test_store_of_english_is_that_of_bert_rule(tmp_path: Path) -> None:
    """`auto` gives the bytes of the published rule."""
    english = [f"{SENTENCES['en'][:32]} number{number} " + "It was late. " * 9 for number in range(120)]
    (tmp_path / "text.txt").write_text("\n\n".join(english), encoding="utf-8")
    data = TextConfig(text=[tmp_path / "text.txt"], vocab_size=300)
    auto = prepare(data, tmp_path / "auto").manifest
    fixed = data.model_copy(update={"strip_accents": True, "split_unspaced": False})
    published = prepare(fixed, tmp_path / "fixed").manifest
    assert (auto.shards, auto.vocab_sha256, auto.rule) == (published.shards, published.vocab_sha256, published.rule)
