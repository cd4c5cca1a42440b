"""The recipe that scores, against the sacreBLEU command and the parts it is made of; test sets, sweeps, mistakes."""

import random
import re
import sys
from pathlib import Path

import pytest
from helpers import REPOSITORY, call_recipe, refusal, run_python, write_lines
from sacrebleu.dataset import DATASETS
from sacrebleu.metrics import BLEU, CHRF

from vaswani_transformer.data.cleaning import encode_corpus
from vaswani_transformer.data.corpora import load_parallel_corpus
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding.translation import translate_corpus
from vaswani_transformer.evaluation.multi_bleu import corpus_bleu, paper_tokenizer
from vaswani_transformer.evaluation.perplexity import perplexity
from vaswani_transformer.evaluation.scores import Scores, score_translations
from vaswani_transformer.runs import scoring
from vaswani_transformer.runs.records import ScoreRecord


pytestmark = pytest.mark.usefixtures("unbroken_lines")


RECIPE = REPOSITORY / "recipes" / "score.py"
PAIRS = [*phrasebook("test")[:38], ("It's up-to-date.", "Das ist up-to-date."), ("'Oh', he said.", '"Oh", sagte er.')]
SOURCES = [english for english, _ in PAIRS]
REFERENCES = [german for _, german in PAIRS]
EN_DE = ("en", "de")
LANGUAGES = ("--source_language", "en", "--target_language", "de")
SHORT = 8  # sentences that a model translates


def noisy(seed: int, share: float) -> list[str]:
    """The references with some words lost."""
    draw = random.Random(seed)
    return [" ".join(word for word in text.split(" ") if draw.random() >= share) or "Ja" for text in REFERENCES]


BETTER, WORSE = noisy(1, 0.1), noisy(2, 0.2)


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """A folder to run in, with lines to score."""
    texts = {"src.en": SOURCES, "ref.de": REFERENCES, "better.de": BETTER, "worse.de": WORSE}
    texts |= {"short.en": SOURCES[:SHORT], "short.de": REFERENCES[:SHORT]}
    for name, lines in texts.items():
        write_lines(tmp_path / name, lines)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(files):
    """Run the recipe's `main` in this process; the results that it wrote."""

    def run(*words: object) -> ScoreRecord:
        call_recipe("score.py", *words, "--output_dir", "out")
        return ScoreRecord.load(files / "out" / "results.json")

    return run


def only_scores(found: Scores) -> Scores:
    """The scores that need neither a model nor sources."""
    return Scores(sentences=found.sentences, bleu=found.bleu, paper_bleu=found.paper_bleu, chrf=found.chrf)


def test_scores_of_a_file_are_sacrebleus(run, files, capsys):
    results = run("--hypotheses", "better.de", "--source", "src.en", "--reference", "ref.de")
    (system,) = results.systems.values()
    for metric, found in ((BLEU(), system.bleu), (CHRF(), system.chrf)):
        assert found.score == pytest.approx(metric.corpus_score(BETTER, [REFERENCES]).score, abs=1e-9)
        assert found.signature.replace("|norm:NFC", "") == str(metric.get_signature())
    assert system.paper_bleu.score == corpus_bleu(BETTER, REFERENCES, paper_tokenizer("de")).score
    assert system.paper_bleu.score != pytest.approx(system.bleu.score)
    shown = capsys.readouterr().out
    for score in (system.bleu, system.paper_bleu):
        assert f"{score.score:.2f}" in shown
        assert score.signature in shown
    assert sum(group.sentences for group in system.by_source_length) == len(SOURCES)
    written = sorted(path.name for path in (files / "out").iterdir())
    assert written == ["bleu_by_source_length.png", "results.json"]


def test_pathologies_are_counted_and_shown(run, files, capsys):
    write_lines(files / "bad.de", [REFERENCES[0], SOURCES[1], "", *REFERENCES[3:]])
    results = run("--hypotheses", "bad.de", "--source", "src.en", "--reference", "ref.de")
    found = {kind: lines for kind, lines in results.systems["bad.de"].pathologies.lines.items() if lines}
    assert found == {"blank": [3], "copied": [2]}
    shown = re.sub(" +", " ", capsys.readouterr().out)
    assert re.search(r"copied \W*2\.5 %", shown)
    assert SOURCES[1].split()[0] in shown
    assert "WARNING" not in shown
    write_lines(files / "shifted.de", [*REFERENCES[1:], REFERENCES[0]])
    run("--hypotheses", "bad.de", "--source", "src.en", "--reference", "shifted.de", "--overwrite")
    assert "do not predict the lengths of the references" in capsys.readouterr().out


def test_several_references_and_no_source(run, files):
    results = run("--hypotheses", "better.de", "--reference", "ref.de", "worse.de")
    assert (results.test_set.source_language, results.test_set.target_language) == ("und", "de")
    (system,) = results.systems.values()
    assert system.bleu.score == pytest.approx(BLEU().corpus_score(BETTER, [REFERENCES, WORSE]).score)
    assert system.chrf.score == pytest.approx(CHRF().corpus_score(BETTER, [REFERENCES, WORSE]).score)
    both = [list(texts) for texts in zip(REFERENCES, WORSE, strict=True)]
    assert system.paper_bleu.score == corpus_bleu(BETTER, both, paper_tokenizer("de")).score
    assert system.by_source_length is None
    assert [path.name for path in (files / "out").iterdir()] == ["results.json"]


@pytest.mark.system
def test_two_files_are_compared_as_the_command_does(run, files, capsys):
    results = run("--hypotheses", "better.de", "--compare", "worse.de", "--reference", "ref.de")
    words = "ref.de -i better.de worse.de -m bleu chrf --paired-bs -f text -w 4"
    expected = run_python(["-m", "sacrebleu", *words.split()]).stdout
    assert list(results.paired_bootstrap) == ["BLEU", "chrF2"]
    shown = capsys.readouterr().out
    for found in results.paired_bootstrap.values():
        assert 0.001 < found.two_sided_p_value < 1
        assert f" {found.two_sided_p_value:.4f}" in shown
        assert found.signature.replace("|norm:NFC", "") in expected
        for side in (found.baseline, found.system):
            assert f"{side.score:.4f} ({side.mean:.4f} ± {side.confidence:.4f})" in expected
    assert list(results.systems) == ["better.de", "worse.de"]
    assert results.systems["worse.de"].bleu.score == results.paired_bootstrap["BLEU"].system.score


def test_a_model_is_translated_with_and_scored(run, files, loaded_model, tokenizer, lively_model):
    translations = translate_corpus(loaded_model, tokenizer, SOURCES[:SHORT])
    other = [text[:-3] for text in translations]
    write_lines(files / "other.de", other)
    corpus = load_parallel_corpus(["short.en", "other.de"], "en", "de")
    expected = perplexity(loaded_model, tokenizer, encode_corpus(corpus, tokenizer, "en", "de"))
    # A file with the model's own name for a second system, so that both kinds are told apart.
    arguments = ("--source", "short.en", "--reference", "other.de", "--compare", "short.de")
    results = run("--model", lively_model, *arguments)
    mine, theirs = results.systems.values()
    assert (files / "out" / "translations.txt").read_text(encoding="utf-8").splitlines() == translations
    scores = score_translations(translations, [[text] for text in other], EN_DE)
    assert 0 < scores.bleu.score < 100
    assert only_scores(mine) == scores
    assert mine.perplexity.perplexity == pytest.approx(expected.perplexity, rel=1e-6)
    assert mine.perplexity.tokens == expected.tokens
    assert (mine.num_beams, mine.length_penalty) == (4, 0.6)
    assert theirs.perplexity is None
    assert theirs.bleu == score_translations(REFERENCES[:SHORT], [[text] for text in other], EN_DE).bleu
    assert (files / "out" / "bleu_by_source_length.png").read_bytes().startswith(b"\x89PNG")
    assert not (files / "out" / "translations.compare.txt").exists()


def test_robustness_is_that_of_the_models_translations_and_equal_tokens_are_translated_once(
    run, files, loaded_model, tokenizer, lively_model, monkeypatch, capsys
):
    sources = [*SOURCES[: SHORT - 1], "My café."]
    capitals = translate_corpus(loaded_model, tokenizer, [text.upper() for text in sources], num_beams=1)
    references = [text[:-3] for text in capitals]
    write_lines(files / "short.en", sources)
    write_lines(files / "short.de", references)
    translated, translate = [], scoring.translate_test_set
    monkeypatch.setattr(
        scoring, "translate_test_set", lambda *a, **b: translated.append(a[2].sources) or translate(*a, **b)
    )
    files_to_score = ("--source", "short.en", "--reference", "short.de")
    measured = run("--model", lively_model, *files_to_score, "--robustness", "--num_beams", 1).robustness
    expected = score_translations([text.lower() for text in capitals], [[text.lower()] for text in references], EN_DE)
    assert 1 < expected.bleu.score < 100
    assert measured.changes["all capitals"].bleu == pytest.approx(expected.bleu.score)
    assert measured.changes["all capitals"].chrf == pytest.approx(expected.chrf.score)
    assert measured.changes["decomposed letters (NFD)"].same == measured.changes["decomposed letters (NFD)"].lines == 1
    assert list(measured.strings) == ["numbers", "URLs", "e-mail addresses", "placeholders", "emoji"]
    _, lines = translated  # first the test set
    assert len({tuple(ids) for ids in tokenizer(lines).input_ids}) == len(lines)
    assert re.search(r"all capitals +8 ", capsys.readouterr().out)
    assert (files / "out" / "robustness.png").read_bytes().startswith(b"\x89PNG")


def test_a_sweep_tries_every_combination_and_keeps_the_best(run, files, loaded_model, tokenizer, lively_model):
    sources = SOURCES[:SHORT]
    found = {
        (beams, alpha): translate_corpus(loaded_model, tokenizer, sources, num_beams=beams, length_penalty=alpha)
        for beams in (1, 2)
        for alpha in (0.0, 2.0)
    }
    best = found[2, 2.0]
    assert sum(texts == best for texts in found.values()) <= 2
    write_lines(files / "best.de", best)
    search = ("--num_beams", 1, 2, "--length_penalty", 0, 2)
    results = run("--model", lively_model, "--source", "short.en", "--reference", "best.de", *search)
    rows = {(row.num_beams, row.length_penalty): row for row in results.sweep}
    assert list(rows) == list(found)
    for settings, texts in found.items():
        scores = score_translations(texts, [[text] for text in best], EN_DE)
        assert only_scores(rows[settings]) == scores
    (chosen,) = results.systems.values()
    assert chosen.paper_bleu.score == pytest.approx(100)
    assert chosen.num_beams == 2
    assert (files / "out" / "translations.txt").read_text(encoding="utf-8").splitlines() == best


def test_a_test_set_of_sacrebleu_is_scored_by_its_name(run, lively_model, tmp_path, monkeypatch, capsys):
    test_set, lines = DATASETS["wmt13"], {"src": SOURCES[:SHORT], "ref": REFERENCES[:SHORT]}
    monkeypatch.setattr(test_set, "_outdir", str(tmp_path))  # where sacreBLEU keeps what it downloads
    monkeypatch.setattr(test_set, "_rawdir", str(tmp_path / "raw"))
    for field in test_set.fieldnames("en-de"):
        write_lines(Path(test_set._get_txt_file_path("en-de", field)), lines.get(field, ["x"] * SHORT))
    results = run("--model", lively_model, "--test_set", "wmt13", "--num_beams", 1, *LANGUAGES)
    assert results.test_set.name == "wmt13, en-de"
    assert results.test_set.lines == SHORT
    assert [system.num_beams for system in results.systems.values()] == [1]
    assert "wmt13, en-de: 8 lines" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "model, hypotheses: give exactly one"),
        ("--model m --compare ref.de --confidence --test_set wmt14", "compare: has no effect here; a model keeps"),
        (
            "--model {model} --confidence --source short.en --reference short.de",
            "confidence: needs 200 sentences at least, not 8",
        ),
        (
            "--hypotheses better.de --reference out.txt",
            "target_language: cannot be inferred from",
        ),
        (
            "--hypotheses better.de --reference ref.de --robustness",
            "robustness: has no effect here; it needs a --model",
        ),
        ("--hypotheses better.de --reference ref.de --output_dir {model}", "has a config.json; choose another"),
    ],
)
def test_mistakes_get_one_line_before_any_work(files, saved_model, options, message):
    before = {path.name for path in files.iterdir()}
    words = [word.format(model=saved_model) for word in options.split()]
    assert message in refusal("score.py", "--output_dir", "out", *words)
    assert {path.name for path in files.iterdir()} == before


def test_an_earlier_evaluation_is_replaced_only_if_asked(run, files, monkeypatch):
    arguments = ("--reference", "ref.de", "--hypotheses")
    first = run(*arguments, "better.de")
    for name in ("translations.txt", "confidence.png", "notes.txt"):  # of an evaluation of a model, and of the user
        (files / "out" / name).touch()
    with pytest.raises(SystemExit, match=r"out has a results.json; .*--overwrite"):
        run(*arguments, "worse.de")
    second = run(*arguments, "worse.de", "--overwrite")
    assert second.systems["worse.de"].bleu != first.systems["better.de"].bleu
    assert {path.suffix for path in (files / "out").iterdir()} == {".json", ".txt"}
    assert not (files / "out" / "translations.txt").exists()
    monkeypatch.setattr(scoring, "plot_bleu_by_source_length", lambda *_: sys.exit("killed"))
    with pytest.raises(SystemExit, match="killed"):
        run(*arguments, "better.de", "--source", "src.en", "--overwrite")
    assert not (files / "out" / "results.json").exists()  # it would describe other translations
