"""Pictures of parses."""

from xml.etree import ElementTree

import pytest

from vaswani_transformer.parsing.drawing import draw_tree


TREE = "(TOP (S (NP (NNP Mary)) (VP (VBZ likes) (NP (DT the) (NN <b>$cat$</b>))) (. .)))"
LABELS = ["TOP", "S", "NP", "NNP", "VP", "VBZ", "NP", "DT", "NN", "."]
WORDS = ["Mary", "likes", "the", "<b>$cat$</b>", "."]


def test_a_picture_has_every_label_and_word_once_words_in_order(tmp_path):
    draw_tree(TREE, tmp_path / "tree.svg")
    texts = [node for node in ElementTree.parse(tmp_path / "tree.svg").iter() if node.tag.endswith("}text")]
    assert sorted(node.text for node in texts) == sorted(LABELS + WORDS)
    places = {node.text: float(node.get("transform", "translate(0").split("(")[1].split()[0]) for node in texts}
    assert sorted(WORDS[:4], key=places.get) == WORDS[:4]


def test_pictures_are_the_same_each_time(tmp_path):
    for name in ("one.svg", "two.svg", "one.png", "two.png"):
        draw_tree(TREE, tmp_path / name)
    for suffix in ("svg", "png"):
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()


def test_what_is_no_tree_or_no_picture_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"Tree.read"):
        draw_tree("(TOP", tmp_path / "tree.svg")
    with pytest.raises(ValueError, match="mrg"):
        draw_tree(TREE, tmp_path / "tree.mrg")
