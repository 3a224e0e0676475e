"""A statistic of users' updates that a user of fedmf defines: one function, one bound."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from fedmf.functions import check_function_name
from fedmf.runs.statistics.statistic import Statistic
from fedmf.values import Field

if TYPE_CHECKING:
    from fedmf.training import RowStatistic

_OF: Final = "the custom statistic"
_COLUMN: Final = "statistic_"
_MOST_ENTRIES: Final = 64


@dataclass(frozen=True)
class CustomStatistic(Statistic):
    """Releases the noisy mean of a function of the users' clipped updates in every round.

    The function maps one user's clipped update, a tensor of shape (d,), to q numbers. fedmf clips
    them to L2 norm c, sums them, and adds noise that is correlated in the same way as for the
    sums; ε of the run holds for every pure function, with a result that depends on its argument alone
    (docs/statements.md#extra-statistics). A function that is seen to remember earlier users is rejected
    before the run. If the function fails for a user, that user adds zeros.

    Raises:
        ValueError: a value out of its range.

    References:
        docs/theory/accounting.md proves it for the pair of update and row.
    """

    kind: ClassVar[str] = "mean"
    name: ClassVar[str] = "statistic"

    function: Annotated[str, Field("package.module:function of a user's clipped update")] = ""
    entries: Annotated[tuple[str, ...], Field("names of the returned values, at most 64")] = ("value",)
    bound: Annotated[float, Field("L2 norm to which the values of a user are clipped", "c", gt=0)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_function_name(_OF, self.function)
        names = [name for name in self.entries if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name)]
        if not 0 < len(set(names)) == len(self.entries) <= _MOST_ENTRIES:
            raise ValueError(
                f"entries (of {_OF}) must be 1 to {_MOST_ENTRIES} different names of small letters, digits "
                f"and _; got {self.entries!r}."
            )

    def require_runnable(self, dimension: int) -> None:
        """Call the function with public vectors.

        Raises:
            ConfigError: it cannot be found, does not give the numbers that it names, or is seen to remember.
        """
        from fedmf.runs.statistics.custom_rows import tried  # readers of records load no framework

        tried(self.function, len(self.entries), dimension)

    def summed(self) -> RowStatistic:
        """See `Statistic.summed`."""
        from fedmf.runs.statistics.custom_rows import CustomRows

        return CustomRows(self.name, len(self.entries), self.bound, self.function)

    def begin(self, clip_norm: float) -> dict[str, Any]:
        """See `Statistic.begin`."""
        del clip_norm
        return {"means": [0.0] * len(self.entries)}

    def after(self, t: int, mean: Sequence[float], state: Mapping[str, Any]) -> dict[str, Any]:
        """See `Statistic.after`."""
        del t, state
        return {"means": list(mean)}

    def metrics(self, state: Mapping[str, Any]) -> dict[str, float]:
        """See `Statistic.metrics`."""
        return dict(zip(self.columns, state["means"], strict=True))

    @property
    def columns(self) -> tuple[str, ...]:
        """The noisy means, by their names."""
        return tuple(_COLUMN + name for name in self.entries)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """See `Statistic.assumptions`."""
        return (
            f"the function of the custom statistic, {self.function}, is pure: its result for one user "
            "depends only on that user's clipped update. Each user's result was clipped to norm "
            f"{self.bound:g}",
        )

    @property
    def description(self) -> str:
        """See `Statistic.description`."""
        return (
            f"mean of {', '.join(self.entries)} in every round ({self.function}), one user's part clipped to "
            f"norm {self.bound:g}, for {100 * self.share:g} % of mu^2; fedmf does not check their meaning"
        )
