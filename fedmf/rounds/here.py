"""Clients in this process: users are trained where the server is, and nothing is sent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedmf.errors import ConfigError, UnsoundSumError
from fedmf.rounds.clients import ByNode, Dialogue, Exchange, Link, Part, Question
from fedmf.rounds.loop import Observer, Rounds, unseen
from fedmf.rounds.requests import Answer, MessageForm, Request, trained
from fedmf.runs import Session, Waiting, local_trainer
from fedmf.training import (
    FixedPointSum,
    LocalTrainer,
    UserFailure,
    copied_vector,
)

_log = logging.getLogger("fedmf")
#: What serves everybody.
_HERE: Final = 0


class _Everybody:
    """All users are here."""

    def nodes_of(self, users: NDArray[np.int64]) -> list[int | None]:
        """See `Served.nodes_of`."""
        return [_HERE] * users.size


@dataclass(frozen=True, eq=False)
class _Given:
    """An answer about some users, or why there is none."""

    users: tuple[str, ...]
    answer: Answer | None
    reason: str = ""


class _Asked(Exchange):
    """Requests, each answered when it is called: one answer is in memory at a time.

    Args:
        requests: to answer.
        answer: gives the answer.
    """

    def __init__(self, requests: Iterable[Request], answer: Callable[[Request], Answer]) -> None:
        super().__init__([partial(self._given, request) for request in requests])
        self._answer = answer

    def _given(self, request: Request) -> _Given:
        own = replace(request, parameters=copied_vector(request.parameters))  # training writes into them
        try:
            return _Given(request.users, self._answer(own))
        except UnsoundSumError:  # a mistake of fedmf: nothing may be released
            raise
        except Exception as error:  # whatever a stranger's task may do
            return _Given(request.users, None, _logged(error))

    def part_of(self, reply: _Given) -> Part:
        """See `Exchange.part_of`."""
        return _HERE, reply.users

    def sender(self, reply: _Given) -> int:
        """See `Exchange.sender`."""
        return _HERE

    def arrived(self, reply: _Given) -> bool:
        """Always."""
        return True

    def add(self, reply: _Given, users: tuple[str, ...], total: FixedPointSum) -> dict[str, str]:
        """See `Exchange.add`."""
        reason = reply.reason
        if reply.answer is not None:
            try:
                return reply.answer.add_to(total, users)
            except ValueError as error:
                reason = str(error)
        total.add_nothing(len(users))
        return dict.fromkeys(users, reason)

    def told(self, reply: _Given, users: tuple[str, ...]) -> list[UserFailure]:
        """See `Exchange.told`."""
        return [] if reply.answer is None else list(reply.answer.failures)


class _Here(Dialogue):
    """With users whose examples are here.

    Args:
        session: of the run.
        trainer: of its users.
    """

    def __init__(self, session: Session, trainer: LocalTrainer) -> None:
        self._server, self._sums, self._trainer = session.server, session.sums, trainer
        self._form = MessageForm.of(session.run.execution, session.server.dimension)
        super().__init__(_Everybody())

    def training(self, number: int, by_node: ByNode, link: Link) -> _Asked:
        """See `Dialogue.training`."""
        parameters, clip_norm = self._server.parameters, self._server.clip_norm
        requests = (
            Request(parameters, number - 1, users, self._form.is_slice, clip_norm=clip_norm)
            for _, users in self._form.parts(by_node)
        )
        return _Asked(requests, lambda one: trained(one, self._trainer, self._sums))


class LinkHere(Link):
    """Calls in this process, one after another."""

    def gather(self) -> None:
        """Nobody is waited for."""

    def replies(self, question: Question) -> Iterator[object]:
        """See `Link.replies`; everybody answers."""
        return (answer() for answer in question.ask())


def _logged(error: Exception) -> str:
    """A line about an error of a user's code, which the operator's log has in full."""
    line = f"{type(error).__name__}: {error}"
    _log.error("local code failed: %s", line, exc_info=error)
    return line


def check_users_here(session: Session) -> None:
    """Refuse to simulate a run whose users cannot be trained here.

    Raises:
        ConfigError: the run names keys, which only nodes of a deployment have, or users' examples are on
            such nodes.
    """
    waiting: Waiting = session.run.execution
    if waiting.enrolment:
        raise ConfigError("enrolment must be left out in a simulation, whose nodes have no keys.")
    if not session.task.dataset.has_examples:
        raise ConfigError(
            "users' examples must be here to simulate a run; got a roster alone. Data on nodes are for "
            "flwr run on a deployment."
        )


def run_in_process(session: Session, observer: Observer = unseen) -> None:
    """Carry a session out to its horizon in this process and write its reports: no Flower, no messages.

    If the run stops early, by an error or by the user, the reports describe what was released.

    Args:
        session: what to run.
        observer: called after each round with its report and metrics.

    Raises:
        Exception: as `Rounds.carry_out`.
    """
    check_users_here(session)
    for line in session.server.beforehand:
        _log.info(line)
    trainer = local_trainer(session.run, session.task)
    rounds = Rounds(session, _Here(session, trainer), observer)
    rounds.carry_out(LinkHere())
