"""A model as its arrays: the trained ones as one flat vector, and the constant ones.

Runs with users that train elsewhere (a program that brings updates, clients of a Flower app)
describe a model by this layout. The run directory stores it, so that a released model has all of
its arrays.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.ledger.durable_files import replace_durably
from fedmf.models import FlatModel

#: Arrays of NumPy or torch, by name.
Arrays = Mapping[str, Any]
FLOATS: Final = ("float16", "float32", "float64")
EXACT: Final = (
    *("int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
    "bool",
)
#: Bytes of frozen parameters and buffers that are stored with a run. Larger ones, such as those of
#: a language model with adapters, stay with the module.
_MOST_BYTES: Final = 2**28
#: Names of the statistics of their data in torch's normalization layers.
_STATISTICS: Final = re.compile(r"(^|\.)running_(mean|var)$")


@dataclass(frozen=True, eq=False)
class ModelLayout:
    """Names, shapes and types of a model's arrays, in their order.

    Arrays of a floating type are trained, clipped together and noised, unless they are named as
    frozen. Frozen and integer arrays (such as counters of batches) are constants; values that users
    send for them are ignored.

    Args:
        names: of all arrays.
        shapes: of each.
        dtypes: of each, as NumPy calls them.
        constants: the values of arrays that are not trained, by name.
        tied: the first name of each array that has two names: it is trained, clipped and noised
            once and returned under both; values that users send under the second are ignored.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    constants: Mapping[str, NDArray[Any]]
    tied: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_arrays(
        cls,
        arrays: Mapping[str, NDArray[Any]],
        frozen: Sequence[str] = (),
        tied: bool | None = None,
    ) -> Self:
        """The layout of a model.

        Args:
            arrays: by name.
            frozen: names of arrays that are not trained, or patterns of names.
            tied: whether equal arrays are one under several names; with None, they are an error.

        Raises:
            ConfigError: nothing to train, another type, a frozen name that does not exist, arrays
                that may be one under two names, or statistics of normalization layers that are not
                frozen: they are no gradients, and noise may make them negative.
        """
        frozen_names = _matching(arrays, frozen)
        for name, array in arrays.items():
            check_type(name, array.dtype.name)
        _reject_statistics(arrays, frozen_names)
        constants = dict[str, NDArray[Any]]()
        trained = dict[str, NDArray[Any]]()
        for name, array in arrays.items():
            if name in frozen_names or array.dtype.name in EXACT:
                constants[name] = array.copy()
            else:
                trained[name] = array
        if not trained:
            raise ConfigError(
                "arrays must hold at least one of a floating type that is not frozen; got none."
            )
        ties = dict[str, str]()
        if tied is not False:
            ties = _equal(trained)
        if ties and tied is None:
            second, first = next(iter(ties.items()))
            raise ConfigError(
                f"arrays {first!r} and {second!r} hold the same numbers: are they one tied array?"
                " Pass tied=True if equal arrays are one, and tied=False if each is an array of"
                " its own."
            )
        for name, array in trained.items():
            _require_finite(name, array)
        return cls(
            names=tuple(arrays),
            shapes=tuple(array.shape for array in arrays.values()),
            dtypes=tuple(array.dtype.name for array in arrays.values()),
            constants=constants,
            tied=ties,
        )

    @classmethod
    def of_module(cls, model: FlatModel) -> Self | None:
        """The layout of a module's state, with the names of the user's own module.

        Returns:
            None where nothing in it is constant, or constants are too large to store with each run
            or of a type that NumPy lacks.
        """
        constants = model.constant_state
        known = {*FLOATS, *EXACT}
        if any(str(t.dtype).removeprefix("torch.") not in known for t in constants.values()):
            return None
        stored = {name: tensor.cpu().numpy() for name, tensor in constants.items()}
        if not stored or sum(array.nbytes for array in stored.values()) > _MOST_BYTES:
            return None
        shapes = dict(model.arrays)
        for name, first in model.tied.items():
            shapes[name] = shapes[first]
        dtypes = dict.fromkeys(shapes, "float32")
        for name, array in stored.items():
            shapes[name] = array.shape
            dtypes[name] = array.dtype.name
        return cls(
            tuple(shapes), tuple(shapes.values()), tuple(dtypes.values()), stored, model.tied
        )

    @cached_property
    def trained(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and type of each trained array, in the order of the flat vector."""
        trained = list[tuple[str, tuple[int, ...], str]]()
        for name, shape, dtype in zip(self.names, self.shapes, self.dtypes, strict=True):
            if name not in self.constants and name not in self.tied:
                trained.append((name, shape, dtype))
        return trained

    @property
    def trained_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of each trained array, in the order of the flat vector."""
        return [(name, shape) for name, shape, _ in self.trained]

    @property
    def dimension(self) -> int:
        """d, the number of trained numbers."""
        return sum(math.prod(shape) for _, shape in self.trained_shapes)

    @cached_property
    def number(self) -> np.dtype[Any]:
        """The type in which updates are clipped: float32 if the whole model is, else float64."""
        if all(dtype == "float32" for _, _, dtype in self.trained):
            return np.dtype(np.float32)
        return np.dtype(np.float64)

    def flat_of(self, arrays: Mapping[str, NDArray[Any]], number: Any = np.float64) -> Tensor:
        """The trained numbers one array after the other, shape (d,), of type ``number``."""
        parts = [arrays[name].reshape(-1) for name, _, _ in self.trained]
        return torch.from_numpy(np.concatenate(parts, dtype=number, casting="unsafe"))

    def row(self, update: Arrays) -> Tensor:
        """The update of a user as one vector, shape (d,); float32 if model and update are.

        Raises:
            ValueError: an array is missing, or of another shape or kind.
        """
        arrays = dict[str, NDArray[Any]]()
        for name, shape, _ in self.trained:
            if name not in update:
                raise ValueError(f"update has no array {name[:100]!r}")
            arrays[name] = as_array(name, update[name])
            if arrays[name].shape != shape or arrays[name].dtype.kind not in "fiu":
                raise ValueError(
                    f"array {name[:100]!r} must be numbers of shape {shape}; got "
                    f"{arrays[name].dtype} of shape {arrays[name].shape}"
                )
        if all(array.dtype == np.float32 for array in arrays.values()):
            return self.flat_of(arrays, self.number)
        return self.flat_of(arrays)

    def trained_arrays(self, flat: Tensor) -> dict[str, NDArray[Any]]:
        """The trained arrays alone, each of its own type."""
        parts = named_parts(flat.detach().cpu(), self.trained_shapes)
        arrays = dict[str, NDArray[Any]]()
        for name, _, dtype in self.trained:
            arrays[name] = parts[name].numpy().astype(dtype)
        return arrays

    def arrays(self, flat: Tensor) -> dict[str, NDArray[Any]]:
        """All arrays of a model, each of its own type."""
        trained = self.trained_arrays(flat)
        arrays = dict[str, NDArray[Any]]()
        for name in self.names:
            if name in self.constants:
                arrays[name] = self.constants[name].copy()
            else:
                arrays[name] = trained[self.tied.get(name, name)]
        return arrays

    def fingerprint(self) -> str:
        """SHA-256 of names, shapes, types and constants."""
        digest = hashlib.sha256(json.dumps(self._description()).encode())
        for array in self.constants.values():
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def _description(self) -> list[Any]:
        """Everything but the values of the constants."""
        return [self.names, self.shapes, self.dtypes, list(self.constants), dict(self.tied)]

    def save(self, path: Path) -> None:
        """Write constants and description as a NumPy archive without pickled objects."""
        description = json.dumps(self._description()).encode()
        content: dict[str, Any] = {"model": np.frombuffer(description, np.uint8)}
        for place, array in enumerate(self.constants.values()):
            content[f"kept-{place}"] = array
        replace_durably(path, lambda file: np.savez(file, **content))

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> Self:
        """Read what `save` wrote.

        Raises:
            ConfigError: it cannot be read, or is not what was recorded.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                names, shapes, dtypes, constants, tied = json.loads(archive["model"].tobytes())
                values = dict[str, NDArray[Any]]()
                for place, name in enumerate(constants):
                    values[name] = archive[f"kept-{place}"]
            layout = cls(tuple(names), tuple(map(tuple, shapes)), tuple(dtypes), values, tied)
            same = layout.fingerprint() == fingerprint
        except Exception as error:  # a damaged file may raise anything
            raise ConfigError(
                f"cannot read {path} (all arrays of the model): {type(error).__name__}."
            ) from None
        if not same:
            raise ConfigError(
                f"{path} (all arrays of the model) must be what the run began with; it is not."
            )
        return layout


def named_copies(
    flat: Tensor, arrays: Sequence[tuple[str, tuple[int, ...]]], tied: Mapping[str, str]
) -> dict[str, Tensor]:
    """Copies of the arrays of a flat vector by name; a tied one is one tensor of several names."""
    tensors: dict[str, Tensor] = {}
    for name, part in named_parts(flat, arrays).items():
        tensors[name] = part.clone()
    for name, first in tied.items():
        tensors[name] = tensors[first]
    return tensors


def named_parts(flat: Tensor, arrays: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, Tensor]:
    """The arrays of a flat vector by name, views of it."""
    sizes = [math.prod(shape) for _, shape in arrays]
    parts = dict[str, Tensor]()
    for (name, shape), part in zip(arrays, flat.split(sizes), strict=True):
        parts[name] = part.reshape(shape)
    return parts


def as_array(name: str, value: Any) -> NDArray[Any]:
    """Convert an array of NumPy or torch.

    Raises:
        ConfigError: it is neither.
    """
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
        return np.asarray(value)
    except Exception as error:  # an object of the user's own may raise anything
        raise ConfigError(
            f"array {name!r} must be one of NumPy or torch; got {type(value).__name__}."
        ) from error


def check_type(name: str, dtype: str) -> None:
    """Reject an array that can be neither trained nor constant.

    Raises:
        ConfigError: another type than floats up to 64 bits, integers and Booleans.
    """
    if dtype not in (*FLOATS, *EXACT):
        raise ConfigError(
            f"array {name!r} must be of a floating type up to 64 bits or of integers; got {dtype}."
        )


def _matching(names: Collection[str], patterns: Sequence[str]) -> set[str]:
    """The names that are given, or match a pattern."""
    chosen = set[str]()
    for pattern in patterns:
        matching = {pattern}
        if pattern not in names:
            matching = set(fnmatch.filter(names, pattern))
        if not matching:
            raise ConfigError(
                f"frozen must name arrays of the model; got {pattern!r}, which matches none."
            )
        chosen |= matching
    return chosen


def _require_finite(name: str, array: NDArray[Any]) -> None:
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise ConfigError(
            f"arrays must be finite in float32; got {name!r} with NaN, infinity or numbers above"
            " 3e38."
        )


def _reject_statistics(arrays: Mapping[str, NDArray[Any]], frozen: Collection[str]) -> None:
    """Reject statistics of normalization layers that are not frozen.

    They are recognized by their names; in a list of arrays without names, by a mean and a variance
    of one shape before a counter of batches, or by their initial values after scale and shift.
    """
    statistics = list[str]()
    numbered = dict[str, NDArray[Any]]()
    for name, array in arrays.items():
        if _STATISTICS.search(name):
            statistics.append(name)
        elif name.isdecimal():
            numbered[name] = array
    for place in range(2, len(numbered)):
        if _are_statistics(list(numbered.values()), place):
            statistics += list(numbered)[place - 1 : place + 1]
    wrong = [name for name in statistics if name not in frozen]
    if wrong:
        some = ", ".join(map(repr, wrong[:3]))
        if len(wrong) > 3:
            some += f", … ({len(wrong)} in all)"
        raise ConfigError(
            f"arrays {some} hold statistics of a normalization layer, which mix users' examples and"
            " are not gradients: use GroupNorm or LayerNorm, or name them in frozen."
        )


def _are_statistics(arrays: Sequence[NDArray[Any]], place: int) -> bool:
    """Whether the arrays before and at a place are the mean and variance of a layer."""
    mean = arrays[place - 1]
    variance = arrays[place]
    if mean.ndim != 1 or mean.shape != variance.shape or mean.dtype.name not in FLOATS:
        return False
    following = mean
    if place + 1 < len(arrays):
        following = arrays[place + 1]
    if following.shape == () and following.dtype.name in EXACT:
        return True
    layer = arrays[max(0, place - 3) : place + 1]  # scale, shift, mean, variance
    if any(array.shape != mean.shape for array in layer):
        return False
    return [_constant(array) for array in layer] == [1.0, 0.0, 0.0, 1.0]


def _constant(values: NDArray[Any]) -> float | None:
    """The number that all entries equal; None if they differ."""
    if values.size and bool((values == values.flat[0]).all()):
        return float(values.flat[0])
    return None


def _equal(trained: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """The name of an earlier equal array, for each array that has one and is not constant."""
    first = dict[bytes, str]()
    ties = dict[str, str]()
    for name, array in trained.items():
        if _constant(array) is None:
            content = (
                repr((array.dtype, array.shape)).encode() + np.ascontiguousarray(array).tobytes()
            )
            other = first.setdefault(hashlib.sha256(content).digest(), name)
            if other != name:
                ties[name] = other
    return ties
