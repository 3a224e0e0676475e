"""The Flower server strategy: correlated noise on sums of clipped updates, user by user."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedmf.flower.arrays import array_record
from fedmf.flower.asking import Asked, GridLink
from fedmf.flower.boundary import Enrolment, ServedUsers
from fedmf.flower.messages import MessageDialogue
from fedmf.flower.population import Population
from fedmf.flower.round_strategy import RoundStrategy
from fedmf.rounds import (
    ByNode,
    MessageForm,
    Observer,
    Rounds,
    unseen,
)
from fedmf.runs import Session, Waiting

_log = logging.getLogger("fedmf")

#: Bytes of a reply beside what it adds to a sum: ids and failures of its users.
_SLACK: Final = 2**26


class OwnClients(MessageDialogue):
    """Dialogue with fedmf's own client app: rows of users, or exact sums over them.

    Args:
        session: of the run.
        served: which node is asked for which user.
    """

    def __init__(self, session: Session, served: ServedUsers) -> None:
        self._server = session.server
        self._form = MessageForm.of(session.run.execution, session.server.dimension)
        self.patient = self._form.is_slice
        super().__init__(served, _SLACK)

    @property
    def arrays(self) -> ArrayRecord:
        """See `Dialogue.arrays`."""
        return array_record({"parameters": self._server.parameters})

    def training(self, number: int, by_node: ByNode, link: GridLink) -> Asked:
        """One message for each node that serves users of the cohort; several where their rows are too large.

        Its model may be that of a commit under way: it leaves the process committed.
        """
        parts = self._form.parts(by_node)
        return Asked(self._form, parts, self._server.parameters, number - 1, clip_norm=self._server.clip_norm)


class CorrelatedNoiseStrategy(RoundStrategy):
    """Federated averaging of clipped updates with matrix-factorization noise.

    It depends only on the ``Grid`` interface, so the same object serves Flower's deployment, Flower's
    simulation and the in-process grid.

    Args:
        session: the run that is carried out, open.
        observer: called after each round with its report and metrics.
        assignment: which node is asked for which user; default: each user's own node, as nodes claim.

    References:
        Kairouz et al. (2021), "Practical and Private (Deep) Learning without Sampling or Shuffling";
        McKenna (2024), "Scaling up the Banded Matrix Factorization Mechanism".
    """

    def __init__(
        self,
        session: Session,
        observer: Observer = unseen,
        assignment: ServedUsers | None = None,
    ) -> None:
        waiting: Waiting = session.run.execution
        self.session, keys = session, Enrolment.of(waiting.enrolment) if waiting.enrolment else None
        self._dialogue = OwnClients(session, assignment or Population(session.roster, _log.warning, keys))
        self.rounds = Rounds(session, self._dialogue, observer)

    @property
    def dialogue(self) -> OwnClients:
        """See `RoundStrategy.dialogue`."""
        return self._dialogue

    def initial_arrays(self) -> ArrayRecord:
        """The model the next round starts from, as Flower's ``start`` wants it."""
        return self.dialogue.arrays

    def summary(self) -> None:
        """Log what will run."""
        plan, server = self.session.plan, self.session.server
        _log.info(
            "mechanism %s, sensitivity %.4g (%s), noise multiplier %.4g, rounds %d to %d",
            plan.mechanism.name,
            plan.sensitivity.value,
            plan.sensitivity.kind,
            plan.noise_multiplier,
            server.t + 1,
            server.horizon,
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run from the server's committed round up to ``num_rounds`` (default: the horizon).

        The model always comes from the private server, so ``initial_arrays`` is ignored; it is accepted
        to match Flower's signature. A stopped run continues with the round after its last commit.

        Raises:
            Exception: as `Rounds.carry_out`.
        """
        self.summary()
        result = Result()
        link = self.link(grid, timeout, train_config)
        self.carry_out(link, result, num_rounds, evaluate_fn)
        result.arrays = self.initial_arrays()
        return result
