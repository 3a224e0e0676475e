"""An update rule of a user's own, held to what the server relies on, and known again by its
fingerprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmf.accounting.queries import SecondForm
from fedmf.moments import SecondMoment
from fedmf.release.round_release import RoundRelease, ServerOptimizer

_TEXT = (str, int, complex, bytes, type(None), PurePath, torch.dtype, torch.device, np.dtype, range)
_NAMED = (type, FunctionType, BuiltinFunctionType)


def fingerprint_of(value: object) -> tuple[str, str]:
    """Qualified name of an object's class, and SHA-256 of all that the object holds.

    Args:
        value: an object with dataclass fields, or attributes, that are numbers, strings, arrays,
            tensors, classes, functions, collections of such, or objects like itself. Functions and
            classes count by their qualified names, not by their code; tensors by type, shape and
            values, wherever they lie.

    Raises:
        ValueError: something in it has no attributes to read, or refers to itself.

    Guarantees: equal between processes and machines for equal objects; differs with any bit of a
    number.

    >>> from fedmf.optim import Sgd
    >>> name, digest = fingerprint_of(Sgd(momentum=0.5))
    >>> name, len(digest), digest == fingerprint_of(Sgd(momentum=0.5))[1], digest == fingerprint_of(Sgd())[1]
    ('fedmf.optim.sgd.Sgd', 64, True, False)
    """
    return _name(type(value)), _digest(value, ()).hex()


def _name(named: Any) -> str:
    return f"{named.__module__}.{named.__qualname__}"


def _digest(value: Any, within: tuple[int, ...]) -> bytes:
    """A hash over the type's name and the hashes of the parts, which `within` are parts of each
    other.
    """
    if id(value) in within:
        raise ValueError(f"an own object must not refer to itself; {_name(type(value))} does.")

    def part(inner: Any) -> bytes:
        return _digest(inner, (*within, id(value)))

    hashed = hashlib.sha256(f"{_name(type(value))}\0".encode())
    for piece in _pieces(value, part):
        hashed.update(len(piece).to_bytes(8, "little") + piece)
    return hashed.digest()


def _pieces(value: Any, part: Callable[[Any], bytes]) -> list[bytes]:
    if isinstance(value, Enum):
        return [value.name.encode()]
    if isinstance(value, float):
        return [value.hex().encode()]
    if isinstance(value, _NAMED):
        return [_name(value).encode()]
    if isinstance(value, _TEXT):
        return [(str(value) if isinstance(value, PurePath) else repr(value)).encode()]
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        return [
            f"{value.dtype}{tuple(value.shape)}".encode(),
            flat.view(torch.uint8).numpy().tobytes(),
        ]
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            return [str(array.shape).encode(), part(array.tolist())]
        return [f"{array.dtype.str}{array.shape}".encode(), array.tobytes()]
    if isinstance(value, Mapping):
        return [
            b"".join(pair)
            for pair in sorted((part(key), part(inner)) for key, inner in value.items())
        ]
    if isinstance(value, Set):
        return sorted(part(inner) for inner in value)
    if isinstance(value, list | tuple):
        return [part(inner) for inner in value]
    if is_dataclass(value):
        return [part({field.name: getattr(value, field.name) for field in fields(value)})]
    return [part(piece) for piece in _state(value)]


def _state(value: Any) -> list[Any]:
    """What pickle would write of an object: how it is made, its attributes, what it contains."""
    try:
        make, *rest = value.__reduce_ex__(2)
    except TypeError:
        raise ValueError(
            "an own object must hold numbers, text, arrays or objects made of such; got a "
            f"{_name(type(value))}. Make such things in init() or step()."
        ) from None
    return [make, *(list(piece) if isinstance(piece, Iterator) else piece for piece in rest)]


@dataclass(frozen=True, eq=False)
class OwnRule:
    """A rule that works on copies, with checked results.

    A round that could not be committed is made again, with other noise. Nobody may see what was
    made of it the first time, as they would in parameters that the rule changed in place.

    Args:
        rule: what the user wrote.
    """

    rule: ServerOptimizer

    @property
    def second_moment(self) -> SecondMoment | None:
        """See `ServerOptimizer.second_moment`."""
        return self.rule.second_moment

    @property
    def second_form(self) -> SecondForm:
        """See `ServerOptimizer.second_form`."""
        return self.rule.second_form

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        """See `ServerOptimizer.init`.

        Raises:
            ValueError: a state that is not tensors by name.
        """
        return _checked_state(self.rule.init(parameters.clone()), "init")

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `ServerOptimizer.step`; ``parameters`` and ``state`` are never changed.

        Raises:
            ValueError: other parameters than a vector of the type and length of θ, or a state that
                is not tensors by name.
        """
        copies = {name: value.clone() for name, value in state.items()}
        stepped, state = self.rule.step(t, parameters.clone(), release, copies)
        if (
            not isinstance(stepped, Tensor)
            or stepped.shape != parameters.shape
            or stepped.dtype != parameters.dtype
        ):
            made = (
                f"{stepped.dtype} of shape {tuple(stepped.shape)}"
                if isinstance(stepped, Tensor)
                else stepped
            )
            raise ValueError(
                f"step (of {type(self.rule).__name__}) must return {parameters.dtype} parameters of"
                f" shape {tuple(parameters.shape)}; got {made}. Nothing was released."
            )
        return stepped.detach(), _checked_state(state, "step")


def _checked_state(state: Mapping[str, Tensor], method: str) -> dict[str, Tensor]:
    if not isinstance(state, Mapping) or not all(
        isinstance(value, torch.Tensor) for value in state.values()
    ):
        raise ValueError(
            f"{method} (of the optimizer) must return its state as tensors by name; got {state!r}."
        )
    return dict(state)
