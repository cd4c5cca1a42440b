"""CUDA graphs on a CPU: what torch records, replays and asserts, kept by a stand-in."""

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


class Allocator:
    """The memory pools of graphs, with the reference counts of torch's CUDACachingAllocator."""

    def __init__(self) -> None:
        self.use_count: dict[int, int] = {}
        self.live: dict[int, int] = {}  # bytes
        self.reserved: dict[int, int] = {}  # bytes; the cache of a pool keeps what was live at its peak

    def begin(self, pool: int) -> None:
        # A pool whose last graph has died stays known, and cannot be used again.
        assert self.use_count.get(pool, 1) > 0, f"use_count > 0 of pool {pool}"
        self.use_count[pool] = self.use_count.get(pool, 0) + 1

    def release(self, pool: int) -> None:
        self.use_count[pool] -= 1
        assert self.use_count[pool] >= 0

    def allocate(self, pool: int, tensor: torch.Tensor) -> None:
        self._add(pool, tensor.nbytes)
        self.reserved[pool] = max(self.reserved.get(pool, 0), self.live[pool])
        weakref.finalize(tensor, self._add, pool, -tensor.nbytes)

    def _add(self, pool: int, size: int) -> None:
        self.live[pool] = self.live.get(pool, 0) + size


class Stream:
    def __init__(self, device: Any = None) -> None:
        self.device = torch.device("cpu")

    def wait_stream(self, other: "Stream") -> None:
        assert isinstance(other, Stream)


class Recording(TorchDispatchMode):
    """Records operations on fixed addresses. As on a GPU, none is executed: results are NaN until a replay."""

    def __init__(self, allocator: Allocator, pool: int) -> None:
        super().__init__()
        self.allocator, self.pool, self.tape = allocator, pool, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Detached, for the tape needs memory alone, and must not keep alive what the program drops.
        call = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs or {}))
        if func._schema.is_mutable:
            self.tape.append((func, call, []))
            return args[0]
        result = func(*args, **(kwargs or {}))
        given = {
            tensor.untyped_storage().data_ptr() for tensor in tree_leaves(args) if isinstance(tensor, torch.Tensor)
        }
        tensors = tree_leaves(result)
        if tensors[0].untyped_storage().data_ptr() not in given:  # else it is a view
            self.tape.append((func, call, [tensor.detach() for tensor in tensors]))
            for tensor in tensors:
                tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
                self.allocator.allocate(self.pool, tensor)
        return result


class StandInForCuda:
    """Replaces what a program calls to capture and replay graphs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocator, self.graphs, handles = Allocator(), [], itertools.count(1)
        self.default = self.current = Stream()
        names = {"CUDAGraph": lambda: CUDAGraph(self), "graph_pool_handle": lambda: next(handles), "Stream": Stream}
        names |= {"current_stream": lambda device=None: self.current, "stream": self.on, "device": nullcontext}
        for name, replacement in names.items():
            monkeypatch.setattr(torch.cuda, name, replacement)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        outer, self.current = self.current, stream
        yield
        self.current = outer

    @property
    def replays(self) -> list[int]:
        """How often each graph was replayed, in the order of their captures."""
        return [history["replays"] for history in self.graphs]


class CUDAGraph:
    def __init__(self, cuda: StandInForCuda) -> None:
        self.cuda, self.recording = cuda, None

    def capture_begin(self, pool: int, capture_error_mode: str) -> None:
        assert self.cuda.current is not self.cuda.default, "graphs must be captured on a non-default stream"
        self.cuda.allocator.begin(pool)
        self.recording = Recording(self.cuda.allocator, pool)
        self.recording.__enter__()

    def capture_end(self) -> None:
        self.recording.__exit__(None, None, None)
        self.history = {"replays": 0}  # outlives the graph
        self.cuda.graphs.append(self.history)

    def replay(self) -> None:
        self.history["replays"] += 1
        for func, (args, kwargs), outputs in self.recording.tape:
            results = tree_leaves(func(*args, **kwargs))
            for output, result in zip(outputs, results, strict=False):  # what an operation overwrites is no output
                output.copy_(result)

    def __del__(self) -> None:
        if self.recording is not None:
            self.cuda.allocator.release(self.recording.pool)
