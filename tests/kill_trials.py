"""Trials with SIGKILL: a training that is killed and resumed ends in the same bits as an undisturbed one.

    make trials
    python tests/kill_trials.py --processes 1 2 --kills 50
    python tests/kill_trials.py --processes 1 2 3 5 8 --kills 20 --virtual_ranks 8

Half of the kills come while a checkpoint is written, half at random moments between the start and the end of the
program. After each one the same command is given again with `--resume`. Without `--virtual_ranks` every training keeps
its number of processes; with it, the number is drawn anew after each kill.

A training passes if the digests of its averaged model and of its last checkpoint, and the logged steps with their
losses, are those of the undisturbed one. The program ends with status 1 if one does not.
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
from dataclasses import dataclass, field
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


class TrialError(Exception):
    """A training that did not end as the undisturbed one."""


def outcome(output_dir: Path) -> dict[str, object]:
    """Results that must not depend on interruptions: averaged and last weights, and the log of each step."""
    last = output_dir / f"checkpoint-{STEPS}"
    history = json.loads((last / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return {
        "average": sha256((output_dir / "model.safetensors").read_bytes()).hexdigest(),
        "last": sha256((last / "model.safetensors").read_bytes()).hexdigest(),
        "logs": [[line[name] for name in ("step", "loss", "grad_norm", "learning_rate")] for line in history],
    }


@dataclass
class Training:
    """The recipe on the corpus of a folder, in which it makes the output directory."""

    folder: Path
    name: str
    virtual_ranks: int = 0  # of elastic training; 0 for none
    ranks: list[subprocess.Popen] = field(default_factory=list)

    @property
    def output_dir(self) -> Path:
        return self.folder / self.name

    def start(self, processes: int, resume: bool) -> None:
        settings: dict[str, object] = {**SETTINGS, "output_dir": self.output_dir, "resume": resume}
        if self.virtual_ranks:
            settings["virtual_ranks"] = self.virtual_ranks
        command = [TRAIN_WMT, *option_words(settings)]
        if processes == 1:
            self.ranks = [start_python(command, folder=self.folder)]
        else:
            self.ranks = start_ranks(command, processes, folder=self.folder)

    def ended(self) -> bool:
        """Whether all ranks have ended; raises if one has failed."""
        codes = [rank.poll() for rank in self.ranks]
        if any(codes):
            raise TrialError(f"{self.name}: exit status {codes}\n" + "\n".join(self.kill()))
        return None not in codes

    def wait(self, until: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Wait for a condition or the time; returns whether the ranks still run."""
        end = time.monotonic() + seconds
        while not self.ended():
            if until() or time.monotonic() > end:
                return True
            time.sleep(0.001)
        return False

    def finish(self) -> dict[str, object]:
        if self.wait(lambda: False):
            self.kill()
            raise TrialError(f"{self.name}: has not ended after {PATIENCE:.0f} s")
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


def kill_once(training: Training, kills: list[str], seconds: float, chance: random.Random) -> bool:
    """Kill a training that has just begun, in the way that is last in `kills`, and take that off the list.

    Returns False if the training has ended before; `seconds` is the time that it would take. A save may be quicker than
    its kill, which then stays on the list.
    """
    if kills[-1] == "at a random moment":
        if not training.wait(lambda: False, chance.uniform(0, seconds)):
            return False
        training.kill()
        kills.pop()
        return True
    seen: set[str] = set()
    number = chance.randint(1, 2)

    def reached() -> bool:
        seen.update(training.unfinished())
        return len(seen) >= number

    if not training.wait(reached):
        return False
    time.sleep(chance.uniform(0, 0.03))
    training.kill()
    if training.unfinished():
        kills.pop()
    return True


def killed_and_resumed(
    training: Training, processes: Callable[[], int], kills: list[str], seconds: float, chance: random.Random
) -> dict[str, object]:
    """The outcome of a training that is killed until it once ends before it is."""
    training.start(processes(), resume=False)
    while kills and kill_once(training, kills, seconds, chance):
        if (training.output_dir / "all_results.json").exists():  # killed when all was done
            return outcome(training.output_dir)
        training.start(processes(), resume=any(training.output_dir.glob("checkpoint-*")))
    return training.finish()


def trials(
    folder: Path, processes: Callable[[], int], kills: list[str], virtual_ranks: int, chance: random.Random
) -> int:
    """Kill and resume trainings until `kills` is empty; each must end as the undisturbed one does.

    Returns:
        The number of trainings.
    """
    reference = Training(folder, "undisturbed", virtual_ranks)
    reference.start(1 if virtual_ranks else processes(), resume=False)
    began = time.monotonic()  # the libraries have been imported
    expected = reference.finish()
    seconds = time.monotonic() - began
    if [line[0] for line in expected["logs"]] != list(range(1, STEPS + 1)):
        raise TrialError(f"undisturbed: not every step was logged: {expected['logs']}")
    trainings = 0
    while kills:
        training = Training(folder, f"training-{trainings}", virtual_ranks)
        try:
            result = killed_and_resumed(training, processes, kills, seconds, chance)
        finally:
            training.kill()
        if result != expected:
            raise TrialError(f"{training.name}: {result}\ndiffers from undisturbed: {expected}")
        trainings += 1
        print(f"{training.name} ended as the undisturbed one; {len(kills)} kills to come", file=sys.stderr)
        shutil.rmtree(training.output_dir)
    shutil.rmtree(reference.output_dir)
    return trainings


def run(kills: int, processes: list[int], virtual_ranks: int, seed: int, folder: Path) -> Iterator[str]:
    """All trials; yields a line for each kind of training.

    Raises:
        TrialError: A training did not end as the undisturbed one.
    """
    chance = random.Random(seed)
    write_splits(folder, train=300, test=4)
    groups = [processes] if virtual_ranks else [[count] for count in processes]
    for number, group in enumerate(groups):
        share = kills * (number + 1) // len(groups) - kills * number // len(groups)
        in_saves = share - share // 2
        left = ["in a save"] * in_saves + ["at a random moment"] * (share // 2)
        chance.shuffle(left)
        trainings = trials(folder, lambda group=group: chance.choice(group), left, virtual_ranks, chance)  # type: ignore[misc]
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
        try:
            for line in run(args.kills, args.processes, args.virtual_ranks, args.seed, Path(folder)):
                print(line, flush=True)
        except TrialError as error:
            sys.exit(f"kill_trials.py: {error}")


if __name__ == "__main__":
    main()
