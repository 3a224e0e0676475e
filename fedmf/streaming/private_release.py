"""The fields of a release: means, covariances and correlations with intervals.

`Renderer` computes them from the released numbers and the plan alone, so they are as private as
these. `PrivateRelease` is one release; its rows can be scored against a threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedmf.data.schema import Encoding, Time
from fedmf.data.table_reader import shown_names
from fedmf.matrices.arrays import Array, Vector
from fedmf.moments import GaussianEstimate, NoisyMoments, describe, fieller
from fedmf.moments.noisy_moments import Interval
from fedmf.streaming.state import ReleaseBlock
from fedmf.streaming.stream_plan import StreamPlan
from fedmf.values import check_whole

Fields = dict[str, NDArray[Any]]

#: Users of a period for whom the noise is told, if their number is not given.
TYPICAL_USERS: Final = 1000
#: One period is too noisy for a mean if its 95 % noise exceeds this share of the bounds' width.
_TOO_NOISY: Final = 0.1
TOO_FEW: Final = "too few valid rows to tell"
NO_ERRORS: Final = (
    "covariance_raw_standard_error (of a release) must be there for a threshold; got none. Release"
    " with --raw (raw=True in Python) and not by post-processing, or pass ordinary=rows."
)
NO_CORRELATIONS: Final = (
    "correlation (of a release) must be of two or more columns for joint intervals, and not read"
    " from a line; got none. Use the release of a stream with a full second moment."
)
NO_DENSITY: Final = (
    "covariance (of a release) must be there with noise of its own for a density: one workload for"
    " both moments, a full or diagonal second moment, and another method than post-processing."
)


@dataclass(frozen=True, eq=False)
class _NoisySums:
    """The weighted sums of some releases, and the variances of their noise.

    Args:
        first: Y_t, shape (releases, d).
        second: S_t, unpacked, shape (releases, …).
        weights: w_t = Σ_i [A₁]_{ti} over rows, shape (releases,).
        first_variances: v_t = τ₁²·‖(A₁C₁⁻¹)_t‖², of each coordinate of Y_t.
        second_variances: of each diagonal entry of S_t; NaN where squares have no noise of their
            own.
    """

    first: Array
    second: Array
    weights: Vector
    first_variances: Vector
    second_variances: Vector


class Renderer:
    """The fields of releases from their numbers; elementwise, so none depends on its neighbors.

    Args:
        plan: of the stream.
        raw: whether sums, the unbiased covariance and their standard errors are included.
    """

    def __init__(self, plan: StreamPlan, raw: bool = False) -> None:
        self.plan = plan
        self.raw = raw
        settings = plan.settings
        self._weight = settings.count_weight
        self._encoding = settings.encoding
        self._has_second_noise = plan.mechanism.method.second_noise
        same_workload = settings.workloads[0] == settings.workloads[-1]
        self._has_covariance = same_workload and plan.second_moment.gives_covariance

    @property
    def coordinates(self) -> tuple[str, ...]:
        """Names of all numbers of the weighted sum."""
        return self.plan.layout.columns

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the d numbers of a row, without the coordinate that counts rows."""
        return self.coordinates[:-1] if self._weight else self.coordinates

    def release(self, releases: ReleaseBlock) -> PrivateRelease:
        """The first of some releases, with all of its fields, computed on first use."""
        whole = Renderer(self.plan, raw=True)

        def read_fields() -> dict[str, Any]:
            return {name: column[0] for name, column in whole.fields(releases).items()}

        def read_moments() -> NoisyMoments:
            return self._means_and_moments(self._sums(releases))[1]

        return PrivateRelease(int(releases.t[0]), read_fields, self.names, read_moments)

    def fields(self, releases: ReleaseBlock) -> Fields:
        """The fields of `PrivateRelease` that there are, by name, with a row per release.

        Labels are arrays of strings. There is a covariance where both moments have one workload and
        the second holds squares; else there is the sum of squares.
        """
        sums = self._sums(releases)
        fields: Fields = {"t": releases.t}
        calendar = self.plan.settings.calendar
        if calendar is not None:
            fields["start"] = _beginnings(calendar, releases.t - 1)
            fields["end"] = _beginnings(calendar, releases.t)
        for i, name in enumerate(self.plan.settings.labels):
            fields[name] = np.array([labels[i] for labels in releases.labels], dtype=object)
        means, moments = self._means_and_moments(sums)
        fields |= means
        if self._has_covariance:
            fields |= self._covariances(moments)
        if self.raw or not self._has_covariance:
            fields["sum_of_squares"] = sums.second
            if self._has_second_noise:
                fields["sum_of_squares_standard_error"] = np.sqrt(sums.second_variances)
        if self.raw:
            fields["sum"] = sums.first
            fields["sum_standard_error"] = np.sqrt(sums.first_variances)
        if self._encoding is not None:
            _convert_to_units(fields, self._encoding)
        return fields

    def _sums(self, releases: ReleaseBlock) -> _NoisySums:
        d = self.plan.layout.dimension
        packed = torch.from_numpy(releases.numbers[:, d:])
        second_variances = np.full(len(releases.t), np.nan)
        if self._has_second_noise:
            second_variances = self.plan.variances(1, releases.t)
        return _NoisySums(
            first=releases.numbers[:, :d],
            second=self.plan.second_moment.unpack(packed).numpy(),
            weights=self.plan.row_sums(0, releases.t),
            first_variances=self.plan.variances(0, releases.t),
            second_variances=second_variances,
        )

    def _means_and_moments(self, sums: _NoisySums) -> tuple[Fields, NoisyMoments]:
        if self._weight:
            return self._moments_of_valid_rows(sums)
        return self._moments_of_all_rows(sums)

    def _moments_of_all_rows(self, sums: _NoisySums) -> tuple[Fields, NoisyMoments]:
        """Fields of the mean of all rows, and their moments with the noise of these.

        Y_t/w_t is the private mean of the rows with weights [A₁]_{ti}/w_t, and S_t/w_t −
        (Y_t/w_t)(Y_t/w_t)ᵀ + v_t/w_t²·I their covariance, unbiased and often not definite.
        """
        mean = sums.first / sums.weights[:, None]
        mean_variance = sums.first_variances / sums.weights**2
        covariance = np.zeros_like(mean)  # without a covariance, only the mean is used
        if self._has_covariance:
            scaled = sums.second / _per_release(sums.weights, sums.second.ndim)
            covariance = self.plan.second_moment.covariances(
                torch.from_numpy(mean), torch.from_numpy(scaled), torch.from_numpy(mean_variance)
            ).numpy()
        moments = NoisyMoments(
            mean,
            covariance,
            mean_variance,
            sums.second_variances / sums.weights**2,
            self.plan.settings.clip_norm,
        )
        low, high = moments.mean_interval()
        error = np.repeat(np.sqrt(mean_variance)[:, None], mean.shape[1], axis=1)
        fields = {"mean": mean, "mean_low": low, "mean_high": high, "mean_standard_error": error}
        return fields, moments

    def _moments_of_valid_rows(self, sums: _NoisySums) -> tuple[Fields, NoisyMoments]:
        """Fields of the mean and the share of the valid rows, and their moments.

        With R the last number of Y and c its weight, N̂ = R/c is the weight of the valid rows, m̂ =
        Y/N̂ their mean with Fieller's interval, and S/N̂ − m̂m̂ᵀ + v/N̂²·(I + m̂m̂ᵀ/c²) their
        covariance, unbiased up to terms of order v/N̂².
        """
        d = sums.first.shape[1] - 1
        c = self._weight
        v = sums.first_variances
        ratio = fieller(sums.first[:, :d], sums.first[:, d], v, c)
        count = sums.first[:, d] / c
        fields = {
            "mean": ratio.mean,
            "mean_low": ratio.low,
            "mean_high": ratio.high,
            "mean_standard_error": ratio.error,
        }
        counted = "valid_share"
        if self.plan.settings.calendar is not None:
            counted = "users_per_release"
        fields[counted] = count / sums.weights
        fields[f"{counted}_standard_error"] = np.sqrt(v) / (c * sums.weights)
        fields["too_few"] = np.where(ratio.few, TOO_FEW, "").astype(object)
        with np.errstate(divide="ignore", invalid="ignore"):
            relative_variance = v / count**2
            if sums.second.ndim == 3:
                squares = sums.second[:, :d, :d]
                outer = ratio.mean[:, :, None] * ratio.mean[:, None, :]
                isotropic = np.eye(d)
            else:
                squares = sums.second[:, :d]
                outer = ratio.mean**2
                isotropic = np.ones(d)
            covariance = (
                squares / _per_release(count, squares.ndim)
                - outer
                + _per_release(relative_variance, squares.ndim) * (isotropic + outer / c**2)
            )
            second_variance = sums.second_variances / count**2
        moments = NoisyMoments(
            ratio.mean,
            covariance,
            relative_variance,
            second_variance,
            self.plan.settings.clip_norm,
            count_weight=c,
        )
        return fields, moments

    def _covariances(self, moments: NoisyMoments) -> Fields:
        """The positive definite covariance with its intervals; NaN where valid rows are too few."""
        few = np.any(~np.isfinite(moments.mean), axis=1)
        if few.any():
            moments = _ones_at(few, moments)
        fields: Fields = {}
        if self._has_second_noise:
            described = describe(moments)
            fields["covariance"] = described.pop("density_covariance")
            shrinkage = described.pop("shrinkage")
            fields |= described
            if self.raw:
                fields["covariance_raw"] = moments.covariance.copy()
                fields["shrinkage"] = shrinkage
                fields["covariance_raw_standard_error"] = moments.covariance_errors()
        else:
            fields["covariance"] = _without_negative_part(moments.covariance)
            if self.raw:
                fields["covariance_raw"] = moments.covariance.copy()
        for name, values in fields.items():
            if name.startswith(("covariance", "correlation")):
                values[few] = np.nan
        return fields


def expected_noise(plan: StreamPlan, users_per_period: int | None = None) -> Any:
    """A data frame of the noise to expect, which depends only on n and the settings.

    Args:
        plan: of the stream.
        users_per_period: in a stream of periods, the expected number of users in each period; None
            for `TYPICAL_USERS`.

    Raises:
        ValueError: the number is not positive, or the stream has no periods.
    """
    import pandas as pd

    rows = 1
    what = "row"
    if plan.settings.calendar is not None:
        rows = _expected_users(users_per_period)
        what = "period"
    elif users_per_period is not None:
        raise ValueError(
            "users_per_period must be left out in a stream without periods; got"
            f" {users_per_period}."
        )
    at = np.unique([min(plan.every, plan.rounds), plan.rounds])
    names = Renderer(plan).names
    scales, _ = _scales_and_widths(plan)
    columns = {}
    for t, error in zip(at, _mean_noise(plan, at), strict=True):
        columns[f"mean after {what} {t:,} (±)"] = error / rows * scales
    same = plan.settings.workloads[0] == plan.settings.workloads[-1]
    if same and plan.mechanism.method.second_noise and plan.second_moment.gives_covariance:
        error = np.sqrt(plan.variances(1, at[-1:])) / plan.row_sums(1, at[-1:]) / rows
        columns["smallest visible standard deviation"] = np.sqrt(2 * error) * scales
    return pd.DataFrame(columns, index=list(names))


def visible_correlations(plan: StreamPlan, users_per_period: int | None = None) -> str:
    """A sentence on the least correlations whose intervals exclude 0; empty without correlations.

    Args:
        plan: of a stream with a schema, whose scales are taken as standard deviations, around means
            at the centers.
        users_per_period: as for `expected_noise`.
    """
    d = len(Renderer(plan).names)
    settings = plan.settings
    same = settings.workloads[0] == settings.workloads[-1]
    full = same and settings.moment_method.second_noise and settings.second_moment == "full"
    if settings.encoding is None or not full or d == 1:
        return ""
    rows = 1
    if settings.calendar is not None:
        rows = _expected_users(users_per_period)
    at = np.array([plan.rounds])
    v, v_2 = (plan.variances(i, at) / (plan.row_sums(i, at) * rows) ** 2 for i in (0, 1))
    tried = np.linspace(0, 1, 101)
    moments = NoisyMoments(
        mean=np.zeros((len(tried), 2)),
        covariance=np.array([np.eye(2) * (1 - r) + r for r in tried]),
        mean_variance=np.repeat(v, len(tried)),
        second_variance=np.repeat(v_2, len(tried)),
        norm_bound=settings.clip_norm,
        count_weight=settings.count_weight or math.inf,
    )
    pairs = math.comb(d, 2)
    least = []
    for level in (0.95, 1 - 0.05 / pairs):
        low, _ = moments.correlation_interval(level)
        beyond = tried[low[:, 0, 1] > 0]
        least.append(f"±{beyond[0]:.2f}" if beyond.size else "none")
    told = f"Least visible correlation at the last release: {least[0]}"
    if pairs > 1:
        told += f" for one pair of columns, {least[1]} for all {pairs:,} pairs at once"
    return f"{told}, if standard deviations are the scales of the schema."


def noise_of_one_period(plan: StreamPlan, users_per_period: int | None = None) -> str:
    """A sentence on columns for which one period alone is too noisy; empty if there are none.

    Args:
        plan: of a stream of periods.
        users_per_period: as for `expected_noise`.
    """
    users = _expected_users(users_per_period)
    scales, widths = _scales_and_widths(plan)
    share = _mean_noise(plan, np.array([1]))[0] / users * scales / widths
    names = np.array(Renderer(plan).names)[share > _TOO_NOISY].tolist()
    if not names:
        return ""
    largest = float(share.max())
    needed = math.ceil(users * largest / _TOO_NOISY)
    return (
        f"One period alone is too noisy for {shown_names(names)}: its noise is ± {largest:.0%} of"
        f" the distance between the bounds. For ± {_TOO_NOISY:.0%}, each period needs about"
        f" {needed:,} users. Longer or fewer periods, tighter bounds or a larger epsilon help, too."
    )


def _expected_users(users_per_period: int | None) -> int:
    if users_per_period is None:
        return TYPICAL_USERS
    check_whole("users_per_period", users_per_period)
    return users_per_period


def _mean_noise(plan: StreamPlan, at: NDArray[np.int64]) -> Vector:
    """The 95 % noise of the mean after some steps, with one row or user in each, as encoded."""
    return 1.96 * np.sqrt(plan.variances(0, at)) / plan.row_sums(0, at)


def _scales_and_widths(plan: StreamPlan) -> tuple[Vector, Vector]:
    """The scale of each column, and the distance between its bounds, which is 2ζ without any."""
    if plan.settings.encoding is None:
        ones = np.ones(len(Renderer(plan).names))
        return ones, 2 * plan.settings.clip_norm * ones
    _, scales, lower, upper = plan.settings.encoding.units.T
    return scales, upper - lower


def _beginnings(calendar: Time, periods: NDArray[np.int64]) -> NDArray[Any]:
    """The beginnings of periods as ISO 8601."""
    texts = [calendar.beginning(period).isoformat() for period in periods.tolist()]
    return np.array(texts, dtype=object)


def _per_release(values: NDArray[Any], ndim: int) -> NDArray[Any]:
    """One number per release, shaped to broadcast over arrays with that many axes."""
    return values.reshape(-1, *[1] * (ndim - 1))


def _ones_at(places: NDArray[np.bool_], moments: NoisyMoments) -> NoisyMoments:
    """The moments with ones at some places, with which computations go through."""

    def replaced(values: Array) -> Array:
        return np.where(_per_release(places, values.ndim), 1.0, values)

    return NoisyMoments(
        replaced(moments.mean),
        replaced(moments.covariance),
        replaced(moments.mean_variance),
        replaced(moments.second_variance),
        moments.norm_bound,
        moments.count_weight,
    )


def _convert_to_units(fields: Fields, encoding: Encoding) -> None:
    """Convert means, covariances, errors and intervals to the units of the table's columns.

    A coordinate z stands for center + scale·z; intervals are cut to the bounds that the schema
    declares.
    """
    centers, scales, lower, upper = encoding.units.T
    for name in ("mean", "mean_low", "mean_high"):
        fields[name] = centers + scales * fields[name]
    for name in ("mean_low", "mean_high"):
        fields[name] = np.clip(fields[name], lower, upper)
    fields["mean_standard_error"] = scales * fields["mean_standard_error"]
    for name, values in fields.items():
        if not name.startswith("covariance"):
            continue
        if values.ndim == 3:
            fields[name] = values * np.outer(scales, scales)
        else:
            fields[name] = values * scales**2


class PrivateRelease:
    """One release; all of its fields are private and may be published.

    Args:
        t: how many rows it is of.
        read_fields: returns the fields by name; called on first use.
        columns: names of the d numbers of `mean`; None if unknown.
        read_moments: returns its unbiased moments as encoded; None if they are unknown.

    Attributes:
        t: how many rows it is of; in a stream of periods, how many periods.
        columns: names of the d numbers of `mean`; None if unknown.
        mean: of these rows, with the weights of the workload, shape (d,). With a schema it is in
            the columns' own units, as is all but the sums; where valid rows are counted it is the
            mean of these, NaN if they are too few.
        mean_low: lower ends of 95 % intervals of the mean, (d,): of the noise alone.
        mean_high: upper ends.
        mean_standard_error: standard deviation of the noise in each coordinate of `mean`, (d,).
        covariance: positive definite, shape (d, d), or variances (d,). None where the two moments
            have different workloads or the second does not hold squares.
        covariance_low: lower ends of 95 % intervals of its entries, None for post-processing.
        covariance_high: upper ends.
        correlation: of the unbiased covariance, which need not be definite, (d, d), moved into its
            interval; NaN where that is wider than 1.
        correlation_low: lower ends of 95 % intervals, each by itself.
        correlation_high: upper ends.
        too_noisy: a statement that the covariance is too noisy; empty where it is not.
        valid_share: where valid rows are counted, the share of their weight.
        valid_share_standard_error: of the noise alone.
        start: in a stream of periods, the beginning of the last of them.
        end: its end.
        users_per_release: in a stream of periods, the mean number of users with valid rows of a
            period, with the weights of the workload.
        users_per_release_standard_error: of the noise alone.
        too_few: a statement that the valid rows are too few; empty where there are enough.
        sum: Y_t, shape (d,), of rows as vectors.
        sum_standard_error: √Var of each of its coordinates.
        sum_of_squares: S_t: shape (d, d) for the full second moment, (size,) otherwise.
        sum_of_squares_standard_error: √Var of its diagonal (√½ of it off the diagonal).
        covariance_raw: unbiased, so not always definite.
        covariance_raw_standard_error: √Var of each of its entries, with the private mean in place
            of the true one.
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
    start: str | None
    end: str | None
    users_per_release: float | None
    users_per_release_standard_error: float | None
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
        self,
        t: int,
        read_fields: Callable[[], Mapping[str, Any]],
        columns: Sequence[str] | None = None,
        read_moments: Callable[[], NoisyMoments] | None = None,
    ) -> None:
        self.t = t
        self._read_fields = read_fields
        self._read_moments = read_moments
        self.columns = None if columns is None else tuple(columns)

    def __getattr__(self, name: str) -> Any:
        if name not in PrivateRelease.__annotations__:
            raise AttributeError(f"a release has no {name}.")
        fields = self._read_fields()
        for field in PrivateRelease.__annotations__:
            value = fields.get(field)
            if isinstance(value, np.generic):
                value = value.item()
            setattr(self, field, value)
        return getattr(self, name)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """A release from a JSON line of `fedmf stream`, as read by `json.loads`."""
        arrays: dict[str, Any] = {}
        for name, value in fields.items():
            if name == "columns":
                continue
            arrays[name] = np.array(value, np.float64) if isinstance(value, list) else value
        return cls(int(fields["t"]), lambda: arrays, fields.get("columns"))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict with the fields of a line of `fedmf stream --raw`; None for NaN."""
        fields = {"t": self.t, **self._read_fields()}
        description = {name: listed(value) for name, value in fields.items()}
        if self.columns is not None:
            description["columns"] = list(self.columns)
        return description

    def joint_correlation_interval(self) -> Interval:
        """95 % intervals of the correlations that hold for all pairs of columns at once.

        They are for the choice of pairs by the release itself: of many intervals that hold each by
        itself, about 5 % miss, and the largest correlations are likely to be among these.

        Returns:
            Lower and upper ends, each of shape (d, d).

        Raises:
            ValueError: the release has no correlations, or was read from a line.

        References:
            Bonferroni: M intervals of level 1 − 0.05/M.
        """
        if self._read_moments is None or self.correlation is None or len(self.mean) == 1:
            raise ValueError(NO_CORRELATIONS)
        pairs = math.comb(len(self.mean), 2)
        low, high = self._read_moments().correlation_interval(1 - 0.05 / pairs)
        return low[0], high[0]

    @property
    def estimate(self) -> GaussianEstimate:
        """N(mean, covariance), in the units of the release: samples, divergences.

        Raises:
            ValueError: there is no covariance.
        """
        if self.covariance is None:
            raise ValueError(NO_DENSITY)
        matrix = self.covariance
        if matrix.ndim == 1:
            matrix = np.diag(matrix)
        return GaussianEstimate(torch.from_numpy(self.mean.copy()), torch.from_numpy(matrix.copy()))

    def score(self, x: Any) -> Array:
        """The anomaly score of rows, (x − μ)ᵀΣ⁻¹(x − μ): χ² with d degrees of freedom for N(μ, Σ).

        Args:
            x: rows in the units of `mean`: an array (…, d), or by name in any order, as a data
                frame with `columns` or a mapping with one row.

        Returns:
            Scores of shape (…); NaN for a row with a missing cell. Rows are not clipped to the
            bounds of a schema.

        Raises:
            ValueError: other columns, or there is no covariance.
        """
        names = x.keys() if isinstance(x, Mapping) else getattr(x, "columns", None)
        if names is not None:
            given = sorted(map(str, names))
            wanted = self.columns or ()
            if given != sorted(wanted):
                raise ValueError(
                    f"x (rows) must have the columns of the release, {shown_names(wanted)}; got"
                    f" {shown_names(given)}. Select them by name, or pass an array in the release's"
                    " order."
                )
            if isinstance(x, Mapping):
                x = [x[name] for name in wanted]
            else:
                x = x[list(wanted)]
        rows = np.array(x, np.float64)
        if rows.shape[-1:] != self.mean.shape:
            raise ValueError(
                f"x (rows) must have {self.mean.size} numbers each; got shape {rows.shape}."
            )
        scores = self.estimate.distances(torch.from_numpy(rows)).numpy()
        overflows = np.isnan(scores) & ~np.isnan(rows).any(axis=-1)
        return np.where(overflows, np.inf, scores)

    def threshold(self, false_alarms: float = 0.01, ordinary: ArrayLike | None = None) -> float:
        """The score above which a row is an anomaly, exceeded by that share of ordinary rows.

        Args:
            false_alarms: in (0, 1).
            ordinary: rows of shape (m, d) that are in no release and need no protection; then the
                share holds for any distribution of rows (`calibrated_threshold`). Without them,
                rows are assumed to be Gaussian, and the noise of this release is taken into account
                (`alarm_threshold`).

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
        covariance = self.covariance
        errors = self.covariance_raw_standard_error
        if covariance.ndim == 1:
            covariance = np.diag(covariance)
            errors = np.diag(errors)
        return alarm_threshold(false_alarms, covariance, self.mean_standard_error, errors)


def at_bounds(release: PrivateRelease, encoding: Encoding) -> str:
    """A warning of numbers with a mean at a bound of the schema, as of values in another unit.

    Such a mean is within 2 % of the range, with an interval no wider than a tenth of it. The
    warning depends on released numbers alone, so it is as private as these; it may be empty.
    """
    means = []
    for i, name in enumerate(encoding.coordinates):
        if name not in encoding.names:  # a coordinate of a category
            continue
        _, _, lower, upper = encoding.units[i]
        width = upper - lower
        certain = release.mean_high[i] - release.mean_low[i] <= 0.1 * width
        if certain and release.mean[i] - lower <= 0.02 * width:
            means.append(f"{name} is released at its lower bound {lower:g}")
        if certain and upper - release.mean[i] <= 0.02 * width:
            means.append(f"{name} is released at its upper bound {upper:g}")
    if not means:
        return ""
    return (
        f"{', '.join(means)}: is the range in the schema in the right unit? Values outside it count"
        " as the bound."
    )


def hidden(release: PrivateRelease) -> str:
    """A sentence on the standard deviation that the noise hides; empty where errors are unknown.

    It is the root of two standard errors of the least certain variance.
    """
    errors = release.covariance_raw_standard_error
    if errors is None or not np.isfinite(errors).all():
        return ""
    if errors.ndim == 2:
        errors = np.diag(errors)
    at = int(np.argmax(errors))
    return (
        f" A standard deviation of {(release.columns or ())[at]} below"
        f" {math.sqrt(2 * errors[at]):.3g} is hidden by noise; four times as many rows, or a four"
        " times larger epsilon, would halve this value."
    )


def listed(values: Any) -> Any:
    """Values for JSON: arrays become nested lists, with None for numbers that are not finite."""
    if isinstance(values, np.generic):
        return values.item()
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype != np.float64 or np.isfinite(values).all():
        return values.tolist()
    nullable = values.astype(object)
    nullable[~np.isfinite(values)] = None
    return nullable.tolist()


def _without_negative_part(covariance: Array) -> Array:
    """The closest matrices, or variances, without negative eigenvalues."""
    if covariance.ndim == 2:
        return np.maximum(covariance, 0.0)
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.maximum(values, 0.0)[:, None, :]) @ np.swapaxes(vectors, 1, 2)


#: Draws of the noise for a threshold.
_NOISES = 1000
#: Draws of rows for all of these together; they decide how exact the threshold is.
_ROWS = 200_000
#: Multiplications that decompositions of the covariances may take.
_WORK = 10**8


def alarm_threshold(
    rate: float, covariance: Array, mean_errors: Array, covariance_errors: Array
) -> float:
    """The score exceeded by a fraction `rate` of ordinary rows, with the noise of the release.

    Ordinary rows are taken as N(μ, Σ), and the release has μ̂ and Σ̂ with noise of known size. So
    μ = μ̂ + e and Σ = Σ̂ + E, with e and E drawn like that noise and negative eigenvalues set to
    zero. The threshold is the quantile of the scores of rows of these N(μ, Σ); without noise it is
    the quantile of χ² with d degrees of freedom. Where noise is large there are fewer false alarms.
    The draws are the same each time.

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
    check_rate(rate)
    d = len(covariance)
    rng = np.random.default_rng(0)
    noises = max(20, min(_NOISES, _WORK // d**3))
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    E = np.triu(rng.normal(size=(noises, d, d)) * covariance_errors)
    E = E + np.swapaxes(np.triu(E, 1), 1, 2)
    values, vectors = np.linalg.eigh(np.eye(d) + whiten @ E @ whiten.T)
    moved = rng.normal(size=(noises, 1, d)) * mean_errors @ whiten.T
    rows = max(1, _ROWS // noises // d)
    deviations = np.sqrt(np.maximum(values, 0.0))[:, None, :]
    drawn = rng.normal(size=(noises, rows, d)) * deviations
    scores = np.sum((moved + drawn @ np.swapaxes(vectors, 1, 2)) ** 2, axis=-1)
    return float(np.quantile(scores, 1 - rate))


def calibrated_threshold(rate: float, scores: ArrayLike) -> float:
    """The ⌈(1 − rate)(m + 1)⌉-th smallest score of m ordinary rows outside the release.

    Args:
        rate: share of false alarms, in (0, 1).
        scores: of rows that need no protection: the threshold reveals something of them.

    Raises:
        ValueError: the rate is out of range, a score is NaN, or there are too few rows.

    Guarantees:
        A further row of the same distribution, whatever that is and whatever the noise, is above
        the threshold with a chance of at most `rate`.

    References:
        Vovk, Gammerman and Shafer (2005), "Algorithmic Learning in a Random World" (conformal
        prediction).

    >>> calibrated_threshold(0.1, range(1, 20))
    18.0
    """
    check_rate(rate)
    ordered = np.sort(np.asarray(scores, dtype=np.float64), axis=None)
    place = math.ceil((1 - rate) * (ordered.size + 1))
    missing = int(np.isnan(ordered).sum())
    if missing:
        raise ValueError(
            f"scores (of ordinary rows) must be numbers; got {missing} NaN. Leave out rows with"
            " missing cells."
        )
    if place > ordered.size:
        raise ValueError(
            f"scores (of ordinary rows) must be at least {math.ceil(1 / rate) - 1} for a rate of"
            f" {rate}; got {ordered.size}."
        )
    return float(ordered[place - 1])


def check_rate(rate: float) -> None:
    """Reject a share of false alarms that is none.

    Raises:
        ValueError: it is not between 0 and 1.
    """
    if not 0 < rate < 1:
        raise ValueError(f"rate (of false alarms) must lie between 0 and 1; got {rate}.")
