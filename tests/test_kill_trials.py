"""A short form of `make trials`."""

from pathlib import Path

import pytest
from kill_trials import run


@pytest.mark.system
def test_a_training_killed_in_a_save_ends_in_the_same_bits(tmp_path: Path) -> None:
    (line,) = run(kills=1, processes=[1], virtual_ranks=0, seed=0, folder=tmp_path)
    assert "1 kills in saves" in line
