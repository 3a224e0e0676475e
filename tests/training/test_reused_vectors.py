"""Memory is given out again when nobody holds it any more in whatever form, and not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedmf.clipping import ReusedVectors

#: What somebody may keep of a vector of a model, and how its numbers are read.
HELD: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda x: x,
    "a part": lambda x: x[2:],
    "an array": lambda x: x.numpy(),
    "bytes of an array": lambda x: memoryview(x.numpy()),
    "an array as another type": lambda x: x.numpy().view(np.uint8)[8:],
    "storage": lambda x: torch.empty(0).set_(x.untyped_storage(), 0, (12,)),
}


@pytest.mark.parametrize("form", HELD)
def test_what_is_held_keeps_its_numbers(form: str) -> None:
    vectors = ReusedVectors()
    held = HELD[form](vectors.empty(12).copy_(torch.arange(12.0)))
    before = np.asarray(held).copy()
    for _ in range(10):
        vectors.empty(12).fill_(-1.0)
    assert np.array_equal(np.asarray(held), before)


def test_memory_that_nobody_holds_is_given_out_again() -> None:
    vectors = ReusedVectors()
    places = {vectors.empty(12).data_ptr() for _ in range(10)}
    assert len(places) == 1
