"""The privacy statement of a run, computed from its header and its record of participation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedmf.accounting.gaussian import adjacency_factor, gaussian_mu
from fedmf.cohorts import AvailableCohorts, CyclicCohorts
from fedmf.errors import LedgerError
from fedmf.ledger.ledger import Ledger
from fedmf.ledger.released_integers import DIGESTS, FOLDER
from fedmf.matrices.factorization import LARGEST_DENSE
from fedmf.release.plan import Plan
from fedmf.runs.directory import CONFIG, RunHeader, opened_record
from fedmf.statements.composition import LaterCost, PrivacyCost, UserLosses, finite
from fedmf.statements.recorded_patterns import recorded_sensitivities
from fedmf.statements.row_blocks import gram_of_rows, largest_movement, recorded_movements
from fedmf.statements.statement import (
    ALWAYS_NOT_COVERED,
    OPERATORS,
    SPENT_ASSUMPTION,
    SPENT_NOT_COVERED,
    PrivacyStatement,
)
from fedmf.statements.written_files import (
    check_configuration,
    check_contents,
    check_released,
    check_statement,
)

#: Relative rounding error of a few operations on doubles.
_ROUNDING: Final = 2.0**-50
_TRUST: Final = {
    "server": "the server itself clips every {one}'s update",
    "workers": (
        "the programs that train {many} limit (clip) each update. The server receives sums of"
        " updates, and relies on these programs"
    ),
    "silo": (
        "the silo itself clips every {one}'s update, adds the noise and keeps the key: the people"
        " of this silo are protected against everyone outside of it, the server and other silos"
        " included"
    ),
}
#: For runs whose central test part belongs to users of the run.
_TEST_PART: Final = (
    "central test part: its examples belong to users who also train the model. Metrics with names"
    " that end in not_private were computed on them without noise; epsilon does not cover them, so"
    " do not publish them"
)
_NOT_COVERED: Final = (
    (
        "{many} who only test the model: metrics on held-out data are computed without noise, so"
        " these {many} are not protected"
    ),
    (
        "further runs on the same {many}, such as a hyper-parameter search: each of them releases"
        " more about these {many} than this epsilon counts"
    ),
    (
        "participation: the noise does not hide the number and identity of participants, or the"
        " ledger that records who took part in which round; the guarantee does not cover their"
        " publication"
    ),
)
_ASSUMPTIONS: Final = (
    (
        "every {one}'s update was clipped to at most the clip norm before it was added to the"
        " others, so that one {one} can change the sum by no more than the noise was calibrated for"
    ),
    (
        "one {one}'s data change only that {one}'s own contribution, but not which updates of other"
        " {many} are in a sum, how many rounds there are, or when the run ends. epsilon then holds"
        " for all data; {broken} contributes zeros"
    ),
    (
        "the initial model, with its frozen parts, is public, or was released by a run on the same"
        " {many} that is accounted together with this one (fedmf account A B): epsilon then covers"
        " only what this run adds"
    ),
    (
        "what a client or a custom function computes for one {one} depends only on that {one}'s own"
        " data, on what it kept of them from earlier rounds (a personal layer, the state of an"
        " optimizer), on released models and on public values, and on nothing of other {many}: no"
        " moving average in a Python attribute, cache or random generator is shared between {many}"
    ),
)
_SO_FAR: Final = (
    "epsilon_so_far, which counts only the rounds released so far, holds only if the data did not"
    " determine in which round the run stopped"
)
#: For runs that fedmf trains itself.
_TESTED: Final = (
    ". Before a simulation, a test rejects functions that are seen to remember, but it cannot prove"
    " that none does"
)
_SHARED_WORKERS: Final = (
    "the system kills no worker process because of {a}'s data, for example because they need too"
    " much memory: its reply would count as zeros for all {many} that it serves, which shows in"
    " the sum"
)
_SHARED_TIME: Final = (
    "no {one}'s data delay the reply of the node beyond the time limit of a round: all {many} of"
    " the message would be left out, which shows in the sum"
)
_INEXACT_GROUPS: Final = (
    "differences in the last digits reveal nothing: if {many} are computed together on a GPU, the"
    " rounding of other {many}' updates depends on how many examples {a} has"
)
_AVAILABLE: Final = (
    "no {one}'s data determine whether that {one} is connected when a round begins, or whether its"
    " reply arrives: both affect which other {many} are sampled, then and later, and whether the"
    " run stops because nobody is connected"
)
_ANSWERS: Final = (
    "no {one}'s data determine whether the silo answers, for example because they end its process:"
    " everyone sees it"
)
_SECRECY: Final = (
    "the cohorts stay secret: the guarantee holds against observers who do not know who took part"
    " in which round, which was drawn at random as stated under sampling. Against observers who"
    " know it, it is epsilon_known_cohorts"
)
_SECRETS: Final = (
    (
        "the noise key (noise.key) and all its backups, even after the run has ended: anyone who"
        " has the key can subtract the noise"
    ),
    "the sums and updates before noise, and all their copies and logs, which are not protected",
    "the record of who took part (ledger.sqlite) and everything that was exported from it",
    "which {many} failed and why (failures.jsonl), because this depends on their data",
)
_SECRET_COHORTS: Final = (
    "who took part in which round: epsilon, which amplification reduces, holds only against"
    " observers who do not know this"
)


def run_statement(header: RunHeader, ledger: Ledger) -> PrivacyStatement:
    """Compute the statement of a run from its header and its verified record of participation.

    Args:
        header: the run's description, usually ``RunHeader.from_dict(ledger.header)``.
        ledger: open for reading or writing; a run in progress may continue to commit.

    Raises:
        LedgerError: the record contradicts the header.
        RuntimeError: the two accountants disagree.

    Guarantees:
        Without amplification epsilon_spent ≤ epsilon_so_far ≤ epsilon (to a relative 1e-9); with it
        epsilon_spent is at most what (k, b) allows an observer of the cohorts, epsilon_so_far ≤
        epsilon ≤ epsilon_known_cohorts, and δ(noise, epsilon) was computed again. Otherwise an
        error is raised.
    """
    plan = header.plan
    histories = ledger.histories
    _require_consistent(header, ledger)
    allowed = plan.allowed(ledger.released, header.law())
    spent = run_spent(plan, ledger)
    unit = header.unit
    mechanism = "none"
    mu = None
    noise_key = None
    noise_key_public = None
    if plan.noise_multiplier > 0:
        mechanism = plan.mechanism.name
        mu = gaussian_mu(plan.noise_multiplier)
        noise_key = header.key_fingerprint
        noise_key_public = header.key_public
    second_moment = None
    if plan.second is not None:
        second_moment = plan.second.facts(plan.second_noise_std)
    amplification = None
    if plan.amplification is not None:
        amplification = plan.amplification.to_dict()
    statistics = list[dict[str, Any]]()
    for statistic in header.statistics:
        words = {"name": statistic.name, "description": unit.say(statistic.description)}
        statistics.append({**statistic.to_dict(), **words})
    return PrivacyStatement(
        {
            "unit": unit.name,
            "adjacency": plan.adjacency,
            "mechanism": mechanism,
            "params": dict(plan.mechanism.params),
            "second_moment": second_moment,
            "dimension": header.dimension,
            **dataclasses.asdict(plan.participation),
            "rounds_released": ledger.released,
            "sampling": _sampling(header),
            "amplification": amplification,
            "users": plan.users,
            "users_per_round": plan.users_per_round,
            "clip_norm": plan.clip_norm,
            "statistics": statistics,
            "noise_multiplier": plan.noise_multiplier,
            "noise_std": plan.noise_std,
            "sensitivity": plan.sensitivity.value,
            "sensitivity_kind": plan.sensitivity.kind,
            "sensitivity_case": plan.sensitivity.case,
            "unit_bits": list(plan.rounding.bits),
            "released_files": ledger.about.get(DIGESTS),
            "rounding": plan.moved(0.0),
            "failure": plan.rounding.failure,
            "delta": plan.delta,
            "epsilon": finite(allowed.epsilon),
            "epsilon_known_cohorts": finite(allowed.epsilon_known_cohorts),
            "epsilon_so_far": finite(allowed.epsilon_so_far),
            "mu": mu,
            **spent.figures(plan.delta, plan.users, allowed.known_so_far),
            "users_participated": len(histories),
            "actual_max_participations": histories.max_participations,
            "actual_min_separation": histories.min_separation,
            "noise_key": noise_key,
            "noise_key_public": noise_key_public,
            "trust": unit.say(_TRUST["silo" if header.is_silo else header.clipped_by]),
            "public_inputs": [dict(entry) for entry in header.public_inputs],
            "not_private": list(OPERATORS),
            "assumptions": _assumptions(header, math.isfinite(allowed.epsilon_so_far)),
            "not_covered": _not_covered(header),
            "secret": _secrets(header),
            "this_copy": ledger.lineage().unseen(),
            "software": header.software,
        }
    )


def checked_statement(path: Path, header: RunHeader, ledger: Ledger) -> PrivacyStatement:
    """The statement of a run, the files of which agree with its ledger.

    Args:
        path: the run directory.
        header: as for `run_statement`.
        ledger: likewise.

    Raises:
        LedgerError: as `run_statement`; or the state in the ledger, ``config.toml``,
            ``statement.json``, ``statement.txt`` or a file in ``released`` is not as it was
            written.
    """
    check_contents(ledger)
    statement = run_statement(header, ledger)
    check_statement(path, statement)
    check_configuration(path / CONFIG, header.configuration)
    if header.run["execution"]["keep_releases"]:
        check_released(path / FOLDER, sum(each.size for each in header.plan.parts), ledger)
    return statement


def _require_consistent(header: RunHeader, ledger: Ledger) -> None:
    plan = header.plan
    if ledger.participation != plan.participation:
        raise LedgerError(
            f"the header plans {plan.participation} and the ledger was created for"
            f" {ledger.participation}."
        )
    if header.dimension != plan.dimension:
        raise LedgerError(
            f"the header plans d={plan.dimension} parameters; its arrays hold {header.dimension}."
        )
    if len(ledger.histories) > plan.users:
        raise LedgerError(
            f"the ledger holds {len(ledger.histories)} users; the header says there are"
            f" {plan.users}."
        )


def _sampling(header: RunHeader) -> str:
    """The claimed amplification, then how cohorts are drawn."""
    cohorts = header.cohorts
    amplification = header.plan.amplification
    if amplification is not None:
        return (
            f"{amplification.accountant}: amplification by {cohorts.kind} cohorts, which must stay"
            " secret"
        )
    if isinstance(cohorts, CyclicCohorts):
        return "none: fixed schedule, no amplification claimed"
    return f"none: {cohorts.kind} cohorts, no amplification claimed"


def _assumptions(header: RunHeader, unfinished: bool) -> list[str]:
    """The assumptions under which the figures hold; those of an unfinished run have ε so far."""
    say = header.unit.say
    workers = header.clipped_by == "workers"
    # A reply has the rows of several users.
    shared = header.run["execution"]["messages"] == "per-user"
    assumptions = list[str]()
    if header.plan.amplification is not None:
        assumptions.append(_SECRECY)
    assumptions.append(header.unit.distinct)
    assumptions += header.unit.say_all(_ASSUMPTIONS)
    if not header.trains_elsewhere:
        assumptions[-1] += _TESTED
    if workers or shared:
        assumptions += [say(_SHARED_WORKERS), say(_INEXACT_GROUPS)]
    if shared:
        assumptions.append(say(_SHARED_TIME))
    if header.is_silo:
        assumptions.append(say(_ANSWERS))
    if isinstance(header.cohorts, AvailableCohorts):
        assumptions.append(say(_AVAILABLE))
    if unfinished:
        assumptions.append(_SO_FAR)
    assumptions.append(say(SPENT_ASSUMPTION))
    for statistic in header.statistics:
        assumptions += header.unit.say_all(statistic.assumptions)
    return assumptions


def _not_covered(header: RunHeader) -> list[str]:
    """The risks that the guarantee does not cover."""
    not_covered = list(header.unit.not_covered)
    if header.users_test:
        not_covered.append(_TEST_PART)
    not_covered += header.unit.say_all(_NOT_COVERED)
    not_covered += header.unit.say_all(ALWAYS_NOT_COVERED)
    return [*not_covered, SPENT_NOT_COVERED]


def _secrets(header: RunHeader) -> list[str]:
    secrets = header.unit.say_all(_SECRETS)
    if header.plan.amplification is not None:
        secrets.insert(0, _SECRET_COHORTS)
    return secrets


def run_spent(plan: Plan, ledger: Ledger) -> UserLosses:
    """μ of every user in a run's ledger, from the rounds that the user joined.

    Equal patterns of rounds are computed once, so that millions of users take seconds.

    The first T rounds release (up to post-processing) the first T rows of C·G + σz. A user with
    rounds π moves C·G by at most a·s, where a is 1 for zero-out and 2 for replace-one and s =
    ‖Σ_{j∈π} C_{:T,j}‖ (where columns of C have negative inner products, the sound bound of
    `pattern_sensitivity`; for a pair of streams, the bound of `PairQuery`).

    Args:
        plan: of the run.
        ledger: verified against the plan's contract.

    Guarantees:
        μ is never below the exact value of the user's rounds. It is a guarantee only if neither
        participation nor the end of the run depends on data; the planned ε holds without that
        assumption.

    References:
        Balle, Wang (2018), Theorem 8; Denisov et al. (2022), "Improved Differential Privacy for SGD
        via Optimal Private Linear Operators on Adaptive Streams", Theorem 2.1.
    """
    rounds, keys = ledger.participations()
    of_equal_length = partial(recorded_sensitivities, plan.release, released_rounds=ledger.released)
    sensitivities = user_sensitivities(rounds, keys, of_equal_length)
    names = ledger.histories.names
    if plan.relative_noise_std == 0:
        return UserLosses(names, np.where(sensitivities > 0, math.inf, 0.0))
    unit = adjacency_factor(plan.adjacency) / plan.relative_noise_std * (1 + _ROUNDING)
    moved = np.where(sensitivities > 0, plan.moved(sensitivities), 0.0)
    return UserLosses(names, moved * unit)


def user_sensitivities(
    rounds: NDArray[np.int32],
    keys: NDArray[np.int32],
    of_equal_length: Callable[[NDArray[np.int32]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """The sensitivity of every user of a ledger, shape (users,).

    Args:
        rounds: of all participations, sorted by user, then by round.
        keys: of their users.
        of_equal_length: the sensitivities of distinct patterns, shape (patterns, k).
    """
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    lengths = np.diff(starts, append=keys.size)
    sensitivities = np.zeros(starts.size)
    for length in np.unique(lengths).tolist():  # equal patterns are computed once
        users = np.flatnonzero(lengths == length)
        patterns, which = distinct_patterns(rounds[starts[users][:, None] + np.arange(length)])
        sensitivities[users] = of_equal_length(patterns)[which]
    return sensitivities


@dataclass(frozen=True, eq=False)
class LaterRounds:
    """The rounds that a branch of a run released after a fork, priced by themselves.

    Their noise is independent of that of the common rounds and of other branches, and a user moves
    them by C_F·Δ with F the rows of these rounds and Δ all contributions to the branch, those
    before the fork included. Rounding adds at most W to this movement, as it does to that of all
    rows (docs/theory/accounting.md, "Branches of one run").

    Args:
        plan: of the run.
        released: how many rounds the branch has.
        users: ids by key.
        rounds: of all participations in the branch, sorted by user, then by round.
        keys: of their users.
    """

    plan: Plan
    released: int
    users: Sequence[str]
    rounds: NDArray[np.int32]
    keys: NDArray[np.int32]

    def after(self, fork: int) -> LaterCost | None:
        """The cost of the rounds after the first ``fork``; None where C is too large, or is one of
        a pair.
        """
        C = self.plan.mechanism.factorization
        n = C.rounds
        if self.plan.release.paired or n > LARGEST_DENSE:
            return None
        unit = adjacency_factor(self.plan.adjacency) / self.plan.relative_noise_std
        unit *= 1 + _ROUNDING
        released = gram_of_rows(C, fork, self.released)
        of_equal_length = partial(recorded_movements, released)
        spent = user_sensitivities(self.rounds, self.keys, of_equal_length)
        planned = largest_movement(gram_of_rows(C, fork, n), self.plan.participation)
        losses = UserLosses(list(self.users), self.plan.moved(spent) * unit)
        return LaterCost(self.plan.moved(planned) * unit, losses)


def distinct_patterns(table: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The distinct rows of a table of patterns, and the index of each row among them.

    >>> distinct_patterns(np.array([[3, 5], [0, 4], [3, 5]], dtype=np.int32))
    (array([[0, 4],
           [3, 5]], dtype=int32), array([1, 0, 1]))
    """
    # Rows as strings of big-endian bytes: they sort as the tuples do, much faster than column by
    # column.
    row = np.dtype((np.void, 4 * table.shape[1]))
    opaque = np.ascontiguousarray(table.astype(">i4")).view(row).reshape(-1)
    distinct, which = np.unique(opaque, return_inverse=True)
    return distinct.view(">i4").reshape(-1, table.shape[1]).astype(np.int32), which


def account(path: str | Path) -> PrivacyStatement:
    """The privacy statement of a run, computed from its directory alone.

    Args:
        path: the directory of a finished, running or stopped run.

    Raises:
        ConfigError: it is not a run directory.
        LedgerError: its records are damaged or contradict each other.
    """
    with opened_record(Path(path)) as (header, ledger):
        return checked_statement(Path(path), header, ledger)


def costs_of_run(path: str | Path) -> PrivacyCost:
    """The privacy cost of a run for each of its users, to be composed with other runs and streams.

    Raises:
        ConfigError: it is not a run directory.
        LedgerError: its records are damaged or contradict each other.
    """
    with opened_record(Path(path)) as (header, ledger):
        rounds, keys = ledger.participations()
        names = ledger.histories.names
        return PrivacyCost(
            str(path),
            checked_statement(Path(path), header, ledger),
            run_spent(header.plan, ledger),
            ledger.lineage(),
            LaterRounds(header.plan, ledger.released, names, rounds, keys),
        )
