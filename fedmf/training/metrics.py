"""What a model is judged by: values that are computed from sums over examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from fedmf.data.structure import PADDING
from fedmf.training.losses import position_losses


def mean(sums: Sequence[float], examples: int) -> float:
    """S/n."""
    return sums[0] / examples


def ratio(sums: Sequence[float], examples: int) -> float:
    """S_0/S_1, or NaN if nothing was counted."""
    return sums[0] / sums[1] if sums[1] else math.nan


@dataclass(frozen=True)
class Metric:
    """A function of sums over examples, so that it can be computed in parts and by users apart.

    With x_i the terms of example i and S = Σ_i x_i over n examples, the metric is value(S, n).

    Args:
        name: lower-case letters, digits and underscores; the column in tables of metrics.
        terms: (outputs, labels) → x, shape (batch,) or (batch, k).
        higher_is_better: whether a larger value is a better model.
        clip_range: low < high; one user's value is clamped to it in private sums over users.
        value: (S, n) → the metric, the same for all multiples (cS, cn); the mean of the first term
            if left out.

    Raises:
        ValueError: an impossible name or range.

    >>> ACCURACY.of(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
    0.5
    """

    name: str
    terms: Callable[[Tensor, Tensor], Tensor]
    higher_is_better: bool
    clip_range: tuple[float, float] = (0.0, 1.0)
    value: Callable[[Sequence[float], int], float] = mean

    def __post_init__(self) -> None:
        if not (self.name.isidentifier() and self.name.isascii() and self.name.islower()):
            raise ValueError(
                "name (of a metric) must be lower-case letters, digits and underscores; got"
                f" {self.name!r}."
            )
        low, high = self.clip_range
        if not -math.inf < low < high < math.inf:
            raise ValueError(
                f"clip_range (of metric {self.name}) must be finite with low < high; got"
                f" {self.clip_range}."
            )

    @property
    def is_share(self) -> bool:
        """Whether people read it in percent."""
        return self.clip_range == (0.0, 1.0)

    def sums(self, outputs: Tensor, labels: Tensor) -> tuple[float, ...]:
        """S over these examples, in float64."""
        terms = self.terms(outputs, labels).to(torch.float64)
        return tuple(terms.reshape(len(labels), -1).sum(dim=0).tolist())

    def of(self, outputs: Tensor, labels: Tensor) -> float:
        """The metric over these examples."""
        return self.value(self.sums(outputs, labels), len(labels))


def _right(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.argmax(dim=-1) == labels


def _right_positions(outputs: Tensor, labels: Tensor) -> Tensor:
    real = labels != PADDING
    return _per_example(_right(outputs, labels) & real, real)


def _position_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return _per_example(position_losses(outputs, labels), labels != PADDING)


def _absolute_error(outputs: Tensor, labels: Tensor) -> Tensor:
    return _per_example((outputs.reshape(labels.shape) - labels).abs()) / max(1, labels[0].numel())


def _squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    return _per_example((outputs.reshape(labels.shape) - labels).square()) / max(
        1, labels[0].numel()
    )


def _agreement(outputs: Tensor, labels: Tensor) -> Tensor:
    predicted = outputs > 0
    true = labels > 0.5
    return _per_example(2 * (predicted & true), predicted.int() + true.int())


#: Bins of scores, which are logits clamped to ±_WIDEST.
_BINS: Final = 256
_WIDEST: Final = 16.0


def _score_counts(outputs: Tensor, labels: Tensor) -> Tensor:
    """For each label of an example: in which bin its score is, counted apart for label 0 and label
    1.

    Returns:
        Shape (batch, labels × 2 × bins).
    """
    if labels.is_floating_point():
        scores = outputs.flatten(1)
        true = labels.flatten(1) > 0.5
    else:  # two classes
        scores = (outputs[:, 1] - outputs[:, 0])[:, None]
        true = labels[:, None] == 1
    place = (scores.nan_to_num(-_WIDEST).clamp(-_WIDEST, _WIDEST) + _WIDEST) * (
        _BINS / (2 * _WIDEST)
    )
    bins = place.long().clamp(max=_BINS - 1) + _BINS * true
    return torch.nn.functional.one_hot(bins, 2 * _BINS).flatten(1)


def _area(sums: Sequence[float], examples: int) -> float:
    """Mean over labels of the share of pairs (a 0, a 1) in order of their bins, one bin
    counting ½.
    """
    areas = [
        area
        for first in range(0, len(sums), 2 * _BINS)
        if not math.isnan(area := _area_of(sums, first))
    ]
    return sum(areas) / len(areas) if areas else math.nan


def _area_of(sums: Sequence[float], first: int) -> float:
    negative = sums[first : first + _BINS]
    positive = sums[first + _BINS : first + 2 * _BINS]
    pairs = sum(negative) * sum(positive)
    below = 0.0
    right = 0.0
    for zeros, ones in zip(negative, positive, strict=True):
        right += ones * (below + zeros / 2)
        below += zeros
    return right / pairs if pairs else math.nan


def _per_example(*entries: Tensor) -> Tensor:
    """Sums over the entries of each example, shape (batch, k)."""
    return torch.stack([part.reshape(len(part), -1).sum(dim=1) for part in entries], dim=1)


def _root_mean(sums: Sequence[float], examples: int) -> float:
    return math.sqrt(mean(sums, examples))


def _exponential_ratio(sums: Sequence[float], examples: int) -> float:
    per_position = ratio(sums, examples)
    return math.exp(per_position) if not per_position > 700.0 else math.inf


#: Share of examples whose label has the largest output.
ACCURACY = Metric("accuracy", _right, higher_is_better=True)
#: Share of positions, padding left out, whose label has the largest output.
TOKEN_ACCURACY = Metric("token_accuracy", _right_positions, higher_is_better=True, value=ratio)
#: exp of the mean cross-entropy of a position, padding left out.
PERPLEXITY = Metric(
    "perplexity",
    _position_losses,
    higher_is_better=False,
    clip_range=(1.0, 1000.0),
    value=_exponential_ratio,
)
#: Mean absolute error.
MAE = Metric("mae", _absolute_error, higher_is_better=False, clip_range=(0.0, 10.0))
#: Root of the mean squared error.
RMSE = Metric(
    "rmse", _squared_error, higher_is_better=False, clip_range=(0.0, 10.0), value=_root_mean
)
#: F1 over all examples and labels together (micro average).
F1 = Metric("f1", _agreement, higher_is_better=True, value=ratio)
#: Area under the ROC curve, averaged over labels; of data with two classes, of the second one.
#:
#: It is no function of sums over examples, but that of scores rounded to 256 bins of width ⅛ of the
#: logit in [−16, 16] is one: of counts. It is exact for rounded scores, and differs from that of
#: the scores themselves by at most ½·Σ_b p_b·n_b, with p_b and n_b the shares of the ones and of
#: the zeros that lie in bin b.
AUC = Metric("auc", _score_counts, higher_is_better=True, value=_area)
#: All of these.
METRICS: Final = (ACCURACY, AUC, F1, MAE, PERPLEXITY, RMSE, TOKEN_ACCURACY)
