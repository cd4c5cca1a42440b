"""Memory on the CPU that is reused by the next step, instead of returned to the kernel."""

import ctypes
import platform


def keep_freed_memory() -> bool:
    """Let glibc keep the buffers that a training step frees, for the next step.

    By default glibc returns large buffers to the kernel, which must clear every page when they are allocated again.

    Returns:
        Whether the setting was made; without glibc nothing changes.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4  # from malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((m_mmap_max, 0), (m_trim_threshold, 2**31 - 1), (m_top_pad, 2**28))
    return all(mallopt(parameter, value) == 1 for parameter, value in settings)
