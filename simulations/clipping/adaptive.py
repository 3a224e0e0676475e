"""Clip norms that follow a quantile: noise for given norms, digits, code tokens, noise of released models.

    python simulations/clipping/adaptive.py [--sweeps DIR] [--processes 1] [--out docs/results]

Carries out configs/sweeps/adaptive-clipping-*.toml below DIR, or reads what is finished there, measures the
noise of single runs from the models that they release, and computes the noise of the model for given norms.
Writes adaptive-clipping.md and adaptive-clipping.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

import fedmf
from fedmf.factorization.mechanisms import banded_toeplitz
from fedmf.participation import Participation
from fedmf.parts import QuantileClipping
from fedmf.rounds import run_in_process
from fedmf.runs import Run
from fedmf.sweeps import load_sweep

Curve = NDArray[np.float64]
ROOT: Final = Path(__file__).resolve().parents[2]
SWEEPS: Final = {
    name: ROOT / "configs" / "sweeps" / f"adaptive-clipping-{name}.toml"
    for name in ("epsilon-2", "epsilon-8", "tokens-epsilon-2", "tokens-epsilon-8")
}
CONTRACT: Final = Participation(240, 24, 10)


def paths(rng: np.random.Generator) -> dict[str, Curve]:
    """ζ_t/ζ* of 240 rounds: towards ζ* from 4 times as much or a quarter, as rules with γ = ½ move."""
    t = np.arange(CONTRACT.rounds)
    found = {
        "constant": np.ones(t.size),
        "from 4ζ*, 10 % a round": np.maximum(1, 4 * np.exp(-0.1 * t)),
        "from ζ*/4, 10 % a round": np.minimum(1, 0.25 * np.exp(0.1 * t)),
        "from 4ζ*, 2 % a round": np.maximum(1, 4 * np.exp(-0.02 * t)),
        "falls all the time, by 4 in all": 4 ** (1 - t / (t.size - 1)),
    }
    for size in (36, 1000):
        for rounds, rate in ((1, 0.2), (5, 0.5), (10, 1.0)):
            rule = QuantileClipping(rounds_per_update=rounds, learning_rate=rate)
            found[f"at ζ*, ε = 8, m = {size}, B = {rounds}, η = {rate:g}"] = followed(rule, size, rng)
    return found


def followed(rule: QuantileClipping, size: int, rng: np.random.Generator) -> Curve:
    """ζ_t where half of the users are within 1 and 4 % more for 10 % more of it, as the rule moves it."""
    C = banded_toeplitz(10, CONTRACT).materialize()
    std = 0.6 * np.sqrt(CONTRACT.max_participations) * np.linalg.norm(C[:, 0]) * rule.sign_factor
    noise = np.linalg.solve(C, rng.standard_normal(CONTRACT.rounds)) * std / (2 * size)
    log, block, norms = 0.0, list[float](), []
    for t, error in enumerate(noise.tolist()):
        norms.append(np.exp(log))
        block.append(float(np.clip(0.5 + 0.4 * log, 0, 1)) + error)
        if (t + 1) % rule.rounds_per_update == 0:
            log -= rule.learning_rate * (float(np.mean(block)) - rule.quantile)
            block = []
    return np.array(norms)


def knowing(norms: Curve, bands: int = 10) -> Curve:
    """The banded C with columns of norm 1 that is best for prefix sums of ζ_t·[C⁻¹z]_t."""
    n = norms.size
    workload = torch.from_numpy(np.tril(np.ones((n, n))) * norms)
    free = torch.zeros(bands, n, dtype=torch.float64)
    free[0], free[1:] = 1.0, 0.5 / torch.arange(1, bands, dtype=torch.float64)[:, None]
    free.requires_grad_()

    def strategy() -> torch.Tensor:
        C = sum(torch.diag(free[lag, : n - lag], -lag) for lag in range(bands))
        assert isinstance(C, torch.Tensor)
        return C / torch.linalg.vector_norm(C, dim=0)

    optimizer = torch.optim.LBFGS([free], max_iter=150, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.linalg.solve_triangular(strategy().T, workload.T, upper=True).square().sum().log()
        value.backward()
        return value

    optimizer.step(loss)
    return strategy().detach().numpy()


def stamped(C: Curve, rounds: int) -> Curve:
    """The same C begun anew after every so many rounds."""
    n = len(C)
    anew = np.zeros_like(C)
    for start in range(0, n, rounds):
        stop = min(n, start + rounds)
        anew[start:stop, start:stop] = C[-rounds:, -rounds:][: stop - start, : stop - start]
    return anew / np.linalg.norm(anew, axis=0)


def error(C: Curve, norms: Curve) -> float:
    """RMS over rounds of the noise of prefix sums; C has columns of norm 1 and at most b bands."""
    return float(np.linalg.norm(np.cumsum(norms[:, None] * np.linalg.inv(C), axis=0)) / np.sqrt(len(C)))


def moving() -> list[dict[str, Any]]:
    """Noise on paths of the norm, relative to a constant norm with the C made for it."""
    made = banded_toeplitz(10, CONTRACT).materialize()
    made /= np.linalg.norm(made[:, 0])  # of all columns but the last nine, which are shorter
    base = error(made, np.ones(CONTRACT.rounds))
    rows = []
    for name, norms in paths(np.random.default_rng(0)).items():
        ideal = knowing(norms)
        rows.append(
            {
                "path": name,
                "root mean square of ζ/ζ*": float(np.sqrt((norms**2).mean())),
                "same C": error(made, norms) / base,
                "C that knows the path": error(ideal, norms) / base,
                "begun anew each 10 rounds": error(stamped(ideal, 10), norms) / base,
                "begun anew each 40 rounds": error(stamped(ideal, 40), norms) / base,
                "independent noise": error(np.eye(len(norms)), norms) / base,
            }
        )
    return rows


def released_noise(run: Run) -> dict[str, float]:
    """Noise of a run under a public seed, from the models it releases, less the sums that it clipped."""
    privacy = dataclasses.replace(run.privacy, noise_seed=0)
    run = dataclasses.replace(run, privacy=privacy)
    models, norms, sums = list[Curve](), list[float](), list[Curve]()
    with tempfile.TemporaryDirectory() as folder, fedmf.start(run, Path(folder) / "run") as session:
        server, release = session.server, session.server.release

        def kept(total: Any, users: Any) -> Any:
            norms.append(server.clip_norm)
            sums.append(total.total().numpy())
            models.append(server.parameters.double().numpy())
            return release(total, users)

        server.release = kept  # type: ignore[method-assign]
        run_in_process(session)
        models.append(server.parameters.double().numpy())
        plan = session.plan
    optimizer = run.optimizer_source.to_dict()
    velocity = np.diff(np.stack(models), axis=0) / optimizer["learning_rate"]
    steps = velocity.copy()
    steps[1:] -= optimizer["momentum"] * velocity[:-1]
    zeta = np.array(norms)
    unit = np.array([plan.unit(norm) for norm in norms])
    noise = (steps * plan.cohorts.size * unit[:, None] - np.stack(sums)) / unit[:, None]
    inverse = np.linalg.inv(plan.mechanism.factorization.materialize())
    level = plan.noise_std_at(1.0) * zeta / unit
    stated = level * np.linalg.norm(inverse, axis=1)
    d = noise.shape[1]
    by_round = np.linalg.norm(noise, axis=1) / np.sqrt(d) / stated
    sums_of_noise = np.linalg.norm(np.cumsum(noise, axis=0), axis=1) / np.sqrt(d)
    predicted = np.linalg.norm(np.cumsum(level[:, None] * inverse, axis=0), axis=1)
    alone = np.sqrt(np.cumsum(stated**2))
    return {
        "first norm": norms[0],
        "smallest norm": min(norms),
        "largest norm": max(norms),
        "last norm": norms[-1],
        "noise of a round / stated": float(np.sqrt((by_round**2).mean())),
        "lowest round": float(by_round.min()),
        "highest round": float(by_round.max()),
        "noise of the sum of all rounds / stated": float(sums_of_noise[-1] / predicted[-1]),
        "the same if rounds did not cancel": float(alone[-1] / predicted[-1]),
    }


def measured() -> list[dict[str, Any]]:
    """`released_noise` of one run of each cell on digits."""
    rows = []
    for name in ("epsilon-2", "epsilon-8"):
        sweep = load_sweep(SWEEPS[name])
        rows += [
            {
                "setting": name,
                "variant": cell.variant,
                "clip norm": dict(cell.point)["privacy.clip-norm"],
                **released_noise(sweep.run(cell, {}, 0)),
            }
            for cell in sweep.cells
        ]
    return rows


def compared(folder: Path, share: bool) -> list[str]:
    """Lines of a table: clip norms down, variants across, mean (lowest–highest) over seeds."""
    results = json.loads((folder / "results.json").read_text())
    cells: dict[float, dict[str, str]] = {}
    for cell in results["cells"]:
        values = np.array(list(cell["values"].values()))
        text = (
            f"{100 * values.mean():.1f} ({100 * values.min():.1f}–{100 * values.max():.1f})"
            if share
            else f"{values.mean():.3g} ({values.min():.3g}–{values.max():.3g})"
        )
        cells.setdefault(float(cell["point"]["privacy.clip-norm"]), {})[cell["variant"]] = text
    names = list(next(iter(cells.values())))
    rows = [[f"{norm:g}", *(row[name] for name in names)] for norm, row in cells.items()]
    return lines_of(["ζ_0", *names], rows)


def lines_of(head: list[str], rows: list[list[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def noise_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The table of measured noise."""
    head = ["ε", "rule", "ζ_0", "ζ over the run", "a round / stated (lowest–highest)"]
    head += ["sum of rounds / stated", "without cancelling"]
    return lines_of(
        head,
        [
            [
                row["setting"].removeprefix("epsilon-"),
                row["variant"],
                f"{row['clip norm']:g}",
                f"{row['smallest norm']:.3g}–{row['largest norm']:.3g}, at last {row['last norm']:.3g}",
                f"{row['noise of a round / stated']:.3f} "
                f"({row['lowest round']:.3f}–{row['highest round']:.3f})",
                f"{row['noise of the sum of all rounds / stated']:.3f}",
                f"{row['the same if rounds did not cancel']:.2f}",
            ]
            for row in rows
        ],
    )


def path_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The table of noise on given paths."""
    names = [name for name in rows[0] if name != "path"]
    return lines_of(["ζ_t", *names], [[row["path"], *(f"{row[name]:.2f}" for name in names)] for row in rows])


def main() -> None:
    """Carry out, measure, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweeps", type=Path, default=Path("sweeps"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    folders = {name: options.sweeps / f"adaptive-clipping-{name}" for name in SWEEPS}
    for name, file in SWEEPS.items():
        fedmf.carry_out(load_sweep(file), folders[name], options.processes)
    found = {"paths": moving(), "released": measured()}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "adaptive-clipping.json").write_text(json.dumps(found, indent=1) + "\n")
    page = Path(__file__).with_name("page.md").read_text()
    parts = {name: compared(folder, share="tokens" not in name) for name, folder in folders.items()}
    parts |= {"paths": path_lines(found["paths"]), "released": noise_lines(found["released"])}
    for name, lines in parts.items():
        page = page.replace(f"[{name}]", "\n".join(lines))
    (options.out / "adaptive-clipping.md").write_text(page)


if __name__ == "__main__":
    main()
