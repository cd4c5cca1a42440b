"""Plots show every number that they are given."""

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from runs import run_record, sweep_as_in_paper

from vaswani_transformer.evaluation.scores import BleuScore, LengthGroup, Score
from vaswani_transformer.experiments.comparison import Scale, compare_with_paper
from vaswani_transformer.experiments.reports import plot_rows
from vaswani_transformer.runs.plots import plot_bleu_by_source_length, plot_learning_curve, plot_sweep
from vaswani_transformer.runs.records import SearchScores


def test_learning_curve_is_a_picture_of_what_was_logged(tmp_path, monkeypatch):
    drawn = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, *a, **k: drawn.append((x, y)) or plot(self, x, y, *a, **k))
    history = [
        {"step": 10, "loss": 6.0, "nll_loss": 5.0, "learning_rate": 0.1},
        {"step": 15, "eval_loss": 4.0},
        {"step": 20, "loss": 4.0, "nll_loss": 3.0, "learning_rate": 0.2},
    ]
    plot_learning_curve(history, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert drawn == [([10, 20], [5.0, 3.0]), ([15], [4.0]), ([10, 20], [0.1, 0.2])]
    drawn.clear()
    history[1]["eval_bleu"] = 21.0
    plot_learning_curve(history, tmp_path / "curve.png")
    assert sorted(drawn) == [([10, 20], [0.1, 0.2]), ([10, 20], [5.0, 3.0]), ([15], [4.0]), ([15], [21.0])]


@pytest.mark.parametrize(
    ("history", "panels"),
    [
        ([{"step": 1, "eval_loss": 4.0}], 1),
        ([{"step": 1, "nll_loss": 4.0, "learning_rate": 0.1}], 2),
        ([{"step": 1, "learning_rate": 0.1}, {"step": 1, "eval_bleu": 4.0}], 2),
        ([{"step": 1, "train_loss": 4.0}], 0),
    ],
)
def test_a_learning_curve_has_no_empty_panel(history, panels, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: drawn.append(figure))
    plot_learning_curve(history, tmp_path / "unused.png")
    axes = [axes for figure in drawn for axes in figure.axes]
    assert len(axes) == panels
    assert all(len(line.get_xdata()) for each in axes for line in each.lines)
    assert all(each.lines for each in axes)


def test_groups_of_lengths_are_bars(tmp_path, monkeypatch):
    heights = []
    bar = Axes.bar
    monkeypatch.setattr(Axes, "bar", lambda self, x, y, *a, **k: heights.append(y) or bar(self, x, y, *a, **k))
    groups = {
        name: [LengthGroup(1, 10, 3, scores[0]), LengthGroup(61, None, 1, scores[1])]
        for name, scores in (("one", (10.0, 20.0)), ("two", (30.0, 40.0)))
    }
    plot_bleu_by_source_length(groups, tmp_path / "lengths.png")
    assert heights == [[10.0, 20.0], [30.0, 40.0]]
    assert (tmp_path / "lengths.png").read_bytes().startswith(b"\x89PNG")


def test_a_sweep_is_a_grid_of_scores(tmp_path, monkeypatch):
    grids = []
    imshow = Axes.imshow
    monkeypatch.setattr(Axes, "imshow", lambda self, grid, **k: grids.append(grid) or imshow(self, grid, **k))

    def bleu(score: float) -> BleuScore:
        return BleuScore(score, [score] * 4, 1.0, 9, 9, "signature")

    sweep = [
        SearchScores(
            sacrebleu=bleu(beams + alpha),
            paper_bleu=bleu(-beams - alpha),
            chrf=Score(50.0, "signature"),
            num_beams=beams,
            length_penalty=alpha,
        )
        for beams in (4, 1)
        for alpha in (0.6, 0.0, 1.0)
    ]
    plot_sweep(sweep, tmp_path / "sweep.png")
    assert grids == [[[-1.0, -1.6, -2.0], [-4.0, -4.6, -5.0]], [[1.0, 1.6, 2.0], [4.0, 4.6, 5.0]]]
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_rows_of_table_3_are_differences_of_both_scores(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: drawn.append(figure))
    runs = sweep_as_in_paper(0.25, sign=2)
    chosen = {row: runs[row] for row in ("base", "A-h1", "C-N2")}
    plot_rows(compare_with_paper(chosen, run_record().run, Scale(1.0, 1.0), {}), tmp_path / "unused.png")
    axes, below = drawn[0].axes
    assert [bar.get_height() for bar in below.patches] == pytest.approx([0, 0.37, 1.19])
    (paper,) = [line for line in below.lines if line.get_label() == "paper"]
    assert list(paper.get_ydata()) == pytest.approx([0, 0.37, 1.19])
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([0, -1.8, -4.2])
    (paper,) = [line for line in axes.lines if line.get_label() == "paper"]
    assert list(paper.get_ydata()) == pytest.approx([0, -0.9, -2.1])
    spread = [segment[:, 1] for segment in axes.collections[0].get_segments()]
    assert [end for ends in spread for end in ends] == pytest.approx([-0.25, 0.25, -2.05, -1.55, -4.45, -3.95])
    assert [label.get_text() for label in below.get_xticklabels()] == ["base", "A-h1", "C-N2"]
