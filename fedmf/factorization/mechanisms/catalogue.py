"""Mechanisms by name, with the parameters that were not given optimised for the request."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from fedmf.factorization.matrices import Factorization
from fedmf.factorization.mechanisms.families import FAMILIES
from fedmf.factorization.mechanisms.family import Form, check_rounds
from fedmf.factorization.mechanisms.parameter import DesignRequest, Parameter
from fedmf.factorization.objectives import RMSE, Objective
from fedmf.participation import Participation
from fedmf.workload import ToeplitzWorkload, prefix

_FORMS = {
    form.name: form
    for form in (
        *(family.plain for family in FAMILIES.values()),
        *(family.normalized for family in FAMILIES.values()),
    )
}
#: What others call them.
_ALSO = {other: family.name for family in FAMILIES.values() for other in family.also}


@dataclass(frozen=True, eq=False)
class Mechanism:
    """A named factorization with the parameters it was built from.

    Args:
        name: as on the command line.
        params: by ASCII name (`parameters`), the optimised ones included; `build` with these parameters gives
            the same factorization again.
        factorization: C.
    """

    name: str
    params: dict[str, float | int]
    factorization: Factorization


def names() -> list[str]:
    """All mechanism names, the column-normalised forms last.

    >>> names()[:3], names()[-1].startswith("normalized-")
    (['identity', 'square-root', 'bsr'], True)
    """
    return list(_FORMS)


def names_to_compare(rounds: int) -> list[str]:
    """The names that a comparison without names includes at this horizon: those that take seconds there.

    >>> "dense" in names_to_compare(512), "dense" in names_to_compare(513)
    (True, False)
    """
    return [form.name for form in _FORMS.values() if rounds <= form.largest_compared]


def own_name(name: str) -> str:
    """The name under which a mechanism is listed and recorded, of any spelling and of what others call it.

    >>> own_name("BandMF"), own_name("banded_toeplitz"), own_name("normalized-dp-ftrl"), own_name("unknown")
    ('banded-toeplitz', 'banded-toeplitz', 'normalized-tree', 'unknown')
    """
    spelt = name.lower().replace("_", "-")
    prefix, plain = ("normalized-", spelt[11:]) if spelt.startswith("normalized-") else ("", spelt)
    known = prefix + _ALSO.get(plain, plain)
    return known if known in _FORMS else name


def form_of(name: str) -> Form:
    """What a name, or what others call it, stands for.

    Raises:
        ValueError: unknown name.

    >>> form_of("normalized-bsr").family.meaning
    'the first p coefficients of the square root'
    """
    form = _FORMS.get(own_name(name))
    if form is None:
        nearest = difflib.get_close_matches(name, names(), n=1, cutoff=0.5)
        fix = f"Did you mean {nearest[0]!r}?" if nearest else "fedmf design lists them."
        raise ValueError(f"mechanism (name) must be a known one; got {name!r}. {fix}")
    return form


def accepted_parameters(name: str) -> list[str]:
    """The parameters of a mechanism that are chosen where they are not given.

    Raises:
        ValueError: unknown name.

    >>> accepted_parameters("bifr")
    ['bands', 'gamma']
    """
    return [free.symbol for free in form_of(name).family.free]


def optional_parameters(name: str) -> list[str]:
    """Parameters that change the construction and are never searched: stamps, and taper where C is banded.

    Raises:
        ValueError: unknown name.

    >>> optional_parameters("banded-toeplitz")
    ['stamps', 'taper']
    """
    return [option.parameter.symbol for option in form_of(name).family.options]


def parameters() -> dict[str, Parameter]:
    """Every parameter that some mechanism takes, by symbol.

    >>> parameters()["nu"].meaning, parameters()["buffers"].integer
    ('damping of the square root', True)
    """
    searched = (free.parameter for family in FAMILIES.values() for free in family.free)
    optional = (option.parameter for family in FAMILIES.values() for option in family.options)
    return {parameter.symbol: parameter for parameter in (*searched, *optional)}


def build(
    name: str,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    bands: int | None = None,
    params: Mapping[str, float | int] | None = None,
    objective: Objective = RMSE,
) -> Mechanism:
    """The mechanism of this name; parameters not given minimise its error (sensitivity included).

    Args:
        name: one of `names()`.
        participation: (n, k, b).
        workload: A of n rounds; prefix sums by default.
        bands: p, where the mechanism takes it; may also be given in params.
        params: by symbol, those that the mechanism takes.
        objective: which error.

    Raises:
        ValueError: an unknown name, a parameter the mechanism does not take, a value out of range, or another
            workload.

    >>> build("cgd", Participation(64, 2, 32), params={"lambda": 0.9}).params
    {'lambda': 0.9}
    >>> build("bsr", Participation(64, 2, 32)).params
    {'bands': 32}
    """
    form, n = form_of(name), participation.rounds
    check_rounds(n)
    workload = prefix(n) if workload is None else workload
    if workload.rounds != n:
        raise ValueError(f"A (workload) must have n={n} rounds, those of C; got {workload.rounds}.")
    given = {**({} if bands is None else {"bands": bands}), **(params or {})}
    return Mechanism(form.name, *form.build(DesignRequest(participation, workload, objective), given))
