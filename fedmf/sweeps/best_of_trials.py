"""Carrying trials out and releasing the best of them."""

from __future__ import annotations

import json
import math
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedmf.addresses import linked
from fedmf.errors import ConfigError, rebuilding
from fedmf.records import create_directory, write_durably, write_tensors
from fedmf.runs import ReleasedModel, run_of
from fedmf.runs.tables import render_toml
from fedmf.statements import Document, as_json, promise, up
from fedmf.sweeps.one_run import columns_of
from fedmf.sweeps.place import SweepPlace
from fedmf.sweeps.processes import Crew
from fedmf.sweeps.results import MetricColumn, metric_column
from fedmf.sweeps.trial_sweep import TrialSweep
from fedmf.version import SOFTWARE

BEST, DRAWN = "best", "trials.secret.json"
STATEMENT, STATEMENT_TEXT = "statement.json", "statement.txt"
CONFIG, MODEL = "config.toml", "model.safetensors"
_ASSUMPTIONS: Final = (
    "the lists of values, the law of the number of trials and the score were fixed without regard to data",
    "the examples of a score that is not noised are public, or of people who are no users of the runs",
    "every user id belongs to one person who takes part under no other id",
    "noise of each trial follows from a secret key of its own",
    "nothing but this directory leaves: neither the other runs nor how many there were",
)
_NOT_COVERED: Final = (
    "how long it took, and what the machine shows of the number of runs meanwhile",
    "choices made before by looking at the data, and whatever else was released about these users: (epsilon, "
    "delta) of all of it add up",
    "realised participation: epsilon is that of what the contracts allow",
)
_SECRET: Final = "trials.secret.json, runs and finished: the number of trials, ledgers and noise keys"


@dataclass(frozen=True)
class BestOfTrials:
    """What was released.

    Attributes:
        path: directory of the sweep.
        statement: of the release.
        failed: how many trials of this process failed, which the operator alone may know.
    """

    path: Path
    statement: Mapping[str, Any]
    failed: int = 0

    @property
    def released(self) -> Path:
        """What may leave: model, configuration and statement."""
        return self.path / BEST


def carry_out_trials(
    sweep: TrialSweep, path: str | Path, processes: int = 1, threads: int = 1, keep_runs: bool = False
) -> BestOfTrials:
    """Carry out the trials and put the best into ``best/``; everything else is taken away.

    Worker processes import the program's main module anew: a script calls this under
    ``if __name__ == "__main__"``.

    Args:
        sweep: what may be tried.
        path: the directory of the sweep; new, or of this sweep when it was stopped.
        processes: how many runs at once.
        threads: of each.
        keep_runs: whether all runs stay, as secret as their ledgers and noise.

    Raises:
        ConfigError: the place cannot be used, or the score is computed from users' own examples.

    Guarantees:
        However it is stopped, the number of trials and their configurations are drawn once.
    """
    with SweepPlace(Path(path)) as place:
        drawn = _drawn(sweep, place)
        failed = 0
        if not (place.path / BEST).is_dir():
            if drawn is None:
                raise ConfigError(
                    f"directory of the best {place.path / BEST} must be there, for it was released and its "
                    "trials are gone. Restore it; a new sweep elsewhere costs as much again."
                )
            _require_public_score(sweep)
            failed = _carry_out(sweep, place, drawn, processes, threads)
            _release(sweep, place, drawn)
        if not keep_runs:
            write_durably(place.path / DRAWN, _kept(sweep, None), mode=0o600)
            for entry in [*(place.path / "runs").iterdir(), *(place.path / "finished").iterdir()]:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        return BestOfTrials(place.path, _released(place.path / BEST / STATEMENT), failed)


def _released(file: Path) -> dict[str, Any]:
    try:
        with rebuilding(f"statement {file}", ConfigError):
            return dict(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read statement {file}: {error.strerror or error}.") from None


def _carry_out(
    sweep: TrialSweep, place: SweepPlace, drawn: Mapping[str, int], processes: int, threads: int
) -> int:
    """Carry out what is not finished yet; how many failed."""
    failed, waiting = 0, [name for name in drawn if not place.finished(name).is_file()]
    with Crew(processes, threads) as crew:
        while waiting or crew.free < processes:
            while crew.free and waiting:
                name = waiting.pop()
                keys = sweep.candidates[drawn[name]]
                crew.begin(name, (keys, place.run(name), place.finished(name), True))
            failed += sum(error is not None for _, error in crew.finished())
    return failed


def _drawn(sweep: TrialSweep, place: SweepPlace) -> dict[str, int] | None:
    """The candidate of each trial by the trial's name, in a random order: drawn once, and kept until the best
    of them is released; None from then on."""
    file = place.path / DRAWN
    if not file.is_file():
        count, candidates = sweep.trials.number(secrets.randbits(256)), len(sweep.candidates)
        trials = {secrets.token_hex(12): secrets.randbelow(candidates) for _ in range(count)}
        write_durably(file, _kept(sweep, trials), mode=0o600)
    with rebuilding(f"trials {file}", ConfigError):
        kept = json.loads(file.read_text())
        digest, trials = kept["sweep"], None if kept["trials"] is None else dict(kept["trials"])
    if digest != sweep.digest:
        raise ConfigError(
            f"directory of the sweep {place.path} must be new or this sweep's; it holds trials of another."
        )
    return trials


def _kept(sweep: TrialSweep, trials: Mapping[str, int] | None) -> bytes:
    return (json.dumps({"sweep": sweep.digest, "trials": trials}) + "\n").encode()


def _require_public_score(sweep: TrialSweep) -> None:
    """Refuse a score that a trial may not have, or from examples of the users who are protected, unless noise
    was added to it."""
    seen = list[tuple[Any, Any]]()
    for run in map(run_of, sweep.candidates):
        if (run.task_source, run.evaluation) in seen:
            continue
        seen.append((run.task_source, run.evaluation))
        column = sweep.metric
        if not column.endswith("_not_private"):
            columns = columns_of(run, run.task_source.build())
            column = metric_column(column, {"columns": columns}).column
        if column.endswith("_not_private"):
            raise ConfigError(
                "metric (score of the trials) must be private or computed on examples that are no user's; "
                f"got {sweep.metric or 'one'} on those of the users. It tells of them without noise."
            )


def _release(sweep: TrialSweep, place: SweepPlace, drawn: Mapping[str, int]) -> None:
    """Put the best trial into its directory; names are random, so that equal scores are decided by chance."""
    scores: dict[str, tuple[float, str]] = {}
    values: dict[str, tuple[float, MetricColumn]] = {}
    for name in sorted(drawn):
        if (kept := place.kept(name)) is None:
            continue
        column = metric_column(sweep.metric, kept)
        value = column.final(kept["metrics"], sweep.last)
        good = value if column.higher_is_better else -value
        values[name] = value, column
        scores[name] = (good if math.isfinite(good) else -math.inf), name
    best = max(scores, key=scores.__getitem__, default=None)
    if best is None:
        statement = _statement(sweep, None, None)
    else:
        value, column = values[best]
        statement = _statement(sweep, drawn[best], (column.name, value))

    def fill(folder: Path) -> None:
        write_durably(folder / STATEMENT, as_json(statement).encode())
        write_durably(folder / STATEMENT_TEXT, best_document(statement).text().encode())
        if best is not None:
            write_durably(folder / CONFIG, render_toml(run_of(sweep.candidates[drawn[best]])).encode())
            model = ReleasedModel.of(place.run(best))
            about = {"software": model.software, "rounds": str(model.rounds)}
            write_tensors(folder / MODEL, model.tensors, about)

    create_directory(place.path / BEST, "directory of the best", fill)


def _statement(sweep: TrialSweep, chosen: int | None, score: tuple[str, float] | None) -> dict[str, Any]:
    first, privacy = sweep.promises[0], sweep.privacy
    keys = None if chosen is None else sweep.candidates[chosen]
    value = None if score is None or not math.isfinite(score[1]) else score[1]
    return {
        "released": "the best run of a random number of trials, by its score",
        "unit": first.unit,
        "user_namespace": first.user_namespace,
        "adjacency": first.adjacency,
        "epsilon": privacy.epsilon if math.isfinite(privacy.epsilon) else None,
        "delta": privacy.delta,
        "theorem": privacy.theorem,
        "epsilon_of_one_trial": max(promise.epsilon for promise in sweep.promises),
        "mu_of_one_trial": sweep.one_mu,
        "trials": sweep.trials.to_dict(),
        "tuned": {name: list(values) for name, values in sweep.tuned.items()},
        "chosen": None if keys is None else {name: keys[name] for name in sweep.tuned if name in keys},
        "metric": None if score is None else score[0],
        "score": value,
        "assumptions": list(_ASSUMPTIONS),
        "not_covered": list(_NOT_COVERED),
        "secret": [_SECRET],
        "stated_by": SOFTWARE,
    }


def best_document(statement: Mapping[str, Any]) -> Document:
    """The statement of a release in words."""
    s, law = statement, statement["trials"]
    drawn = ", ".join(f"{name} {value:g}" for name, value in law.items() if name != "kind")
    chosen = "nothing: there was no trial" if s["chosen"] is None else _named(s["chosen"])
    lists = "; ".join(f"{name} {values}" for name, values in s["tuned"].items()) or "the base"
    return Document(
        f"The best of a secret number of trials: every {s['unit']} has "
        f"{promise(s['epsilon'], s['delta'], s['adjacency'])}.",
        [
            ("chosen", chosen),
            ("score", "none" if s["score"] is None else f"{s['metric']} {s['score']:.6g}"),
            ("one trial alone", f"epsilon {up(s['epsilon_of_one_trial'])}"),
            ("trials", f"{law['kind']}: {drawn}; their number is secret"),
            ("by", linked(s["theorem"])),
            ("drawn from", lists),
        ],
        [("Assumptions", s["assumptions"]), ("Not covered", s["not_covered"]), ("Secret", s["secret"])],
        f"Stated by {s['stated_by']}.",
        protects=s["epsilon"] is not None,
    )


def _named(chosen: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in chosen.items()) or "the base"
