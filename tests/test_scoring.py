"""BLEU at each evaluation, early stopping by it, and how both leave the training as it is."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed_step import RecordingTrainer, assert_equal_weights, make_trainer
from models import translate_alone
from runs import run_record
from sacrebleu.metrics.bleu import BLEU
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerBase

from vaswani_transformer import CheckpointAveraging, VaswaniForConditionalGeneration
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.evaluation.test_sets import TestSet
from vaswani_transformer.runs.scoring import Translations, score_systems
from vaswani_transformer.runs.validation import validation_bleu
from vaswani_transformer.system.faults import Interrupted
from vaswani_transformer.training.callbacks import EarlyStopping
from vaswani_transformer.training.schedule import NoamSchedule
from vaswani_transformer.training.signals import SignalCheckpoint


pytestmark = pytest.mark.system
SOURCES = [f" {english}" for english, _ in phrasebook("test")[:40]]
EVERY_SECOND = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "max_steps": 12}


def translations(directory: Path, tokenizer: PreTrainedTokenizerBase, **search: int) -> list[str]:
    """Translate each source alone with a saved model."""
    model = AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
    model.generation_config.max_new_tokens = 8
    return [translate_alone(model, tokenizer, text, **search) for text in SOURCES]


def trained(
    model: Path | VaswaniForConditionalGeneration, tokenizer: Any, folder: Path, bleu: Any = None, **settings: Any
) -> RecordingTrainer:
    if isinstance(model, Path):
        model = AutoModelForSeq2SeqLM.from_pretrained(model)
    model.generation_config.max_new_tokens = 8
    slowly = NoamSchedule(4, 1e-3)  # so that the model keeps saying something
    callbacks = [slowly, *settings.pop("callbacks", [])]
    trainer = make_trainer(model, tokenizer, folder, callbacks=callbacks, **{**EVERY_SECOND, **settings})
    trainer.validation_bleu = bleu
    return trainer


def logged(trainer: RecordingTrainer) -> dict[int, float]:
    return {entry["step"]: entry["eval_bleu"] for entry in trainer.state.log_history if "eval_bleu" in entry}


def test_bleu_is_that_of_each_checkpoint_and_changes_no_weight(lively_model, tokenizer, tmp_path):
    without = trained(lively_model, tokenizer, tmp_path / "without", max_steps=4)
    without.train()
    # Most references are translations of the first checkpoint, so that its BLEU is neither 0 nor 100.
    references = translations(tmp_path / "without" / "checkpoint-2", tokenizer, num_beams=2)
    references[::3] = SOURCES[::3]
    sample = TestSet("validation", ("en", "de"), SOURCES, [[text] for text in references])
    bleu = partial(validation_bleu, tokenizer=tokenizer, sample=sample, num_beams=2)
    watched = trained(lively_model, tokenizer, tmp_path / "with", bleu, max_steps=4)
    watched.train()
    assert [*logged(watched)] == [2, 4]
    for step, score in logged(watched).items():
        found = translations(tmp_path / "with" / f"checkpoint-{step}", tokenizer, num_beams=2)
        assert score == BLEU().corpus_score(found, [references]).score
    assert 1 < logged(watched)[2] < 99
    assert_equal_weights(watched.model.state_dict(), without.model.state_dict())


class Scripted:
    """BLEU by step; sends this process a signal in the evaluation of one step."""

    def __init__(self, *scores: float, signalled: int | None = None) -> None:
        self.scores, self.signalled, self.trainer = scores, signalled, None

    def __call__(self, model: Any) -> float:
        step = self.trainer.state.global_step
        if step == self.signalled:
            os.kill(os.getpid(), signal.SIGTERM)
        return self.scores[step // 2 - 1]


def stopped(lively_model: Path, tokenizer: Any, folder: Path, bleu: Scripted, patience: int, *others: Any) -> Any:
    """A trainer with early stopping, and the names of the checkpoints that it averages."""
    averaging = CheckpointAveraging(2)
    callbacks = [EarlyStopping(patience), averaging, *others]
    metric = {"metric_for_best_model": "bleu"}
    bleu.trainer = trained(lively_model, tokenizer, folder, bleu, callbacks=callbacks, **metric)
    return bleu.trainer, averaging


@pytest.mark.parametrize("step", [4, 6])
def test_early_stopping_is_exact_after_a_signal_in_an_evaluation(lively_model, tokenizer, tmp_path, step):
    scores = (1.0, 3.0, 2.0, 3.0, 9.0, 9.0)  # step 4 is the best until step 10
    whole, averaging = stopped(lively_model, tokenizer, tmp_path / "whole", Scripted(*scores), 2)
    whole.train()
    assert logged(whole) == {2: 1.0, 4: 3.0, 6: 2.0, 8: 3.0}
    assert [each.name for each in averaging.averaged] == ["checkpoint-6", "checkpoint-8"]

    with SignalCheckpoint() as signal_checkpoint:
        bleu = Scripted(*scores, signalled=step)
        trainer, _ = stopped(lively_model, tokenizer, tmp_path / "parts", bleu, 2, signal_checkpoint)
        with pytest.raises(Interrupted):
            trainer.train()
    assert trainer.state.global_step == step + 1
    resumed, averaging = stopped(lively_model, tokenizer, tmp_path / "parts", Scripted(*scores), 2)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 8
    assert logged(resumed) == logged(whole)
    assert [each.name for each in averaging.averaged] == ["checkpoint-6", "checkpoint-8"]
    assert_equal_weights(resumed.model.state_dict(), whole.model.state_dict())


def test_the_last_step_of_a_stopped_training_is_saved_and_its_reason_printed(lively_model, tokenizer, tmp_path, caplog):
    bleu, averaging = Scripted(3.0, 1.0, 2.0), CheckpointAveraging(2)
    options = {"metric_for_best_model": "bleu", "save_steps": 5, "callbacks": [EarlyStopping(2), averaging]}
    bleu.trainer = trained(lively_model, tokenizer, tmp_path, bleu, **options)
    bleu.trainer.train()
    assert [each.name for each in averaging.averaged] == ["checkpoint-5", "checkpoint-6"]
    assert [record.getMessage() for record in caplog.records if record.name.endswith("training.callbacks")] == [
        "early_stopping_patience: training ends at step 6; the last 2 evaluations did not improve on an eval_bleu of 3"
    ]


def test_a_stopped_training_stays_stopped_until_there_is_more_patience(lively_model, tokenizer, tmp_path):
    scores = (1.0, 3.0, 2.0, 3.0, 9.0, 9.0)
    for patience, step in ((2, 8), (2, 8), (3, 12)):
        trainer, _ = stopped(lively_model, tokenizer, tmp_path, Scripted(*scores), patience)
        trainer.train(resume_from_checkpoint=any(tmp_path.iterdir()))
        assert trainer.state.global_step == step


@pytest.mark.parametrize("language", ["de", "zh"])
def test_the_best_search_is_that_of_the_score_that_divides_the_text(language):
    """Moses' tokenizer divides Chinese characters in a German text, but not in a Chinese one."""
    chinese = "\u6211\u559c\u6b61\u8c93\u548c\u72d7"
    searches = [Translations(["a b c d e f dog"]), Translations([f"x b c d e y {chinese}"])]
    test_set = TestSet("test", ("en", language), None, [[f"a b c d e f {chinese}\u5427"]])
    _, lines = score_systems({"model": searches}, {}, test_set, run_record().run)
    assert lines == {"model": searches[1].lines}
