"""One lock for all tokenizers: several threads may use one, which encodes for one at a time.

A fast tokenizer keeps the truncation and padding of a call as state, so that calls change each other's results.
"""

import os
from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any


# No attribute of a tokenizer, since tokenizers are copied, pickled and hashed.
ENCODING_LOCK = RLock()
if hasattr(os, "register_at_fork"):  # a process that is forked while another thread encodes would wait for ever
    os.register_at_fork(
        before=ENCODING_LOCK.acquire, after_in_parent=ENCODING_LOCK.release, after_in_child=ENCODING_LOCK.release
    )


def one_at_a_time(encode: Callable) -> Callable:
    """Let a method that encodes wait until no other thread does."""

    @wraps(encode)
    def waiting(*args: Any, **kwargs: Any) -> Any:
        with ENCODING_LOCK:
            return encode(*args, **kwargs)

    return waiting
