"""What a stream says to the person at the keyboard: what must be told first, and the answer at the
end.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from fedmf.data.table_reader import InputError
from fedmf.streaming.private_release import PrivateRelease, Renderer, at_bounds, hidden
from fedmf.streaming.settings import Settings
from fedmf.streaming.state import Position
from fedmf.streaming.stream_plan import StreamPlan

#: Columns that are shown one by one.
_SHOWN: Final = 6
#: How many standard deviations ζ² is at most above the mean of ‖x‖² where rows count as clipped.
_CLIPPED: Final = 0.7
#: What may be wrong where almost no row is valid.
_EMPTY: Final = (
    " If a column is empty, or has a wrong name, unit or format (text, times), all of its rows are"
    " invalid: operator.json in --state-dir counts them by column."
)


def check_told(settings: Settings, row_level: bool) -> None:
    """Whether the users of the rows were given.

    Args:
        settings: of the stream.
        row_level: whether every row was said to be another user's.

    Raises:
        InputError: it was not, or both were.
    """
    if row_level == (settings.user_column is not None):
        raise InputError(
            "the user of each row must be given: either --user-column NAME (or a schema), or"
            " --row-level if every row is from a different person; got"
            f" {'both' if row_level else 'neither'}."
        )


def first_lines(plan: StreamPlan) -> list[str]:
    """What a stream says before its first step; the same whatever the rows hold."""
    settings = plan.settings
    lines = []
    if settings.user_column is not None:
        k = plan.participation.max_participations
        b = plan.participation.min_separation
        apart = "" if k == 1 or b == 1 else f", at least {b} rows apart"
        each = (
            f", at most {plan.rows_of_user} of them in one release"
            if plan.every > 1 and k > 1
            else ""
        )
        count = "row of each user counts" if k == 1 else "rows of each user count"
        lines.append(f"At most {k} {count}{apart}{each}.")
    else:
        lines.append(
            "Every row counts as a different user. A person with several rows is protected less."
        )
    if settings.schema is not None:
        if not settings.count_weight:
            lines.append(
                "WARNING: no column is nullable, so a row with a missing or unreadable cell counts"
                " as the center of all columns, which biases means. If cells may be missing, set"
                " nullable = true in the schema."
            )
        return lines
    lines.append(
        f"Columns are not scaled. Rows with a norm above {settings.clip_norm:g} are scaled down to"
        " it (--clip-norm), and invalid rows count as zeros. For columns of different size, use a"
        " --schema."
    )
    return lines


def expected(plan: StreamPlan) -> str:
    """How large the noise will be: what --dry-run prints. It depends on n and the settings alone.

    Args:
        plan: of the stream.
    """
    import pandas as pd

    at = np.unique([min(plan.every, plan.rounds), plan.rounds])
    names = Renderer(plan).names
    encoding = plan.settings.encoding
    scales = np.ones(len(names)) if encoding is None else encoding.units[:, 1]
    errors = 1.96 * np.sqrt(plan.variances(0, at)) / plan.row_sums(0, at)
    columns = {
        f"mean after row {t:,} (±)": error * scales for t, error in zip(at, errors, strict=True)
    }
    same = plan.settings.workloads[0] == plan.settings.workloads[-1]
    if same and plan.mechanism.method.second_noise and plan.second_moment.gives_covariance:
        error = np.sqrt(plan.variances(1, at[-1:])) / plan.row_sums(1, at[-1:])
        columns["smallest visible standard deviation"] = np.sqrt(2 * error) * scales
    table = pd.DataFrame(columns, index=list(names)).to_string(float_format="{:.3g}".format)
    return (
        f"Dry run, which spends no epsilon: {plan.rounds:,} rows count, in {plan.releases:,}"
        f" releases. 95 % noise if all of these rows are valid:\n{table}\n"
    )


def answer(
    plan: StreamPlan, position: Position, release: PrivateRelease | None, waiting: int
) -> str:
    """The last release in words, and which rows are not in it; nothing depends on rows without
    noise.

    Args:
        plan: of the stream.
        position: how far it is.
        release: the last one, None if there is none.
        waiting: rows that were admitted after it.
    """
    lines = _left_out(plan, position)
    if waiting:
        due = min(-(-position.step // plan.every) * plan.every, plan.rounds)
        lines.append(
            f"{waiting:,} rows wait for the release after {due:,} rows (--release-every, --rounds)."
        )
    if release is None:
        return "\n".join([*lines, "No release yet."]) + "\n"
    share = release.valid_share
    error = release.valid_share_standard_error
    most = 1.0 if share is None or error is None else share + 2 * error
    if share is not None and error is not None and most < 1:
        lines.append(
            f"{100 * max(share, 0):.0f} ± {200 * error:.2g} % of the rows that count are valid; the"
            " others have a missing or unreadable cell, or a category that the schema does not"
            " name."
        )
    lines += _table(plan, release)
    lines += _correlations(plan, release)
    lines += _errors(plan, release)
    if clipped := _clipped(plan, release):
        lines.append(clipped)
    elif release.too_noisy or release.too_few:
        zeros = plan.settings.schema is None and bool(
            (release.mean_low * release.mean_high <= 0).all()
        )
        lines.append(
            f"WARNING: {release.too_few or release.too_noisy}.{hidden(release)} More rows, tighter"
            " bounds, fewer columns, fewer releases (--release-every), --weight covariance or a"
            f" larger epsilon help.{_EMPTY if zeros or most < 0.05 else ''}"
        )
    return "\n".join(lines) + "\n"


def _left_out(plan: StreamPlan, position: Position) -> list[str]:
    """How many rows (k, b) and the horizon left out, which depends on ids and order alone."""
    k = plan.participation.max_participations
    b = plan.participation.min_separation
    reasons = [
        (position.nameless, "of these without a user id, as invalid rows"),
        (position.beyond_k, f"are over the limit of {k} per user (--rows-per-user)"),
        (
            position.within_b,
            f"are fewer than {b} rows after another row of their user (--min-separation)",
        ),
    ]
    told = [f"  {count:,} {why}" for count, why in reasons if count]
    if 5 * (position.beyond_k + position.within_b) > position.row:
        told.append(
            "  Means describe rows that count, with fewer of users who have many; no interval"
            " covers this."
        )
    return [f"{position.step:,} of {position.row:,} rows count.", *told]


def _table(plan: StreamPlan, release: PrivateRelease) -> list[str]:
    names = plan.layout.columns[: len(release.mean)]
    head = f"after row {release.t:,}"
    shown = _SHOWN if len(names) > _SHOWN + 1 else len(names)
    wide = max(len(head), *(len(name) for name in names[:shown]))
    lines = [f"{head:<{wide}}  {'mean [95 %]':<28}  standard deviation [95 %]"]
    for i, name in enumerate(names[:shown]):
        mean = "too few rows"
        if math.isfinite(release.mean[i]):
            low = release.mean_low[i]
            high = release.mean_high[i]
            mean = _with_ends(np.clip(release.mean[i], low, high), low, high)
        lines.append(f"{name:<{wide}}  {mean:<28}  {_deviation(release, i)}".rstrip())
    return [*lines, *([f"… and {len(names) - shown} more columns"] if len(names) > shown else [])]


def _deviation(release: PrivateRelease, i: int) -> str:
    """Of a column, with its interval; what the noise is larger than is not said."""
    if release.covariance is None:
        return ""
    parts = (release.covariance_low, release.covariance, release.covariance_high)
    low, value, high = (
        math.nan if part is None else float(part[(i,) * part.ndim]) for part in parts
    )
    if not math.isfinite(value) or low <= 0:
        return "too noisy" + (f" (at most {math.sqrt(high):.4g})" if math.isfinite(high) else "")
    return (
        f"{math.sqrt(value):.4g}"
        if math.isnan(low)
        else _with_ends(*map(math.sqrt, (value, low, high)))
    )


def _with_ends(value: float, low: float, high: float) -> str:
    """A number with its interval, and digits that tell the ends apart.

    >>> _with_ends(12.3456, 11.5, 13.2), _with_ends(7.25, 7.2496, 7.2504)
    ('12.35 [11.5, 13.2]', '7.25 [7.2496, 7.2504]')
    """
    digits = next((some for some in range(4, 18) if f"{low:.{some}g}" != f"{high:.{some}g}"), 4)
    return f"{value:.{digits}g} [{low:.{digits}g}, {high:.{digits}g}]"


def _correlations(plan: StreamPlan, release: PrivateRelease) -> list[str]:
    if release.correlation is None or len(release.mean) == 1:
        return []
    i, j = np.triu_indices(len(release.mean), 1)
    parts = release.correlation, release.correlation_low, release.correlation_high
    values, low, high = (np.asarray(part)[i, j] for part in parts)
    told = np.isfinite(values)
    if not told.any():
        return ["correlations: too noisy"]
    at = int(np.nanargmax(np.abs(values)))
    pair = ", ".join(plan.layout.columns[place] for place in (i[at], j[at]))
    found = f"{pair}: {values[at]:.2f} [{low[at]:.2f}, {high[at]:.2f}]"
    if len(i) == 1:
        return [f"correlation {found}"]
    apart = int(np.sum(told & ((low > 0) | (high < 0))))
    return [
        f"The 95 % intervals of {apart} of {len(i)} correlations exclude 0; the largest is {found}"
    ]


def _errors(plan: StreamPlan, release: PrivateRelease) -> list[str]:
    """The error of the last means, compared with one release of all rows."""
    if plan.settings.workloads[0] != "average" or plan.releases == 1:
        return []
    at = np.array([release.t])
    error = float(np.sqrt(plan.variances(0, at)[0]) / plan.row_sums(0, at)[0])
    ratio = f"{error / plan.one_shot_error(release.t):.2g}"
    k = plan.participation.max_participations
    times = "that" if ratio == "1" else f"{ratio} times the noise"
    price = f" It grows with the {k} rows per user that count (--rows-per-user)." if k > 1 else ""
    return [
        f"The noise of the means is {times} of a single release of all {release.t:,} "
        f"rows at the same epsilon ({plan.releases:,} releases; --release-every).{price}"
    ]


def _clipped(plan: StreamPlan, release: PrivateRelease) -> str | None:
    """A warning if many rows were probably clipped; of released numbers alone, so it is
    post-processing.

    With a schema it is for columns with a mean at a bound (`at_bounds`). Without one:

    With the released mean μ and covariance Σ of the clipped rows, ‖x‖² has mean m = ‖μ‖² + tr Σ
    and, for Gaussian rows, variance s² = 2·tr Σ² + 4·μᵀΣμ. The rule is m + 0.7·s ≥ ζ²: one row in
    four would be longer than ζ. Below are rows uniform in a box, or in a ball of up to 3
    dimensions, that ζ just encloses; above is a pair of standard normal columns at ζ = 1.5, of
    which a third is clipped, and rows of norm ζ.
    """
    if plan.settings.encoding is not None:
        return at_bounds(release, plan.settings.encoding)
    covariance = release.covariance
    errors = release.covariance_raw_standard_error
    if covariance is None or errors is None:
        return None
    if covariance.ndim == 1:
        covariance = np.diag(covariance)
        errors = np.diag(errors)
    zeta = plan.settings.clip_norm
    mean = release.mean / zeta
    covariance = covariance / zeta**2
    errors = np.diag(errors) / zeta**2
    squares = float(mean @ mean + np.trace(covariance))
    spread = math.sqrt(2 * np.sum(covariance**2) + 4 * mean @ covariance @ mean)
    if squares < 3 * np.linalg.norm(errors) or squares + _CLIPPED * spread < 1:
        return None
    return (
        "WARNING: many rows were probably clipped, unless all have the clip norm: the released"
        f" root mean square norm is {math.sqrt(squares):.0%} of {zeta:g}. This table describes"
        " clipped rows: increase --clip-norm, or use a --schema, which scales each column."
    )
