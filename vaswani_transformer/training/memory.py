"""Training on CPU without asking the kernel for the same memory at every step."""

import ctypes
import platform


def keep_freed_memory() -> bool:
    """Let glibc keep the buffers that a training step frees, for the next step to use.

    By default it hands large ones back to the kernel, which must clear each page again when it is asked for. Returns
    whether it was done: elsewhere than on Linux with glibc there is nothing to do.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4  # from malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((m_mmap_max, 0), (m_trim_threshold, 2**31 - 1), (m_top_pad, 2**28))
    return all(mallopt(parameter, value) == 1 for parameter, value in settings)
