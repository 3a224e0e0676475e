"""Fingerprints of own objects: equal for equal values in any process, different for any other bit."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch

from fedmf.mechanisms.workload import LearningRateSchedule
from fedmf.optim import Adam, Sgd, fingerprint_of


class Rule:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Slotted:
    __slots__ = ("__rate", "unset")

    def __init__(self, rate: float) -> None:
        self.__rate = rate

    def twice(self) -> float:
        return 2 * self.__rate


@dataclass
class Measured:
    values: list[float] = field(default_factory=list)

    @cached_property
    def total(self) -> float:
        return sum(self.values)


class Color(Enum):
    RED = 1
    BLUE = 2


def doubled(x: float) -> float:
    return 2 * x


DIFFERENT: dict[str, Any] = {
    "nothing": Rule(),
    "none": Rule(a=None),
    "text": Rule(a="1"),
    "true": Rule(a=True),
    "float": Rule(a=1.0),
    "next float": Rule(a=float(np.nextafter(1.0, 2.0))),
    "nan": Rule(a=float("nan")),
    "zero": Rule(a=0.0),
    "minus zero": Rule(a=-0.0),
    "float32": Rule(a=np.float32(1.0)),
    "array": Rule(a=np.ones(2)),
    "array of objects": Rule(a=np.array([1.0, "x"], dtype=object)),
    "tensor": Rule(a=torch.ones(2)),
    "tensor of another type": Rule(a=torch.ones(2, dtype=torch.bfloat16)),
    "other tensor": Rule(a=torch.tensor([1.0, 1.0 + 2**-23])),
    "another name": Rule(b=1.0),
    "list": Rule(a=[1, 2]),
    "tuple": Rule(a=(1, 2)),
    "set": Rule(a={1, 2}),
    "dictionary": Rule(a={"x": 1, "y": 2}),
    "dictionary turned": Rule(a={"x": 2, "y": 1}),
    "enumeration": Rule(a=Color.RED),
    "function": Rule(a=doubled),
    "path": Rule(a=PurePosixPath("a/b")),
    "schedule": Rule(a=LearningRateSchedule("cosine", 0.1, 9)),
    "partial": Rule(a=partial(doubled, 1.0)),
    "method": Rule(a=Slotted(1.0).twice),
    "queue": Rule(a=deque([1])),
    "date": Rule(a=date(2020, 1, 1)),
    "slots": Slotted(1.0),
    "other slots": Slotted(2.0),
    "sgd": Sgd(),
    "adam": Adam(),
    "adam with another rate": Adam(learning_rate=0.2),
}


def test_any_difference_is_seen() -> None:
    fingerprints = {name: fingerprint_of(value) for name, value in DIFFERENT.items()}
    same = [pair for pair in combinations(fingerprints, 2) if fingerprints[pair[0]] == fingerprints[pair[1]]]
    assert same == []
    assert fingerprints["adam"][0] == "fedmf.optim.adaptive.Adam"
    assert fingerprints["sgd"][1] != fingerprints["adam"][1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Rule(a={"x": 1, "y": 2}), Rule(a={"y": 2, "x": 1})),
        (Rule(a=1, b=2), Rule(b=2, a=1)),
        (Rule(a={"red", "green", "blue"}), Rule(a={"blue", "red", "green"})),
        (Rule(a=torch.arange(6.0).reshape(2, 3).T), Rule(a=torch.arange(6.0).reshape(2, 3).T.contiguous())),
        (Rule(a=np.arange(6.0)[::2]), Rule(a=np.array([0.0, 2.0, 4.0]))),
    ],
)
def test_equal_objects_have_one_fingerprint(one: object, other: object) -> None:
    assert fingerprint_of(one) == fingerprint_of(other)


def test_what_a_dataclass_remembers_beside_its_fields_does_not_count() -> None:
    measured = Measured([1.0, 2.0])
    before = fingerprint_of(measured)
    assert measured.total == 3.0
    assert fingerprint_of(measured) == before


def test_another_process_agrees() -> None:
    """Whose order of sets is another, since texts are hashed with a seed."""
    code = (
        "from fedmf.optim import Adam, fingerprint_of; import torch; "
        "print(fingerprint_of([Adam(), {'a', 'b', 'c'}, torch.ones(3), 0.1])[1])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
        cwd=Path(__file__).parents[2],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)},
    ).stdout
    assert printed == fingerprint_of([Adam(), {"a", "b", "c"}, torch.ones(3), 0.1])[1] + "\n"


def test_what_cannot_be_read_is_refused() -> None:
    for hidden in (Lock(), (i for i in range(3)), sys.stdout.buffer):
        with pytest.raises(ValueError, match="an own object must hold numbers, text"):
            fingerprint_of(Rule(a=hidden))
    endless = Rule()
    endless.itself = [endless]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"must not refer to itself; .*\.Rule does"):
        fingerprint_of(endless)
