"""Alternatives against the probabilities of the model, and against transformers' forced prefixes."""

import pytest
import torch
from models import EOS, SOURCES, Numbers

from vaswani_transformer.visualization import alternatives
from vaswani_transformer.visualization.alternatives import find_alternatives


def chosen(model, source: list[int], **options: object) -> list[int]:
    row = model.generate(torch.tensor([source]), **options)[0, 1:].tolist()
    return row[: row.index(EOS) + 1] if EOS in row else row


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"num_beams": 1}], ids=["beam", "greedy"])
def test_translations_equal_generate_with_a_forced_prefix(talkative_model, options, monkeypatch):
    monkeypatch.setattr(alternatives, "_BATCH", 5)
    source = SOURCES[1]
    target = chosen(talkative_model, source, **options)
    text = " ".join(map(str, source))
    choices = find_alternatives(talkative_model, Numbers(), text, target, count=2, **options)
    assert find_alternatives(talkative_model, Numbers(), text, target, 2, [len(target) - 1], **options) == choices[-1:]
    for place, (token, choice) in enumerate(zip(target, choices, strict=True)):
        ids = torch.tensor([[0, *target[:place]]])
        with torch.no_grad():
            expected = talkative_model(torch.tensor([source]), decoder_input_ids=ids).logits[0, -1].softmax(-1)
        assert choice.probability == pytest.approx(float(expected[token]), abs=1e-5)
        likeliest = [other for other in expected.argsort(descending=True).tolist() if other != token][:2]
        for token, alternative in zip(likeliest, choice.alternatives, strict=True):
            assert alternative.probability == pytest.approx(float(expected[token]), abs=1e-5)
            prefix = [*target[:place], token]

            def allowed(sentence: int, tokens: torch.Tensor, prefix: list[int] = prefix) -> list[int]:
                made = len(tokens) - 1
                return prefix[made : made + 1] or list(range(40))

            assert list(alternative.tokens) == chosen(
                talkative_model, source, prefix_allowed_tokens_fn=allowed, **options
            )


def test_a_translation_beyond_the_length_limit_has_no_alternatives_there(talkative_model):
    target = [7] * 14 + [EOS]
    choices = find_alternatives(talkative_model, Numbers(), "7 1", target, count=2, num_beams=2)
    assert [len(choice.alternatives) for choice in choices] == [2] * 10 + [0] * 5
