"""Trials with SIGKILL: a training that is killed and resumed ends in the same bits as an undisturbed one.

    make trials
    python tests/kill_trials.py --processes 1 2 --kills 50
    python tests/kill_trials.py --processes 1 2 3 5 8 --kills 20 --virtual_ranks 8

Half of the kills come while a checkpoint is written, half at random moments between the start and the end of the
program. After each one the same command is given again with `--resume`. Without `--virtual_ranks` every training keeps
its number of processes; with it, the number is drawn anew after each kill.

A training passes if the digests of its averaged model and of its last checkpoint, and the logged steps with their
losses, equal those of the undisturbed one. The first trial that fails ends the program with an error.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path

from helpers import TINY, TRAIN_WMT, option_words, start_python, start_ranks, write_splits


STEPS = 20
SETTINGS = {
    **TINY,
    "source_tokens": 1500,
    "target_tokens": 1500,
    "max_steps": STEPS,
    "save_total_limit": 3,
    "average_last": 3,
    "eval_strategy": "no",
    "disable_tqdm": True,
    "train": ("train.en", "train.de"),
    "test": ("test.en", "test.de"),
}
PATIENCE = 300.0  # seconds until a training counts as hanging


def outcome(output_dir: Path) -> dict[str, object]:
    """Results that must not depend on interruptions: averaged and last weights, and the log of each step."""
    last = output_dir / f"checkpoint-{STEPS}"
    history = json.loads((last / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return {
        "average": sha256((output_dir / "model.safetensors").read_bytes()).hexdigest(),
        "last": sha256((last / "model.safetensors").read_bytes()).hexdigest(),
        "logs": [[line[name] for name in ("step", "loss", "grad_norm", "learning_rate")] for line in history],
    }


class Training:
    """The recipe on the corpus of a folder, in which it makes the output directory."""

    def __init__(self, folder: Path, name: str, virtual_ranks: int) -> None:
        self.folder, self.output_dir = folder, folder / name
        self.settings = {**SETTINGS, "output_dir": self.output_dir, "virtual_ranks": virtual_ranks or None}
        self.ranks: list[subprocess.Popen] = []
        self.saves: set[str] = set()

    def start(self, processes: int, resume: bool) -> None:
        command, self.saves = [TRAIN_WMT, *option_words({**self.settings, "resume": resume})], set()
        if processes == 1:
            self.ranks = [start_python(command, folder=self.folder)]
        else:
            self.ranks = start_ranks(command, processes, folder=self.folder)

    def wait(self, until: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Wait for a condition or the time; returns whether the ranks still run, and raises if one has failed."""
        end = time.monotonic() + seconds
        while True:
            codes = [rank.poll() for rank in self.ranks]
            if any(codes):
                raise RuntimeError(f"{self.output_dir}: exit status {codes}\n" + "\n".join(self.kill()))
            if None not in codes:
                return False
            if until() or time.monotonic() > end:
                return True
            time.sleep(0.001)

    def finish(self) -> dict[str, object]:
        if self.wait(lambda: False):
            self.kill()
            raise RuntimeError(f"{self.output_dir}: did not end within {PATIENCE:.0f} s")
        return outcome(self.output_dir)

    def kill(self) -> list[str]:
        """Kill what is left; the end of the standard error of each rank."""
        for rank in self.ranks:
            rank.kill()
        ranks, self.ranks = self.ranks, []
        return [rank.communicate()[1][-2000:] for rank in ranks]

    def unfinished(self) -> set[str]:
        """Names of the checkpoints that are being written."""
        with suppress(FileNotFoundError):  # the training creates and deletes the directory
            return {path.name for path in (self.output_dir / "_incomplete").glob("checkpoint-*")}
        return set()

    def has_begun_saves(self, number: int) -> bool:
        """Whether so many saves have begun since the start."""
        self.saves |= self.unfinished()
        return len(self.saves) >= number


def killed_and_resumed(
    training: Training, processes: Callable[[], int], kills: list[str], seconds: float, chance: random.Random
) -> dict[str, object]:
    """The outcome of a training that is killed, as the end of `kills` says, until it once ends before it is.

    A kill that has come leaves the list; `seconds` is the time that the training would take.
    """
    training.start(processes(), resume=False)
    while kills:
        in_save = kills[-1] == "in a save"
        if in_save:
            still_runs = training.wait(partial(training.has_begun_saves, chance.randint(1, 2)))
            time.sleep(chance.uniform(0, 0.03))
        else:
            still_runs = training.wait(lambda: False, chance.uniform(0, seconds))
        if not still_runs:
            break
        training.kill()
        if not in_save or training.unfinished():  # a save may be quicker than its kill
            kills.pop()
        if (training.output_dir / "all_results.json").exists():  # killed when all was done
            break
        training.start(processes(), resume=any(training.output_dir.glob("checkpoint-*")))
    return training.finish()


def trials(
    folder: Path, processes: Callable[[], int], kills: list[str], virtual_ranks: int, chance: random.Random
) -> int:
    """Kill and resume trainings until `kills` is empty; the number of trainings, which all end as the undisturbed one.

    Raises:
        RuntimeError: A training ended otherwise.
    """
    reference = Training(folder, "undisturbed", virtual_ranks)
    reference.start(1 if virtual_ranks else processes(), resume=False)
    began = time.monotonic()
    expected = reference.finish()
    seconds = time.monotonic() - began
    assert [line[0] for line in expected["logs"]] == [*range(1, STEPS + 1)], "not every step was logged"
    trainings = 0
    while kills:
        training = Training(folder, f"training-{trainings}", virtual_ranks)
        try:
            result = killed_and_resumed(training, processes, kills, seconds, chance)
        finally:
            training.kill()
        if result != expected:
            raise RuntimeError(f"{training.output_dir}: {result}\ndiffers from undisturbed: {expected}")
        trainings += 1
        print(f"training {trainings} ended as the undisturbed one; {len(kills)} kills to come", file=sys.stderr)
        shutil.rmtree(training.output_dir)
    shutil.rmtree(reference.output_dir)
    return trainings


def run(kills: int, processes: list[int], virtual_ranks: int, seed: int, folder: Path) -> Iterator[str]:
    """All trials; yields a line for each kind of training."""
    chance = random.Random(seed)
    write_splits(folder, train=300, test=4)
    groups = [processes] if virtual_ranks else [[count] for count in processes]
    for number, group in enumerate(groups):
        share = kills * (number + 1) // len(groups) - kills * number // len(groups)
        in_saves = share - share // 2
        left = ["in a save"] * in_saves + ["at a random moment"] * (share // 2)
        chance.shuffle(left)
        trainings = trials(folder, partial(chance.choice, group), left, virtual_ranks, chance)
        kind = f"{virtual_ranks} virtual ranks on {group}" if virtual_ranks else f"{group[0]}"
        yield (
            f"{kind} processes: {in_saves} kills in saves, {share // 2} at random moments; "
            f"{trainings} trainings ended with the undisturbed one's weights, average and logs"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--virtual_ranks", type=int, default=0, help="Elastic training; 0 for none.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the kinds and moments of kills.")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kill-trials-") as folder:
        os.environ.update(HF_DATASETS_CACHE=f"{folder}/datasets", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
        for line in run(args.kills, args.processes, args.virtual_ranks, args.seed, Path(folder)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
