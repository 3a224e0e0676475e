"""An update rule of the user's own, with checks of its results, and the fingerprint of an object.

A run directory records the fingerprint, so that a run continues only with an equal rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmf.accounting.queries import SecondForm
from fedmf.clipping.memory import in_parts, new_vector
from fedmf.moments import SecondMoment
from fedmf.release.round_release import RoundRelease, ServerOptimizer

# Values that differ exactly when their `repr` differs.
_PLAIN = (str, int, complex, bytes, type(None), torch.dtype, torch.device, np.dtype, range)
_NAMED = (type, FunctionType, BuiltinFunctionType)


def fingerprint_of(value: object) -> tuple[str, str]:
    """The qualified name of an object's class, and a SHA-256 of all that the object holds.

    Args:
        value: an object with dataclass fields, or attributes, that are numbers, strings, arrays,
            tensors, classes, functions, collections of such, or objects like itself. Functions and
            classes count by their qualified names, not by their code; tensors by type, shape and
            values, on any device.

    Raises:
        ValueError: something in it has no attributes to read, or refers to itself.

    Guarantees: equal between processes and machines for equal objects; differs with any bit of a
    number.

    >>> from fedmf.optim import Sgd
    >>> name, digest = fingerprint_of(Sgd(momentum=0.5))
    >>> name, len(digest)
    ('fedmf.optim.sgd.Sgd', 64)
    >>> digest == fingerprint_of(Sgd(momentum=0.5))[1], digest == fingerprint_of(Sgd())[1]
    (True, False)
    """
    return _name(type(value)), _digest(value, ()).hex()


def _name(named: Any) -> str:
    return f"{named.__module__}.{named.__qualname__}"


def _digest(value: Any, containers: tuple[int, ...]) -> bytes:
    """A hash over the name of the value's type and the hashes of its parts.

    Args:
        value: the object.
        containers: the identities of the objects that contain it.
    """
    if id(value) in containers:
        raise ValueError(f"a custom object must not refer to itself; {_name(type(value))} does.")

    def digests(parts: Iterable[Any]) -> list[bytes]:
        return [_digest(part, (*containers, id(value))) for part in parts]

    hashed = hashlib.sha256(f"{_name(type(value))}\0".encode())
    for piece in _pieces(value, digests):
        hashed.update(len(piece).to_bytes(8, "little") + piece)
    return hashed.digest()


def _pieces(value: Any, digests: Callable[[Iterable[Any]], list[bytes]]) -> list[bytes]:
    """The bytes that distinguish a value from others of its type; ``digests`` hashes its parts."""
    if isinstance(value, Enum):
        return [value.name.encode()]
    if isinstance(value, float):
        return [value.hex().encode()]
    if isinstance(value, _NAMED):
        return [_name(value).encode()]
    if isinstance(value, PurePath):
        return [str(value).encode()]
    if isinstance(value, _PLAIN):
        return [repr(value).encode()]
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        header = f"{value.dtype}{tuple(value.shape)}"
        return [header.encode(), flat.view(torch.uint8).numpy().tobytes()]
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            return [str(array.shape).encode(), *digests([array.tolist()])]
        return [f"{array.dtype.str}{array.shape}".encode(), array.tobytes()]
    if isinstance(value, Mapping):
        pieces: list[bytes] = []
        for key, item in sorted(zip(digests(value.keys()), digests(value.values()), strict=True)):
            pieces.append(key + item)
        return pieces
    if isinstance(value, Set):
        return sorted(digests(value))
    if isinstance(value, list | tuple):
        return digests(value)
    if is_dataclass(value):
        return digests([{field.name: getattr(value, field.name) for field in fields(value)}])
    return digests(_state(value))


def _state(value: Any) -> list[Any]:
    """The constructor, arguments, attributes and elements, as pickle would store them."""
    try:
        state = list(value.__reduce_ex__(2))
    except TypeError:
        raise ValueError(
            "a custom object must hold numbers, strings, arrays or objects made of these; got a "
            f"{_name(type(value))}. Create it in init() or step()."
        ) from None
    for i, part in enumerate(state):
        if i > 0 and isinstance(part, Iterator):
            state[i] = list(part)
    return state


@dataclass(frozen=True, eq=False)
class OwnRule:
    """The user's rule, which gets copies of its arguments, with checked results.

    A round that could not be committed is repeated with other noise. The first result must stay
    secret, and it would not if the rule had changed the parameters in place.

    Args:
        rule: the user's object.
    """

    rule: ServerOptimizer

    @property
    def second_moment(self) -> SecondMoment | None:
        """The second moment that the rule needs, if any."""
        return self.rule.second_moment

    @property
    def second_form(self) -> SecondForm:
        """How the second moment is formed."""
        return self.rule.second_form

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        """The state before round 0.

        Raises:
            ValueError: the state is not a mapping from names to tensors.
        """
        return _checked_state(self.rule.init(parameters.clone()), "init")

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step of the rule; ``parameters`` and ``state`` are never changed.

        Raises:
            ValueError: the new parameters are not a vector of the type and length of θ, or the
                state is not a mapping from names to tensors.
        """
        copies = {name: value.clone() for name, value in state.items()}
        stepped, state = self.rule.step(t, _copy(parameters), release, copies)
        if not isinstance(stepped, Tensor):
            raise self._wrong_parameters(parameters, stepped)
        if stepped.shape != parameters.shape or stepped.dtype != parameters.dtype:
            got = f"{stepped.dtype} of shape {tuple(stepped.shape)}"
            raise self._wrong_parameters(parameters, got)
        return stepped.detach(), _checked_state(state, "step")

    def _wrong_parameters(self, parameters: Tensor, got: object) -> ValueError:
        return ValueError(
            f"step (of {type(self.rule).__name__}) must return {parameters.dtype} parameters of"
            f" shape {tuple(parameters.shape)}; got {got}. Nothing was released."
        )


def _copy(parameters: Tensor) -> Tensor:
    """Return a copy in reused memory."""
    copied = new_vector(parameters.numel(), parameters.dtype, parameters.device)

    def copy(part: slice) -> None:
        copied[part].copy_(parameters[part])

    in_parts(copy, copied)
    return copied


def _checked_state(state: Mapping[str, Tensor], method: str) -> dict[str, Tensor]:
    valid = isinstance(state, Mapping) and all(isinstance(v, Tensor) for v in state.values())
    if not valid:
        raise ValueError(
            f"{method} (of the optimizer) must return its state as tensors by name; got {state!r}."
        )
    return dict(state)
