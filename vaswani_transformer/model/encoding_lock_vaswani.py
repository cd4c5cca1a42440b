"""One lock for all tokenizers: threads can share a tokenizer, which encodes for one thread at a time.

A fast tokenizer keeps the truncation and padding of a call as state, so concurrent calls change each other's results.
"""

import os
from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any


# Not an attribute of the tokenizer, because tokenizers are copied, pickled and hashed.
ENCODING_LOCK = RLock()
if hasattr(os, "register_at_fork"):  # else a process forked while another thread encodes would deadlock
    os.register_at_fork(
        before=ENCODING_LOCK.acquire, after_in_parent=ENCODING_LOCK.release, after_in_child=ENCODING_LOCK.release
    )


def one_at_a_time(encode: Callable) -> Callable:
    """Make a method that encodes wait until no other thread encodes."""

    @wraps(encode)
    def waiting(*args: Any, **kwargs: Any) -> Any:
        with ENCODING_LOCK:
            return encode(*args, **kwargs)

    return waiting
