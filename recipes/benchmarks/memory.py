"""Memory of this process on Linux, for `table1.py` and `train_worker.py`."""

from pathlib import Path


def resident_bytes(name: str) -> int:
    """Resident memory: "VmRSS" now, "VmHWM" at its peak."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
