"""Starts the programs that tests watch from outside."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def run_python(
    arguments: Sequence[str | Path],
    *,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    stdin: str | None = None,
    timeout: float = 300,
) -> subprocess.CompletedProcess:
    """Run `python *arguments` to its end; stdout and stderr are captured as text.

    Args:
        arguments: A script, or `-m` and a module, and its arguments.
        environment: All environment variables; by default those of the tests.
        folder: Working directory; by default that of the tests.
        stdin: Text for standard input; by default it is empty.
        timeout: Seconds until `subprocess.TimeoutExpired`.
    """
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command,
        env=environment,
        cwd=folder,
        input=stdin or "",
        timeout=timeout,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def start_python(
    arguments: Sequence[str | Path], *, environment: dict[str, str] | None = None, folder: Path | None = None
) -> subprocess.Popen:
    """Start `python *arguments`, for a test that kills, stops or interrupts it; stdout and stderr are text pipes."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
