"""The structure of one example, and operations on the features of many.

Features are one tensor, or several by name. Data sets declare the structure of their examples;
training checks every user's examples against it before a model sees them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeAlias

import torch
from torch import Tensor

#: The label that a loss ignores, torch's default: of a position, or of a whole example.
PADDING: Final = -100

_DERIVED: Final = (
    " A data set that declares no vocabulary or classes has the largest of its test part as bound."
)

#: A tensor, shape (examples, …), or a mapping of such tensors by the names of the model's
#: arguments. A data set's structure says which; no static type does, as with any tree of tensors.
Features: TypeAlias = Any


def named(features: Features) -> dict[str, Any]:
    """Return the tensors, or structures, by name; a single one has the empty name."""
    if isinstance(features, Mapping):
        return dict(features)
    return {"": features}


def each(function: Callable[..., Any], *features: Features) -> Any:
    """Apply a function to every tensor, or to the tensors of one name in several features.

    >>> each(len, {"tokens": torch.zeros(3, 2), "mask": torch.zeros(3, 2)})
    {'tokens': 3, 'mask': 3}
    """
    first, *others = features
    if not isinstance(first, Mapping):
        return function(*features)
    results: dict[str, Any] = {}
    for name, values in first.items():
        results[name] = function(values, *(other[name] for other in others))
    return results


def device_of(features: Features) -> torch.device:
    """Return the device of the tensors."""
    return next(iter(named(features).values())).device


def joined(parts: Sequence[Features]) -> Features:
    """Return the examples of all parts, one after the other."""
    return each(lambda *tensors: torch.cat(tensors), *parts)


def split_rows(features: Features, rows: int) -> Iterator[Features]:
    """Yield views of at most ``rows`` examples each, in order; one empty view if there are none."""
    examples = len(next(iter(named(features).values())))
    for first in range(0, max(1, examples), rows):
        yield each(lambda values, first=first: values[first : first + rows], features)


@dataclass(frozen=True)
class TensorStructure:
    """The shape, type and range of the features, or the labels, of one example.

    Args:
        shape: sizes, without the dimension that counts examples; each at least 1.
        dtype: any real type.
        bound: entries are integers 0, …, bound − 1; None for real numbers of a floating dtype.
        padded: whether integers may also be −100, for labels that are ignored.
        least: made-up integers are ``least``, …, bound − 1; for example lengths of at least 1.

    Raises:
        ValueError: an empty shape, a complex dtype, or no positive bound for integers.

    >>> str(TensorStructure((12,), torch.int64, bound=50))
    '(12,) int64 below 50'
    """

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    bound: int | None = None
    padded: bool = False
    least: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if min(self.shape, default=1) < 1:
            raise ValueError(f"shape must consist of sizes of at least 1; got {self.shape}.")
        if self.dtype.is_complex:
            raise ValueError(f"dtype must be real; got {self.dtype}.")
        whole = not self.dtype.is_floating_point or self.bound is not None
        if whole and (self.bound is None or self.bound < 1):
            raise ValueError(
                f"bound (exclusive, of integers) must be at least 1; got {self.bound}. "
                f"State which numbers of type {self.dtype} are valid."
            )

    def __str__(self) -> str:
        text = f"{self.shape} {str(self.dtype).removeprefix('torch.')}"
        if self.bound is not None:
            text += f" below {self.bound}"
        return text

    @classmethod
    def of(cls, values: Tensor, bound: int | None = None) -> Self:
        """Return the structure of one of ``values``, shape (examples, …).

        Integers without a bound are bounded by the largest of them. Made-up integers are not
        smaller than all of them.
        """
        least = 0
        if not values.dtype.is_floating_point:
            valid = values[values >= 0]
            if valid.numel():
                least = int(valid.min())
            if bound is None:
                bound = 1
                if valid.numel():
                    bound = int(valid.max()) + 1
        return cls(tuple(values.shape[1:]), values.dtype, bound, least=least)

    def of_tokens(self, vocabulary: int) -> TensorStructure:
        """Return this structure with tokens 0, …, vocabulary − 1."""
        return replace(self, bound=vocabulary)

    @property
    def integers(self) -> range:
        """The integers of made-up examples; none for real numbers."""
        if self.bound is None:
            return range(0)
        return range(min(self.least, self.bound - 1), self.bound)

    def _entry_outside(self, values: Tensor) -> float | None:
        """Return an entry that is not finite or outside the bound; None if there is none.

        The values are read once unless some are negative.
        """
        if not values.numel() or values.dtype == torch.bool:
            return None
        extremes = torch.aminmax(values)
        least = extremes.min.item()  # NaN if there is one
        largest = extremes.max.item()
        if self.bound is None:
            for extreme in (least, largest):
                if not math.isfinite(extreme):
                    return extreme
            return None
        if not largest < self.bound:
            return largest
        takes_padding = self.padded and not self.dtype.is_floating_point and self.dtype.is_signed
        if least >= 0 or (takes_padding and bool(((values >= 0) | (values == PADDING)).all())):
            return None
        return least

    def check(self, what: str, values: Features, examples: int, device: torch.device) -> None:
        """Reject all but ``examples`` examples of this structure, finite and real, on a device.

        Engines take no others: a token outside the vocabulary may be another user's embedding where
        users are trained together, and would end the process on a GPU.

        Raises:
            TypeError, ValueError: the fault, in one line.
        """
        if not isinstance(values, Tensor):
            raise TypeError(f"{what} must be a tensor; got {type(values).__name__}.")
        shape = (examples, *self.shape)
        if tuple(values.shape) != shape or values.dtype != self.dtype:
            raise ValueError(
                f"{what} must be {examples} of {self}; got {tuple(values.shape)} {values.dtype}."
            )
        if values.device != device:
            raise ValueError(f"{what} must be on {device}; got {values.device}.")
        outside = self._entry_outside(values)
        if outside is None:
            return
        if self.bound is None:
            hint = ""
            if math.isnan(outside):
                hint = " Mark missing numbers by a column of 0 and 1."
            raise ValueError(f"{what} must be {self}, finite; got {outside}.{hint}")
        hint = ""
        if outside >= self.bound:
            hint = _DERIVED
        raise ValueError(f"{what} must be {self}; got {outside}.{hint}")

    def zeros(self, examples: int, device: torch.device | str = "cpu") -> Tensor:
        """Return valid examples of zeros."""
        return torch.zeros((examples, *self.shape), dtype=self.dtype, device=device)

    def sample(self, generator: torch.Generator, shape: Sequence[int]) -> Tensor:
        """Return random values, shape (*shape, *self.shape).

        They are standard normal, or uniform among `integers`.
        """
        size = (*shape, *self.shape)
        if self.bound is None:
            return torch.randn(size, generator=generator).to(self.dtype)
        first = self.integers.start
        return torch.randint(first, self.bound, size, generator=generator).to(self.dtype)


class NamedStructures(dict[str, TensorStructure]):
    """The structures of the features of one example where a model takes several tensors by name.

    Args:
        named: by the names of the model's arguments, at least one.

    Raises:
        ValueError: there are no names, or one cannot be the name of an argument.

    >>> mask = TensorStructure((5,))
    >>> tokens = TensorStructure((5,), torch.int64, 9)
    >>> str(NamedStructures({"tokens": tokens, "mask": mask}))
    'mask (5,) float32, tokens (5,) int64 below 9'
    """

    def __init__(self, named: Mapping[str, TensorStructure]) -> None:
        names = list(named)
        if not names or not all(isinstance(name, str) and name.isidentifier() for name in names):
            raise ValueError(f"features must have the names of the model's arguments; got {names}.")
        super().__init__(sorted(named.items()))

    def __str__(self) -> str:
        return ", ".join(f"{name} {structure}" for name, structure in self.items())

    @property
    def shape(self) -> tuple[int, ...]:
        """Several tensors have no common shape.

        Raises:
            ValueError: always; the caller needs one tensor.
        """
        raise ValueError(f"features must be one tensor here; got several: {', '.join(self)}.")

    def of_tokens(self, vocabulary: int | Mapping[str, int]) -> NamedStructures:
        """Return these structures with integers 0, …, vocabulary − 1.

        Args:
            vocabulary: bounds by name; or one bound for ``input_ids``, or for all integers if none
                has this name.

        Raises:
            ValueError: a name that belongs to no integers, or there are no integers.
        """
        integers = [name for name, structure in self.items() if structure.bound is not None]
        if isinstance(vocabulary, Mapping):
            bounds = dict(vocabulary)
        elif "input_ids" in integers:
            bounds = {"input_ids": vocabulary}
        else:
            bounds = dict.fromkeys(integers, vocabulary)
        if not bounds or not bounds.keys() <= set(integers):
            raise ValueError(
                f"vocabulary must have names of integers, {integers}; got {list(bounds)}."
            )
        structures: dict[str, TensorStructure] = dict(self)
        for name, bound in bounds.items():
            structures[name] = self[name].of_tokens(bound)
        return NamedStructures(structures)

    def check(self, what: str, values: Features, examples: int, device: torch.device) -> None:
        """Reject features that lack a name or do not pass `TensorStructure.check`."""
        if not isinstance(values, Mapping):
            raise TypeError(f"{what} must be a mapping of tensors; got {type(values).__name__}.")
        if values.keys() != self.keys():
            raise ValueError(f"{what} must be of names {', '.join(self)}; got {', '.join(values)}.")
        for name, structure in self.items():
            structure.check(f"{what} {name!r}", values[name], examples, device)


def structure_of(
    features: Features, vocabulary: int | Mapping[str, int] = 0
) -> TensorStructure | NamedStructures:
    """Return the structure of one of these examples; integers are bounded by the largest.

    Args:
        features: a tensor, or a mapping of tensors.
        vocabulary: number of tokens or categories, as `NamedStructures.of_tokens` takes it; 0 if
            unknown.

    Raises:
        ValueError: a vocabulary that does not fit.
    """
    if not isinstance(features, Mapping):
        if isinstance(vocabulary, Mapping):
            raise ValueError(
                "vocabulary must be one number for features that are one tensor; got several."
            )
        return TensorStructure.of(features, vocabulary or None)
    structure = NamedStructures(each(TensorStructure.of, features))
    if vocabulary:
        structure = structure.of_tokens(vocabulary)
    return structure


@dataclass(frozen=True)
class ExampleStructure:
    """The structure of one example. It is declared and public: no user's row is looked at.

    Args:
        features: the input of the model: one tensor, or several by the names of its arguments.
        labels: the targets of the loss; integers among them may be −100.
    """

    features: TensorStructure | NamedStructures
    labels: TensorStructure

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", replace(self.labels, padded=True))

    def zeros(self, examples: int, device: torch.device) -> tuple[Features, Tensor]:
        """Return features and labels of valid examples of zeros."""
        features = each(lambda part: part.zeros(examples, device), self.features)
        return features, self.labels.zeros(examples, device)

    def sample(self, generator: torch.Generator, shape: Sequence[int]) -> tuple[Features, Tensor]:
        """Return features and labels of random examples, which are valid by the declaration.

        Labels that are real numbers are uniform in [0, 1), which losses take that need positive
        numbers, probabilities, or class numbers: those are 0.

        Args:
            generator: on the CPU; the same state gives the same examples.
            shape: number of examples along each dimension, such as (users, width).
        """
        features = each(lambda part: part.sample(generator, shape), self.features)
        labels = self.labels
        if labels.bound is not None:
            return features, labels.sample(generator, shape)
        uniform = torch.rand((*shape, *labels.shape), generator=generator)
        return features, uniform.to(labels.dtype)
