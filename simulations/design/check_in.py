"""Devices as they come: forecast and realised (k, b), ε planned and realised, the price of a wrong forecast.

    python simulations/design/check_in.py [--devices 100000] [--days 30] [--size 1000] [--json]

Devices in five time zones check in by night. A fortnight of check-ins is the trace; the run follows, on an
hourly timetable, with the same devices in three futures: as before, fewer of them, more of them. A plan fixes
(k, b) and q from the trace before the run, the server enforces them, and C is the banded Toeplitz optimum for
it. "Too much" takes a timer half as long again as the longest that the trace can bear, "too little" one of a
day.

The second table is about C alone: timers turn out anywhere between the shortest and the longest of the
forecast, and the noise is calibrated to the realised pattern of the worst user.
Writes docs/results/check-in.png and .md unless --output names another path (without suffix).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pictures import RESULTS

from fedmf.accounting import RealisedPrivacy, SumRelease, certified_sigma, realised_privacy
from fedmf.accounting.patterns import PatternTable
from fedmf.cohorts import CheckIns, DeviceRule, DiurnalModel, Forecast, Participations, forecast
from fedmf.factorization import Factorization, Scenarios, robust_toeplitz, stated_sensitivity
from fedmf.factorization.mechanisms import banded_toeplitz
from fedmf.factorization.objectives.error import errors
from fedmf.participation import Participation
from fedmf.workload.toeplitz import prefix

HOURS = 24
ZONES = (0, 1, 1, 8, 16, 19, 19)
TRACE_DAYS = 14
EPSILON, DELTA = 8.0, 1e-6
#: Share of nights, and share of time away, from the end of the trace on.
FUTURES = {
    "as in the trace": {"presence": 0.8, "away": 0.1},
    "fewer come": {"presence": 0.65, "away": 0.3},
    "more come": {"presence": 0.95, "away": 0.05},
}
Row = dict[str, object]


@dataclass(frozen=True)
class Plan:
    """What is fixed before the run: contract, q and C."""

    name: str
    contract: Participation
    probability: float
    C: Factorization

    @property
    def noise(self) -> float:
        """Standard deviation of z per unit clip norm."""
        return certified_sigma(EPSILON, DELTA) * stated_sensitivity(self.C, self.contract).value

    def error(self, arrivals: float, size: int) -> float:
        """RMSE of prefix sums of the mean update of those who came, in units of ζ/m."""
        shape = errors(self.C, prefix(self.C.rounds), stated_sensitivity(self.C, self.contract)).rmse
        return shape * certified_sigma(EPSILON, DELTA) * size / arrivals


def devices(count: int, days: int, seed: int, **life: float) -> CheckIns:
    """Check-ins of days that follow each other; the same seed has the same devices."""
    return DiurnalModel(count, days * HOURS, HOURS, ZONES, seed=seed, **life).check_ins()


def after(check_ins: CheckIns, rounds: int) -> CheckIns:
    """The rest, from that round on."""
    first = check_ins.starts[rounds]
    return CheckIns(check_ins.users, check_ins.starts[rounds:] - first, check_ins.members[first:])


def plans(trace: CheckIns, rounds: int, size: int) -> tuple[Forecast, list[Plan]]:
    """Too much, forecast, forecast with a C for a range of timers, too little."""
    found = forecast(trace, rounds, size)
    timers = {
        "too much": 3 * found.longest // 2,
        "forecast": found.contract.min_separation,
        "too little": HOURS,
    }
    made = []
    for name, b in timers.items():
        planned = found if name == "forecast" else forecast(trace, rounds, size, min_separation=b)
        made.append(Plan(name, planned.contract, planned.probability, banded_toeplitz(b, planned.contract)))
    C = robust_toeplitz(found.longest, Scenarios.between(rounds, found.shortest, found.longest))
    made.insert(2, Plan("forecast, robust C", found.contract, found.probability, C))
    return found, made


def spent(plan: Plan, came: Participations) -> RealisedPrivacy:
    """ε of every user after the run."""
    rounds, users = came.by_user()
    table = PatternTable.of_histories(rounds.astype(np.int32), users.astype(np.int32))
    release = SumRelease(plan.C)
    return realised_privacy(table, release, plan.noise, DELTA, plan.contract.rounds, users=came.users)


def carried_out(plan: Plan, future: str, check_ins: CheckIns, size: int) -> Row:
    """One run."""
    came = DeviceRule(plan.contract, plan.probability, seed=5).participations(check_ins)
    realised, arrivals = spent(plan, came), float(came.sizes.mean())
    return {
        "future": future,
        "plan": plan.name,
        "k": plan.contract.max_participations,
        "b": plan.contract.min_separation,
        "q": plan.probability,
        "users_a_round": arrivals,
        "fewest": int(came.sizes.min()),
        "realised_k": came.max_participations,
        "realised_b": came.min_separation,
        "epsilon_planned": EPSILON,
        "epsilon_worst": realised.epsilon,
        "epsilon_median": realised.quantiles[0.5],
        "rmse": plan.error(arrivals, size),
    }


def not_enforced(assumed: Plan, kept: Plan, check_ins: CheckIns) -> Row:
    """Noise for one plan, devices that keep the timers of another, and a server that takes all of them."""
    came = DeviceRule(kept.contract, kept.probability, seed=5).participations(check_ins)
    return {
        "assumed_b": assumed.contract.min_separation,
        "realised_k": came.max_participations,
        "realised_b": came.min_separation,
        "epsilon_claimed": EPSILON,
        "epsilon_worst": spent(assumed, came).epsilon,
    }


def matrices(found: Forecast, robust: Factorization) -> dict[str, Factorization]:
    """C for the longest timer, for the shortest, for the planned, and for all of them."""
    timers = {
        "longest (too much)": found.longest,
        "shortest (too little)": found.shortest,
        "forecast": found.contract.min_separation,
    }
    n = found.contract.rounds
    single = {name: banded_toeplitz(b, Participation.as_many_as_fit(n, b)) for name, b in timers.items()}
    return {**single, "robust": robust}


def by_timer(found: Forecast, robust: Factorization, check_ins: CheckIns, count: int) -> list[Row]:
    """RMSE of each C at ε of the worst user that came, for timers from the shortest to the longest."""
    designs, rows, rounds = matrices(found, robust), [], found.contract.rounds
    for b in np.unique(np.linspace(found.shortest, found.longest, count).round().astype(int)).tolist():
        contract = Participation.as_many_as_fit(rounds, b)
        rounds_of, users = DeviceRule(contract, 1.0).participations(check_ins).by_user()
        table = PatternTable.of_histories(rounds_of.astype(np.int32), users.astype(np.int32))
        designs["made for b"] = banded_toeplitz(b, contract)
        row: Row = {"b": b}
        for name, C in designs.items():
            worst = realised_privacy(table, SumRelease(C), 1.0, DELTA, rounds).sensitivity
            planned = stated_sensitivity(C, contract)
            shape = errors(C, prefix(rounds), planned).rmse / planned.value
            row[name] = shape * worst * certified_sigma(EPSILON, DELTA)
        rows.append(row)
    return rows


def page(found: Forecast, runs: list[Row], broken: Row, timers: list[Row], setting: str, size: int) -> str:
    """Everything in Markdown."""
    contract = found.contract
    lines = [
        f"# Devices as they come: {setting}",
        "",
        f"A fortnight's trace, {size} users wanted in a round, ε = {EPSILON:.0f} planned, δ = 10⁻⁶.",
        f"Forecast: b = {contract.min_separation} (between {found.shortest} and {found.longest}), k = "
        f"{contract.max_participations}, q = {found.probability:.3f}. The server enforces (k, b).",
        "RMSE: of the noise in prefix sums of the mean update of those who came, in units of ζ/m.",
        "",
        "| what came | plan | (k, b) enforced | q | users a round (fewest) | (k, b) realised | ε worst "
        "| ε median | RMSE |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['future']} | {row['plan']} | ({row['k']}, {row['b']}) | {row['q']:.3f} "
        f"| {row['users_a_round']:.0f} ({row['fewest']}) | ({row['realised_k']}, {row['realised_b']}) "
        f"| {row['epsilon_worst']:.2f} | {row['epsilon_median']:.2f} | {row['rmse']:.2f} |"
        for row in runs
    ]
    names = [name for name in timers[0] if name != "b"]
    lines += [
        "",
        f"Without enforcement: noise for b = {broken['assumed_b']} and devices that keep the timers of the",
        f"forecast realise (k, b) = ({broken['realised_k']}, {broken['realised_b']}) and "
        f"ε = {broken['epsilon_worst']:.2f} where {EPSILON:.0f} was claimed.",
        "",
        "## One C for timers that are not known yet",
        "",
        f"RMSE at ε = {EPSILON:.0f} of the worst user that really came (noise calibrated to the realised",
        "pattern), check-ins as in the trace, by the timer that turned out; last the mean ratio to a C",
        "that is made for that timer. Timers of different length give one pattern where both end by day.",
        "",
        "| b | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    lines += [f"| {row['b']} | " + " | ".join(f"{row[name]:.3f}" for name in names) + " |" for row in timers]
    means = [np.mean([row[name] / row["made for b"] for row in timers]) for name in names]  # type: ignore[operator]
    lines += ["| mean ratio | " + " | ".join(f"{mean:.4f}" for mean in means) + " |"]
    lines += ["", "![arrivals by hour, and RMSE by plan](check-in.png)"]
    return "\n".join(lines) + "\n"


def draw(path: Path, sizes: dict[str, np.ndarray], timers: list[Row], size: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9), layout="constrained")
    for name, values in sizes.items():
        left.plot(np.arange(values.size) / HOURS, values, linewidth=0.9, label=name)
    left.axhline(size, color="grey", linestyle=":", label="wanted")
    left.set(xlabel="day", ylabel="users in the round", title="forecast plan", xlim=(0, 14))
    left.set_ylim(0, 1.35 * max(values.max() for values in sizes.values()))  # room for the legend
    for name in timers[0]:
        if name not in ("b", "made for b"):
            ratio = [row[name] / row["made for b"] for row in timers]  # type: ignore[operator]
            right.plot([row["b"] for row in timers], ratio, marker=".", label=name)
    right.set(
        xlabel="timer b that turned out", ylabel="RMSE over that of C made for b", title="one C for all"
    )
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("devices", 100_000), ("days", 30), ("size", 1000), ("timers", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--output", type=Path, default=RESULTS / "check-in")
    parser.add_argument("--json", action="store_true", help="print the runs as JSON, one object per line")
    args = parser.parse_args()
    rounds = args.days * HOURS
    trace = devices(args.devices, TRACE_DAYS, 1, **FUTURES["as in the trace"])
    found, made = plans(trace, rounds, args.size)
    runs, sizes, timers, broken = [], {}, [], {}
    for future, life in FUTURES.items():
        whole = devices(args.devices, TRACE_DAYS + args.days, 1, **life)
        coming = after(whole, TRACE_DAYS * HOURS)
        runs += [carried_out(plan, future, coming, args.size) for plan in made]
        sizes[future] = DeviceRule(made[1].contract, made[1].probability, seed=5).participations(coming).sizes
        if not timers:
            timers = by_timer(found, made[2].C, coming, args.timers)
            broken = not_enforced(made[0], made[1], coming)
    setting = f"{args.devices} devices, {args.days} days of 24 rounds"
    text = page(found, runs, broken, timers, setting, args.size)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.with_suffix(".md").write_text(text, encoding="utf-8")
    draw(args.output.with_suffix(".png"), sizes, timers, args.size)
    print("\n".join(map(json.dumps, [*runs, *timers])) if args.json else text, end="\n")


if __name__ == "__main__":
    main()
