"""transformers.Trainer on a contest, with Hugging Face's tokenizer, models and loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from benchmarks.finetune_setup import CLIP, EPS, WARMUP, WEIGHT_DECAY, Contest
from train_jobs.config.finetune import FinetuneScheduleConfig
from train_jobs.optim.factory import learning_rate
from train_jobs.readers.sentence_data import Examples
from train_jobs.readers.squad_data import Question
from train_jobs.tasks.entities.conll import Sentences
from train_jobs.tasks.entities.tagging import Words
from train_jobs.tasks.sentences.classification import Texts
from train_jobs.tasks.squad.questions import Questions

disable_progress_bar()
set_verbosity_error()  # which would log each new head


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows of Hugging Face's tokenizer, encoded before training."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self._rows[row]


def rows_of(contest: Contest, split: str, tokenizer: Any, *, padded: bool = False) -> Rows:
    """Return the rows of "train" or "dev".

    Args:
        contest: whose.
        split: which.
        tokenizer: Hugging Face's.
        padded: to max_length, texts only; else not at all.
    """
    how = {"truncation": True, "max_length": contest.max_length}
    match contest.rows:
        case Texts(data=data):
            examples = data.train if split == "train" else next(iter(data.dev.values()))
            return Rows(_texts(examples, tokenizer, **how, padding="max_length" if padded else False))
        case Questions(config=config, sets=sets):
            lengths = {"max_length": contest.max_length, "doc_stride": config.data.doc_stride}
            asked = sets[split].squad.questions
            rows = [row for question in asked for row in _question(question, tokenizer, **lengths)]
            # the exact comparison is only meaningful if both programs see the same windows
            assert [row["input_ids"] for row in rows] == [one.input_ids.tolist() for one in sets[split].windows]
            return Rows(rows)
        case Words(sets=sets, labels=labels):
            return Rows(_words(sets[split].sentences, labels, tokenizer, **how))
        case other:
            raise AssertionError(other)


def _texts(examples: Examples, tokenizer: Any, **how: Any) -> list[dict[str, Any]]:
    found = tokenizer(*([examples.texts] if examples.pairs is None else [examples.texts, examples.pairs]), **how)
    assert examples.labels is not None
    return [
        {"labels": label, **{name: column[row] for name, column in found.items()}}
        for row, label in enumerate(examples.labels)
    ]


def _question(question: Question, tokenizer: Any, *, max_length: int, doc_stride: int) -> list[dict[str, Any]]:
    """Return a row per sequence; the answer is the first complete one, by the tokens of its characters."""
    room = max_length - 3 - len(tokenizer(question.text, add_special_tokens=False)["input_ids"])
    found = tokenizer(
        *(question.text, question.context),
        truncation="only_second",
        max_length=max_length,
        stride=max(room - doc_stride, 0),  # tokens that two sequences share
        return_overflowing_tokens=True,
    )
    text, start = question.answers[0]
    rows = []
    for row in range(len(found["input_ids"])):
        places = [found.char_to_token(row, place, sequence_index=1) for place in (start, start + len(text) - 1)]
        first, last = (0, 0) if None in places else places
        columns = {name: found[name][row] for name in ("input_ids", "token_type_ids", "attention_mask")}
        rows.append({**columns, "start_positions": first, "end_positions": last})
    return rows


def _words(sentences: Sentences, labels: Sequence[str], tokenizer: Any, **how: Any) -> list[dict[str, Any]]:
    found = tokenizer(sentences.words, is_split_into_words=True, **how)
    rows = []
    for row, tags in enumerate(sentences.tags):
        words = found.word_ids(row)
        first = [word is not None and word != before for word, before in zip(words, [None, *words], strict=False)]
        targets = [labels.index(tags[word]) if is_first else -100 for word, is_first in zip(words, first, strict=True)]
        rows.append({"labels": targets, **{name: column[row] for name, column in found.items()}})
    return rows


class InOrder(torch.utils.data.Sampler[int]):
    """Rows in a given order."""

    def __init__(self, rows: Sequence[int]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class WatchedTrainer(Trainer):
    """Trainer that stores its losses; with `order` it uses that order of rows and our job's learning rates."""

    order: Sequence[int] | None = None

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.losses: list[torch.Tensor] = []

    def training_step(self, *arguments: Any, **keywords: Any) -> torch.Tensor:
        loss = super().training_step(*arguments, **keywords)
        self.losses.append(loss)
        return loss

    def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler[int] | None:
        return super()._get_train_sampler(train_dataset) if self.order is None else InOrder(self.order)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.order is None:
            return super().create_scheduler(num_training_steps, optimizer)
        shape, last = FinetuneScheduleConfig(warmup_fraction=WARMUP), num_training_steps - 1
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer or self.optimizer,
            # min: the scheduler computes a rate for one step more than there is
            lambda step: learning_rate(shape, 1.0, step=min(step, last), total_steps=num_training_steps),
        )
        return self.lr_scheduler


class SpanTrainer(WatchedTrainer):
    """Trainer for spans without padding among the candidates."""

    # Hugging Face's loss accepts padding as an answer, so it depends on the padding of a batch, and ours does not.
    # Without this class the comparison of losses would measure that difference.

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
        outputs = model(**inputs)
        padding = inputs["attention_mask"] == 0
        pairs = (("start_logits", "start_positions"), ("end_logits", "end_positions"))
        losses = [
            F.cross_entropy(outputs[logits].float().masked_fill(padding, float("-inf")), inputs[places])
            for logits, places in pairs
        ]
        loss = (losses[0] + losses[1]) / 2
        return (loss, outputs) if return_outputs else loss


def make_trainer(
    contest: Contest, place: str, *, padded: bool = False, callbacks: Sequence[TrainerCallback] = ()
) -> tuple[WatchedTrainer, Rows]:
    """Return a Trainer with model and rows, and the rows of dev.

    Args:
        contest: settings.
        place: folder that it may write to.
        padded: to max_length; else to the longest row of each batch.
        callbacks: its callbacks.
    """
    set_seed(contest.seed)
    labels = contest.rows.labels
    tokenizer = AutoTokenizer.from_pretrained(contest.model)
    settings = {
        "hidden_dropout_prob": contest.dropout,
        "attention_probs_dropout_prob": contest.dropout,
        "attn_implementation": "sdpa",
    }
    collator, kind = DataCollatorWithPadding(tokenizer), WatchedTrainer
    match contest.rows:
        case Texts():
            problem = "single_label_classification" if labels else "regression"
            model = AutoModelForSequenceClassification.from_pretrained(
                contest.model, num_labels=max(len(labels), 1), problem_type=problem, **settings
            )
        case Questions():
            model = AutoModelForQuestionAnswering.from_pretrained(contest.model, **settings)
            kind = SpanTrainer
        case _:
            model = AutoModelForTokenClassification.from_pretrained(contest.model, num_labels=len(labels), **settings)
            collator = DataCollatorForTokenClassification(tokenizer)
    arguments = TrainingArguments(
        output_dir=place,
        num_train_epochs=contest.epochs,
        per_device_train_batch_size=contest.batch,
        per_device_eval_batch_size=contest.batch,
        learning_rate=contest.rate,
        warmup_steps=WARMUP,
        weight_decay=WEIGHT_DECAY,
        adam_epsilon=EPS,
        max_grad_norm=CLIP,
        lr_scheduler_type="linear",
        bf16=contest.precision == "bf16",
        use_cpu=contest.device == "cpu",
        train_sampling_strategy="group_by_length" if contest.group_by_length else "random",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=contest.seed,
    )
    trainer = kind(
        model=model,
        args=arguments,
        train_dataset=rows_of(contest, "train", tokenizer, padded=padded),
        data_collator=collator,
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    return trainer, rows_of(contest, "dev", tokenizer)
