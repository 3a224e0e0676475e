"""A process in which Triton interprets its kernels, on CPU tensors: the environment chooses the interpreter
when Triton is imported, and the other tests shall not notice."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any


@contextmanager
def interpreter() -> Iterator[Any]:
    """A function that calls a function of `interpreted_kernels` by name, in the other process."""
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            yield lambda name, *arguments: pool.submit(_call, name, arguments).result()
    finally:
        os.environ.pop("TRITON_INTERPRET")
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before


def _call(name: str, arguments: tuple[Any, ...]) -> Any:
    assert os.environ["TRITON_INTERPRET"] == "1"
    return getattr(importlib.import_module("interpreted_kernels"), name)(*arguments)
