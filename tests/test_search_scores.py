"""Scores of systems: which search counts as a system's best, and what is written of it."""

import pytest
from helpers import write_pairs

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.evaluation.scores import score_translations
from vaswani_transformer.evaluation.test_sets import read_test_set
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import ScoreRecord
from vaswani_transformer.runs.search_scores import Translations, score_systems, write_scores


PAIRS = phrasebook("test")[:20]
REFERENCES = [german for _, german in PAIRS]
CUT = [" ".join(text.split()[:-1]) for text in REFERENCES]


@pytest.fixture
def test_set(tmp_path):
    write_pairs(PAIRS, tmp_path / "x.en", tmp_path / "x.de")
    return read_test_set(tmp_path / "x.en", [tmp_path / "x.de"], ("en", "de"))


def test_the_search_with_the_highest_bleu_of_the_paper_is_the_best(test_set):
    searches = [Translations(CUT, 1, 0.6, 2.0), Translations(REFERENCES, 4, 0.6, 3.0)]
    record, best = score_systems({"model": searches}, {}, test_set, describe_run())
    assert best == {"model": REFERENCES}
    assert record.systems[0].paper_bleu.score == pytest.approx(100)
    assert [(row.num_beams, row.seconds) for row in record.sweep] == [(1, 2.0), (4, 3.0)]
    for row, lines in zip(record.sweep, (CUT, REFERENCES), strict=True):
        assert row.sacrebleu == score_translations(lines, test_set.references, "de").sacrebleu
    assert record.paired_bootstrap is None


def test_two_systems_are_compared_and_translations_of_models_are_written(test_set, tmp_path):
    systems = {"a": [Translations(CUT)], "b": [Translations(REFERENCES)]}
    record, best = score_systems(systems, {}, test_set, describe_run())
    assert record.paired_bootstrap["BLEU"].system.score == pytest.approx(100)
    assert record.sweep is None
    (tmp_path / "out").mkdir()
    write_scores(tmp_path / "out", record, best)
    assert ScoreRecord.load(tmp_path / "out" / "results.json") == record
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"results.json", "bleu_by_source_length.png"}
