"""A process in which Triton interprets its kernels, on CPU tensors: the environment chooses the
interpreter when Triton is imported, and the other tests shall not notice.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

import pytest
import torch

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed (Linux only)"
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@contextmanager
def interpreter() -> Iterator[Callable[..., Any]]:
    """A function that calls one of `interpreted_kernels` by name, in the other process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        # The process starts with this environment, and sees no GPU; this one soon has its own
        # again.
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("TRITON_INTERPRET", "1")
            patched.setenv("CUDA_VISIBLE_DEVICES", "")
            pool.submit(importlib.import_module, "triton").exception()

        def call(name: str, *arguments: Any) -> Any:
            return pickle.loads(pool.submit(_call, name, pickle.dumps(arguments)).result())

        yield call


def compiler(name: str, *arguments: Any) -> Any:
    """Call one of `compiled_kernels` by name, in this process: a target is named, so no GPU is
    looked for.
    """
    return getattr(importlib.import_module("support.compiled_kernels"), name)(*arguments)


def _call(name: str, arguments: bytes) -> bytes:
    """Pickled by hand: torch would share the memory of tensors, and nothing would be tested."""
    module = importlib.import_module("support.interpreted_kernels")
    return pickle.dumps(getattr(module, name)(*pickle.loads(arguments)))
