"""transformers' own tests of models, run on this package's models: `make test-transformers`.

`make` fetches the source distribution of the installed transformers, which has the tests of what every model has in
common. The tests of `generate` are not in it; they run too where `TRANSFORMERS_SOURCE` names a checkout of the same
version.
"""

import importlib
import os
import re
import sys
import types
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from transformers import GenerationConfig
from transformers.models.auto import modeling_auto

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniModel
from vaswani_transformer.model.generation_vaswani import paper_generation_config


SOURCE = Path(os.environ.get("TRANSFORMERS_SOURCE", Path(sys.prefix) / "transformers-source"))
PACKAGE = "transformers_tests"  # a name of its own, since `tests` may be anything

# What the tests import and the source distribution lacks.
ABSENT: dict[str, dict[str, Any]] = {
    "exporters.test_export": {"ExportTesterMixin": type("ExportTesterMixin", (), {})},
    "generation.test_utils": {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})},
    "utils.test_configuration_utils": {
        "config_common_kwargs": {  # fields of every configuration, none of them at its default
            "architectures": ["VaswaniModel"],
            "chunk_size_feed_forward": 3,
            "dtype": "float16",
            "id2label": {0: "no", 1: "yes", 2: "maybe"},
            "label2id": {"no": 0, "yes": 1, "maybe": 2},
            "output_attentions": True,
            "output_hidden_states": True,
            "problem_type": "regression",
            "return_dict": False,
        }
    },
}


def _add_module(name: str, path: Path | None = None, **contents: Any) -> None:
    """Make `PACKAGE.name` importable: a package of the files at `path`, or a module of `contents`."""
    module = types.ModuleType(f"{PACKAGE}.{name}".rstrip("."))
    if path is not None:
        module.__path__ = [str(path)]
    vars(module).update(contents)
    sys.modules[module.__name__] = module


def _import_tests() -> dict[str, Any]:
    """The modules of transformers' tests, by their last name."""
    version = re.search(r'__version__ = "(.+)"', (SOURCE / "src/transformers/__init__.py").read_text(encoding="utf-8"))
    if version[1] != transformers.__version__:
        raise ImportError(f"{SOURCE} is transformers {version[1]}, installed is {transformers.__version__}")
    _add_module("", SOURCE / "tests")
    for name, contents in ABSENT.items():
        file = SOURCE / "tests" / f"{name.replace('.', '/')}.py"
        if not file.exists():
            _add_module(name.rpartition(".")[0], file.parent)
            _add_module(name, **contents)
    # They look for the package itself in the folder above their own.
    with mock.patch("transformers.utils.direct_transformers_import", return_value=transformers):
        names = ("test_modeling_common", "test_configuration_common", "generation.test_utils")
        return {name.rpartition(".")[2]: importlib.import_module(f"{PACKAGE}.{name}") for name in names}


TESTS = _import_tests()

# Which of a model's classes takes labels, and which is its base, the tests decide by these lists.
modeling_auto.MODEL_MAPPING_NAMES["vaswani"] = "VaswaniModel"
modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES["vaswani"] = "VaswaniForConditionalGeneration"


class ModelTester:
    """Configurations and inputs for the tests, which also read its attributes."""

    batch_size = 13
    seq_length = 7
    is_training = True
    vocab_size = 99
    hidden_size = 16
    num_hidden_layers = 2
    num_attention_heads = 4

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings

    def get_config(self) -> VaswaniConfig:
        return VaswaniConfig(
            vocab_size=self.vocab_size,
            d_model=self.hidden_size,
            encoder_layers=self.num_hidden_layers,
            decoder_layers=self.num_hidden_layers,
            pad_token_id=0,
            decoder_start_token_id=0,
            eos_token_id=1,
            bos_token_id=2,
            max_position_embeddings=100,
            attention_dropout=0.1,
            **self.settings,
        )

    def prepare_config_and_inputs(self) -> tuple[VaswaniConfig, dict[str, torch.Tensor]]:
        def random_tokens() -> torch.Tensor:
            return TESTS["test_modeling_common"].ids_tensor((self.batch_size, self.seq_length), self.vocab_size)

        input_ids = random_tokens().clamp(min=3)
        input_ids[:, -1] = 1
        mask = torch.ones_like(input_ids)
        inputs = {"input_ids": input_ids, "attention_mask": mask}
        return self.get_config(), {**inputs, "decoder_input_ids": random_tokens(), "decoder_attention_mask": mask}

    prepare_config_and_inputs_for_common = prepare_config_and_inputs


def greedy_generation_config(config: VaswaniConfig) -> GenerationConfig:
    """The model's, but without a beam: the tests take a model to search greedily unless told otherwise."""
    settings = paper_generation_config(config)
    settings.update(num_beams=1, length_penalty=1.0, early_stopping=False)
    return settings


class TestVaswani(
    TESTS["test_modeling_common"].ModelTesterMixin, TESTS["test_utils"].GenerationTesterMixin, unittest.TestCase
):
    all_model_classes = (VaswaniModel, VaswaniForConditionalGeneration)
    is_encoder_decoder = True
    settings: dict[str, Any] = {"d_ff": 32, "num_heads": ModelTester.num_attention_heads}
    # transformers spares its own older models this test.
    test_can_init_all_missing_weights_before_2023 = True

    def setUp(self) -> None:
        self.model_tester = ModelTester(self.settings)
        self.config_tester = TESTS["test_configuration_common"].ConfigTester(self, config_class=VaswaniConfig)
        decoding = mock.patch(
            "vaswani_transformer.model.modeling_vaswani.paper_generation_config", new=greedy_generation_config
        )
        decoding.start()
        self.addCleanup(decoding.stop)

    def test_config(self) -> None:
        self.config_tester.run_common_tests()


class TestVaswaniLearnedPositions(TestVaswani):
    settings = {**TestVaswani.settings, "position_encoding": "learned", "attention_bias": False}
