"""The processor: its cores, the number types that it multiplies slowly, and the reuse of freed memory."""

import ctypes
import logging
import os
import platform
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal


# For each type of numbers: flags of /proc/cpuinfo, at least one of them needed, and values of ONEDNN_MAX_CPU_ISA that
# forbid the instructions.
_NEEDED = {
    "int8": ({"avx512_vnni", "avx_vnni", "amx_int8"}, {"SSE41", "AVX", "AVX2", "AVX512_CORE"}),
    "bfloat16": ({"avx512bw", "avx_ne_convert"}, {"SSE41", "AVX", "AVX2", "AVX2_VNNI"}),
}

CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds on all cores, per period
SLOW_BFLOAT16 = (
    "precision: bf16 is several times slower than float32 on this processor, which lacks AVX-512BW; choose float32"
)


def available_cores() -> int:
    """Cores that this process may use, by its affinity and its container's limit; the machine may have more."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # there is no limit, or it is "max"
        quota, period = map(int, CPU_LIMIT.read_text(encoding="ascii").split())
        cores = max(1, min(cores, quota // period))
    return cores


def has_products_of(dtype: Literal["int8", "bfloat16"]) -> bool:
    """Whether an x86 processor has instructions to multiply such numbers, according to Linux.

    For int8 these are VNNI and AMX, which add products in 32 bits; for bfloat16, AVX512BW or AVX-NE-CONVERT.
    """
    flags, forbidding = _NEEDED[dtype]
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in forbidding:
        return False
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return True
    found = next((line.split() for line in lines if line.startswith("flags")), None)  # other processors have no flags
    return found is None or not flags.isdisjoint(found)


@cache
def warn_of_slow_bfloat16() -> None:
    """Warn once if this processor computes more slowly in bfloat16 than in float32."""
    if not has_products_of("bfloat16"):
        logging.getLogger(__name__).warning(SLOW_BFLOAT16)


def keep_freed_memory() -> None:
    """Make glibc keep the buffers freed by a training step for the next one; do nothing with another C library.

    By default glibc returns large buffers to the kernel, which must clear every page when they are allocated again.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4  # from malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    for parameter, value in ((m_mmap_max, 0), (m_trim_threshold, 2**31 - 1), (m_top_pad, 2**28)):
        mallopt(parameter, value)
