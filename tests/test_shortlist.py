"""Shortlists against Model 1 written as loops; what CTranslate2 does with them; refusals."""

import copy
from collections import Counter, defaultdict

import pytest

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.engines import shortlist
from vaswani_transformer.engines.shortlist import learn_shortlist


PAIRS = phrasebook("validation")[:16]


def model_1(pairs: list[tuple[list[str], list[str]]], iterations: int) -> dict[str, dict[str, float]]:
    """Probability of each target token given each source token, with the equations as loops."""
    likely: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(lambda: 1.0))
    for _ in range(iterations):
        counts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for source, target in pairs:
            for word in target:
                total = sum(likely[other][word] for other in source)
                for other in source:
                    counts[other][word] += likely[other][word] / total
        likely = {
            other: {word: count / sum(words.values()) for word, count in words.items()}
            for other, words in counts.items()
        }
    return likely


def test_candidates_are_the_likeliest_by_model_1(tokenizer, monkeypatch):
    monkeypatch.setattr(shortlist, "_CANDIDATES", 4)
    monkeypatch.setattr(shortlist, "_COMMON", 5)
    monkeypatch.setattr(shortlist, "_TOGETHER", 7)  # in three parts
    found = learn_shortlist(tokenizer, iter([*PAIRS, ("", "leer"), ("long " * 200, "lang")]))
    pairs = [tuple(tokenizer.tokenize(side) for side in pair) for pair in PAIRS]
    likely = model_1(pairs, 5)
    frequencies = Counter(word for _, target in pairs for word in target)
    common = set(found.pop(""))
    assert len(common) == 5
    others = [count for word, count in frequencies.items() if word not in common]
    assert min(frequencies[word] for word in common) >= max(others)
    assert found.keys() == set(tokenizer.get_vocab())
    some_full = False
    for source, targets in found.items():
        assert targets[0] == source
        assert len(set(targets)) == len(targets)
        shares = {word: share for word, share in likely.get(source, {}).items() if word not in common}
        taken = [shares[word] for word in targets[1:]]
        left = [share for word, share in shares.items() if word not in targets]
        assert len(taken) == 4 or max(left, default=0) < 1e-3
        assert min(taken, default=1) >= max(left, default=0) - 1e-9
        some_full = some_full or (len(taken) == 4 and len(left) > 4)
    assert some_full


def test_ctranslate2_searches_among_the_candidates(trained, tokenizer, tmp_path):
    """CTranslate2 chooses among the source tokens' candidates and the tokens that may occur anywhere."""
    engine = pytest.importorskip("vaswani_transformer.engines.ctranslate2")
    greedy = copy.deepcopy(trained)
    greedy.generation_config.update(num_beams=1, length_penalty=None, early_stopping=None)
    sources = tokenizer([english for english, _ in PAIRS])["input_ids"]
    targets = tokenizer([german for _, german in PAIRS])["input_ids"]

    def search(name: str, candidates: dict[str, list[str]]) -> list[list[int]]:
        directory = engine.export(greedy, tokenizer, tmp_path / name, shortlist=candidates)
        translator = engine.CTranslate2Translator(directory)
        return [translator.hypotheses([source])[0] for source in sources]

    assert search("learned", learn_shortlist(tokenizer, PAIRS)) == targets
    few = {"": ["e", "n"], **{token: [token] for token in tokenizer.get_vocab()}}
    always = {*tokenizer.convert_tokens_to_ids(["e", "n"]), tokenizer.unk_token_id, tokenizer.eos_token_id}
    for source, tokens in zip(sources, search("few", few), strict=True):
        assert len(tokens) > 1
        assert set(tokens) <= always | set(source)
