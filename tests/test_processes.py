"""No process waits for ever: for a launcher that has died, for a rank that has, or for the main process at work."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from helpers import free_port, start_python


pytestmark = pytest.mark.system
BOUND = 120  # seconds; the machine may be busy
JOIN = "from datetime import timedelta\nfrom vaswani_transformer.system.processes import join_process_group\n"

# Runs a script in a child with a session of its own.
FORK = """
import os, runpy, sys
if child := os.fork():
    os.waitpid(child, 0)
else:
    os.setsid()
    print(os.getpid(), flush=True)
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("launched", [True, False])
def test_a_process_ends_with_its_launcher_but_not_with_its_shell(tmp_path: Path, launched: bool) -> None:
    script = write(
        tmp_path / "script.py",
        f"{JOIN}import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('terminated', flush=True), os._exit(0)))\n"
        "join_process_group(True, timedelta(minutes=1))\n"
        "print('joined', flush=True)\n"
        "time.sleep(3)\n"
        "print('end', flush=True)\n",
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    if launched:
        environment["TORCHELASTIC_RUN_ID"] = "none"
    launcher = start_python([write(tmp_path / "fork.py", FORK), script], environment=environment)
    process = int(launcher.stdout.readline())
    assert launcher.stdout.readline() == "joined\n"
    launcher.send_signal(signal.SIGKILL)
    assert launcher.stdout.readline() == ("terminated\n" if launched else "end\n")
    launcher.communicate()
    until = time.monotonic() + BOUND
    while Path(f"/proc/{process}").exists() and time.monotonic() < until:  # an orphan, not ours to wait for
        time.sleep(0.1)


def test_ranks_without_a_launcher_wait_for_the_main_process_at_work_but_not_for_a_dead_one(tmp_path: Path) -> None:
    """Rank 0 serves the store; its work takes longer than a collective operation waits."""
    script = write(
        tmp_path / "script.py",
        "import os, time, torch\n"
        "from vaswani_transformer.system.faults import joined_processes\n"
        "from vaswani_transformer.system.processes import main_process_first, on_main_process\n"
        "with joined_processes('script.py', 0.1, 'repeat the command'):\n"
        "    assert on_main_process(lambda: time.sleep(8) or 'result') == 'result'\n"
        "    with main_process_first():\n"
        "        print(time.monotonic(), flush=True)\n"
        "        time.sleep(1)\n"
        "    if os.environ['RANK'] == '0':\n"
        "        time.sleep(1000)\n"
        "    torch.distributed.barrier()\n",
    )
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    group["ACCELERATE_USE_CPU"] = "true"
    ranks: list[subprocess.Popen] = []
    for rank in map(str, range(2)):
        ranks.append(start_python([script], environment={**os.environ, **group, "RANK": rank, "LOCAL_RANK": rank}))
    first, second = (float(rank.stdout.readline()) for rank in ranks)
    assert second - first >= 1
    ranks[0].kill()
    ranks[0].communicate()
    _, errors = ranks[1].communicate(timeout=BOUND)
    assert ranks[1].returncode == 1
    (line,) = [line for line in errors.splitlines() if line.startswith("script.py: ")]
    assert line.startswith("script.py: another process has ended, is stopped or cut off (")
    assert line.endswith("; repeat the command")
