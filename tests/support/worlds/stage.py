"""Where neighbouring worlds are acted out: the same configuration and paths, one user's raw data swapped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmf.runs import Run, clipped_sums, run_of
from fedmf.training import LocalTrainer
from support.worlds.files import (
    HUB_BEHAVIOURS,
    TABLE_BEHAVIOURS,
    write_contract,
    write_hub,
    write_roster,
    write_table,
)
from support.worlds.hostile import BEHAVIOURS, write_script
from support.worlds.tasks import FUNCTION, TASKS

#: A user of the run by index, and how its data misbehave.
Hostile = tuple[int, str]


@dataclass(frozen=True)
class _Kind:
    """A data set in a folder: which keys it takes, how its data are written, how they can misbehave."""

    keys: Callable[[Path, int], Mapping[str, Any]]
    write: Callable[[Path, int, Hostile | None], None]
    behaviours: tuple[str, ...]


def _function(name: str) -> _Kind:
    def keys(place: Path, users: int) -> Mapping[str, Any]:
        options = {"function": FUNCTION, "users": users, "options": f"{name} {place / 'script.json'}"}
        return {"task.kind": "function", **{f"task.{key}": value for key, value in options.items()}}

    def write(place: Path, users: int, hostile: Hostile | None) -> None:
        write_script(place / "script.json", {} if hostile is None else dict([hostile]))

    return _Kind(keys, write, tuple(BEHAVIOURS))


def _rows(place: Path, file: str) -> dict[str, Any]:
    """What a private run must declare about rows."""
    declared = {"class-names": "0..2", "input-shape": "4", "roster": str(place / "roster.txt")}
    columns = {"partition": "natural", "user-column": "who", "path": str(place / file)}
    return {f"data.{key}": value for key, value in {**declared, **columns}.items()} | {
        "model.hidden-units": "6"
    }


def _table_keys(place: Path, users: int) -> Mapping[str, Any]:
    keys = {"kind": "table", "label-column": "y", "users": users, "feature-columns": "a,b,c,d"}
    return {**_rows(place, "rows.csv"), **{f"data.{key}": value for key, value in keys.items()}} | {
        "data.test-fraction": 2 / (users + 2)
    }


def _write_table(place: Path, users: int, hostile: Hostile | None) -> None:
    write_roster(place / "roster.txt", users + 2)
    write_table(place / "rows.csv", users + 2, hostile)


def _contract_keys(place: Path, users: int) -> Mapping[str, Any]:
    keys = _table_keys(place, users)
    declared = {"data.contract": str(place / "contract.toml"), "data.label-column": "y"}
    said = ("data.class-names", "data.input-shape", "data.feature-columns")
    return {name: value for name, value in keys.items() if name not in said} | declared


def _write_contract(place: Path, users: int, hostile: Hostile | None) -> None:
    _write_table(place, users, hostile)
    write_contract(place / "contract.toml")


def _hub_keys(place: Path, users: int) -> Mapping[str, Any]:
    keys = {"kind": "hub", "label-column": "label", "users": users, "feature-columns": "x"}
    return {**_rows(place, "rows"), **{f"data.{key}": value for key, value in keys.items()}}


def _write_hub(place: Path, users: int, hostile: Hostile | None) -> None:
    write_roster(place / "roster.txt", users)
    write_hub(place / "rows", users, hostile)


#: By name: six data sets, and users whose update does not depend on the model.
STAGES: Final[dict[str, _Kind]] = {
    **{name: _function(name) for name in TASKS},
    "table": _Kind(_table_keys, _write_table, tuple(TABLE_BEHAVIOURS)),
    "contract": _Kind(_contract_keys, _write_contract, tuple(TABLE_BEHAVIOURS)),
    "hub": _Kind(_hub_keys, _write_hub, tuple(HUB_BEHAVIOURS)),
}


@dataclass(frozen=True)
class Stage:
    """A folder with one data set, whose content is that of one world at a time.

    Args:
        place: the folder; it exists.
        data: one of `STAGES`.
        users: N.
        settings: further keys of the run by dotted name.
    """

    place: Path
    data: str
    users: int
    settings: Mapping[str, Any]

    @classmethod
    def small(cls, place: Path, data: str, **settings: Any) -> Self:
        """A run of 8 users in cohorts of 4, 4 rounds, seeded noise, and models that show the noisy sums.

        Two workers have two users of each round each: none is ever alone.
        """
        keys = {
            "cohorts.rounds": 4,
            "cohorts.size": 4,
            "cohorts.min-separation": 2,
            "cohorts.max-participations": 2,
            "privacy.noise-seed": 5,
            "privacy.clip-norm": 1.0,
            "mechanism.kind": "bisr",
            "mechanism.bands": 2,
            "optimizer.kind": "sgd",
            "optimizer.learning-rate": 1.0,
            "optimizer.momentum": 0.0,
            "local.batch-size": 4,
        }
        return cls(place, data, 8, {**keys, **settings})

    @property
    def behaviours(self) -> tuple[str, ...]:
        """How a user of this data set can misbehave."""
        return STAGES[self.data].behaviours

    def run(self) -> Run:
        """The run; the same in all worlds."""
        return run_of({**STAGES[self.data].keys(self.place, self.users), **self.settings})

    def act(self, hostile: Hostile | None) -> None:
        """Write the data of a world: one where the user misbehaves, or one where nobody does."""
        if hostile is not None and self.data in ("table", "contract", "hub"):
            # In files users go by the roster's names; of a table some of them are held out.
            self.act(None)
            name = self.run().task_source.build().dataset.user_ids[hostile[0]]
            hostile = (int(name.removeprefix("u")), hostile[1])
        STAGES[self.data].write(self.place, self.users, hostile)

    def contribution(self, parameters: NDArray[np.float32], user: int, t: int) -> NDArray[np.float64]:
        """The clipped update of a user in the world on stage, trained alone, from θ in round t."""
        run = self.run()
        task = run.task_source.build()
        total = clipped_sums(run, task).empty("cpu")
        name = str(task.dataset.user_ids[user])
        LocalTrainer(task, run.local).add_updates(_tensor(parameters), [name], t, total)
        return total.total().numpy()


def _tensor(parameters: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(parameters)
