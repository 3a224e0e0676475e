"""Inputs that are nearly right, and the judge: a value, or one line of a documented error, in
time.
"""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

T = TypeVar("T")
#: Seconds that one input may take.
_LONGEST = 30
_MOST_CHARACTERS = 3000


class HangError(BaseException):
    """An input that takes for ever; no handler of errors takes it for one of its own."""


def fuzzed(examples: int) -> settings:
    """So many inputs, the same ones each time; a failure is shown as found."""
    return settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=examples,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


def judged(call: Callable[[], T], *errors: type[Exception]) -> T | None:
    """What a call gives; None for an error of these classes in one line. Anything else fails the
    test.
    """
    try:
        with _in_time():
            return call()
    except errors as error:
        said = str(error)
    assert len(said.splitlines()) == 1, said
    assert len(said) <= _MOST_CHARACTERS, said
    return None


@contextmanager
def _in_time() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Damaged(bytes):
    """Bytes that a failure does not show whole."""

    edits: tuple[tuple[str, int], ...]

    def __repr__(self) -> str:
        return f"<{len(self)} bytes, damaged: {self.edits}>"


@st.composite
def damaged(draw: st.DrawFn, clean: bytes) -> bytes:
    """Bytes with up to four places flipped, cut off, put in, left out or said twice."""
    content = bytearray(clean)
    edits: list[tuple[str, int]] = []
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        until = min(len(content), at + draw(st.integers(1, 64)))
        kind = draw(st.sampled_from(("flip", "flip", "cut", "put", "drop", "twice")))
        edits.append((kind, at))
        match kind:
            case "flip" if content:
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del content[at:]
            case "put":
                content[at:at] = draw(st.binary(min_size=1, max_size=16))
            case "drop":
                del content[at:until]
            case "twice":
                content[at:at] = content[at:until]
    result = Damaged(content)
    result.edits = tuple(edits)
    return result


#: Numbers and names that programs stumble over.
ODD_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.5, 1e308, -0.0, 5e-324]),
    st.sampled_from([float("nan"), float("inf"), float("-inf")]),
    st.sampled_from(["", "nan", "-1", "kind", "\x00", "two\nlines", "é", "名" * 5, "x" * 5000]),
)
ODD_VALUES = st.recursive(
    ODD_SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)


@st.composite
def altered(draw: st.DrawFn, clean: Any, values: st.SearchStrategy[Any] = ODD_VALUES) -> Any:
    """Nested dicts and lists with one to three entries replaced, left out or added."""
    value = copy.deepcopy(clean)
    for _ in range(draw(st.integers(1, 3))):
        place = value
        while True:
            inner = [entry for entry in _entries(place) if isinstance(place[entry], dict | list)]
            if not inner or draw(st.integers(0, 3)) == 0:
                break
            place = place[draw(st.sampled_from(inner))]
        entries = _entries(place)
        kind = draw(st.sampled_from(("replace", "replace", "drop", "add")))
        if kind == "add" or not entries:
            if isinstance(place, dict):
                place[draw(st.sampled_from(("kind", "new", "n", "")))] = draw(values)
            else:
                place.append(draw(values))
        elif kind == "drop":
            del place[draw(st.sampled_from(entries))]
        else:
            place[draw(st.sampled_from(entries))] = draw(values)
    return value


def _entries(place: Any) -> list[Any]:
    return list(place) if isinstance(place, dict) else list(range(len(place)))
