"""A short form of `make trials`."""

from pathlib import Path

import pytest
from kill_trials import run


@pytest.mark.system
def test_a_training_killed_in_a_save_ends_in_the_same_bits_on_another_number_of_processes(tmp_path: Path) -> None:
    (line,) = run(kills=1, processes=[1, 2], virtual_ranks=2, seed=5, folder=tmp_path)  # on two, and then on one
    assert "1 kills in saves" in line
