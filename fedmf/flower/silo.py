"""Silos on Flower: the client app of a silo, and the server's strategy, which holds no secret.

Between the two go the model, the name of the training and ζ; back come integers with the silo's own
noise, or one fixed error. `fedmf.runs.silo` decides what a silo answers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from numpy.typing import NDArray
from torch import Tensor

from fedmf.errors import ConfigError
from fedmf.flower.compat import error_reply
from fedmf.flower.inner_rule import InnerRule, check_inner
from fedmf.flower.layout import ArrayLayout
from fedmf.flower.messages import RejectedReply, checked_array, encoded, require_no_error
from fedmf.flower.screen import say
from fedmf.optim import RoundRelease
from fedmf.runs.silo import ConfiguredSilo, Silo
from fedmf.training.user_failures import described, pass_interrupt
from fedmf.values import check_whole

_log = logging.getLogger("fedmf")

#: The only text that leaves a silo, whatever happened there.
REFUSAL: Final = "the silo does not answer; its operator can see why"
_TRAINING: Final = "training"
_CLIP_NORM: Final = "clip-norm"
_ROUND: Final = "server-round"
_SUM: Final = "sum"
_BITS: Final = "bits"
_USERS: Final = "users-per-round"
_MOST_USERS: Final = 2**31
_MOST_BITS: Final = 64


def silo_app(silo_of: Callable[[Context], Silo]) -> ClientApp:
    """Return the client app of a silo.

    Args:
        silo_of: from a Flower context to the silo. It may use the node config, which the operator
            of the SuperNode sets, and not the run config, which the server sets.

    Guarantees:
        What leaves the silo is a release, the same public numbers in every round, or `REFUSAL`.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        try:
            return _answer(silo_of(context), message)
        except BaseException as error:  # nothing about it may leave
            pass_interrupt(error)
            _log.warning("the silo refused a request: %s", described(error))
            return error_reply(REFUSAL, message)

    return app


@lru_cache(maxsize=1)
def _configured(file: str) -> ConfiguredSilo:
    return ConfiguredSilo(file)


def _file_of(context: Context) -> str:
    """Return the path of the silo's file in the node config."""
    file = context.node_config.get("silo")
    if not isinstance(file, str):
        raise ConfigError(
            f"silo (of --node-config) must be the path of the silo's file; got {file!r}."
        )
    return file


#: fedmf's own client app of a silo: ``silo`` in the node config is the path of the silo's file.
client: Final = silo_app(lambda context: _configured(_file_of(context)))


def _answer(silo: Silo, message: Message) -> Message:
    """Return a silo's reply to a request of `SiloSums`."""
    (arrays,) = message.content.array_records.values()
    (config,) = message.content.config_records.values()
    if config[_CLIP_NORM] != silo.clip_norm:
        raise ConfigError(
            f"clip_norm must be {silo.clip_norm}, as the silo's file says; got"
            f" {config[_CLIP_NORM]!r:.40}."
        )
    model = dict[str, NDArray[Any]]()
    layout = silo.layout
    expected = dict(zip(layout.names, zip(layout.dtypes, layout.shapes, strict=True), strict=True))
    for name, array in arrays.items():
        dtype, shape = expected[name]
        model[name] = checked_array(array, name, (dtype,), shape)
    server_round = config[_ROUND]
    if not isinstance(server_round, int):
        raise ConfigError(f"{_ROUND} must be an integer; got {server_round!r:.40}.")
    answer = silo.answer(str(config[_TRAINING]), server_round, model)
    numbers = ConfigRecord({_BITS: answer.bits, _USERS: answer.users_per_round})
    content = RecordDict({"arrays": encoded({_SUM: answer.integers}), "config": numbers})
    return Message(content, reply_to=message)


class SiloSums(Strategy):
    """Adds the releases of silos, divides, and steps with the rule of a Flower strategy.

    All of this is post-processing: the server has no key and adds no noise, and what it does has no
    influence on anyone's privacy. Sums are exact while they are below 2⁵³ of the smallest unit, and
    then do not depend on the order of replies. A server that lost its model may start again from
    the same arrays: silos answer rounds that they answered before with the same bytes.

    Args:
        strategy: a FedAvg, FedAvgM, FedProx, FedAdam, FedAdagrad or FedYogi, which selects the
            silos of a round and has the server rule.
        training: the name of the training, as in the file of each silo.
        clip_norm: ζ, as in the file of each silo.
        users_per_round: the number by which sums are divided: the planned users of all silos. None
            for those of the silos that answer; correlated noise then cancels less.
        frozen: as for `Silo`.
        tied: as for `Silo`.

    Raises:
        ConfigError: a strategy that does not aggregate by a mean.
    """

    def __init__(
        self,
        strategy: FedAvg,
        *,
        training: str,
        clip_norm: float,
        users_per_round: int | None,
        frozen: tuple[str, ...] = (),
        tied: bool | None = None,
    ) -> None:
        check_inner(strategy)
        if not training:
            raise ConfigError("training must be the name in the files of the silos; got none.")
        if not 0 < clip_norm < math.inf:
            raise ConfigError(f"clip_norm must be positive and finite; got {clip_norm}.")
        if users_per_round is not None:
            check_whole("users_per_round", users_per_round)
        self.inner = strategy
        self._training = training
        self._clip_norm = float(clip_norm)
        self._users_per_round = users_per_round
        self._frozen = frozen
        self._tied = tied
        self._layout: ArrayLayout | None = None
        self._memory: Mapping[str, Tensor] = {}
        self._sent = ArrayRecord()

    def summary(self) -> None:
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if self._layout is None:
            self._layout = ArrayLayout.of(arrays, self._frozen, self._tied)
        self._sent = arrays
        request = ConfigRecord({_TRAINING: self._training, _CLIP_NORM: self._clip_norm})
        return self.inner.configure_train(server_round, arrays, request, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        assert self._layout is not None
        total = np.zeros(self._layout.dimension)
        users = 0
        for reply in replies:
            try:
                users += self._add(reply, total)
            except RejectedReply as error:
                say(f"round {server_round}: node {reply.metadata.src_node_id}: {error.fault}")
        if not users:
            return None, None
        mean = torch.from_numpy(total * (self._clip_norm / (self._users_per_round or users)))
        model, self._memory = InnerRule(self.inner, self._layout).step(
            server_round - 1,
            self._layout.flat(self._sent),
            RoundRelease(mean, mean_variance=0.0),
            self._memory,
        )
        return self._layout.record(model), None

    def _add(self, reply: Message, total: NDArray[np.float64]) -> int:
        """Add the release of a silo in units of ζ; returns its planned number of users."""
        require_no_error(reply)
        rule = "reply must hold the sum of a silo"
        try:
            array = reply.content.array_records["arrays"][_SUM]
            numbers = reply.content.config_records["config"]
            bits = _within(numbers[_BITS], _MOST_BITS)
            users = _within(numbers[_USERS], _MOST_USERS)
        except (KeyError, ValueError):
            raise RejectedReply(rule, rule) from None
        total += checked_array(array, _SUM, ("int64",), total.shape) * 2.0**-bits
        return users

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: what silos would report has no noise."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return None


def _within(value: object, most: int) -> int:
    """Return an untrusted integer from 1 to a bound."""
    if not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError
    return value
