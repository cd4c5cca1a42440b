"""Translation of many sentences against one sentence at a time."""

import time
from types import SimpleNamespace

import pytest
import torch
from accelerate import cpu_offload
from helpers import call_in_threads
from models import translate_alone
from transformers import AutoModelForSeq2SeqLM

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding import translation
from vaswani_transformer.decoding.translation import translate_corpus
from vaswani_transformer.model import translation_vaswani


@pytest.fixture
def corpus_and_translations(lively_model, tokenizer):
    """A model, sentences, and what it makes of each of them alone."""
    model = AutoModelForSeq2SeqLM.from_pretrained(lively_model).eval()
    sentences = [english for english, _ in phrasebook("test")[:10]]
    sentences[3:3] = ["", "  ", " spaces around  "]
    expected = [translate_alone(model, tokenizer, sentence, max_new_tokens=10) for sentence in sentences]
    assert len(set(expected)) >= len(expected) - 2
    return model, sentences, expected


def test_offloaded_weights_translate_the_same(corpus_and_translations, tokenizer):
    model, sentences, expected = corpus_and_translations
    cpu_offload(model, execution_device=torch.device("cpu"))
    assert model.device.type == "meta"
    assert translate_corpus(model, tokenizer, sentences, max_new_tokens=10) == expected


@pytest.mark.parametrize("processes", [2, 3, 20])
def test_processes_translate_equal_shares_and_each_sentence_once(
    corpus_and_translations, tokenizer, monkeypatch, processes
):
    model, sentences, expected = corpus_and_translations
    gathered: list[tuple[int, str]] = []
    shares = []

    def gather(mine):
        shares.append(len(mine))
        gathered.extend(mine)
        return gathered

    monkeypatch.setattr(translation, "gather_object", gather)
    for rank in range(processes):
        state = SimpleNamespace(num_processes=processes, process_index=rank, is_main_process=rank == 0)
        monkeypatch.setattr(translation, "PartialState", lambda state=state: state)
        result = translate_corpus(model, tokenizer, sentences, max_new_tokens=10)
    assert result == expected  # the last to gather has all of them, and none twice
    assert max(shares) - min(shares) <= 1


def test_threads_that_warn_together_warn_once(monkeypatch):
    warned = []

    def warn(message: str) -> None:
        time.sleep(0.1)  # the others come meanwhile
        warned.append(message)

    monkeypatch.setattr(translation_vaswani.logger, "warning", warn)
    call_in_threads([lambda: translation_vaswani.warn_once("part may be missing here")], rounds=2)
    assert warned == ["part may be missing here"]
