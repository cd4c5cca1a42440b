"""Seeds by rank, in the callback alone; two processes that train are in test_trainer.py."""

import random
from types import SimpleNamespace

import numpy as np
import torch
from transformers import TrainerControl, TrainerState, set_seed

from vaswani_transformer.training.randomness import SeedByRank


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(()).item()


def draws_after(event: str, rank: int, world_size: int, step: int = 0) -> tuple[float, float, float]:
    """What the generators give after an event of the callback, which finds them seeded alike."""
    set_seed(7)
    args = SimpleNamespace(seed=7, process_index=rank, world_size=world_size)
    getattr(SeedByRank(), event)(args, TrainerState(global_step=step), TrainerControl())
    return draws()


def test_every_rank_and_step_has_a_seed_of_its_own() -> None:
    found = [draws_after("on_train_begin", rank, 4, step) for rank in range(4) for step in (0, 5)]
    for generator in zip(*found, strict=True):
        assert len(set(generator)) == 8
    assert draws_after("on_train_begin", 1, 4) == draws_after("on_train_begin", 1, 2), "not of the number of ranks"


def test_one_process_draws_what_it_always_drew() -> None:
    set_seed(7)
    expected = draws()
    assert draws_after("on_train_begin", 0, 1) == expected
    assert draws_after("on_train_begin", 0, 1, step=5) != expected, "a checkpoint without a state does not start over"
