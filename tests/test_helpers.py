"""Programs that are forked behave as those that are started afresh."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from helpers import run_python, run_ranks, start_python


pytestmark = pytest.mark.system

# What a program can see of how it was started.
PROBE = """
import json, os, signal, sys
numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD]
print(json.dumps({
    "arguments": sys.argv, "original": sys.orig_argv[1:], "path": sys.path[0], "folder": os.getcwd(),
    "environment": {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}, "stdin": sys.stdin.read(),
    "name": __name__, "file": __file__, "group": os.getpgid(0), "session": os.getsid(0), "parent": os.getppid(),
    "signals": [str(signal.getsignal(number)) for number in numbers],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "open": sorted(os.listdir("/proc/self/fd")),
    "encodings": [stream.encoding for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "threads": len(os.listdir("/proc/self/task")),
}))
print("größer", file=sys.stderr)
"""
FORKED = pytest.mark.skipif(sys.platform != "linux", reason="programs are forked on Linux alone")


@pytest.fixture
def script(tmp_path: Path):
    def script(code: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(code, encoding="utf-8")
        return path

    return script


def run_afresh(*arguments: object, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, **options)


def is_forked(process: subprocess.CompletedProcess) -> bool:
    return json.loads(process.stdout)["forked"]


WHETHER_FORKED = "import sys, json; print(json.dumps({'forked': 'transformers' in sys.modules}))"


@pytest.mark.parametrize("module", [False, True])
def test_a_fork_sees_what_a_fresh_process_does(script, tmp_path, module):
    program = script(PROBE)
    arguments = ["-m", program.stem] if module else [program]
    arguments += ["--name", "two words", ""]
    environment = {**os.environ, "RANK": "3"}
    del environment["TOKENIZERS_PARALLELISM"]
    folder = tmp_path if module else tmp_path / "elsewhere"
    folder.mkdir(exist_ok=True)
    done = run_python(arguments, environment=environment, folder=folder, stdin="ein\nzwei")
    expected = run_afresh(*arguments, env=environment, cwd=folder, input="ein\nzwei")
    assert json.loads(done.stdout) == json.loads(expected.stdout)
    assert (done.returncode, done.stderr) == (0, "größer\n")


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(3)",
        "raise SystemExit('program.py: what to do')",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import atexit, sys; atexit.register(print, 'last'); sys.stdout.write('first ')",
    ],
)
def test_a_fork_ends_as_a_fresh_process_does(script, code):
    done, expected = run_python([script(code)]), run_afresh(script(code))
    assert (done.returncode, done.stdout, done.stderr) == (expected.returncode, expected.stdout, expected.stderr)


@FORKED
def test_scripts_and_modules_are_forked(script, tmp_path):
    program = script(WHETHER_FORKED)
    assert is_forked(run_python([program]))
    assert is_forked(run_python(["-m", program.stem], folder=tmp_path))
    assert not is_forked(run_python(["-c", WHETHER_FORKED]))


@FORKED
def test_other_variables_of_imports_need_a_fresh_process(script):
    program = script(WHETHER_FORKED)
    assert is_forked(run_python([program], environment={**os.environ, "RANK": "/another"}))
    assert not is_forked(run_python([program], environment={**os.environ, "HF_HOME": "/another"}))


def test_signals_reach_the_program(script):
    code = "import os, signal, sys\nprint(os.getpid(), flush=True)\nsignal.pause()"
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = start_python([script(code)])
        assert int(process.stdout.readline()) == process.pid
        assert psutil.Process(process.pid).ppid() == os.getpid()
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(60) == -number
        process.communicate()
    interrupted = start_python([script(code)])
    interrupted.stdout.readline()
    interrupted.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in interrupted.communicate(timeout=60)[1]


def test_ranks_end_each_on_its_own(script):
    code = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit('rank 1: lost')\ntime.sleep(1)"
    first, second = run_ranks([script(code)], 2)
    assert (first.returncode, second.returncode) == (0, 1)
    assert second.stderr == "rank 1: lost\n"
    with pytest.raises(subprocess.TimeoutExpired):
        run_ranks([script("import time; time.sleep(1000)")], 2, timeout=1)
    assert not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]
