"""Watchdog thread that ends a process which would otherwise wait for ever.

That is the case when its launcher has died, when another rank is silent, or when a step does not end.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch.distributed import PrefixStore, Store, TCPStore
from tqdm.auto import tqdm
from transformers import TrainerCallback

from ..io.console import end_program


# Environment variable: id of the parent process. This process ends when that one dies, as under torchrun.
LAUNCHER = "VASWANI_LAUNCHER"

_TICK = 1.0  # seconds between two looks at the launcher and at the steps
_STORE_SECONDS = 5.0  # how long the store may take to answer
_LAST_CALL = 2.0  # seconds that rank 0, with which the store may end, waits for the other ranks to ask who announces
_LEFT = 2**40  # added to the heartbeat of a rank that has ended normally


class Watchdog(TrainerCallback):
    """Ends this process with one line when it would otherwise wait for ever: a context manager and a trainer callback.

    A thread of every rank counts up a heartbeat in the store of the process group, also while the main thread loads
    data for hours. A rank that was killed or stopped, or that cannot be reached, falls silent. The others then end.
    Start the process group first, with a timeout longer than any legitimate wait:

        PartialState(timeout=timedelta(days=30))
        with Watchdog("translate.py", timeout=600):
            ...

    Args:
        program: Name that begins the line.
        timeout: Seconds without a heartbeat after which another rank counts as lost; during training also seconds
            without a step after which this process counts as hanging.
        advice: What the line tells the user to do.

    Attributes:
        orphaned: Whether the launcher has died. The process then sends itself SIGTERM.
    """

    def __init__(self, program: str, timeout: float, advice: str = "continue with --resume") -> None:
        self.program = program
        self.timeout = timeout
        self.advice = advice
        self.orphaned = False
        self._group = _Heartbeats(timeout) if torch.distributed.is_initialized() else None
        self._launcher = _launcher()
        self._last_step: float | None = None
        self._announcing = threading.Lock()
        self._announced = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        if self._group is not None:
            self._group.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop(in_order=error[0] is None)

    def stop(self, in_order: bool = False) -> None:
        """Stop watching; `in_order` tells the other ranks that this one has ended normally."""
        self._ended.set()
        if self._group is not None:
            self._group.leave(in_order)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._last_step = time.monotonic()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._last_step = None

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self._last_step is not None:
            self._last_step = time.monotonic()

    on_substep_end = on_prediction_step = on_save = on_step_end

    def announce(self, message: str, delay: float = 0.0) -> None:
        """Print one line, unless another thread or rank has printed one already.

        Args:
            message: What happened, without the program's name.
            delay: Seconds to wait first, so that a rank that knows the cause can print it.
        """
        if self._group is not None:
            time.sleep(delay)
        with self._announcing:
            if self._announced:
                return
            self._announced = True
            if self._group is None or self._group.claim():
                tqdm.write(f"{self.program}: {message}", file=sys.stderr)  # not in the middle of a progress bar
            if self._group is not None:
                self._group.await_claims()

    def exit(self, message: str, status: int = 1) -> NoReturn:
        """Announce a message and exit, so that contexts are left."""
        if self._group is None:
            end_program(f"{self.program}: {message}", status)
        self.announce(message)
        sys.exit(status)

    def end(self, message: str, delay: float = 0.0, status: int = 1) -> NoReturn:
        """Announce a message and end the process at once, even if its threads are blocked."""
        self.announce(message, delay)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    def _watch(self) -> None:
        while not self._ended.wait(min(_TICK, self.timeout / 10)):
            if self._launcher not in (None, os.getppid()) and not self.orphaned:
                self.orphaned = True
                os.kill(os.getpid(), signal.SIGTERM)
            fault = self._fault()
            if fault is not None and not self._ended.is_set():
                self.end(f"{fault}; {self.advice}")

    def _fault(self) -> str | None:
        late = self._last_step is not None and time.monotonic() - self._last_step > self.timeout
        lost = self._group.silent(self.timeout / 2 if late else self.timeout) if self._group is not None else []
        if lost:
            names = ", ".join(map(str, lost))
            return f"rank {names} has not answered for {self.timeout:g} seconds: it has died, is stopped or cut off"
        if late:
            return f"no step has ended for {self.timeout:g} seconds; if steps may take longer, raise the timeout"
        return None


@contextmanager
def ends_with_launcher() -> Iterator[None]:
    """Context for joining the process group: this process ends at once if its launcher dies meanwhile.

    It would wait for the other ranks for ever, or join those of the next launch at the same address.
    """
    launcher, joined = _launcher(), threading.Event()

    def watch() -> None:
        while not joined.wait(_TICK):
            if launcher not in (None, os.getppid()):
                os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="joining", daemon=True).start()
    try:
        yield
    finally:
        joined.set()


def _launcher() -> int | None:
    """Id of the parent process whose death ends this one; None under a plain shell, which it may outlive."""
    if LAUNCHER in os.environ:
        return int(os.environ[LAUNCHER])
    launched = "TORCHELASTIC_RUN_ID" in os.environ or "ACCELERATE_MIXED_PRECISION" in os.environ
    return os.getppid() if launched else None


class _Heartbeats:
    """Heartbeats of all ranks, as counters in the process group's store.

    Without a launcher, rank 0 serves the store. While it does not answer, calls to the store block beyond their
    timeout, and all ranks seem silent. A separate thread therefore makes these calls.
    """

    def __init__(self, timeout: float) -> None:
        self.rank, self.ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._interval = timeout / 10
        self._seen = {rank: (0, time.monotonic()) for rank in range(self.ranks) if rank != self.rank}
        self._in_order = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._exchange, name="heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def silent(self, seconds: float) -> list[int]:
        """Ranks whose last heartbeat is older than `seconds`; only rank 0 if it is one of several.

        If rank 0 serves the store and is silent, all others seem silent, too.
        """
        now = time.monotonic()
        ranks = [rank for rank, (_, at) in self._seen.items() if now - at > seconds]
        return ranks[:1] if len(ranks) > 1 and ranks[0] == 0 else ranks

    def claim(self) -> bool:
        """Ask for the right to announce: only the first rank gets it, or any rank if the store does not answer."""
        return _ask(lambda store: store.add("announced", 1) == 1) is not False

    def await_claims(self) -> None:
        """Wait until the other ranks have asked: without a launcher, the store ends with rank 0."""
        until = time.monotonic() + _LAST_CALL
        while self.rank == 0 and time.monotonic() < until:
            if _ask(lambda store: store.add("announced", 0) < self.ranks) is not True:
                return
            time.sleep(0.05)

    def leave(self, in_order: bool) -> None:
        """Join the thread: a call to the store while Python shuts down would abort the process."""
        self._in_order = in_order
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_STORE_SECONDS)

    def _exchange(self) -> None:
        store: Store | None = None
        while not self._ended.wait(self._interval):
            try:
                store = store or _connect()
                store.add(f"alive-{self.rank}", 1)
                self._note({rank: store.add(f"alive-{rank}", 0) for rank in self._seen})
            except RuntimeError:
                store = None  # connect again
        if not self._in_order:
            return
        with suppress(RuntimeError):  # the server may have ended already
            (store or _connect()).add(f"alive-{self.rank}", _LEFT)

    def _note(self, beats: dict[int, int]) -> None:
        for rank, beat in beats.items():
            if beat != self._seen[rank][0]:
                self._seen[rank] = (beat, float("inf") if beat >= _LEFT else time.monotonic())


def _ask(question: Callable[[Store], bool]) -> bool | None:
    """The store's answer; None if it gives none."""
    answers: list[bool] = []

    def ask() -> None:
        with suppress(RuntimeError):
            answers.append(question(_connect()))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_STORE_SECONDS)
    return answers[0] if answers else None


def _connect() -> Store:
    """A second connection to the group's store; the group's own is blocked while a collective is being set up."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    wait = timedelta(seconds=_STORE_SECONDS)
    server = TCPStore(address, port, None, is_master=False, timeout=wait, wait_for_workers=False)
    return PrefixStore(f"watchdog-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", server)
