"""The copy experiment: a run or stream copied after five rounds and continued twice, in neighbouring worlds.

    python simulations/reliability/forks.py [--dimension D] [--json]

One user of round six has other data in the second copy. With the same noise in both copies (a public seed; so
did every run before decision 0014) the difference of the two models is that user's clipped update. With a
secret key it is the update and independent noise, whose standard deviation the theorem of decision 0014
gives: √2·scale·‖(A·C⁻¹)_{t, T…t}‖ in the sum released after round t of a copy made after T rounds. The energy
of the residual is compared with a chi-square of d degrees of freedom and the cosine with its normal
approximation, each with a false alarm of 1e-6. Exit code 1 if a figure is outside.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import stats
from torch import Tensor, nn

import fedmf
from fedmf.data.memory import InMemoryDataset
from fedmf.flower.client_app import make_client_app
from fedmf.flower.local_run.grid import InProcessGrid
from fedmf.flower.simulation import run_on_grid
from fedmf.records import unguarded
from fedmf.runs import Run, Session, local_trainer, run_of
from fedmf.streaming.session import open_run
from fedmf.streaming.settings import Settings
from fedmf.training import Task, classification

FALSE_ALARM = 1e-6
COPIED, ROUNDS, USERS = 5, 12, 24
MECHANISMS: dict[str, dict[str, Any]] = {
    "bisr": {"mechanism.bands": 4},
    "banded-toeplitz": {"mechanism.bands": 4},
    "blt": {},
    "tree": {},
}


@dataclass(frozen=True)
class Outcome:
    """What two copies show of one user.

    Args:
        what: which run or stream, and after which round.
        cosine_before: of their difference with the user's clipped update, with the same noise in both.
        error_before: largest coordinate of difference less update, over the largest of the update.
        cosine: with a secret key.
        expected: what the theorem gives for it.
        std: of the difference less the update, measured.
        expected_std: by the theorem.
        fits: whether cosine and std are inside their quantiles.
    """

    what: str
    cosine_before: float
    error_before: float
    cosine: float
    expected: float
    std: float
    expected_std: float
    fits: bool


def compared(what: str, update: NDArray, same: NDArray, fresh: NDArray, std: float) -> Outcome:
    """The outcome from the user's share of the release, and the differences with the same and fresh noise."""
    d, rest = update.size, fresh - update
    energy = float(rest @ rest) / std**2
    inside = stats.chi2.ppf(FALSE_ALARM / 4, d) < energy < stats.chi2.isf(FALSE_ALARM / 4, d)
    length = float(np.linalg.norm(update))
    expected, found = length / math.hypot(length, std * math.sqrt(d)), cosine(update, fresh)
    near = abs(found - expected) < stats.norm.isf(FALSE_ALARM / 4) / math.sqrt(d)
    error = float(np.abs(same - update).max() / np.abs(update).max())
    measured = float(np.linalg.norm(rest)) / math.sqrt(d)
    return Outcome(what, cosine(update, same), error, found, expected, measured, std, bool(inside and near))


def cosine(x: NDArray, y: NDArray) -> float:
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def output_as_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    del labels
    return outputs[..., 0]


def task_of(rows: Tensor) -> Task:
    """A task whose updates do not depend on the model: user u's gradient is row u."""
    model = nn.Linear(rows.shape[1], 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    dataset = InMemoryDataset(
        features=rows,
        labels=torch.zeros(len(rows), dtype=torch.int64),
        owned=tuple(np.array([u]) for u in range(len(rows))),
        user_ids=tuple(f"u{u:03d}" for u in range(len(rows))),
        test_features=rows[:2],
        test_labels=torch.zeros(2, dtype=torch.int64),
        classes=1,
    )
    return classification(dataset, model, output_as_loss)


class Stopped(Exception):
    """Enough rounds were released."""


def carry_out(run: Run, path: Path, world: Task, stop: int) -> dict[int, NDArray]:
    """Go on in a world until so many rounds are released; the models after each."""
    models: dict[int, NDArray] = {}
    with fedmf.resume(run, path) if path.exists() else fedmf.start(run, path) as session:
        trainer = local_trainer(run, world)
        client = make_client_app(lambda _: (trainer, session.sums))

        def note(_report: object, _row: object) -> None:
            models[session.server.t] = session.server.parameters.double().numpy().copy()
            if session.server.t == stop:
                raise Stopped

        with contextlib.suppress(Stopped):
            run_on_grid(session, InProcessGrid(client), note)
    return models


def of_runs(name: str, options: dict[str, Any], dimension: int, folder: Path) -> Iterator[Outcome]:
    """The experiment with a run of a mechanism, after the first round of the copies and after the last."""
    rows = torch.randn(USERS, dimension, generator=torch.Generator().manual_seed(0))
    keys: dict[str, Any] = {
        "data.users": USERS,
        "cohorts.rounds": ROUNDS,
        "cohorts.size": 6,
        "mechanism.kind": name,
        "optimizer.momentum": 0.0,
        **options,
    }
    differences: dict[str, dict[int, NDArray]] = {}
    for kind, seed in (("same", {"privacy.noise-seed": 7}), ("fresh", {})):
        one = dataclasses.replace(run_of({**keys, **seed}), task=task_of(rows))
        first = folder / f"{name} {kind} a"
        carry_out(one, first, one.task, COPIED)  # type: ignore[arg-type]
        shutil.copytree(first, folder / f"{name} {kind} b")
        with fedmf.resume(one, first) as session:
            member, scale = int(session.cohort_schedule().cohort(COPIED)[0]), round_scale(session)
            inverse = np.linalg.inv(session.plan.mechanism.factorization.materialize())
        other = rows.clone()
        other[member] = -rows[member]
        a = carry_out(one, first, task_of(rows), ROUNDS)
        b = carry_out(one, folder / f"{name} {kind} b", task_of(other), ROUNDS)
        differences[kind] = {t: a[t] - b[t] for t in a}
    for t in (COPIED + 1, ROUNDS):
        update = rows[member].double().numpy()
        update *= np.linalg.norm(differences["same"][t]) / np.linalg.norm(update)
        update *= np.sign(update @ differences["same"][t])
        std = math.sqrt(2) * scale * float(np.linalg.norm(inverse[:t, COPIED:].sum(axis=0)))
        yield compared(f"{name}, round {t}", update, differences["same"][t], differences["fresh"][t], std)


def round_scale(session: Session) -> float:
    """What a unit of C⁻¹z moves the model by: learning rate·τ/m."""
    rate = float(session.run.to_dict()["optimizer"]["learning_rate"])
    return rate * session.plan.noise_std / session.plan.cohorts.size


def of_stream(name: str, dimension: int, folder: Path) -> Iterator[Outcome]:
    """The experiment with a stream of running means."""
    x = np.random.default_rng(1).normal(size=(ROUNDS, dimension))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    worlds = {"a": x, "b": np.vstack([x[:COPIED], -x[COPIED : COPIED + 1], x[COPIED + 1 :]])}
    for world, values in worlds.items():
        lines = [",".join(f"x{i}" for i in range(dimension))]
        lines += [",".join(map(repr, row)) for row in values.tolist()]
        (folder / f"{world}.csv").write_text("\n".join(lines) + "\n")
        (folder / f"{world} begun.csv").write_text("\n".join(lines[: COPIED + 1]) + "\n")
    differences, inverse, tau = {}, np.eye(ROUNDS), 0.0
    for kind, seed in (("same", 7), ("fresh", None)):
        settings = Settings(1.0, 8.0, 1e-5, rounds=ROUNDS, mechanisms=(name,), second="energy", seed=seed)
        place = folder / f"stream {name} {kind}"
        stream_on(place / "a", settings, folder / "a begun.csv")
        shutil.copytree(place / "a" / "state", place / "b" / "state")
        released = {world: stream_on(place / world, settings, folder / f"{world}.csv") for world in worlds}
        differences[kind] = released["a"][0] - released["b"][0]
        inverse, tau = np.linalg.inv(released["a"][1]), released["a"][2]
    average = np.tril(np.ones((ROUNDS, ROUNDS))) / np.arange(1, ROUNDS + 1)[:, None]
    for t in (COPIED + 1, ROUNDS):
        update = 2 * x[COPIED] / t
        std = math.sqrt(2) * tau * float(np.linalg.norm((average @ inverse)[t - 1, COPIED:]))
        same, fresh = (differences[kind][t - 1] for kind in ("same", "fresh"))
        yield compared(f"stream of {name}, step {t}", update, same, fresh, std)


def stream_on(folder: Path, settings: Settings, source: Path) -> tuple[NDArray, NDArray, float]:
    """Feed a file; the first moments released so far, C₁ and its noise level."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_run(folder / "state", settings, source, folder / "out.jsonl") as (run, reader):
        run.feed(reader)
        numbers = run.state.releases(0, run.position.records).numbers
        released = numbers[:, : reader.layout.dimension].copy()
        mechanism = run.plan.mechanism
        return released, mechanism.first.materialize(), mechanism.first_std


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dimension", type=int, default=4000, help="d, coordinates of the model")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder, unguarded():  # copied on purpose
        for name, options in MECHANISMS.items():
            outcomes += of_runs(name, options, asked.dimension, Path(folder))
        for name in ("banded-inverse", "tree"):
            outcomes += of_stream(name, asked.dimension, Path(folder))
    if asked.json:
        print(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes], indent=2))
    else:
        heads = "copies", "same noise: cosine", "error", "fresh: cosine", "theory", "std", "theory", "fits"
        table = Table(*heads)
        for o in outcomes:
            figures = (o.cosine, o.expected, o.std, o.expected_std)
            table.add_row(
                o.what,
                f"{o.cosine_before:.6f}",
                f"{o.error_before:.1e}",
                *(f"{figure:.4g}" for figure in figures),
                "yes" if o.fits else "NO",
            )
        Console(width=140).print(table)
    return 0 if all(outcome.fits for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
