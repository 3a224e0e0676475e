"""The text of ``fedmf stream`` for the screen.

It consists of what the user should know before the first step (`first_lines`), the noise to expect
(`dry_run_lines`), the last release in words (`answer`), and warnings (`first_warnings`,
`warnings_of`), which a JSON log has as objects.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.data.row_counts import names_in_words
from fedmf.data.table_reader import InputError
from fedmf.matrices.arrays import Array
from fedmf.streaming.input_counts import times_in_words
from fedmf.streaming.private_release import (
    TYPICAL_USERS,
    PrivateRelease,
    at_bounds,
    expected_noise,
    hidden,
    noise_of_one_period,
    visible_correlations,
)
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import Position
from fedmf.streaming.stream_plan import StreamPlan

#: Columns that are shown one by one.
_SHOWN: Final = 6
#: Rows count as clipped if ζ² is at most this many standard deviations above the mean of ‖x‖².
_CLIPPED: Final = 0.92
#: The advice if almost no row is valid.
_EMPTY: Final = (
    " If a column is empty, or has a wrong name, unit or format (text, times), all of its rows are"
    " invalid: operator.json in --state-dir counts them by column."
)


def check_user_option(settings: Settings, row_level: bool) -> None:
    """Reject a stream for which the users of the rows are not given, or are given twice.

    Args:
        settings: settings of the stream.
        row_level: whether --row-level is given: every row is from another user.

    Raises:
        InputError: neither --user-column nor --row-level is given, or both are.
    """
    if row_level != (settings.user_column is not None):
        return
    given = "neither"
    if row_level:
        given = "both"
    raise InputError(
        "the user of each row must be given: either --user-column NAME (or a schema), or"
        f" --row-level if every row is from a different person; got {given}."
    )


def first_lines(plan: StreamPlan) -> list[str]:
    """Return the lines before the first step, which do not depend on the rows."""
    settings = plan.settings
    lines = ["Every row counts as a different user. A person with several rows is protected less."]
    if settings.user_column is not None:
        lines = [_participation(plan)]
    if settings.encoding is not None and settings.columns is None:
        names = names_in_words(settings.encoding.names)
        lines.append(f"Columns: {names}. To use only some of them, see --columns.")
    if settings.schema is None:
        lines.append(
            f"Columns are not scaled. Rows with a norm above {settings.clip_norm:g} are scaled down"
            " to it (--clip-norm), and invalid rows count as zeros. For columns of different size,"
            " use a --schema."
        )
    return lines


def first_warnings(plan: StreamPlan) -> list[str]:
    """Return a warning of what missing cells do where no column of a schema is nullable."""
    settings = plan.settings
    if settings.encoding is None or settings.count_weight or settings.encoding.filled:
        return []
    return [
        "a row with an unreadable cell, or a missing one in a column without fill, counts as the"
        " center of all columns, which biases means. If cells may be missing, set nullable = true"
        " in the schema, so that such rows do not count. With many columns, few rows would be left:"
        " set a fill in each column instead."
    ]


def _participation(plan: StreamPlan) -> str:
    """Return how many rows of each user count, in words."""
    k = plan.participation.max_participations
    b = plan.participation.min_separation
    if plan.settings.calendar is not None and k == 1:
        return "At most 1 period of each user counts, with the mean of the user's rows in it."
    if plan.settings.calendar is not None:
        line = f"At most {k} periods of each user count"
        if b > 1:
            line += f", at least {b} apart"
        return f"{line}, each with the mean of the user's rows in it."
    if k == 1:
        return "At most 1 row of each user counts."
    line = f"At most {k} rows of each user count"
    if b > 1:
        line += f", at least {b} rows apart"
    if plan.every > 1:
        line += f", at most {plan.rows_of_user} of them in one release"
    return f"{line}."


def dry_run_lines(plan: StreamPlan, users_per_period: int | None = None) -> str:
    """Return a table of the noise, which depends only on n and the settings, for --dry-run.

    Args:
        plan: plan of the stream.
        users_per_period: in a stream of periods, the expected number of users in each period.
    """
    table = expected_noise(plan, users_per_period).to_string(float_format="{:.3g}".format)
    visible = visible_correlations(plan, users_per_period)
    if plan.settings.calendar is not None:
        lines = [
            f"Dry run, which spends no epsilon: {_periods(plan)}. 95 % noise with"
            f" {users_per_period or TYPICAL_USERS:,} users in each period (--users-per-period); it"
            " falls in proportion to their number:",
            table,
            visible,
            noise_of_one_period(plan, users_per_period),
        ]
    else:
        lines = [
            f"Dry run, which spends no epsilon: {plan.rounds:,} rows count, in"
            f" {_number(plan.releases, 'release')}. 95 % noise if all of these rows are valid:",
            table,
            visible,
        ]
    return "".join(f"{line}\n" for line in lines if line)


def _number(count: int, what: str) -> str:
    """Return a number of things in words.

    >>> _number(1, "release"), _number(1200, "release")
    ('1 release', '1,200 releases')
    """
    if count == 1:
        return f"1 {what}"
    return f"{count:,} {what}s"


def _periods(plan: StreamPlan) -> str:
    """Return the periods of a stream of periods, in words."""
    calendar = plan.settings.calendar
    assert calendar is not None
    return (
        f"{_number(plan.rounds, 'period')} of {calendar.step} from {_date(calendar.start)} to"
        f" {_date(calendar.end)}"
    )


def _date(at: datetime) -> str:
    """Return a time as ISO 8601, without a time of day if that is midnight."""
    return at.isoformat().removesuffix("T00:00:00")


def answer(
    plan: StreamPlan, position: Position, release: PrivateRelease | None, waiting: int
) -> str:
    """Return the last release in words, and the number of rows that are not in it.

    Without noise, the text depends only on user ids and the order of rows.

    Args:
        plan: plan of the stream.
        position: position of the stream.
        release: the last release, None if there is none.
        waiting: number of rows that count and are in no release yet.
    """
    lines = [_periods_released(plan, position)]
    if plan.settings.calendar is None:
        lines = _rows_left_out(plan, position)
    if waiting:
        due = min(math.ceil(position.step / plan.every) * plan.every, plan.rounds)
        lines.append(
            f"{waiting:,} rows wait for the release after {due:,} rows (--release-every, --rounds)."
        )
    if release is None:
        return "\n".join([*lines, "No release yet."]) + "\n"
    share = release.valid_share
    error = release.valid_share_standard_error
    if share is not None and error is not None and share + 2 * error < 1:
        lines.append(
            f"{100 * max(share, 0):.0f} ± {200 * error:.2g} % of the rows that count are valid;"
            " the others have a missing or unreadable cell, or a category that the schema does"
            " not name."
        )
    if release.users_per_release is not None and release.users_per_release_standard_error:
        lines.append(
            f"{max(release.users_per_release, 0):.4g} ±"
            f" {1.96 * release.users_per_release_standard_error:.2g} users in a period, on average."
        )
    lines += _table(plan, release)
    lines += _correlations(plan, release)
    lines += _errors(plan, release)
    return "\n".join(lines) + "\n"


def warnings_of(plan: StreamPlan, release: PrivateRelease | None) -> list[str]:
    """Return warnings of the last release, from released numbers alone.

    They are of values out of bounds and of clipped rows, or else of too much noise.
    """
    if release is None:
        return []
    warnings = [_clipped(plan, release)]
    if plan.settings.encoding is not None:
        warnings.insert(0, at_bounds(release, plan.settings.encoding))
    warnings = [warning for warning in warnings if warning]
    if not warnings and (release.too_noisy or release.too_few):
        warnings.append(_too_noisy(plan, release))
    return warnings


def _too_noisy(plan: StreamPlan, release: PrivateRelease) -> str:
    """Return what the noise hides, and what helps."""
    warning = (
        f"{release.too_few or release.too_noisy}.{hidden(release)} More rows, tighter bounds, fewer"
        " columns, fewer releases (--release-every), --weight covariance or a larger epsilon help."
    )
    share = release.valid_share
    error = release.valid_share_standard_error
    few_valid = share is not None and error is not None and share + 2 * error < 0.05
    zeros = bool((release.mean_low * release.mean_high <= 0).all())
    if plan.settings.calendar is not None and release.too_few:
        warning += (
            f" Or few rows are in a period: {times_in_words(plan.settings)} operator.json in"
            " --state-dir counts the others."
        )
    elif few_valid or (zeros and plan.settings.schema is None):
        warning += _EMPTY
    return warning


def _periods_released(plan: StreamPlan, position: Position) -> str:
    """Return how many periods were released, which no row decides."""
    if plan.settings.calendar is None:
        return ""
    line = f"{position.step:,} of {_periods(plan)} are released."
    if position.step == plan.rounds:
        return f"{line} Further rows are in no release."
    return (
        f"{line} Rows of later periods are not stored, so pass them again (operator.json counts"
        " them as waiting)."
    )


def _rows_left_out(plan: StreamPlan, position: Position) -> list[str]:
    """Return how many rows count, and why others do not, by user ids and order alone."""
    k = plan.participation.max_participations
    b = plan.participation.min_separation
    lines = [f"{position.step:,} of {position.row:,} rows count."]
    if position.nameless:
        lines.append(f"  {position.nameless:,} of these without a user id, as invalid rows")
    if position.beyond_k:
        lines.append(
            f"  {position.beyond_k:,} are over the limit of {k} per user (--rows-per-user)"
        )
    if position.within_b:
        lines.append(
            f"  {position.within_b:,} are fewer than {b} rows after another row of their user"
            " (--min-separation)"
        )
    if 5 * (position.beyond_k + position.within_b) > position.row:
        lines.append(
            "  Means describe the rows that count, so users with many rows weigh less than in the"
            " input; no interval covers this difference."
        )
    return lines


def _table(plan: StreamPlan, release: PrivateRelease) -> list[str]:
    """Return means and standard deviations with 95 % intervals, a line for each column."""
    all_names = plan.layout.columns[: len(release.mean)]
    names = all_names
    if len(all_names) > _SHOWN + 1:
        names = all_names[:_SHOWN]
    corner = f"after row {release.t:,}"
    if plan.settings.calendar is not None:
        corner = f"to {str(release.end).removesuffix('T00:00:00')}"
    width = max(len(name) for name in (corner, *names))
    lines = [f"{corner:<{width}}  {'mean [95 %]':<28}  standard deviation [95 %]"]
    for i, name in enumerate(names):
        mean = "too few rows"
        if math.isfinite(release.mean[i]):
            low = release.mean_low[i]
            high = release.mean_high[i]
            mean = _with_interval(np.clip(release.mean[i], low, high), low, high)
        lines.append(f"{name:<{width}}  {mean:<28}  {_deviation(release, i)}".rstrip())
    if len(names) < len(all_names):
        lines.append(f"… and {len(all_names) - len(names)} more columns")
    return lines


def _deviation(release: PrivateRelease, i: int) -> str:
    """Return the standard deviation of column i with its interval, if it exceeds the noise."""
    if release.covariance is None:
        return ""
    variance = _variance(release.covariance, i)
    low = _variance(release.covariance_low, i)
    high = _variance(release.covariance_high, i)
    if not math.isfinite(variance) or low <= 0:
        if math.isfinite(high):
            return f"too noisy (at most {math.sqrt(high):.4g})"
        return "too noisy"
    if math.isnan(low):
        return f"{math.sqrt(variance):.4g}"
    return _with_interval(math.sqrt(variance), math.sqrt(low), math.sqrt(high))


def _variance(covariance: NDArray[np.float64] | None, i: int) -> float:
    """Return the variance of column i from a covariance or from variances; NaN without them."""
    if covariance is None:
        return math.nan
    if covariance.ndim == 1:
        return float(covariance[i])
    return float(covariance[i, i])


def _with_interval(value: float, low: float, high: float) -> str:
    """Return a number with its interval, with enough digits to distinguish the ends.

    >>> _with_interval(12.3456, 11.5, 13.2), _with_interval(7.25, 7.2496, 7.2504)
    ('12.35 [11.5, 13.2]', '7.25 [7.2496, 7.2504]')
    """
    for digits in range(4, 18):
        if f"{low:.{digits}g}" != f"{high:.{digits}g}":
            return f"{value:.{digits}g} [{low:.{digits}g}, {high:.{digits}g}]"
    return f"{value:.4g} [{low:.4g}, {high:.4g}]"


def _correlations(plan: StreamPlan, release: PrivateRelease) -> list[str]:
    """Return how many correlations differ from 0 beyond the noise, and the largest of these.

    Their intervals hold for all pairs at once, as the largest of many is likely to be noise.
    """
    if release.correlation is None or len(release.mean) == 1:
        return []
    i, j = np.triu_indices(len(release.mean), 1)
    values = np.asarray(release.correlation)[i, j]
    if not np.isfinite(values).any():
        return ["correlations: too noisy"]
    low, high = (ends[i, j] for ends in release.joint_correlation_interval())
    nonzero = (low > 0) | (high < 0)
    at = int(np.argmax(np.where(nonzero, np.abs(values), 0.0)))
    names = plan.layout.columns
    largest = f"{names[i[at]]}, {names[j[at]]}: {values[at]:.2f} [{low[at]:.2f}, {high[at]:.2f}]"
    if len(values) == 1:
        return [f"correlation {largest}"]
    line = (
        f"{nonzero.sum():,} of {len(values):,} correlations differ from 0 beyond the noise (95 %"
        " intervals that hold for all of them at once)"
    )
    if nonzero.any():
        line += f"; the largest is {largest}"
    return [line]


def _errors(plan: StreamPlan, release: PrivateRelease) -> list[str]:
    """Return the noise of the last means, compared with one release of all rows."""
    if plan.settings.workloads[0] != "average" or plan.releases == 1:
        return []
    at = np.array([release.t])
    error = float(np.sqrt(plan.variances(0, at)[0]) / plan.row_sums(0, at)[0])
    ratio = f"{error / plan.one_shot_error(release.t):.2g}"
    k = plan.participation.max_participations
    what = "rows"
    if plan.settings.calendar is not None:
        what = "periods"
    comparison = f"{ratio} times the noise"
    if ratio == "1":
        comparison = "that"
    whole = f"all {release.t:,} {what}"
    if release.t == 1:
        whole = f"one {what.removesuffix('s')}"
    line = (
        f"The noise of the means is {comparison} of a single release of {whole} at the same"
        f" epsilon ({plan.releases:,} releases; --release-every)."
    )
    if k > 1:
        line += f" It grows with the {k} {what} per user that count (--rows-per-user)."
    return [line]


def _clipped(plan: StreamPlan, release: PrivateRelease) -> str:
    """Return a warning if many rows were probably clipped, as post-processing of the release.

    The released sums give the mean μ and the mean square norm m of the clipped rows, whatever the
    second moment holds, and the standard deviation s of ‖x‖² if they are Gaussian
    (`_deviation_of_squares`). The rule is m + 0.92·s ≥ ζ²: about one row in five could be longer
    than ζ. For d columns without correlation and with mean 0, s is m·√(2/d), so that m must be
    near ζ² where there are many. It does not warn of rows that are uniform in a box or a disc just
    enclosed by ζ.
    """
    settings = plan.settings
    remedy = "or use a --schema, which scales each column"
    if settings.encoding is not None:
        if settings.clip_norm >= settings.encoding.norm_bound:  # no row is longer
            return ""
        remedy = "or omit it: the schema's bounds then clip no row"
    error = release.sum_of_squares_standard_error
    if error is None or release.too_few:
        return ""
    at = np.array([release.t])
    share = release.valid_share or release.users_per_release or 1.0
    first = share * plan.row_sums(0, at)[0] * settings.clip_norm
    second = share * plan.row_sums(1, at)[0] * settings.clip_norm**2
    squares = np.asarray(release.sum_of_squares) / second
    mean = np.asarray(release.sum)[: len(release.mean)] / first
    energies = squares
    if squares.ndim == 2:
        squares = squares[: len(mean), : len(mean)]
        energies = np.diagonal(squares)
    elif settings.count_weight:
        energies = squares[:-1]
    square = float(energies.sum())
    noise = error / second
    if square < 3 * noise * math.sqrt(len(energies)):
        return ""
    if square + _CLIPPED * _deviation_of_squares(squares, square, mean, noise) < 1:
        return ""
    return (
        "many rows were probably clipped, unless all have the clip norm: the released root mean"
        f" square norm is {math.sqrt(square):.0%} of {settings.clip_norm:g}. This table describes"
        f" clipped rows: increase --clip-norm, {remedy}."
    )


def _deviation_of_squares(second: Array, square: float, mean: Array, noise: float) -> float:
    """The standard deviation of ‖x‖² for Gaussian x, √(2·(tr Q² − ‖μ‖⁴)).

    Without the products in Q, columns are taken to have one variance and no correlation.

    Args:
        second: Q, the released mean of x⊗x, shape (d, d), or other energies that are not used.
        square: m = tr Q.
        mean: μ, shape (d,).
        noise: standard error of the diagonal of Q, √2 times that of the other entries.
    """
    d = len(mean)
    of_mean = float(mean @ mean)
    if second.ndim == 2:
        excess = math.comb(d + 1, 2) * noise**2  # noise of d(d + 1)/2 entries
        squares = min(max(float((second**2).sum()) - excess, square**2 / d), square**2)
    else:
        trace = max(0.0, square - of_mean)
        squares = (trace**2 + 2 * trace * of_mean) / d + of_mean**2
    return math.sqrt(2 * max(0.0, squares - of_mean**2))
