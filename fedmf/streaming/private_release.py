"""What a release says: means, covariances and correlations with intervals, made of its numbers
alone.

With w_t = Σ_i [A₁]_{ti} over rows and v_t = τ₁²·‖(A₁C₁⁻¹)_t‖², Y_t/w_t is the private mean of the
rows with weights [A₁]_{ti}/w_t, and S_t/w_t − (Y_t/w_t)(Y_t/w_t)ᵀ + v_t/w_t²·I their covariance,
unbiased and often not definite. The release has that covariance projected under its known noise
(`shrunk_covariances`).

Where valid rows are counted, with R the last number of Y and c its weight, N̂ = R/c is the weight
of the valid rows, m̂ = Y/N̂ their mean with Fieller's interval, and S/N̂ − m̂m̂ᵀ + v/N̂²·(I +
m̂m̂ᵀ/c²) their covariance, unbiased up to terms of order v/N̂². The noise of N̂ enters the
variances by bounds: |S_ab| ≤ N·ζ² and ‖m̂‖ ≤ ζ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedmf.data.schema import Encoding
from fedmf.data.table_reader import shown_names
from fedmf.matrices.arrays import Array
from fedmf.moments import GaussianEstimate, NoisyMoments, describe, fieller
from fedmf.streaming.state import ReleaseBlock
from fedmf.streaming.stream_plan import StreamPlan

Fields = dict[str, NDArray[Any]]

TOO_FEW: Final = "too few valid rows to tell"
NO_ERRORS: Final = (
    "covariance_raw_standard_error (of a release) must be there for a threshold; got none. Release"
    " with --raw (raw=True in Python) and not by post-processing, or pass ordinary=rows."
)
NO_DENSITY: Final = (
    "covariance (of a release) must be there with noise of its own for a density: one workload for"
    " both moments, a full or diagonal second moment, and another method than post-processing."
)
#: What `describe` says that a release has from elsewhere, or by another name.
_APART: Final = frozenset(("density_covariance", "shrinkage"))


class Renderer:
    """The fields of releases from their numbers; elementwise, so that none depends on its
    neighbours.

    Args:
        plan: of the stream.
        raw: whether sums, the unbiased covariance and their standard errors are said too.
    """

    def __init__(self, plan: StreamPlan, raw: bool = False) -> None:
        self.plan = plan
        self.raw = raw
        settings = plan.settings
        moment = plan.second_moment
        self._weight = settings.count_weight
        self._encoding = settings.encoding
        self._known = plan.mechanism.method.second_noise
        self._covariance = (
            settings.workloads[0] == settings.workloads[-1] and moment.gives_covariance
        )

    @property
    def coordinates(self) -> tuple[str, ...]:
        """Names of all numbers of the weighted sum."""
        return self.plan.layout.columns

    @property
    def names(self) -> tuple[str, ...]:
        """Of the d numbers of a row; not of what counts rows."""
        return self.coordinates[:-1] if self._weight else self.coordinates

    def release(self, releases: ReleaseBlock) -> PrivateRelease:
        """The first of some releases, with all that can be said of it; worked out when it is asked
        for.
        """
        whole = Renderer(self.plan, raw=True)

        def told() -> dict[str, Any]:
            return {name: column[0] for name, column in whole.fields(releases).items()}

        return PrivateRelease(int(releases.t[0]), told, self.names)

    def fields(self, releases: ReleaseBlock) -> Fields:
        """What each release says, with a row per release: the fields of `PrivateRelease` that there
        are.

        Labels are arrays of strings. Covariances are there where both moments have one workload
        and the second holds squares; else the sum of squares is.
        """
        d = self.plan.layout.dimension
        t = releases.t
        first = releases.numbers[:, :d]
        second = self.plan.second_moment.unpack(torch.from_numpy(releases.numbers[:, d:])).numpy()
        weights = self.plan.row_sums(0, t)
        variances = self.plan.variances(0, t)
        told: Fields = {"t": t}
        for i, name in enumerate(self.plan.settings.labels):
            told[name] = np.array([row[i] for row in releases.labels], dtype=object)
        noise = self.plan.variances(1, t) if self._known else np.full(len(t), np.nan)
        counted = self._weight > 0
        noisy = (self._counted if counted else self._all)(
            told, first, second, weights, variances, noise
        )
        if self._covariance:
            self._describe(told, noisy)
        if self.raw or not self._covariance:
            told["sum_of_squares"] = second
            if self._known:
                told["sum_of_squares_standard_error"] = np.sqrt(noise)
        if self.raw:
            told |= {"sum": first, "sum_standard_error": np.sqrt(variances)}
        return told if self._encoding is None else self._in_own_units(told)

    def _all(
        self,
        told: Fields,
        first: Array,
        second: Array,
        weights: Array,
        variances: Array,
        noise: Array,
    ) -> NoisyMoments:
        """Mean of all rows, and their covariance with its noise."""
        mean = first / weights[:, None]
        of_mean = variances / weights**2
        covariance = first
        if self._covariance:
            scaled = second / weights.reshape(-1, *(second.ndim - 1) * [1])
            parts = (torch.from_numpy(part) for part in (mean, scaled, of_mean))
            covariance = self.plan.second_moment.covariances(*parts).numpy()
        noisy = NoisyMoments(
            mean, covariance, of_mean, noise / weights**2, self.plan.settings.clip_norm
        )
        told["mean"], (told["mean_low"], told["mean_high"]) = mean, noisy.mean_interval()
        told["mean_standard_error"] = np.repeat(np.sqrt(of_mean)[:, None], mean.shape[1], axis=1)
        return noisy

    def _counted(
        self,
        told: Fields,
        first: Array,
        second: Array,
        weights: Array,
        variances: Array,
        noise: Array,
    ) -> NoisyMoments:
        """Mean of the valid rows, and their covariance with bounds of its noise."""
        d = first.shape[1] - 1
        c = self._weight
        zeta = self.plan.settings.clip_norm
        found = fieller(first[:, :d], first[:, d], variances, c)
        count = first[:, d] / c
        told |= {"mean": found.mean, "mean_low": found.low, "mean_high": found.high}
        told["mean_standard_error"] = found.error
        told["valid_share"] = count / weights
        told["valid_share_standard_error"] = np.sqrt(variances) / (c * weights)
        told["too_few"] = np.array([TOO_FEW if few else "" for few in found.few], dtype=object)
        with np.errstate(divide="ignore", invalid="ignore"):
            of_count = variances / count**2
            full = second.ndim == 3
            of_rows = second[:, :d, :d] if full else second[:, :d]
            shape = (-1, *(of_rows.ndim - 1) * [1])
            outer = found.mean[:, :, None] * found.mean[:, None, :] if full else found.mean**2
            own = np.eye(d) if full else 1.0
            covariance = (
                of_rows / count.reshape(shape)
                - outer
                + of_count.reshape(shape) * (own + outer / c**2)
            )
            norms = np.minimum(np.sum(found.mean**2, axis=1), zeta**2)
            of_mean = of_count * (1 + norms / c**2)
            of_squares = noise / count**2 + of_count * zeta**4 / c**2
        return NoisyMoments(found.mean, covariance, of_mean, of_squares, zeta)

    def _describe(self, told: Fields, noisy: NoisyMoments) -> None:
        """The covariance with its intervals; NaN where there are too few rows to tell."""
        few = ~np.isfinite(noisy.mean).all(axis=1)
        if few.any():
            parts = (noisy.mean, noisy.covariance, noisy.mean_variance, noisy.second_variance)
            kept = [np.where(few.reshape(-1, *(part.ndim - 1) * [1]), 1.0, part) for part in parts]
            noisy = NoisyMoments(kept[0], kept[1], kept[2], kept[3], noisy.norm_bound)
        found = describe(noisy) if self._known else {}
        if found:
            told["covariance"] = found["density_covariance"]
            told |= {name: values for name, values in found.items() if name not in _APART}
        else:
            told["covariance"] = _definite(noisy.covariance)
        if self.raw:
            told["covariance_raw"] = noisy.covariance.copy()
            if found:
                told["shrinkage"] = found["shrinkage"]
                told["covariance_raw_standard_error"] = noisy.covariance_errors()
        for name, values in told.items():
            if name.startswith(("covariance", "correlation")) and values.dtype == np.float64:
                values[few] = np.nan

    def _in_own_units(self, told: Fields) -> Fields:
        """Means, covariances, their errors and intervals as the columns of the table have them.

        A coordinate z stands for center + scale·z; intervals are cut to the bounds that the schema
        declares.
        """
        encoding = self._encoding
        assert encoding is not None
        centers, scales, lower, upper = encoding.units.T
        for name in ("mean", "mean_low", "mean_high"):
            told[name] = centers + scales * told[name]
        for name in ("mean_low", "mean_high"):
            told[name] = np.clip(told[name], lower, upper)
        told["mean_standard_error"] = scales * told["mean_standard_error"]
        for name, values in told.items():
            if name.startswith("covariance"):  # in squares of the units
                told[name] = values * (np.outer(scales, scales) if values.ndim == 3 else scales**2)
        return told


class PrivateRelease:
    """One release; all of its fields are private and may be published.

    Args:
        t: how many rows it is of.
        told: gives the fields by name.
        columns: names of the d numbers of `mean`; None if unknown.

    Attributes:
        t: how many rows it is of.
        columns: names of the d numbers of `mean`; None if unknown.
        mean: of these rows, with the weights of the workload, shape (d,); with a schema in the
            columns' own units, as all but sums is; where that counts valid rows it is of these, NaN
            where too few.
        mean_low: lower ends of 95 % intervals of the mean, (d,): of the noise alone.
        mean_high: upper ends.
        mean_standard_error: standard deviation of the noise in each coordinate of `mean`, (d,).
        covariance: positive definite, shape (d, d), or variances (d,). None where the two moments
            have different workloads or the second does not hold squares.
        covariance_low: lower ends of 95 % intervals of its entries, None for post-processing.
        covariance_high: upper ends.
        correlation: (d, d), NaN where the interval is wider than 1.
        correlation_low: lower ends of 95 % intervals.
        correlation_high: upper ends.
        too_noisy: what the noise leaves open of the covariance; empty where it does not.
        valid_share: where valid rows are counted, the share of their weight.
        valid_share_standard_error: of the noise alone.
        too_few: that there are too few valid rows to tell; empty where there are enough.
        sum: Y_t, shape (d,), of rows as vectors.
        sum_standard_error: √Var of each of its coordinates.
        sum_of_squares: S_t: shape (d, d) for the full second moment, (size,) otherwise.
        sum_of_squares_standard_error: √Var of its diagonal (√½ of it off the diagonal).
        covariance_raw: unbiased, so not always definite.
        covariance_raw_standard_error: √Var of each of its entries, the private mean put for the
            true one.
        shrinkage: how far the covariance was moved to a multiple of the identity.
        timestamp: of the last of the rows, where one was declared public.
        row_id: likewise.
    """

    mean: Array
    mean_low: Array
    mean_high: Array
    mean_standard_error: Array
    covariance: Array | None
    covariance_low: Array | None
    covariance_high: Array | None
    correlation: Array | None
    correlation_low: Array | None
    correlation_high: Array | None
    too_noisy: str | None
    valid_share: float | None
    valid_share_standard_error: float | None
    too_few: str | None
    sum: Array | None
    sum_standard_error: float | None
    sum_of_squares: Array | None
    sum_of_squares_standard_error: float | None
    covariance_raw: Array | None
    covariance_raw_standard_error: Array | None
    shrinkage: float | None
    timestamp: str | None
    row_id: str | None

    def __init__(
        self, t: int, told: Callable[[], Mapping[str, Any]], columns: Sequence[str] | None = None
    ) -> None:
        self.t = t
        self._told = told
        self.columns = None if columns is None else tuple(columns)

    def __getattr__(self, name: str) -> Any:
        if name not in PrivateRelease.__annotations__:
            raise AttributeError(f"a release has no {name}.")
        found = self._told()
        for field in PrivateRelease.__annotations__:
            value = found.get(field)
            setattr(self, field, value.item() if isinstance(value, np.generic) else value)
        return getattr(self, name)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """A release from a JSON line of `fedmf stream`, as read by `json.loads`."""
        arrays = {
            name: np.array(value, np.float64) if isinstance(value, list) else value
            for name, value in fields.items()
            if name != "columns"
        }
        return cls(int(fields["t"]), lambda: arrays, fields.get("columns"))

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, with the fields of a line of `fedmf stream --raw`; None for what cannot be
        told.
        """
        told = {name: listed(value) for name, value in {"t": self.t, **self._told()}.items()}
        return told if self.columns is None else told | {"columns": list(self.columns)}

    @property
    def estimate(self) -> GaussianEstimate:
        """N(mean, covariance), in the units of the release: samples, divergences.

        Raises:
            ValueError: there is no covariance.
        """
        if self.covariance is None:
            raise ValueError(NO_DENSITY)
        full = self.covariance if self.covariance.ndim == 2 else np.diag(self.covariance)
        return GaussianEstimate(torch.from_numpy(self.mean.copy()), torch.from_numpy(full.copy()))

    def score(self, x: Any) -> Array:
        """How strange rows are: (x − μ)ᵀΣ⁻¹(x − μ), χ² with d degrees of freedom for rows of N(μ,
        Σ).

        Args:
            x: rows in the units of `mean`: an array (…, d), or a data frame with `columns` in any
                order.

        Returns:
            Of shape (…); NaN for a row with a missing cell. Rows are not clipped to the bounds of a
            schema.

        Raises:
            ValueError: other columns, or there is no covariance.
        """
        if hasattr(x, "columns"):
            given = sorted(map(str, x.columns))
            wanted = self.columns or ()
            if given != sorted(wanted):
                raise ValueError(
                    f"x (rows) must have the columns of the release, {shown_names(wanted)}; got"
                    f" {shown_names(given)}. Select them by name, or pass an array in the release's"
                    " order."
                )
            x = x[list(wanted)]
        rows = np.array(x, np.float64)
        if rows.shape[-1:] != self.mean.shape:
            raise ValueError(
                f"x (rows) must have {self.mean.size} numbers each; got shape {rows.shape}."
            )
        scores = self.estimate.distances(torch.from_numpy(rows)).numpy()
        return np.where(
            np.isnan(scores) & ~np.isnan(rows).any(axis=-1), np.inf, scores
        )  # overflows

    def threshold(self, false_alarms: float = 0.01, ordinary: ArrayLike | None = None) -> float:
        """The score from which on a row is called strange: that share of ordinary ones is above it.

        Args:
            false_alarms: in (0, 1).
            ordinary: rows of shape (m, d) that are in no release and need no protection; then the
                share holds whatever the rows' law is (`calibrated_threshold`). Without, for rows of
                a Gaussian, the noise of this release counted in (`alarm_threshold`).

        Raises:
            ValueError: there is no covariance, its errors are not known (post-processing, or a line
                without ``--raw``), or too few rows.
        """
        if ordinary is not None:
            return calibrated_threshold(false_alarms, self.score(ordinary))
        if self.covariance is None:
            raise ValueError(NO_DENSITY)
        if self.covariance_raw_standard_error is None:
            raise ValueError(NO_ERRORS)
        full = self.covariance.ndim == 2
        parts = (self.covariance, self.covariance_raw_standard_error)
        covariance, errors = (part if full else np.diag(part) for part in parts)
        return alarm_threshold(false_alarms, covariance, self.mean_standard_error, errors)


def at_bounds(release: PrivateRelease, encoding: Encoding) -> str:
    """A warning of numbers with a mean at a bound of the schema, as values in another unit have; or
    "".

    At a bound is a mean within 2 % of the range, with an interval no wider than a tenth of it.
    Released numbers alone decide, so what is said is as private as these.
    """
    found = []
    for i, (name, (*_, lower, upper)) in enumerate(
        zip(encoding.coordinates, encoding.units, strict=True)
    ):
        mean = release.mean[i]
        width = upper - lower
        if name in encoding.names and release.mean_high[i] - release.mean_low[i] <= 0.1 * width:
            ends = (("lower", lower, mean - lower), ("upper", upper, upper - mean))
            found += [
                f"{name} is released at its {end} bound {at:g}"
                for end, at, off in ends
                if off <= 0.02 * width
            ]
    asked = "is the range in the schema in the right unit? Values outside it count as the bound."
    return f"WARNING: {', '.join(found)}: {asked}" if found else ""


def hidden(release: PrivateRelease) -> str:
    """Below which standard deviation the noise hides it: two standard errors of a variance; or
    "".
    """
    errors = release.covariance_raw_standard_error
    if errors is None or not np.isfinite(errors).all():
        return ""
    of_each = np.diag(errors) if errors.ndim == 2 else errors
    at = int(np.argmax(of_each))
    return (
        f" A standard deviation of {(release.columns or ())[at]} below"
        f" {math.sqrt(2 * of_each[at]):.3g} is hidden by noise; four times as many rows, or a four"
        " times larger epsilon, would halve this value."
    )


def listed(values: Any) -> Any:
    """As JSON has it: arrays as nested lists, with None for numbers that are not finite."""
    if not isinstance(values, np.ndarray):
        return values.item() if isinstance(values, np.generic) else values
    if values.dtype != np.float64 or np.isfinite(values).all():
        return values.tolist()
    nullable = values.astype(object)
    nullable[~np.isfinite(values)] = None
    return nullable.tolist()


def _definite(covariance: Array) -> Array:
    """Without the negative part."""
    if covariance.ndim == 2:
        return np.maximum(covariance, 0.0)
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.maximum(values, 0.0)[:, None, :]) @ np.swapaxes(vectors, 1, 2)


#: Draws of the noise, and of rows for all of them together; the latter decide how exact the
#: threshold is.
_NOISES = 1000
_ROWS = 200_000
#: Multiplications that decompositions of the covariances may take.
_WORK = 10**8


def alarm_threshold(
    rate: float, covariance: Array, mean_errors: Array, covariance_errors: Array
) -> float:
    """The score that a share `rate` of ordinary rows is above, the noise of the release counted in.

    Ordinary rows are taken as N(μ, Σ), of which the release tells μ̂ and Σ̂ with noise of a known
    size. So μ = μ̂ + e and Σ = Σ̂ + E, with e and E drawn as that noise is and eigenvalues below
    zero put to it. The threshold is the quantile of the scores of rows of these N(μ, Σ); without
    noise it is the quantile of χ² with d degrees of freedom. Where noise is large there are fewer
    false alarms. The draws are the same each time.

    Args:
        rate: share of false alarms, in (0, 1).
        covariance: Σ̂, positive definite, shape (d, d).
        mean_errors: standard error of each coordinate of μ̂, shape (d,).
        covariance_errors: of each entry of Σ̂, shape (d, d).

    Raises:
        ValueError: the rate is out of range.

    >>> round(alarm_threshold(0.05, np.eye(2), np.zeros(2), np.zeros((2, 2))), 1)   # χ²: 5.99
    6.0
    """
    _check(rate)
    d = len(covariance)
    rng = np.random.default_rng(0)
    noises = max(20, min(_NOISES, _WORK // d**3))
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    E = np.triu(rng.normal(size=(noises, d, d)) * covariance_errors)
    E = E + np.swapaxes(np.triu(E, 1), 1, 2)
    values, vectors = np.linalg.eigh(np.eye(d) + whiten @ E @ whiten.T)
    moved = rng.normal(size=(noises, 1, d)) * mean_errors @ whiten.T
    drawn = (
        rng.normal(size=(noises, max(1, _ROWS // noises // d), d))
        * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    )
    scores = np.sum((moved + drawn @ np.swapaxes(vectors, 1, 2)) ** 2, axis=-1)
    return float(np.quantile(scores, 1 - rate))


def calibrated_threshold(rate: float, scores: ArrayLike) -> float:
    """The ⌈(1 − rate)(m + 1)⌉-th smallest score of m ordinary rows that the release is not of.

    Args:
        rate: share of false alarms, in (0, 1).
        scores: of rows that need no protection: the threshold tells something of them.

    Raises:
        ValueError: the rate is out of range, a score is NaN, or there are too few rows.

    Guarantees:
        A further row of the same law, whatever that is and whatever the noise, is above it with a
        chance of at most `rate`.

    References:
        Vovk, Gammerman and Shafer (2005), "Algorithmic Learning in a Random World" (conformal
        prediction).

    >>> calibrated_threshold(0.1, range(1, 20))
    18.0
    """
    _check(rate)
    found = np.sort(np.asarray(scores, dtype=np.float64), axis=None)
    place = math.ceil((1 - rate) * (found.size + 1))
    if missing := int(np.isnan(found).sum()):
        raise ValueError(
            f"scores (of ordinary rows) must be numbers; got {missing} NaN. Leave out rows with"
            " missing cells."
        )
    if place > found.size:
        raise ValueError(
            f"scores (of ordinary rows) must be at least {math.ceil(1 / rate) - 1} for a rate of"
            f" {rate}; got {found.size}."
        )
    return float(found[place - 1])


def _check(rate: float) -> None:
    if not 0 < rate < 1:
        raise ValueError(f"rate (of false alarms) must lie between 0 and 1; got {rate}.")
