"""The paper's BLEU against a published value, Perl, and the rules of the published script, as loops and by cases."""

import gzip
import math
import random
import shutil
import subprocess
import unicodedata
from collections import Counter
from pathlib import Path

import evaluate
import pytest

from vaswani_transformer import evaluation
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.evaluation.multi_bleu import (
    MultiBleu,
    corpus_bleu,
    multi_bleu,
    paper_tokenizer,
    split_at_spaces,
    split_compounds,
)


FILE = Path(evaluation.__file__).with_name("multi_bleu.py")


def paper_bleu(hypotheses: list[str], references: list, language: str) -> float:
    return corpus_bleu(hypotheses, references, paper_tokenizer(language)).score


def by_definition(hypotheses: list[list[str]], references: list[list[list[str]]]) -> dict[str, float]:
    """The script's rules, written out: tokens of each line, of several alternatives for each reference."""
    correct, total, length = Counter(), Counter(), 0  # by order, but for the length
    for hypothesis, alternatives in zip(hypotheses, references, strict=True):
        expected = Counter()
        for reference in alternatives:
            expected |= ngrams(reference)
        for ngram, count in ngrams(hypothesis).items():
            total[len(ngram)] += count
            correct[len(ngram)] += min(count, expected[ngram])
        length += min(map(len, alternatives), key=lambda other: (abs(other - len(hypothesis)), other))
    precisions = [correct[order] / max(total[order], 1) for order in range(1, 5)]
    penalty = 1.0 if total[1] >= length else math.exp(1 - length / total[1]) if total[1] else 0.0
    score = 100 * penalty * math.prod(precisions) ** 0.25
    return {"score": score, "bp": penalty, "sys_len": total[1], "ref_len": length}


def ngrams(tokens: list[str]) -> Counter:
    return Counter(tuple(tokens[i : i + order]) for order in range(1, 5) for i in range(len(tokens) - order + 1))


@pytest.mark.parametrize("split", ["bpe", "spm"])
def test_the_value_that_was_published(shared_data, split):
    def read(name: str) -> list[str]:
        with gzip.open(shared_data / "bleu_reference" / name, "rt", encoding="utf-8", newline="\n") as file:
            return [line.removesuffix("\n") for line in file]

    references = read(f"deen_ref_{split}.gz")
    if split == "bpe":
        references = [line.replace("@@ ", "") for line in references]
    else:
        references = [line.replace(" ", "").replace("▁", " ").strip() for line in references]
    assert multi_bleu(read("deen_output.gz"), references) == pytest.approx(22.5855084573, abs=1e-10)


@pytest.mark.parametrize("tokenize", [split_at_spaces, str.split])
@pytest.mark.parametrize("alternatives", [1, 2, 4, None])
def test_any_lines_score_by_the_rules_of_the_script(alternatives, tokenize):
    draw = random.Random(str(alternatives))
    positive = 0

    def line() -> str:
        return "".join(draw.choices("aaab   \t\u00a0", k=draw.randint(0, 40)))

    for lines in (1, 3, 40) * 20:
        references = [[line() for _ in range(alternatives or draw.randint(1, 3))] for _ in range(lines)]
        hypotheses = [draw.choice([line(), references[place][0][:-1], ""]) for place in range(lines)]
        found = corpus_bleu(hypotheses, references, tokenize)
        tokens = [[tokenize(text) for text in texts] for texts in references]
        expected = by_definition([tokenize(text) for text in hypotheses], tokens)
        assert {name: getattr(found, name) for name in expected} == pytest.approx(expected, abs=1e-12)
        positive += 0 < found.score < 100
    assert positive > 10


def test_without_a_matching_ngram_of_each_order_bleu_is_zero():
    assert multi_bleu(["a b c x d e f"], ["a b c y d e f"]) == 0
    assert multi_bleu(["a b c"], ["a b c"]) == 0  # no 4-gram at all
    assert multi_bleu(["a b c d"], ["a b c d"]) == pytest.approx(100)
    assert multi_bleu(["a  b c d e"], ["a b c d e"]) < 100  # tokens stand between single spaces
    assert paper_bleu(["", ""], ["Ein Hund.", "Zwei Hunde."], "de") == 0
    assert paper_bleu([""], [""], "de") == 0


@pytest.mark.system
@pytest.mark.skipif(shutil.which("perl") is None, reason="there is no Perl to ask")
def test_compounds_are_split_as_perl_does():
    draw = random.Random(0)
    lines = ["".join(draw.choices("ab--ü漢 \t\u00a0\u2003\x0b", k=draw.randint(1, 12))) for _ in range(3000)]
    substitution = r"s/(\S)-(\S)/$1 ##AT##-##AT## $2/g"
    text = "".join(line + "\n" for line in lines).encode()
    result = subprocess.run(["perl", "-pe", substitution], input=text, capture_output=True, check=True)
    assert [split_compounds(line) for line in lines] == result.stdout.decode().split("\n")[:-1]


# What tokenizer.perl, version 1.1, makes of them.
MOSES = [
    (
        "de",
        'Sie rief: "Halt, oder es kostet 2,5 % mehr!"',
        "Sie rief : &quot; Halt , oder es kostet 2,5 % mehr ! &quot;",
    ),
    ("de", "Am 7. Juni sprach u.a. Dr. Kurz.", "Am 7. Juni sprach u.a. Dr. Kurz ."),
    ("de", "x & y [z] <w> | wie geht's", "x &amp; y &#91; z &#93; &lt; w &gt; &#124; wie geht &apos; s"),
    ("de", "  weite\u00a0 Räume\u2003hier ", "weite Räume hier"),
    ("de", "Die E-Mail-Adresse (neu)", "Die E ##AT##-##AT## Mail ##AT##-##AT## Adresse ( neu )"),
    ("fr", "L'ami n'a qu'une porte-fenêtre.", "L&apos; ami n&apos; a qu&apos; une porte-fenêtre ."),
    ("en", "It's the dogs' well-known den.", "It &apos;s the dogs &apos; well-known den ."),
    ("de", "", ""),
]


@pytest.mark.parametrize(("language", "text", "expected"), MOSES)
def test_the_steps_of_the_published_script(language, text, expected):
    assert paper_tokenizer(language)(text) == expected.split()


@pytest.fixture
def german():
    """German sentences with compounds, and the same with a word lost here and there."""
    references = [german for _, german in phrasebook("validation")[:30]]
    references += ["Die Berg-und-Tal-Bahn fährt heute nicht, sagt er.", "Sie liest die Science-Fiction-Serie gern."]
    hypotheses = [" ".join(text.split(" ")[: -1 if place % 3 else None]) for place, text in enumerate(references)]
    hypotheses[-1] = references[-1].replace("Serie", "Reihe")
    hypotheses[0] = ""
    return hypotheses, references


def test_a_compound_of_which_a_part_is_wrong_counts_for_its_other_parts_in_german():
    pair = (["Ich sah die gute Berg-und-Tal-Bahn"], ["Ich sah die gute Berg-und-Tal-Fahrt"])
    assert paper_bleu(*pair, "de") > paper_bleu(*pair, "fr") > 0
    assert paper_bleu(*pair, "de_AT") == paper_bleu(*pair, "de")


def test_plain_text_is_compared_in_nfc_and_tokens_as_they_are(german):
    hypotheses, _ = german
    references = [unicodedata.normalize("NFD", text) for text in hypotheses]
    assert paper_bleu(hypotheses, references, "de") == pytest.approx(100)
    assert multi_bleu(hypotheses, references) < 100


def test_the_metric_has_both_and_says_which(german):
    hypotheses, references = german
    metric = evaluate.load(str(FILE))
    plain = metric.compute(predictions=hypotheses, references=references)
    assert plain["score"] == multi_bleu(hypotheses, references)
    assert plain["signature"] == "nrefs:1|case:mixed|tok:spaces|smooth:none"
    paper = metric.compute(predictions=hypotheses, references=references, language="de")
    assert paper["score"] == paper_bleu(hypotheses, references, "de")
    assert "|tok:moses-de|compounds:split|norm:NFC|" in paper["signature"]
    austrian = MultiBleu().compute(predictions=hypotheses, references=references, language="de_AT")
    assert austrian == paper
    several = [[reference, "x"] for reference in references]
    assert MultiBleu().compute(predictions=hypotheses, references=several)["signature"].startswith("nrefs:2|")


def test_lines_without_a_partner_are_not_ignored():
    for hypotheses, references in ((["a"], ["a", "b"]), (["a", "b"], ["a"]), ([], [])):
        with pytest.raises(ValueError, match="give one for each"):
            multi_bleu(hypotheses, references)
