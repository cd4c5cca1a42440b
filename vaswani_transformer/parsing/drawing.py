"""Pictures of parses: files of matplotlib."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from nltk import Tree


_CHARACTER, _LEVEL = 0.09, 0.45  # inches: the width of one, the height of the other


def draw_tree(tree: str | Tree, path: str | Path) -> None:
    """Draw a tree, labels above, words below.

    Args:
        tree: In brackets, or an `nltk.Tree`.
        path: The file to write; its suffix, such as .svg, .pdf or .png, says in which format.

    Raises:
        ValueError: The tree is malformed, or matplotlib has no such format.
    """
    tree = _as_tree(tree)
    widths = [max(map(len, pair)) + 2 for pair in tree.pos()]  # of each word and its tag, in characters
    lowest = tree.height() - 1
    figure = Figure(figsize=(_CHARACTER * sum(widths), _LEVEL * (lowest + 1)))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, sum(widths)), ylim=(-lowest - 0.5, 0.5))
    axes.set_axis_off()
    words = iter([sum(widths[:place]) + width / 2 for place, width in enumerate(widths)])

    def draw(node: Tree | str, level: int) -> tuple[float, int]:
        """Draw a node and all below it; returns its place."""
        if isinstance(node, str):
            at, level, text, color = next(words), lowest, node, "black"
        else:
            below = [draw(child, level + 1) for child in node]
            at, text, color = (below[0][0] + below[-1][0]) / 2, node.label(), "#1f4e79"
            for child, depth in below:
                axes.plot([at, child], [-level - 0.25, -depth + 0.25], color="0.6", linewidth=0.8)
        axes.text(at, -level, text, ha="center", va="center", fontsize=9, color=color, parse_math=False)
        return at, level

    draw(tree, 0)
    with rc_context({"svg.hashsalt": "vaswani", "svg.fonttype": "none"}):  # the same bytes each time; text is text
        figure.savefig(path, dpi=150, metadata={"Date": None} if Path(path).suffix == ".svg" else None)


def _as_tree(tree: str | Tree) -> Tree:
    return Tree.fromstring(tree) if isinstance(tree, str) else tree
