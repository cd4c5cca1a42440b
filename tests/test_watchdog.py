"""Processes that could wait for ever end in bounded time, with one line; those that merely take long do not."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from helpers import run_python, start_python

from vaswani_transformer.launch.watchdog import LAUNCHER as LAUNCHER_ID


pytestmark = pytest.mark.system
RANK = Path(__file__).parent / "watched_rank.py"
BOUND = 120  # seconds; the timeouts below are of 2, but the machine may be busy

StartRanks = Callable[..., list[subprocess.Popen]]


@pytest.fixture
def start_ranks() -> Iterator[StartRanks]:
    """Starts ranks, one for each list of stages, and waits until each has come as far as a stage."""
    with ExitStack() as stack:

        def start(timeout: float, *stages: list[str], until: str) -> list[subprocess.Popen]:
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = str(server.getsockname()[1])
            group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(len(stages))}
            ranks = []
            for rank, own in enumerate(stages):
                environment = {**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                ranks.append(start_python([RANK, str(timeout), *own], environment=environment))
                stack.callback(ranks[-1].communicate)
                stack.callback(ranks[-1].kill)
            for rank in ranks:
                wait_for(rank, until)
            return ranks

        yield start


def wait_for(process: subprocess.Popen, line: str) -> None:
    for printed in process.stdout:
        if printed.strip() == line:
            return
    pytest.fail(process.stderr.read())


def messages(process: subprocess.Popen) -> list[str]:
    """The watchdog's lines on standard error, once the process has ended with status 1."""
    _, stderr = process.communicate(timeout=BOUND)
    assert process.returncode == 1, stderr
    assert "Traceback" not in stderr
    return [line for line in stderr.splitlines() if line.startswith("watched_rank.py: ")]


@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("victim", [0, 2])  # the first is the server of the store
def test_a_rank_that_falls_silent_ends_the_others(start_ranks: StartRanks, fault: signal.Signals, victim: int) -> None:
    ranks = start_ranks(2, *[["wait 1000"]] * 3, until="wait 1000")
    ranks[victim].send_signal(fault)
    others = [rank for number, rank in enumerate(ranks) if number != victim]
    printed = [line for rank in others for line in messages(rank)]
    assert printed
    for line in printed:
        assert f"rank {victim} has not answered for 2 seconds" in line
        assert "continue with --resume" in line


def test_steps_that_do_not_end(start_ranks: StartRanks) -> None:
    ranks = start_ranks(2, ["steps 3", "hang"], ["steps 3", "wait 1000"], until="steps 3")
    (line,) = messages(ranks[0])
    assert "no step has ended for 2 seconds" in line


def test_a_rank_may_be_busy_outside_its_steps(start_ranks: StartRanks) -> None:
    stages = ["wait 4", "barrier", "steps 20", "barrier"]
    ranks = start_ranks(2, stages, stages[1:], until="barrier")
    for rank in ranks:
        _, stderr = rank.communicate(timeout=BOUND)
        assert rank.returncode == 0, stderr


def test_a_rank_that_has_ended_in_order_is_not_missed(start_ranks: StartRanks) -> None:
    ranks = start_ranks(2, ["barrier", "wait 6"], ["barrier"], until="barrier")
    for rank in ranks:
        _, stderr = rank.communicate(timeout=BOUND)
        assert rank.returncode == 0, stderr


# Runs a script in a child with a session of its own.
LAUNCHER = """
import os, runpy, sys
child = os.fork()
if child:
    print(child, flush=True)
    os.waitpid(child, 0)
else:
    os.setsid()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("launched", [True, False])
def test_a_rank_ends_with_its_launcher_but_not_with_its_shell(tmp_path: Path, launched: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    if launched:
        environment["TORCHELASTIC_RUN_ID"] = "none"
    script = tmp_path / "launcher.py"
    script.write_text(LAUNCHER, encoding="utf-8")
    launcher = start_python([script, RANK, "60", "wait 3"], environment=environment)
    rank = int(launcher.stdout.readline())
    assert launcher.stdout.readline() == "wait 3\n"
    launcher.send_signal(signal.SIGKILL)
    assert launcher.stdout.readline() == ("terminated\n" if launched else "end\n")
    launcher.communicate()
    until = time.monotonic() + BOUND
    while Path(f"/proc/{rank}").exists() and time.monotonic() < until:  # an orphan, not ours to wait for
        time.sleep(0.1)


@pytest.mark.parametrize(
    "join",
    [
        "join_process_group(True, timedelta(days=30))",
        "joined_processes('test', 60, 'repeat').__enter__()",
    ],
)
def test_a_rank_that_waits_for_the_others_ends_with_its_launcher(join: str, tmp_path: Path) -> None:
    script = tmp_path / "join.py"
    script.write_text(
        "from datetime import timedelta\n"
        "from vaswani_transformer.launch.faults import joined_processes\n"
        "from vaswani_transformer.launch.processes import join_process_group\n"
        f"{join}\n",
        encoding="utf-8",
    )
    group = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    gone = {LAUNCHER_ID: str(2**22 + 1), "ACCELERATE_USE_CPU": "true"}  # no process has an id above 2**22
    result = run_python([script], environment={**os.environ, **group, **gone}, timeout=BOUND)
    assert result.returncode == 128 + signal.SIGTERM
