"""Memory on the CPU that is reused by the next step, instead of returned to the kernel."""

import ctypes
import platform


def keep_freed_memory() -> None:
    """Let glibc keep the buffers that a training step frees, for the next step; elsewhere do nothing.

    By default glibc returns large buffers to the kernel, which must clear every page when they are allocated again.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4  # from malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    for parameter, value in ((m_mmap_max, 0), (m_trim_threshold, 2**31 - 1), (m_top_pad, 2**28)):
        mallopt(parameter, value)
