"""Sweep over rows of Table 3 (6.2): one process trains each row and seed, several at once."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import torch

from ..io.console import printable
from ..io.files import Json, read_json
from ..io.origins import require_same_origin
from ..launch.processes import LAUNCHER
from ..model.configuration_vaswani import VaswaniConfig
from ..runs.records import RunRecord


_WIDTHS = ("d_model", "d_ff", "d_k", "d_v")
_DEPTHS = ("encoder_layers", "decoder_layers")


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
    require_same_origin(
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


def train_all(
    jobs: Sequence[Job], environments: Sequence[dict[str, str]], command: Callable[[Job], Sequence[str]]
) -> list[Job]:
    """Train the jobs that are not finished; return the jobs that failed. An error or a signal ends all trainings.

    Args:
        jobs: Jobs, in the order of training.
        environments: Environment variables of each concurrent training.
        command: The program that trains a job, and its options.
    """
    waiting = [job for job in jobs if job.results is None]
    free, started = SimpleQueue[dict[str, str]](), list[subprocess.Popen]()
    for variables in environments:
        free.put(variables)

    def train(job: Job) -> bool:
        """Whether the job could be trained."""
        variables = free.get()
        print(f"{job.name}: training, see {job.log}", flush=True)
        job.directory.mkdir(parents=True, exist_ok=True)
        with job.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *command(job)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables, LAUNCHER: str(os.getpid())},  # it ends when this process does
                start_new_session=True,  # Ctrl-C reaches the sweep only
            )
        started.append(process)
        status = process.wait()
        free.put(variables)
        print(_outcome(job, status), flush=True)
        return job.results is not None

    with ThreadPoolExecutor(len(environments)) as pool:
        try:
            return [job for job, is_trained in zip(waiting, pool.map(train, waiting), strict=True) if not is_trained]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in started:
                process.terminate()
            raise


def _outcome(job: Job, status: int) -> str:
    """How a training ended."""
    if job.results is None:
        lines = job.log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"{job.name}: failed with status {status}: {printable(last)}"
    scores, minutes = job.results.validation, job.results.training.seconds / 60
    bleu, perplexity = scores.bleu.score, scores.perplexity.perplexity
    return f"{job.name}: sacreBLEU {bleu:.2f}, perplexity {perplexity:.2f}, {minutes:.1f} minutes"
