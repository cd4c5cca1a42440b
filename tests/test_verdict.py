"""The verdict on a training: hand-made records, each with one thing that is remarkable."""

from typing import Any

import pytest
from helpers import option_words
from runs import run_results, training_options

from vaswani_transformer.runs.records import RunRecord, loss_by_tenth
from vaswani_transformer.runs.verdict import judge, next_step
from vaswani_transformer.system.typed_json import from_json


def record(changes: dict[str, Any] | None = None) -> RunRecord:
    """A sound training, and changes of its record by dotted name."""
    results = run_results(vocab_size=8000)
    results["test"] |= {"pathologies": {"sentences": 1000, "lines": {}}}
    for place, value in (changes or {}).items():
        *parents, name = place.split(".")
        part = results
        for parent in parents:
            part[parent] = part = {**part[parent]}  # parts of the record are shared
        part[name] = value
    return from_json(RunRecord, results)


def lines(kind: str, count: int) -> dict[str, Any]:
    return {"test.pathologies.lines": {kind: [*range(count)]}}


TIRED = [3.0, 2.0, 1.7, 1.65, 1.62, 1.6, 1.6, 1.6, 1.6, 1.6]
HALVING = [1 + 10 / (tenth + 0.5) for tenth in range(10)]  # 1 + 1 / t: 1/2 less in twice the time
MINUTES = {"training.limits": {"max_minutes": 20.0}}
OTHERS = {"training.loss_by_tenth": [6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.7, 0.6, 0.5, 0.4]}


@pytest.mark.parametrize(
    ("changes", "text", "advice"),
    [
        ({"test_copy.bleu.score": 88.0}, "two sides of the test set are nearly equal: a copy has 88.00", "compare the"),
        (lines("copied", 900), "90.0 % of the translations copy the source: the training's targets may be", "compare"),
        (lines("source language", 600), "60.0 % of the translations are in the language of the source", "compare the"),
        ({"test.pathologies.knows_lengths": False}, "do not predict the lengths of its references", "check that line"),
        (
            {"training.loss_by_tenth": [6.0, 4.0, 3.0, 2.5, 2.4, 3.0, 5.0, 6.0, 6.5, 6.6]},
            "diverged: its loss rose from 2.40 to 6.60",
            "--learning_rate_factor 0.4 and another --output_dir",
        ),
        (
            {"training.loss_by_tenth": [7.0, *[6.3] * 9], "settings.lr_scheduler_type": "constant"},
            "hardly learned: its loss fell from 7.00 to 6.30",
            "--learning_rate 2.5e-05 and",
        ),
        (
            OTHERS,
            "on the training's pairs and 5.43 on held-out ones: in 18.5 passes the model learned 28,994",
            "more text",
        ),
        (
            {**OTHERS, "training.epochs": 2.9},
            "these are another kind of text, in another language",
            "compare some lines",
        ),
        (
            {"test.bleu.score": 2.5},
            "No better than a copy of the source by sacreBLEU on the test set: 2.50 sacreBLEU",
            "--max_steps 12000",
        ),
        (lines("repeated", 60), "Of the model's translations, 6.0 % repeat a phrase.", "--resume --max_steps 12000"),
        (
            {"test.perplexity.tokens": 40000},
            "8,000 is small: it divides a word into 3.2 sub-words",
            "--vocab_size 32000",
        ),
        (
            {"model.vocab_size": 60000},
            "60,000 entries is too large for the corpus, where an entry occurs 13.8 times",
            "--min_frequency 10",
        ),
        (
            {"model.parameters": 65_000_000},
            "large for its corpus: 65,000,000 parameters, 413,747 target",
            "smaller model",
        ),
        ({"training.epochs": 0.4}, "saw only part of the corpus: 0.40 passes", "--resume --max_steps 12000"),
        ({}, "still improving: its loss changed from 1.60 to 1.45 in the last tenth", None),
        ({"training.loss_by_tenth": TIRED}, "converged: its loss changed from 1.60 to 1.60 in the last tenth", None),
        ({"training.loss_by_tenth": HALVING}, "the perplexity would be about 39% lower", None),  # exp(-0.5)
        (MINUTES, "% lower: repeat the command with --resume --max_minutes 40.", None),
        (
            {**MINUTES, "settings.cooldown": 0.9},  # whose rate has fallen to zero
            "% lower: repeat the command with --max_minutes 40 and another --output_dir.",
            None,
        ),
    ],
)
def test_each_fault_has_its_sentence_and_the_first_says_what_to_do(changes, text, advice):
    findings = judge(record(changes))
    (found,) = (each for each in findings if text in each.text)
    assert (advice is None) == (found.advice is None)
    assert advice is None or advice in next_step(record(), findings, "runs/mine")
    assert not changes or not any(text in each.text for each in judge(record()))


@pytest.mark.parametrize(
    "limits",
    [
        {"max_steps": 1_500_000},
        {"num_train_epochs": 3.0},
        {"max_minutes": 20.0},
        {"early_stopping_patience": 3},
        {"max_steps": 6000, "max_minutes": 0.5},
    ],
)
@pytest.mark.parametrize("schedule", ["inverse_sqrt", "constant"])
def test_each_advised_command_is_accepted_and_trains_longer(limits, schedule):
    """The advice follows from the limit that ended the training; the command may have no other."""
    command = {
        **limits,
        "lr_scheduler_type": schedule,
        "eval_strategy": "steps",
        "use_cpu": True,
        "train": "phrasebook",
    }
    settings = {"training.limits": limits, "settings.lr_scheduler_type": schedule}
    diverged = {"training.loss_by_tenth": [1.0] * 5 + [2.0] * 5}
    large, small = {"model.vocab_size": 60000}, {"test.perplexity.tokens": 40000}
    advised = []
    for changes in (
        {"training.epochs": 0.4},
        {"training.epochs": 0.4, "settings.cooldown": 0.9},
        diverged,
        large,
        small,
    ):
        findings = judge(record({**settings, **changes}))
        advised += [each.advice for each in findings if each.advice and each.advice.startswith("repeat the command")]
    assert len({*advised}) == 5
    for advice in advised:
        words = advice.removeprefix("repeat the command with ").replace(
            "another --output_dir", "--output_dir runs/other"
        )
        _, _, args = training_options([*option_words(command), *words.replace(" and ", " ").split()])
        if "--resume" in words:
            assert {name: getattr(args, name) for name in limits} == {name: 2 * each for name, each in limits.items()}


def test_nothing_is_advised_about_the_vocabulary_of_a_given_tokenizer():
    given = {"data.tokenizer": "runs/tokenizer"}
    for changes in ({"model.vocab_size": 60000}, {"test.perplexity.tokens": 40000}):
        assert [each for each in judge(record(changes)) if "vocabulary" in each.text]
        assert not [each for each in judge(record({**changes, **given})) if "vocabulary" in each.text]


def test_the_vocabulary_of_a_tiny_corpus_is_not_called_small_and_large():
    tiny = record({"test.perplexity.tokens": 40000, "training.target_tokens": 100_000})
    assert [each.text for each in judge(tiny) if "vocabulary" in each.text] == [
        "The vocabulary of 8,000 entries is too large for the corpus, where an entry occurs 1.4 times on average."
    ]


def test_the_sizes_of_a_fine_tuned_model_are_its_parents():
    parent = {"name": "runs/parent", "is_on_hub": False, "sha256": "0"}
    tiny = record({"training.target_tokens": 100_000, "parent": parent})
    assert not [each.text for each in judge(tiny) if "vocabulary" in each.text or "parameters" in each.text]


def test_after_a_sound_training_one_translates():
    findings = judge(record({"training.loss_by_tenth": TIRED}))
    assert [each.text.partition(":")[0] for each in findings] == [
        "Better than a copy of the source on the test set",
        "The model has nearly converged",
        "Bad at",
    ]
    assert (
        next_step(record(), findings, "runs/mine")
        == "vaswani translate --model runs/mine --input text.en --output text.de"
    )


def test_what_a_model_is_good_and_bad_at():
    group = {"shortest": 1, "longest": 10, "sentences": 900, "sacrebleu": 50.0}
    groups = [group, {**group, "shortest": 11, "longest": None, "sacrebleu": 30.0}, {**group, "sentences": 3}]
    copies = {"numbers": {"lines": 40, "copied": 40}, "names": {"lines": 40, "copied": 10}}
    copies["emoji"] = {"lines": 40, "copied": 0}
    *_, good, bad = judge(record({"test.by_source_length": groups, "robustness.strings": copies}))
    assert good.text == "Good at: copying numbers (100.0%)."
    assert bad.text == (
        "Bad at: sentences of 11 or more words (30.00 sacreBLEU, against 50.00 for 1 to 10 words), <b>...</b> around "
        "(-9.1 chrF), copying names (25.0%), emoji (0.0%)."
    )


@pytest.mark.parametrize("every", [1, 3, 10])
def test_a_tenth_of_the_training_has_its_mean_however_often_it_was_logged(every):
    """Each step's loss is the number of its tenth, from 0."""
    losses = [step // 6 for step in range(60)]
    logs = [{"step": step, "nll_loss": sum(losses[step - every : step]) / every} for step in range(every, 61, every)]
    tenths = loss_by_tenth([{"step": 6, "eval_loss": 1.0}, *logs])
    assert tenths == pytest.approx(range(10), abs=0.0 if every < 10 else 0.5)
    assert loss_by_tenth(logs[:4]) is None
