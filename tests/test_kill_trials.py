"""A short form of `make trials`, and what the trials compare."""

from pathlib import Path

import pytest
from kill_trials import run


pytestmark = pytest.mark.system


def test_killed_trainings_end_in_the_same_bits_on_other_numbers_of_processes(tmp_path: Path) -> None:
    (line,) = run(kills=2, processes=[1, 2], virtual_ranks=8, seed=4, folder=tmp_path)
    assert "1 kills in saves, 1 at random moments" in line
