"""A system test that must learn: what the paper's trainer makes of a tiny model, and what its search then writes."""

import random

import pytest
import torch
from datasets import Dataset

from vaswani_transformer import (
    CheckpointAveraging,
    NoamSchedule,
    VaswaniConfig,
    VaswaniForConditionalGeneration,
    VaswaniTokenizer,
    VaswaniTrainer,
    VaswaniTrainingArguments,
)


pytestmark = pytest.mark.system
EOS, COPY, REVERSE = 1, 3, 4
SYMBOLS = range(5, 13)
HELD_OUT = 100


def target_of(task: int, sequence: list[int]) -> list[int]:
    return sequence if task == COPY else sequence[::-1]


@pytest.fixture(scope="module")
def sequences() -> list[list[int]]:
    """Different sequences of three to six symbols, in random order; the first ones are not trained on."""
    numbers = random.Random(0)
    found: dict[tuple[int, ...], None] = {}
    while len(found) < 4000 + HELD_OUT:
        found[tuple(numbers.choices(SYMBOLS, k=numbers.randint(3, 6)))] = None
    return [list(sequence) for sequence in found]


@pytest.fixture(scope="module")
def learned(
    sequences: list[list[int]], tokenizer: VaswaniTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> VaswaniForConditionalGeneration:
    """A model that has been trained to copy and to reverse; the first token of a source says which."""
    rows = [
        {"input_ids": [task, *sequence, EOS], "labels": [*target_of(task, sequence), EOS]}
        for sequence in sequences[HELD_OUT:]
        for task in (COPY, REVERSE)
    ]
    torch.manual_seed(0)
    sizes = {"d_model": 64, "d_ff": 128, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1}
    config = VaswaniConfig(vocab_size=SYMBOLS.stop, dropout=0.0, label_smoothing=0.1, **sizes)
    arguments = VaswaniTrainingArguments(
        str(tmp_path_factory.mktemp("learning")),
        source_tokens=500,
        target_tokens=500,
        max_steps=600,
        save_strategy="steps",
        save_steps=25,
        save_total_limit=5,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = VaswaniTrainer(
        VaswaniForConditionalGeneration(config),
        arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,  # for padding; the symbols are no words of it
        callbacks=[NoamSchedule(warmup_steps=100, factor=0.3), CheckpointAveraging(5)],
    )
    trainer.train()
    return trainer.model.eval()


@pytest.mark.parametrize("task", [COPY, REVERSE], ids=["copy", "reverse"])
def test_unseen_sequences_are_copied_and_reversed(learned, sequences, task):
    held_out = sequences[:HELD_OUT]
    sources = [torch.tensor([task, *sequence, EOS]) for sequence in held_out]
    output = learned.generate(torch.nn.utils.rnn.pad_sequence(sources, batch_first=True))
    written = [[token for token in row[1:] if token > EOS] for row in output.tolist()]
    assert written == [target_of(task, sequence) for sequence in held_out]
