"""The report of a sweep has every row beside the paper's."""

import re
from dataclasses import replace

import pytest
from helpers import REPOSITORY
from runs import run_record, sweep_as_in_paper

from vaswani_transformer.experiments.comparison import Scale, SweepRecord, summarize_sweep
from vaswani_transformer.experiments.reports import as_markdown, cost_table, score_table, write_report


@pytest.fixture
def sweep() -> SweepRecord:
    runs = sweep_as_in_paper(0.25, sign=2)
    chosen = {row: runs[row] for row in ("base", "A-h1", "C-N2")}
    return summarize_sweep(chosen, run_record().run, Scale(0.25, 0.5))


def rows(markdown: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in markdown.splitlines() if line.startswith("|")]


def test_the_report_has_every_row_beside_the_papers(sweep, tmp_path):
    write_report(sweep, tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    found = rows(text)
    for table in (score_table(sweep), cost_table(sweep)):
        assert {len(line) for line in table} == {len(table[0])}
        assert all(line in found for line in table)
    scores = ["5.29 ± 0.00", "+0.073", "0.0000", "99.80 ± 0.14", "-1.80", "0.0000", "0.99"]  # 0.25 / sqrt(3)
    scores += ["5.29", "24.9", "-0.9"]
    assert ["A-h1", "num_heads 1, d_k 512, d_v 512", "7,577,600", "6,000", "3", *scores] in found
    assert "encoder_layers 2, decoder_layers 2" in [line[1] for line in found if line[0] == "C-N2"]
    assert ["base", "50.0", "1", "9.9e11", "3.0e15", "1.1e15", "37.0%"] in found
    assert ["paper: base", "720.0", "8", "9.5e12", "3.3e18", "9.5e17", "29.0%"] in found
    run, signature = sweep.run, run_record().validation.bleu.signature
    for fact in (f"`{run.command}`", f"`{run.commit}`", run.hardware, signature, "28,994", "1,014"):
        assert fact in text
    assert "widths 0.25 times, layers 0.5 times" in text
    assert SweepRecord.load(tmp_path / "table3.json") == sweep
    assert (tmp_path / "table3.png").read_bytes().startswith(b"\x89PNG")


def test_the_published_report_is_made_of_the_numbers_beside_it():
    published = REPOSITORY / "model_cards" / "table3.json"
    sweep = SweepRecord.load(published)
    assert published.with_suffix(".md").read_text(encoding="utf-8") == as_markdown(sweep)
    assert published.with_suffix(".png").exists()
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in sweep.commits), "recorded, and clean"


def test_the_report_says_how_all_trainings_depart_from_the_paper(sweep):
    record = run_record()
    cut = replace(record.training, warmup_steps=120)  # by a limit of time
    rate = {"learning_rate": 0.005, "lr_scheduler_type": "constant_with_warmup"}
    settings = replace(record.settings, alpha=1.4, others={"muon": True, "cooldown": 0.5}, **rate)
    text = as_markdown(
        summarize_sweep({"base": {1: replace(record, settings=settings, training=cut)}}, record.run, Scale(1.0, 1.0))
    )
    assert "\n- muon: true (the paper: false)\n" in text
    assert "\n- cooldown: 0.5 (the paper: 0)\n" in text
    assert "\n- Length penalty of the search: alpha 1.4 (the paper: 0.6)\n" in text
    assert "\n- Learning rate: constant, 0.005 (the paper: that of section 5.3); warm-up of 120 of 1,000 steps " in text
    assert "\n- Learning rate: that of section 5.3 times 0.8; warm-up of 1,000 steps " in as_markdown(sweep)
    assert "muon" not in as_markdown(sweep)
