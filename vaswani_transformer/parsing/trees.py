"""Treebanks in the bracketed format of the Penn Treebank: reading, normalising, and the sequences of section 6.3."""

from collections.abc import Iterator
from pathlib import Path

from nltk import Tree

from ..data.text_files import read_lines
from ..model.parse_sequence_vaswani import CLOSING, ROOT, UNKNOWN_TAG


_TRACE = "-NONE-"
_ROOTS = (ROOT, "ROOT", "S1")


def read_trees(path: str | Path) -> Iterator[Tree]:
    """The trees of a file (plain, .gz, .bz2, .xz, .zst), each on one or several lines.

    Raises:
        ValueError: A tree is malformed, or there is other text; the message names the file and the tree's first line.
        OSError: There is no such file.
    """
    lines: list[str] = []
    for number, line in enumerate(read_lines(Path(path)), start=1):
        if not lines:
            depth, first = 0, number
        if lines or line.strip():
            lines.append(line)
            depth += line.count("(") - line.count(")")
            if depth <= 0:
                yield parse_tree("\n".join(lines), f"{path}, line {first}")
                lines = []
    if lines:
        yield parse_tree("\n".join(lines), f"{path}, line {first}")  # an error: a bracket is not closed


def parse_tree(text: str, name: str = "tree") -> Tree:
    """Parse one tree in brackets; messages call it `name`.

    Raises:
        ValueError: Its brackets do not match, a bracket is empty or has both words and phrases, or a label begins with
            "/", which marks closing labels.
    """
    try:
        tree = Tree.fromstring(text)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{name}: not one tree in brackets ({reason}); mend the tree") from None
    for node in tree.subtrees():
        words = sum(isinstance(child, str) for child in node)
        if words not in (0, len(node)) or not len(node) or node.label().startswith(CLOSING):
            raise ValueError(
                f"{name}: the bracket ({node.label()} ...) must have either words or phrases, and no label that begins "
                f"with {CLOSING!r}; mend the tree"
            )
    return tree


def normalize_tree(tree: Tree) -> Tree | None:
    """Normalise a tree for training and scoring, by the conventions of the field since Collins (1997).

    - Traces (`-NONE-`) are removed, with phrases that have nothing else: a parser receives words only.
    - Function tags and indices are removed: `NP-SBJ-1` and `NP=2` become `NP`, as EVALB compares them.
    - A phrase whose only child is a phrase of the same label is replaced by that child. Removed traces leave such
      pairs, whose number no parser could predict. Other unary chains, such as `S VP`, stay: EVALB counts them.
    - The outermost bracket (`TOP`, `ROOT`, `S1` or unlabelled) becomes `TOP`; if it is missing, it is added.
    - Other unlabelled brackets are removed, but their contents stay: a sequence cannot express them.
    - Several words under one tag, `(NN a b)`, get the tag each, since EVALB knows only brackets with one word.

    Returns:
        A new tree, or None if it has no words.
    """
    children = _normalized(tree)
    while len(children) == 1 and children[0].label() in _ROOTS and isinstance(children[0][0], Tree):
        children = list(children[0])
    return Tree(ROOT, children) if children else None


def _normalized(tree: Tree) -> list[Tree]:
    """Replacement of a node: nothing, one node, one for each word of a tag, or the contents of an unlabelled one."""
    label = tree.label()
    if label == _TRACE:
        return []
    if isinstance(tree[0], str):
        return [Tree(label, [word]) for word in tree]
    children = [node for child in tree for node in _normalized(child)]
    if not label:
        return children
    if label[1:]:  # a label may begin with the sign, like -LRB-
        label = label[0] + label[1:].split("-")[0].split("=")[0]
    if len(children) == 1 and children[0].label() == label and isinstance(children[0][0], Tree):
        return children
    return [Tree(label, children)] if children else []


def tree_in_one_line(tree: Tree) -> str:
    """The tree in brackets."""
    return " ".join(str(tree).split())


def tree_to_sequence(tree: Tree, keeps_tags: bool = True) -> list[str]:
    """Convert a normalised tree to the sequence of section 6.3: without words and the outermost bracket.

    Words become their tags, as in the paper, or all "XX", as in Vinyals et al. (2015).
    """
    sequence: list[str] = []
    for node in tree:
        if isinstance(node[0], str):
            sequence.append(node.label() if keeps_tags else UNKNOWN_TAG)
        else:
            sequence += [node.label(), *tree_to_sequence(node, keeps_tags), CLOSING + node.label()]
    return sequence
