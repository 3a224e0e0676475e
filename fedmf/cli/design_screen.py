"""The text of ``fedmf design``: the budget, the table, a recommendation, and samplings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

#: Names of independent noise, with which the others are compared.
_INDEPENDENT: Final = ("identity", "dp-sgd")
#: Characters of a line in a file or pipe, which has no width.
_FILE_WIDTH: Final = 160


def show_comparison(
    rows: Sequence[dict[str, Any]],
    wide: bool,
    noise: float | None,
    users_per_round: int | None,
    samplings: Mapping[str, tuple[dict[str, Any], str]],
    compared: bool,
) -> None:
    """Print the budget, the table, other cohorts, and a recommendation if no mechanism was named.

    Args:
        rows: the rows of the comparison, the smallest error first.
        wide: whether to show all columns.
        noise: the noise multiplier, if it was given in place of ε.
        users_per_round: m, if it was given.
        samplings: for ways to choose cohorts, the row of a mechanism, and what nobody else may
            learn.
        compared: whether the mechanisms are fedmf's choice, so that one is recommended.
    """
    first = rows[0]
    _print(
        f"{first['rounds']} rounds, each user in at most {first['max_participations']} of them, at"
        f" least {first['min_separation']} apart; workload {first['workload']},"
        f" {first['adjacency']} adjacency, sampling {first['sampling']}; {_budget(first, noise)}"
    )
    if first["epsilon"] is not None and noise is None:
        _print(_guarantee(first))
    _print_table(_table(rows, wide or noise is not None))
    if users_per_round:
        _print(
            "Errors are of the sum of updates; of their mean they are"
            f" {users_per_round} times smaller."
        )
    if not (wide or noise):
        _print("(--wide adds MaxSE, sensitivity and noise of each row.)")
    if samplings:
        _show_samplings(samplings)
    if compared:
        _print(_recommendation(rows))


def _recommendation(rows: Sequence[dict[str, Any]]) -> str:
    """Return the recommended mechanism of a comparison with its price and the reason."""
    from fedmf.mechanisms.design import NEGLIGIBLE, is_entrywise, recommended

    best = min(rows, key=lambda row: row["objective_error"])
    row = recommended(rows)
    above = "the best"
    percent = 100 * (row["objective_error"] / best["objective_error"] - 1)
    if percent >= 0.05:
        above = f"{percent:.1f} % above the best ({best['mechanism']})"
    yardsticks = [each["mechanism"] for each in rows if is_entrywise(each)]
    others = ""
    if yardsticks and not is_entrywise(row):
        others = (
            f" without {' and '.join(yardsticks)}, which are only yardsticks: every entry of C is"
            " searched for this setting alone"
        )
    return (
        f"Recommended: {row['mechanism']}, {above}, memory {memory(row)}, because its noise is the"
        f" fastest ({row['nanoseconds_per_coordinate']:.0f} ns per parameter) within"
        f" {100 * NEGLIGIBLE:g} % of the smallest error{others}."
    )


def _show_samplings(samplings: Mapping[str, tuple[dict[str, Any], str]]) -> None:
    _print("\nThe same budget with other cohorts (docs/theory/amplification.md):")
    table = []
    for kind, (row, secret) in samplings.items():
        table.append(
            {
                "cohorts": kind,
                "mechanism": _full_name(row),
                _error_column(row): f"{row['objective_error']:.5g}",
                "must stay secret": secret,
            }
        )
    _print_table(table, left=("mechanism", "must stay secret"))
    _print("")


def _print(text: str) -> None:
    from rich.console import Console

    Console(markup=False, highlight=False).print(text, soft_wrap=True)


def _print_table(cells: Sequence[Mapping[str, str]], left: Sequence[str] = ()) -> None:
    """Print rows of cells by column.

    Args:
        cells: the rows; all have the same columns.
        left: the columns of text; the first column is one, too.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    first, *others = cells[0]
    table.add_column(first)
    for name in others:
        if name in left:
            table.add_column(name)
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for row in cells:
        table.add_row(*row.values())
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=_FILE_WIDTH)
    console.print(table)


def _table(rows: Sequence[dict[str, Any]], wide: bool) -> list[dict[str, str]]:
    """Return the cells of the table by column, one row for each mechanism, without empty columns.

    Args:
        rows: the rows of the comparison.
        wide: whether to add ε, ρ, the advantage, MaxSE, RMSE, sensitivity and noise multiplier.
    """
    table = []
    independent_error = _independent_error(rows)
    for row in rows:
        cells = _main_cells(row, independent_error)
        if wide:
            cells |= _wide_cells(row)
        table.append(cells)
    for column in list(table[0]):
        if not any(cells[column] for cells in table):
            for cells in table:
                del cells[column]
    return table


def _independent_error(rows: Sequence[dict[str, Any]]) -> float | None:
    errors = {row["mechanism"]: row["objective_error"] for row in rows}
    for name in _INDEPENDENT:
        if name in errors:
            return errors[name]
    return None


def _main_cells(row: dict[str, Any], independent_error: float | None) -> dict[str, str]:
    return {
        "mechanism": _full_name(row),
        _error_column(row): f"{row['objective_error']:.5g}",
        "vs independent": _gain(row, independent_error),
        "memory": memory(row),
        "per parameter": f"{row['nanoseconds_per_coordinate']:.0f} ns",
    }


def error_label(row: dict[str, Any]) -> str:
    """Return the name of the error that a comparison minimizes."""
    from fedmf.mechanisms.objective import Objective

    return Objective.parse(row["objective"]).label


def _error_column(row: dict[str, Any]) -> str:
    return f"error ({error_label(row)})"


def is_independent(row: dict[str, Any]) -> bool:
    """Return whether a row is independent noise by name."""
    return row["mechanism"] in _INDEPENDENT


def _full_name(row: dict[str, Any]) -> str:
    """Return the name of a mechanism with its alias and parameters."""
    from fedmf.mechanisms.registry import families

    name = row["mechanism"]
    text = name
    for family in families():
        if family.name == name and family.aliases:
            text += f" or {family.aliases[0]}"
    if row["params"]:
        params = [f"{param} = {value:.4g}" for param, value in row["params"].items()]
        text += f" ({', '.join(params)})"
    if not is_independent(row) and not row["memory_vectors"] and not row["regenerated_vectors"]:
        text += ": independent noise"
    return text


def _gain(row: dict[str, Any], independent_error: float | None) -> str:
    """Return the error in percent above (or below) that of independent noise."""
    if is_independent(row):
        return "—"
    if independent_error is None:
        return ""
    percent = 100 * (row["objective_error"] / independent_error - 1)
    return f"{percent:+.0f} %".replace("-", "−")


def memory(row: dict[str, Any]) -> str:
    """Return the vectors that the noise of a round needs."""
    parts = []
    if row["memory_vectors"]:
        parts.append(f"{row['memory_vectors']} × model")
    if row["regenerated_vectors"]:
        parts.append(f"{row['regenerated_vectors']} regenerated")
    return " + ".join(parts) or "none"


def _wide_cells(row: dict[str, Any]) -> dict[str, str]:
    from fedmf.accounting.rounding import at_least

    cells = {"ε": "", "ρ": "", "advantage": ""}
    if row["epsilon"] is not None:
        cells["ε"] = at_least(row["epsilon"], 5)
        cells["ρ"] = _rho(row)
        cells["advantage"] = _advantage(row)
    cells["MaxSE"] = f"{row['max_se']:.5g}"
    cells["RMSE"] = f"{row['rmse']:.5g}"
    sensitivity = at_least(row["sensitivity"], 5)
    if row["sensitivity_kind"] != "exact":
        sensitivity = f"≤ {sensitivity}"
    cells["sensitivity"] = sensitivity
    cells["noise multiplier"] = ""
    if row["noise_multiplier"] is not None:
        cells["noise multiplier"] = at_least(row["noise_multiplier"], 5)
    return cells


def _budget(row: dict[str, Any], noise: float | None) -> str:
    from fedmf.accounting.rounding import at_least

    if noise is not None:
        return f"noise {noise:g} per clip norm, δ = {at_least(row['delta'])}: ε of each row"
    if row["epsilon"] is not None:
        return f"ε = {at_least(row['epsilon'])}, δ = {at_least(row['delta'])}"
    return "no budget: errors are not multiplied by a noise multiplier"


def _guarantee(row: dict[str, Any]) -> str:
    """Return what the budget means for an attacker, and as zero-concentrated privacy."""
    advantage = f"An attacker's advantage over guessing is at most {_advantage(row)}"
    if row["sampling"] == "none":
        return f"{advantage}; ρ = {_rho(row)} (zCDP)."
    return f"{advantage} (from ε and δ); amplified noise has no ρ."


def _rho(row: dict[str, Any]) -> str:
    """Return ρ of zero-concentrated privacy; a dash for amplified noise, which has none."""
    from fedmf.accounting.gaussian import gaussian_rho
    from fedmf.accounting.rounding import at_least

    if row["sampling"] != "none":
        return "–"
    return at_least(gaussian_rho(row["noise_multiplier"]), 4)


def _advantage(row: dict[str, Any]) -> str:
    """Return the largest advantage of an attacker in percentage points.

    It is 2Φ(μ/2) − 1 for Gaussian noise, and what ε and δ allow for amplified noise.
    """
    from fedmf.accounting.gaussian import gaussian_mu
    from fedmf.statements.advantage import approximate_advantage, gaussian_advantage, in_points

    if row["sampling"] == "none":
        advantage = gaussian_advantage(gaussian_mu(row["noise_multiplier"]))
    else:
        advantage = approximate_advantage(row["epsilon"], row["delta"])
    return f"{in_points(advantage)} points"
