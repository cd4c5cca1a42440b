"""What `recipes/benchmarks/decode.py` compares is the same: the sentences and their ends."""

import sys

import pytest
from helpers import recipe_module


@pytest.fixture(scope="module")
def decode():
    """The benchmark as a module."""
    pytest.importorskip("ctranslate2")
    return recipe_module("benchmarks/decode.py")


@pytest.mark.parametrize(
    ("is_sorted", "lengths"), [(False, [[5, 2, 9], [2, 7, 1], [3]]), (True, [[9, 7, 5], [3, 2, 2], [1]])]
)
def test_every_sentence_is_in_one_batch_and_sorted_ones_are_of_similar_length(is_sorted, lengths):
    sources = [[1] * length for length in (5, 2, 9, 2, 7, 1, 3)]
    batches = []

    def search(batch: list[list[int]]) -> list[list[int]]:
        batches.append([len(source) for source in batch])
        return [[len(source)] for source in batch]

    found = recipe_module("benchmarks/frame.py").in_batches(search, 3, is_sorted)(sources)
    assert batches == lengths
    assert found == [[len(source)] for source in sources]


def test_output_ends_before_its_end():
    until_end = recipe_module("benchmarks/frame.py").until_end
    assert until_end([5, 6, 1, 0], 1) == [5, 6]
    assert until_end([5, 6], 1) == [5, 6]


def test_the_table_has_each_system_at_its_fastest_batch_size(decode):
    speeds = [("a", 16, 5.0), ("a", 32, 4.0), ("b", 16, 1.0), ("b", 32, 10.0)]
    rows = [
        decode.Speed(system=name, batch=size, sentences_per_second=speed, ratio_to_first=1.0, same_as_ours=1.0)
        for name, size, speed in speeds
    ]
    found = [" ".join(line.split()) for line in decode.table(decode.SpeedTable("t", 7, rows)).splitlines()]
    assert [line.split(" | ")[:5] for line in found[-2:]] == [
        ["| a", "16", "16, 32", "5.0", "1.00"],
        ["| b", "32", "16, 32", "10.0", "2.00"],
    ]


@pytest.mark.system
def test_each_system_translates_in_batches_of_each_size(decode, saved_model, tmp_path, monkeypatch):
    text = tmp_path / "text.en"
    text.write_text("The old man reads a book.\nA dog sleeps.\n" * 3, encoding="utf-8")
    options = ["--sentences", "5", "--rounds", "1", "--batch_sizes", "2", "3", "--output", str(tmp_path / "out")]
    arguments = ["decode.py", "--text", str(text), "--model", str(saved_model), *options]
    monkeypatch.setattr(sys, "argv", arguments)
    decode.main()
    (found,) = decode.DecodeRecord.load(tmp_path / "out" / "decode.json").results
    names = dict.fromkeys(row.system for row in found.rows)
    assert len(names) == 7
    assert [(row.system, row.batch) for row in found.rows] == [(name, size) for name in names for size in (2, 3)]
