"""The run header: everything that accounts for a run and continues it, stored once in the ledger."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from fedmf.accounting import PRIVACY
from fedmf.cohorts import COHORTS, CyclicCohorts
from fedmf.errors import rebuilding
from fedmf.runs.plan import Plan
from fedmf.runs.statistics import Statistic, statistics_from
from fedmf.values import value_of
from fedmf.version import SOFTWARE

if TYPE_CHECKING:
    from fedmf.data import PublicInput
    from fedmf.noise import NoiseKey
    from fedmf.runs.run import Run

#: Raised when a field changes its meaning.
_FORMAT: Final = 1


@dataclass(frozen=True, eq=False)
class RunHeader:
    """The description of a run that its ledger keeps; enough to account for it, and to rebuild it, from disk.

    Args:
        run: what `fedmf.Run.to_dict` wrote: each value's own kind and fields.
        plan: the calibrated mechanism; its privacy and cohorts are those of the run.
        arrays: name and shape of each tensor of the model in the order of its flat vector.
        key_fingerprint: short public id of the noise key; None for a run without privacy.
        key_public: whether the noise follows from a published seed.
        clipped_by: "server" (it clips every user's update again) or "workers" (they clip and sum).
        not_private: what the run shows that was computed from users' examples without noise.
        public_inputs: what about the data is taken as public: dicts of the strings name, value, source.
        software: name and version of what the run was started with.

    Raises:
        ValueError: a field out of its range.

    >>> RunHeader.from_dict({"format": 1, "users": 10})
    Traceback (most recent call last):
        ...
    ValueError: header (run description) must have the fields of this version; differing: arrays, ...
    """

    run: Mapping[str, Any]
    plan: Plan
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    key_fingerprint: str | None
    key_public: bool
    clipped_by: Literal["server", "workers"]
    not_private: tuple[str, ...] = ()
    public_inputs: tuple[Mapping[str, str], ...] = ()
    software: str = SOFTWARE

    def __post_init__(self) -> None:
        if self.clipped_by not in ("server", "workers"):
            raise ValueError(f"clipped_by must be 'server' or 'workers'; got {self.clipped_by!r}.")
        for entry in self.public_inputs:
            if entry.keys() != {"name", "value", "source"} or not all(map(_is_text, entry.values())):
                raise ValueError(
                    f"public_inputs must hold strings under name, value and source; got {dict(entry)!r}."
                )

    @classmethod
    def of(
        cls,
        run: Run,
        plan: Plan,
        key: NoiseKey,
        arrays: tuple[tuple[str, tuple[int, ...]], ...],
        test_owner: str = "nobody",
        constants: Sequence[PublicInput] = (),
    ) -> Self:
        """What the ledger must remember to account for a run and to continue it exactly.

        Args:
            run: as it was asked for.
            plan: made for it.
            key: of its noise.
            arrays: name and shape of each tensor of the model, in the order of its flat vector.
            test_owner: the owner of the examples of the central test part, as `Dataset.test_owner`.
            constants: what else the model holds (`Task.constant_inputs`).
        """
        return cls(
            run=run.to_dict(),
            plan=plan,
            arrays=arrays,
            key_fingerprint=key.fingerprint if run.is_private else None,
            key_public=key.public,
            clipped_by="server" if run.execution.messages == "per-user" else "workers",
            not_private=("central test part",) if test_owner == "training users" else (),
            public_inputs=tuple(map(dataclasses.asdict, (*run.task_source.public_inputs(), *constants))),
        )

    @property
    def dimension(self) -> int:
        """d, the number of model parameters that receive noise."""
        return sum(math.prod(shape) for _, shape in self.arrays)

    @property
    def shares_workers(self) -> bool:
        """Whether a process trains several users, so that its end would take all of them out of the sum."""
        execution = self.run.get("execution", {})
        return self.clipped_by == "workers" or execution.get("users_per_message") != 1

    @property
    def shares_time(self) -> bool:
        """Whether a reply that is waited for so long and no longer is that of several users."""
        execution = self.run.get("execution", {})
        return self.clipped_by == "server" and execution.get("users_per_message") != 1

    @property
    def groups_inexactly(self) -> bool:
        """Whether the rounding of one user's update may depend on who is computed with it."""
        return self.run.get("execution", {}).get("worker_gpus", 1) != 0

    @property
    def sampling(self) -> str:
        """The words of a privacy statement about sampling: first the claim, then how cohorts are drawn."""
        cohorts = self.plan.cohorts
        if self.plan.amplification is not None:
            accountant = self.plan.amplification.accountant
            return f"{accountant}: amplification by {cohorts.kind} cohorts, which must stay secret"
        drawn = "fixed schedule" if isinstance(cohorts, CyclicCohorts) else f"{cohorts.kind} cohorts"
        return f"none: {drawn}, no amplification claimed"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict; floats survive JSON bit for bit."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        changed = {
            "run": dict(self.run),
            "plan": self.plan.to_dict(),
            "not_private": list(self.not_private),
            "public_inputs": [dict(entry) for entry in self.public_inputs],
        }
        return {"format": _FORMAT, **fields, **changed}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: another format, or a field is missing, unknown or out of its range.
        """
        if values.get("format") != _FORMAT:
            raise ValueError(
                f"header (run description) must have format {_FORMAT}; got {values.get('format')!r:.40}. "
                "Use the fedmf version that wrote it."
            )
        given = {name: value for name, value in values.items() if name != "format"}
        known = {field.name for field in dataclasses.fields(cls)}
        if differing := ", ".join(sorted(known ^ given.keys())):
            raise ValueError(
                f"header (run description) must have the fields of this version; differing: {differing}."
            )
        with rebuilding("header (run description)"):
            privacy = value_of(PRIVACY, given["run"].get("privacy", {}))
            cohorts = value_of(COHORTS, given["run"].get("cohorts", {}))
            found = statistics_from(given["run"]).values()
            statistics = tuple(value for value in found if isinstance(value, Statistic))
            plan = Plan.from_dict(privacy, cohorts, statistics, given["plan"])
            tuples = {name: tuple(given[name]) for name in ("not_private", "public_inputs")}
            tuples["arrays"] = tuple((str(name), tuple(map(int, shape))) for name, shape in given["arrays"])
            return cls(**{**given, **tuples, "plan": plan})


def _is_text(value: object) -> bool:
    return isinstance(value, str)
