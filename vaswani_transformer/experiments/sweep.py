"""Sweep over rows of Table 3 (6.2): one process trains each row and seed, several at once."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..io.console import printable
from ..io.files import Json, read_json
from ..io.manifests import require_same_manifest
from ..launch.processes import LAUNCHER
from ..model.configuration_vaswani import VaswaniConfig
from ..runs.records import RunRecord
from ..runs.run_directory import RECORD_NAME


_WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
_DEPTHS = ("encoder_layers", "decoder_layers")
_INTERVAL = 0.2  # seconds between two looks at the trainings


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

    @property
    def options(self) -> dict[str, object]:
        """Options of `train_wmt.py` that the job decides: a killed training is resumed."""
        is_begun = (self.directory / RECORD_NAME).exists()
        return {"output_dir": self.directory, "seed": self.seed, "resume": is_begun}

    @property
    def results(self) -> RunRecord | None:
        """What the training measured; None until it is finished."""
        return RunRecord.from_directory(self.directory)


def finished_runs(directory: Path, row: str) -> dict[int, RunRecord]:
    """The records of a row's finished trainings, by seed."""
    names = [re.fullmatch("seed-([0-9]+)", path.name) for path in (directory / row).glob("seed-*")]
    seeds = [int(name[1]) for name in names if name is not None]  # ignores others, such as "seed-1.bak"
    by_seed = {seed: Job(row, seed, directory).results for seed in seeds}
    return {seed: results for seed, results in by_seed.items() if results is not None}


def scaled_sizes(row: str, width: float, depth: float) -> dict[str, int]:
    """Scaled sizes of a row of Table 3 for `VaswaniConfig.from_variant`; the number of heads is kept.

    Raises:
        ValueError: There is no such row, or a scaled size is not a whole number.
    """
    config = VaswaniConfig.from_variant(row)
    sizes = {}
    for scale, factor, names in (("width", width, _WIDTHS), ("depth", depth, _DEPTHS)):
        for name in names:
            size = getattr(config, name) * factor
            if size < 1 or not size.is_integer():
                raise ValueError(f"{scale}: {factor} makes {name} of row {row} {size}; it must be a whole number")
            sizes[name] = int(size)
    return sizes


def require_same_sweep(directory: Path, manifest: Mapping[str, Json]) -> None:
    """Raise a ValueError if a directory holds another sweep or other files."""
    if not (directory / "sweep.json").exists():
        others = [path for path in directory.iterdir() if path.suffix not in (".tmp", ".lock")]
        if any(path.name not in ("data", "training.yaml") for path in others):
            raise ValueError(f"output_dir: {directory} has files that are not of a sweep; choose another")
        return
    before = read_json(directory / "sweep.json")
    defaults: dict[str, Json] = dict.fromkeys({**before, **manifest}, "the default")
    require_same_manifest(
        {**defaults, **before},
        {**defaults, **manifest},
        f"output_dir: {directory} holds a sweep that differs in",
        "repeat the command that began it to continue it, or choose another directory",
    )


def shares(use_cpu: bool, parallel: int | None) -> list[dict[str, str]]:
    """Environment variables that give each concurrent training its share of the machine."""
    count = 0 if use_cpu else torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",")[:count] if visible else [str(number) for number in range(count)]
    parallel = parallel or count or 1
    if gpus:
        return [{"CUDA_VISIBLE_DEVICES": gpus[number % count]} for number in range(parallel)]
    return [{"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // parallel))}] * parallel


def _start(job: Job, command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen:
    """Start a training, which ends when this process does, in a session of its own: Ctrl-C reaches the sweep only."""
    job.directory.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables, LAUNCHER: str(os.getpid())},
            start_new_session=True,
        )


def train_all(
    jobs: Sequence[Job], environments: Iterable[dict[str, str]], command: Callable[[Job], Sequence[str]]
) -> list[Job]:
    """Train the jobs that are not finished; return the jobs that failed. An error or a signal ends all trainings.

    Args:
        jobs: Jobs, in the order of training.
        environments: Environment variables of each concurrent training.
        command: The program that trains a job, and its options.
    """
    waiting, failed = [job for job in jobs if job.results is None], []
    free, running = list(environments), dict[subprocess.Popen, tuple[Job, dict[str, str]]]()
    try:
        while waiting or running:
            while waiting and free:
                job, variables = waiting.pop(0), free.pop(0)
                running[_start(job, command(job), variables)] = job, variables
                print(f"{job.name}: training, see {job.log}", flush=True)
            time.sleep(_INTERVAL)
            for process in [each for each in running if each.poll() is not None]:
                job, variables = running.pop(process)
                free.append(variables)
                results = job.results
                failed += [job] if results is None else []
                left = f"{len(running) + len(waiting)} of {len(jobs)} trainings left"
                print(f"{_outcome(job, results, process.returncode)}; {left}", flush=True)
    finally:
        _stop(list(running))
    return failed


def _outcome(job: Job, results: RunRecord | None, status: int) -> str:
    """How a training ended."""
    if results is None:
        lines = job.log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"{job.name}: failed with status {status}: {printable(last)}"
    scores, minutes = results.validation, results.training.seconds / 60
    bleu, perplexity = scores.bleu.score, scores.perplexity.perplexity
    return f"{job.name}: sacreBLEU {bleu:.2f}, perplexity {perplexity:.2f}, {minutes:.1f} minutes"


def _stop(processes: Sequence[subprocess.Popen]) -> None:
    """End trainings: by SIGTERM, and by SIGKILL after 20 seconds."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
