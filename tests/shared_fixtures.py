"""Fixtures of all tests."""

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch
from corpus_folder import Folder
from distributed_step import Clock
from helpers import REPOSITORY, save_model
from hypothesis import settings
from models import talkative
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniTokenizer
from vaswani_transformer.data.phrasebook import phrasebook


if TYPE_CHECKING:
    from hub_server import HubServer

SHARED_DATA = REPOSITORY.parent / "shared" / "data"

# Other examples in each run; neither the clock nor an earlier run decides a test.
settings.register_profile("tests", max_examples=50, deadline=None, database=None)
settings.load_profile("tests")


def pytest_collection_finish() -> None:
    gc.freeze()  # each call of a recipe collects garbage, and need not look through the libraries and the tests


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Undo what a test, or a recipe that it calls, changes of the environment."""
    with patch.dict(os.environ):
        yield


@pytest.fixture
def unbroken_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes print lines and tables as they are, whatever width `COLUMNS` gives to the output of the tests."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def shared_data() -> Path:
    """The folder of real corpora beside the repository; a test that asks for it skips where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"the real corpora are not at {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A temporary folder to write corpora into."""
    return Folder(tmp_path)


@pytest.fixture
def config() -> VaswaniConfig:
    """A small model whose every dimension differs from the others, so that no mix-up goes unseen."""
    return VaswaniConfig(
        vocab_size=37, d_model=24, d_ff=40, num_heads=4, d_k=5, d_v=7, encoder_layers=2, decoder_layers=3
    )


@pytest.fixture
def model(config: VaswaniConfig) -> VaswaniForConditionalGeneration:
    return VaswaniForConditionalGeneration(config).eval()


@pytest.fixture
def tiny(config: VaswaniConfig) -> VaswaniForConditionalGeneration:
    """A model of one layer on each side."""
    config.encoder_layers = config.decoder_layers = 1
    return VaswaniForConditionalGeneration(config)


@pytest.fixture
def stock_trainer(tmp_path: Path, tokenizer: VaswaniTokenizer) -> Callable[..., Seq2SeqTrainer]:
    """Makes a `Seq2SeqTrainer` on four pairs, which saves no checkpoint unless told otherwise."""
    rows = [{"input_ids": [5 + n, 6, 1], "labels": [7, 8 + n, 9, 1]} for n in range(4)]

    def make(model: PreTrainedModel, *callbacks: TrainerCallback, **overrides: Any) -> Seq2SeqTrainer:
        settings = {"per_device_train_batch_size": 2, "logging_steps": 1, "save_strategy": "no", "report_to": "none"}
        settings |= {"disable_tqdm": True, "use_cpu": True, "output_dir": str(tmp_path), **overrides}
        return Seq2SeqTrainer(
            model,
            Seq2SeqTrainingArguments(**settings),
            train_dataset=rows,
            eval_dataset=rows[:1],
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            callbacks=[*callbacks],
        )

    return make


@pytest.fixture
def clock() -> Iterator[Clock]:
    """The clock that trainings read; a step takes two seconds, or what the test says."""
    clock = Clock(2.0)
    yield clock
    clock.stop()


@pytest.fixture
def talkative_model() -> VaswaniForConditionalGeneration:
    """A model whose sentences end at different lengths, as a trained one's do."""
    return talkative()


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator["HubServer"]:
    """A Hub to push to, and programs that know transformers and no package but that."""
    from hub_server import HubServer  # needs packages that a machine may lack which runs other tests only

    with HubServer(tmp_path_factory.mktemp("hub") / "home") as server:
        yield server


@pytest.fixture(scope="session")
def tokenizer() -> VaswaniTokenizer:
    """A byte-pair vocabulary of the embedded corpus."""
    pairs = phrasebook("validation")
    corpus = (sentence for pair in pairs for sentence in pair)
    return VaswaniTokenizer.train(corpus, vocab_size=400, show_progress=False)


@pytest.fixture(scope="session")
def saved_model(tokenizer: VaswaniTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an untrained model and its tokenizer, as training leaves it."""
    torch.manual_seed(0)
    config = VaswaniConfig(
        vocab_size=len(tokenizer), d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1
    )
    return save_model(tmp_path_factory.mktemp("model"), VaswaniForConditionalGeneration(config), tokenizer)


@pytest.fixture(scope="session")
def lively_model(saved_model: Path, tokenizer: VaswaniTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an untrained model whose larger weights make it say something else of nearly every sentence, so
    that translations that are mixed up are seen to be."""
    model = AutoModelForSeq2SeqLM.from_pretrained(saved_model)
    for weight in model.parameters():
        if weight.dim() == 2:
            weight.data *= 3
    return save_model(tmp_path_factory.mktemp("lively"), model, tokenizer)


@pytest.fixture(scope="module")
def loaded_model(lively_model: Path) -> VaswaniForConditionalGeneration:
    """The model of `lively_model`."""
    return AutoModelForSeq2SeqLM.from_pretrained(lively_model).eval()


@pytest.fixture(scope="session")
def two_way(lively_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the lively model as one of both directions, so that its translations depend on the tag."""
    corpus = (sentence for pair in phrasebook("validation") for sentence in pair)
    tokenizer = VaswaniTokenizer.train(corpus, 400, show_progress=False, special_tokens=["<2en>", "<2de>"])
    model = AutoModelForSeq2SeqLM.from_pretrained(lively_model)
    languages = {"source_language": "en", "target_language": "de", "language_tags": {"en": 398, "de": 399}}
    model.config.update(languages)
    model.generation_config.max_new_tokens = 8
    return save_model(tmp_path_factory.mktemp("two_way"), model, tokenizer)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; tests that ask for it skip where it is absent."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with driver.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])  # for root
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def trained(tokenizer: VaswaniTokenizer) -> VaswaniForConditionalGeneration:
    """A model that has learned 16 sentences of the validation corpus, so that it knows where to end."""
    torch.manual_seed(0)
    pairs = phrasebook("validation")[:16]
    config = VaswaniConfig(
        vocab_size=len(tokenizer), d_model=32, d_ff=64, num_heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0
    )
    model = VaswaniForConditionalGeneration(config)
    inputs = tokenizer([english for english, _ in pairs], return_tensors="pt", padding=True)
    labels = tokenizer([german for _, german in pairs], return_tensors="pt", padding=True)["input_ids"]
    labels = labels.masked_fill(labels.eq(0), -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, fused=True)
    for _ in range(150):
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()
