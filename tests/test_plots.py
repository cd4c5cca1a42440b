"""Plots show every number that they are given."""

import pytest
from matplotlib.figure import Figure
from runs import run_record, sweep_as_in_paper

from vaswani_transformer.evaluation.confidence import CalibrationBin, ConfidenceReport
from vaswani_transformer.evaluation.robustness import ChangedLines, CopiedLines, Robustness
from vaswani_transformer.evaluation.scores import LengthGroup
from vaswani_transformer.experiments.comparison import Scale, summarize_sweep
from vaswani_transformer.experiments.reports import plot_rows
from vaswani_transformer.runs.plots import (
    plot_bleu_by_source_length,
    plot_confidence,
    plot_learning_curve,
    plot_robustness,
)


@pytest.fixture
def figures(monkeypatch) -> list[Figure]:
    """The figures that were saved."""
    saved, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: saved.append(figure) or save(figure, *a, **k))
    return saved


@pytest.mark.parametrize(
    ("history", "panels", "numbers"),
    [
        (
            [
                {"step": 10, "loss": 6.0, "nll_loss": 5.0, "learning_rate": 0.1},
                {"step": 15, "eval_loss": 4.0, "eval_bleu": 21.0},
                {"step": 20, "loss": 4.0, "nll_loss": 3.0, "learning_rate": 0.2},
            ],
            [{(10, 5.0), (20, 3.0)}, {(15, 4.0)}, {(15, 21.0)}, {(10, 0.1), (20, 0.2)}],
            ["5", "3", "4", "21"],
        ),
        ([{"step": 1, "eval_loss": 4.0}], [{(1, 4.0)}], ["4"]),
        ([{"step": 1, "learning_rate": 0.1}, {"step": 1, "eval_bleu": 4.0}], [{(1, 4.0)}, {(1, 0.1)}], ["4"]),
        ([{"step": step, "eval_loss": 4.0} for step in range(11)], [{(step, 4.0) for step in range(11)}], []),
    ],
)
def test_a_learning_curve_shows_what_was_logged_without_empty_panels(history, panels, numbers, tmp_path, figures):
    assert plot_learning_curve(history, tmp_path / "curve.png") == "curve.png"
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    lines = [line for axes in figures[0].axes for line in axes.lines]
    assert [{*zip(line.get_xdata(), line.get_ydata(), strict=True)} for line in lines] == panels
    assert all(axes.lines for axes in figures[0].axes)
    assert [text.get_text() for axes in figures[0].axes for text in axes.texts] == numbers
    assert plot_learning_curve([{"step": 1, "train_loss": 4.0}], tmp_path / "none.png") is None
    assert not (tmp_path / "none.png").exists()


def test_groups_of_lengths_are_bars(tmp_path, figures):
    groups = {
        name: [LengthGroup(1, 10, 3, scores[0]), LengthGroup(61, None, 1, scores[1])]
        for name, scores in (("one", (10.0, 20.0)), ("two", (30.0, 40.0)))
    }
    plot_bleu_by_source_length(groups, tmp_path / "lengths.png")
    assert [bar.get_height() for bar in figures[0].axes[0].patches] == [10.0, 20.0, 30.0, 40.0]


def test_confidence_states_its_rank_correlation(tmp_path, figures):
    report = ConfidenceReport(
        [[-1.0, 40.0]], 0.43, 1.0, [CalibrationBin(20, 40.0, 41.0)], {"0": 40.0, "0.1": 42.0}, [3, 9]
    )
    plot_confidence(report, tmp_path / "confidence.png")
    assert figures[0].get_suptitle().endswith(": 0.43 (1 is perfect)")
    assert [bar.get_height() for bar in figures[0].axes[1].patches] == [40.0, 42.0]


def test_robustness_has_a_bar_for_each_change_and_kind_of_strings(tmp_path, figures):
    changes = {
        "capitals": ChangedLines(40, 41.0, 33.0, 61.0, 52.0, 0),
        "a tab": ChangedLines(39, 41.0, 40.0, 61.0, 60.0, 30),
    }
    plot_robustness(Robustness(changes, {"numbers": CopiedLines(8, 2)}), tmp_path / "robustness.png")
    above, below = figures[0].axes
    assert [bar.get_width() for bar in above.patches] == [52.0, 60.0]
    assert above.collections[0].get_offsets().tolist() == [[61.0, 0.0], [61.0, 1.0]]
    assert [label.get_text() for label in above.get_yticklabels()] == ["capitals (40)", "a tab (39)"]
    assert [bar.get_width() for bar in below.patches] == [25.0]


def test_rows_of_table_3_are_differences_of_both_scores(figures, tmp_path):
    runs = sweep_as_in_paper(0.25, sign=2)
    chosen = {row: runs[row] for row in ("base", "A-h1", "C-N2")}
    plot_rows(summarize_sweep(chosen, run_record().run, Scale(1.0, 1.0)), tmp_path / "rows.png")
    axes, below = figures[0].axes
    assert [bar.get_height() for bar in below.patches] == pytest.approx([0, 0.37, 1.19])
    (paper,) = [line for line in below.lines if line.get_label() == "paper"]
    assert list(paper.get_ydata()) == pytest.approx([0, 0.37, 1.19])
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([0, -1.8, -4.2])
    (paper,) = [line for line in axes.lines if line.get_label() == "paper"]
    assert list(paper.get_ydata()) == pytest.approx([0, -0.9, -2.1])
    spread = [segment[:, 1] for segment in axes.collections[0].get_segments()]
    error = 0.25 / 3**0.5
    assert [end for ends in spread for end in ends] == pytest.approx(
        [height + sign * error for height in (0, -1.8, -4.2) for sign in (-1, 1)]
    )
    assert [label.get_text() for label in below.get_xticklabels()] == ["base", "A-h1", "C-N2"]
