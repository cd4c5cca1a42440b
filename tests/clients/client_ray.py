"""Ray Data: after actors and the driver were killed, the output equals that of one undisturbed command."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from helpers import REPOSITORY

from vaswani_transformer.data.phrasebook import phrasebook


def recipe(name: str, *arguments: object) -> list[str]:
    return [sys.executable, str(REPOSITORY / "recipes" / name), *map(str, arguments)]


@pytest.fixture
def divided(model_directory, tmp_path):
    """A directory of shards, and what one command makes of its input."""
    lines = [english for english, _ in phrasebook("test")] * 4
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    options = ["--model", model_directory, "--input", tmp_path / "in.txt", "--lines_per_shard", 20]
    subprocess.run(recipe("translate.py", *options, "--output", tmp_path / "expected"), check=True)
    subprocess.run(
        recipe("translate.py", *options, "--output", tmp_path / "out", "--work", tmp_path / "work"), check=True
    )
    return tmp_path / "work", (tmp_path / "expected").read_bytes()


def actors() -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [
        int(line.split()[0]) for line in listed.splitlines() if re.search(r"ray::\S*(TranslateShards|MapWorker)", line)
    ]


def finished(work) -> int:
    return len(list(work.glob("shard-*.txt")))


def test_actors_and_the_driver_are_killed(divided, tmp_path, row):
    """Actors killed, then the driver, then started again"""
    work, expected = divided
    command = recipe("cluster/ray_data.py", "--work", work, "--actors", 2)
    shards = len(list(work.glob("source-*.txt")))
    killed = 0
    environment = {**os.environ, "TMPDIR": "/tmp"}  # Ray's sockets need a short path in ASCII
    driver = subprocess.Popen(command, start_new_session=True, env=environment)
    try:
        while driver.poll() is None and finished(work) < shards // 2:
            if killed < 2 and finished(work) > killed * 5 and (alive := actors()):
                with suppress(ProcessLookupError):  # it has ended meanwhile
                    os.kill(alive[killed % len(alive)], signal.SIGKILL)
                    killed += 1
            time.sleep(0.05)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert killed == 2
    assert 0 < finished(work) < shards
    done = finished(work)
    subprocess.run(command, check=True, timeout=600, env=environment)
    assert finished(work) == shards
    subprocess.run(recipe("translate.py", "--work", work, "--collect"), check=True)
    assert (tmp_path / "out").read_bytes() == expected
    row.evidence(shards=shards, actors_killed=killed, finished_before_the_driver_was_killed=done)
