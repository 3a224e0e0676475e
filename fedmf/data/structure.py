"""The structure of one example, and operations on examples of one or of several tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeAlias

import torch
from torch import Tensor

#: The label of a position that counts for nothing, as everywhere in torch.
PADDING: Final = -100

_DERIVED: Final = (
    " A data set that declares no vocabulary or classes has the largest of its test part as bound."
)

#: A tensor, shape (examples, …), or a mapping of such tensors by the names of the model's
#: arguments. A data set's structure says which; no static type does, as with any tree of tensors.
Features: TypeAlias = Any


def named(features: Features) -> dict[str, Any]:
    """The tensors, or structures, by name; a single one has the empty name."""
    return dict(features) if isinstance(features, Mapping) else {"": features}


def each(function: Callable[..., Any], *features: Features) -> Any:
    """A function of every tensor, or of tensors with one name in several features.

    >>> each(len, {"tokens": torch.zeros(3, 2), "mask": torch.zeros(3, 2)})
    {'tokens': 3, 'mask': 3}
    """
    first, *others = features
    if isinstance(first, Mapping):
        return {
            name: function(values, *(other[name] for other in others))
            for name, values in first.items()
        }
    return function(*features)


def device_of(features: Features) -> torch.device:
    """Where they are."""
    return next(iter(named(features).values())).device


def joined(parts: Sequence[Features]) -> Features:
    """The examples of all parts, one after the other."""
    return each(lambda *tensors: torch.cat(tensors), *parts)


def split_rows(features: Features, rows: int) -> Iterator[Features]:
    """Views of at most so many examples each, in their order; one view of none at all."""
    examples = len(next(iter(named(features).values())))
    for first in range(0, max(1, examples), rows):
        yield each(lambda values, first=first: values[first : first + rows], features)


@dataclass(frozen=True)
class TensorStructure:
    """What the features, or the labels, of one example look like.

    Args:
        shape: sizes, without the dimension that counts examples; each at least 1.
        dtype: any real one.
        bound: entries are integers 0, …, bound − 1; None for real numbers of a floating dtype.
        padded: whether integers may be −100 as well, for labels that are ignored.

    Raises:
        ValueError: an empty shape, a complex dtype, or no positive bound for integers.

    >>> str(TensorStructure((12,), torch.int64, bound=50))
    '(12,) int64 below 50'
    """

    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    bound: int | None = None
    padded: bool = False

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
        limit = "" if self.bound is None else f" below {self.bound}"
        return f"{self.shape} {str(self.dtype).removeprefix('torch.')}{limit}"

    @classmethod
    def of(cls, values: Tensor, bound: int | None = None) -> Self:
        """The structure of one of ``values``, shape (examples, …); integers are bounded by the
        largest.
        """
        if bound is None and not values.dtype.is_floating_point:
            bound = max(1, int(values.max()) + 1) if values.numel() else 1
        return cls(tuple(values.shape[1:]), values.dtype, bound)

    def of_tokens(self, vocabulary: int) -> TensorStructure:
        """The same with tokens 0, …, vocabulary − 1."""
        return replace(self, bound=vocabulary)

    def _entry_outside(self, values: Tensor) -> float | None:
        """An entry that is not finite or outside the bound, found in one pass; None if there is
        none.
        """
        if not values.numel() or values.dtype == torch.bool:
            return None
        least, largest = (entry.item() for entry in torch.aminmax(values))  # NaN if there is one
        if self.bound is None:
            return next((entry for entry in (least, largest) if not math.isfinite(entry)), None)
        if not largest < self.bound:
            return largest
        takes_padding = self.padded and not self.dtype.is_floating_point and self.dtype.is_signed
        if least >= 0 or (takes_padding and bool(((values >= 0) | (values == PADDING)).all())):
            return None
        return least

    def check(self, what: str, values: Features, examples: int, device: torch.device) -> None:
        """Reject anything but so many examples of this structure on a device, with finite real
        numbers.

        Engines take no others: a token outside the vocabulary may be another user's embedding where
        users are trained together, and would end the process on a GPU.

        Raises:
            TypeError, ValueError: the fault, in one line.
        """
        if not isinstance(values, Tensor):
            raise TypeError(f"{what} must be a tensor; got {type(values).__name__}.")
        if (
            len(values) != examples
            or tuple(values.shape[1:]) != self.shape
            or values.dtype != self.dtype
        ):
            raise ValueError(
                f"{what} must be {examples} of {self}; got {tuple(values.shape)} {values.dtype}."
            )
        if values.device != device:
            raise ValueError(f"{what} must be on {device}; got {values.device}.")
        if (outside := self._entry_outside(values)) is not None:
            finite = "" if self.bound is not None else ", finite"
            hint = _DERIVED if self.bound is not None and outside >= self.bound else ""
            raise ValueError(f"{what} must be {self}{finite}; got {outside}.{hint}")

    def zeros(self, examples: int, device: torch.device | str = "cpu") -> Tensor:
        """Valid examples that say nothing."""
        return torch.zeros((examples, *self.shape), dtype=self.dtype, device=device)

    def sample(self, generator: torch.Generator, shape: Sequence[int]) -> Tensor:
        """Made-up values, shape (*shape, *self.shape): standard normal, or uniform below the
        bound.
        """
        size = (*shape, *self.shape)
        if self.bound is None:
            return torch.randn(size, generator=generator).to(self.dtype)
        return torch.randint(self.bound, size, generator=generator).to(self.dtype)


class NamedStructures(dict[str, TensorStructure]):
    """What the features of one example look like where a model takes several tensors by name.

    Args:
        named: by the names of the model's arguments, at least one.

    Raises:
        ValueError: no names, or one that is no name of an argument.

    >>> str(NamedStructures({"mask": TensorStructure((5,)), "tokens": TensorStructure((5,), torch.int64, 9)}))
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
        """There is none of all.

        Raises:
            ValueError: always; the caller wants one tensor.
        """
        raise ValueError(f"features must be one tensor here; got several: {', '.join(self)}.")

    def of_tokens(self, vocabulary: int | Mapping[str, int]) -> NamedStructures:
        """The same with integers 0, …, vocabulary − 1.

        Args:
            vocabulary: bounds by name; or one of ``input_ids``, or of all integers where none has
                this name.

        Raises:
            ValueError: a name that no integers have, or no integers.
        """
        whole = [name for name, one in self.items() if one.bound is not None]
        if not isinstance(vocabulary, Mapping):
            vocabulary = dict.fromkeys(
                [name for name in whole if name == "input_ids"] or whole, vocabulary
            )
        if not vocabulary or not {*vocabulary} <= {*whole}:
            raise ValueError(
                f"vocabulary must have names of integers, {whole}; got {list(vocabulary)}."
            )
        bounded = {name: self[name].of_tokens(bound) for name, bound in vocabulary.items()}
        return NamedStructures({**self, **bounded})

    def check(self, what: str, values: Features, examples: int, device: torch.device) -> None:
        """See `TensorStructure.check`."""
        if not isinstance(values, Mapping):
            raise TypeError(f"{what} must be a mapping of tensors; got {type(values).__name__}.")
        if values.keys() != self.keys():
            raise ValueError(f"{what} must be of names {', '.join(self)}; got {', '.join(values)}.")
        for name, structure in self.items():
            structure.check(f"{what} {name!r}", values[name], examples, device)


def structure_of(
    features: Features, vocabulary: int | Mapping[str, int] = 0
) -> TensorStructure | NamedStructures:
    """The structure of one of these examples; integers are bounded by the largest.

    Args:
        features: any.
        vocabulary: how many tokens or categories there are, see `NamedStructures.of_tokens`; 0 if
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
    structure = NamedStructures(
        {name: TensorStructure.of(values) for name, values in features.items()}
    )
    return structure.of_tokens(vocabulary) if vocabulary else structure


@dataclass(frozen=True)
class ExampleStructure:
    """What one example looks like. It is declared, and public: no user's row is looked at.

    Args:
        features: what the model takes: one tensor, or several by the names of its arguments.
        labels: the targets of the loss; integers among them may be −100.
    """

    features: TensorStructure | NamedStructures
    labels: TensorStructure

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", replace(self.labels, padded=True))

    def zeros(self, examples: int, device: torch.device) -> tuple[Features, Tensor]:
        """Features and labels of valid examples that say nothing."""
        features = each(lambda part: part.zeros(examples, device), self.features)
        return features, self.labels.zeros(examples, device)

    def sample(self, generator: torch.Generator, shape: Sequence[int]) -> tuple[Features, Tensor]:
        """Features and labels of made-up examples, which are valid by the declaration.

        Args:
            generator: of the processor; the same state gives the same examples.
            shape: how many, such as (users, width).
        """
        features = each(lambda part: part.sample(generator, shape), self.features)
        return features, self.labels.sample(generator, shape)
