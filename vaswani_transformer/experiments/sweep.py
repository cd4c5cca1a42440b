"""Sweep over rows of Table 3 (6.2): one process trains each row and seed, several at once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from ..runs.records import RunRecord
from ..system.launcher import end_with_parent
from ..system.messages import printable


@dataclass(frozen=True)
class Job:
    """The training of one row with one seed."""

    row: str
    seed: int
    sweep: Path

    @property
    def name(self) -> str:
        return f"{self.row}, seed {self.seed}"

    @property
    def directory(self) -> Path:
        return self.sweep / self.row / f"seed-{self.seed}"

    @property
    def log(self) -> Path:
        return self.directory / "train.log"

    def load_results(self) -> RunRecord | None:
        """Results of the training; None until it is finished."""
        return RunRecord.from_directory(self.directory)


def shares(use_cpu: bool, parallel: int | None) -> list[dict[str, str]]:
    """Environment variables that give each concurrent training its share of the machine."""
    count = 0 if use_cpu else torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",")[:count] if visible else [str(number) for number in range(count)]
    parallel = parallel or count or 1
    if gpus:
        return [{"CUDA_VISIBLE_DEVICES": gpus[number % count]} for number in range(parallel)]
    return [{"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // parallel))}] * parallel


def train_all(
    jobs: Sequence[Job], environments: Sequence[dict[str, str]], command: Callable[[Job], Sequence[str]]
) -> list[Job]:
    """Train the unfinished jobs; return the jobs that failed. An error or a signal ends all trainings.

    Args:
        jobs: Jobs, in the order of training.
        environments: Environment variables of each concurrent training.
        command: The program that trains a job, and its options.
    """
    waiting = [job for job in jobs if job.load_results() is None]
    free, running = [*environments], list[tuple[Job, dict[str, str], subprocess.Popen]]()
    failed = []
    try:
        while waiting or running:
            while waiting and free:
                job, variables = waiting.pop(0), free.pop(0)
                print(f"{job.name}: training, see {job.log}", flush=True)
                running.append((job, variables, _start(command(job), job.log, variables)))
            time.sleep(0.1)
            for job, variables, process in [each for each in running if each[2].poll() is not None]:
                running.remove((job, variables, process))
                free.append(variables)
                results = job.load_results()
                print(_outcome(job, process.returncode, results), flush=True)
                if results is None:
                    failed.append(job)
    finally:
        for *_, process in running:
            process.terminate()
        for *_, process in running:
            process.wait()
    return failed


def _start(command: Sequence[str], log: Path, variables: Mapping[str, str]) -> subprocess.Popen:
    """Start a training that prints to a file, and ends when this process does."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,  # Ctrl-C reaches only the sweep
            preexec_fn=partial(end_with_parent, signal.SIGTERM),
        )


def _outcome(job: Job, status: int, results: RunRecord | None) -> str:
    """How a training ended."""
    if results is None:
        lines = job.log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"{job.name}: failed with status {status}: {printable(last)}"
    scores, minutes = results.validation, results.training.seconds / 60
    bleu, perplexity = scores.bleu.score, scores.perplexity.perplexity
    return f"{job.name}: sacreBLEU {bleu:.2f}, perplexity {perplexity:.2f}, {minutes:.1f} minutes"
