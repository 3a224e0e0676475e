"""Metrics, by which a model is judged.

They are computed from sums over examples, so that users can be evaluated apart from each other and
their sums can be made private.
"""

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
    if not sums[1]:
        return math.nan
    return sums[0] / sums[1]


@dataclass(frozen=True)
class Metric:
    """A function of sums over examples.

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
        """Whether tables show the metric in percent: of the best value 1, down to 0."""
        return self.higher_is_better and self.clip_range == (0.0, 1.0)

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
    errors = outputs.reshape(labels.shape) - labels
    return _per_example(errors.abs()) / max(1, labels[0].numel())


def _squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    errors = outputs.reshape(labels.shape) - labels
    return _per_example(errors.square()) / max(1, labels[0].numel())


def _agreement(outputs: Tensor, labels: Tensor) -> Tensor:
    predicted = outputs > 0
    true = labels > 0.5
    return _per_example(2 * (predicted & true), predicted.int() + true.int())


#: Bins of scores. Scores are logits that are clamped to ±_WIDEST.
_BINS: Final = 256
_WIDEST: Final = 16.0


def _score_counts(outputs: Tensor, labels: Tensor) -> Tensor:
    """One-hot bins of the scores, apart for labels of 0 and of 1.

    Returns:
        Shape (batch, labels × 2 × bins).
    """
    if labels.is_floating_point():
        scores = outputs.flatten(1)
        true = labels.flatten(1) > 0.5
    else:  # two classes
        scores = (outputs[:, 1] - outputs[:, 0])[:, None]
        true = labels[:, None] == 1
    clamped = scores.nan_to_num(-_WIDEST).clamp(-_WIDEST, _WIDEST)
    position = (clamped + _WIDEST) * (_BINS / (2 * _WIDEST))
    bins = position.long().clamp(max=_BINS - 1) + _BINS * true
    return torch.nn.functional.one_hot(bins, 2 * _BINS).flatten(1)


def _area(sums: Sequence[float], examples: int) -> float:
    """Mean area over labels that have both zeros and ones."""
    areas: list[float] = []
    for first in range(0, len(sums), 2 * _BINS):
        area = _area_of(sums[first : first + _BINS], sums[first + _BINS : first + 2 * _BINS])
        if not math.isnan(area):
            areas.append(area)
    if not areas:
        return math.nan
    return sum(areas) / len(areas)


def _area_of(negative: Sequence[float], positive: Sequence[float]) -> float:
    """Share of pairs of a 0 and a 1 in the order of their bins; a pair in one bin counts ½."""
    pairs = sum(negative) * sum(positive)
    below = 0.0
    right = 0.0
    for zeros, ones in zip(negative, positive, strict=True):
        right += ones * (below + zeros / 2)
        below += zeros
    if not pairs:
        return math.nan
    return right / pairs


def _per_example(*entries: Tensor) -> Tensor:
    """Sums over the entries of each example, shape (batch, k)."""
    sums = [values.reshape(len(values), -1).sum(dim=1) for values in entries]
    return torch.stack(sums, dim=1)


def _root_mean(sums: Sequence[float], examples: int) -> float:
    return math.sqrt(mean(sums, examples))


def _exponential_ratio(sums: Sequence[float], examples: int) -> float:
    per_position = ratio(sums, examples)
    if per_position > 700.0:  # exp would overflow
        return math.inf
    return math.exp(per_position)


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
#: The area of the scores themselves is no function of sums over examples. The area of scores that
#: are rounded to 256 bins of width ⅛ of the logit in [−16, 16] is a function of counts. It differs
#: from the former by at most ½·Σ_b p_b·n_b, with p_b and n_b the shares of the ones and of the
#: zeros that lie in bin b.
AUC = Metric("auc", _score_counts, higher_is_better=True, value=_area)
#: All metrics.
METRICS: Final = (ACCURACY, AUC, F1, MAE, PERPLEXITY, RMSE, TOKEN_ACCURACY)
