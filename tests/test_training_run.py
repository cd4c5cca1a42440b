"""What recipes that train share, apart from the trainings that test_train_wmt.py runs with it."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from datasets import Dataset

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.data.training_data import TrainingData
from vaswani_transformer.launch.interruption import Interruption
from vaswani_transformer.launch.watchdog import Watchdog
from vaswani_transformer.runs.records import RunRecord
from vaswani_transformer.runs.run_arguments import ModelArguments, RecipeTrainingArguments
from vaswani_transformer.runs.training_run import (
    TrainingRun,
    complete_config,
    configure_model,
    describe_model,
    model_settings,
    require_positions,
)


@pytest.fixture
def run(tmp_path):
    watchdog = Watchdog("recipe.py", 60)
    args = RecipeTrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    with ExitStack() as until_the_end:
        yield TrainingRun(args, RunRecord, watchdog, Interruption(watchdog), until_the_end)


def test_a_row_of_table_3_with_changes_in_two_languages():
    config = configure_model(ModelArguments(variant="big", d_ff=64), "en", "fr")
    assert (config.d_model, config.d_ff, config.source_language, config.target_language) == (1024, 64, "en", "fr")
    settings = model_settings(config)
    assert settings.keys() == vars(ModelArguments()).keys() - {"variant"}
    assert (settings["d_model"], settings["d_ff"], settings["dropout"]) == (1024, 64, 0.3)


def test_long_training_sentence_beyond_a_learned_table(tokenizer):
    lengths = Dataset.from_dict({"source_length": [3, 8], "target_length": [9, 4]})
    config = VaswaniConfig(position_encoding="learned", max_position_embeddings=8)
    data = TrainingData(tokenizer, train=lengths, cleaning={}, text={}, encoded={})
    message = (
        "position_encoding: train has a sentence of 9 tokens, but the learned table has 8 positions; "
        "lower max_length to 8"
    )
    with pytest.raises(ValueError, match=message):
        require_positions(config, data)
    config.max_position_embeddings = 9
    require_positions(config, data)


def test_the_vocabulary_of_a_new_model_is_the_tokenizers(tokenizer):
    config = VaswaniConfig()
    complete_config(config, tokenizer)
    assert (config.vocab_size, config.eos_token_id) == (len(tokenizer), tokenizer.eos_token_id)


def test_the_description_of_a_model_names_no_remote_code(config):
    model = VaswaniForConditionalGeneration(config)
    found = describe_model(model)
    assert found.parameters == sum(weight.numel() for weight in model.parameters())
    assert (found.d_model, found.vocab_size) == (config.d_model, config.vocab_size)
    assert not {"auto_map", "custom_pipelines"} & found.others.keys()


def test_an_error_is_one_line_that_names_the_recipe(run):
    with pytest.raises(SystemExit, match=r"^recipe\.py: train: one two$"), run.errors_in_one_line():
        raise ValueError("train: one\n two")


def test_the_last_checkpoint_is_scored_beside_its_average(run, tmp_path):
    assert run.models_to_score({"validation"}) == {"validation": ("validation", tmp_path)}
    run.averaging.averaged = [Path("checkpoint-4")]  # the same weights
    assert run.models_to_score({"test"}) == {"test": ("test", tmp_path)}
    run.averaging.averaged = [Path("checkpoint-2"), Path("checkpoint-4")]
    assert run.models_to_score({"test"}) == {
        "test": ("test", tmp_path),
        "test_last_checkpoint": ("test", Path("checkpoint-4")),
    }
