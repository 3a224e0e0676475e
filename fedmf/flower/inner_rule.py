"""A Flower strategy's server rule as an update rule of ours: post-processing of the noisy mean."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi
from torch import Tensor

from fedmf.accounting.queries import SecondForm
from fedmf.errors import ConfigError
from fedmf.flower.compat import claim_task_identity
from fedmf.flower.layout import ArrayLayout
from fedmf.moments import SecondMoment
from fedmf.optim import RoundRelease
from fedmf.runs.model_layout import named_parts

_log: Final = logging.getLogger("flwr")
#: Strategies whose aggregation is a mean followed by a rule of the server.
MEANS: Final = (FedAvgM, FedAdam, FedAdagrad, FedYogi, FedProx, FedAvg)
#: What they compute it with; a subclass that replaces one computes something else.
_HELPERS: Final = ("aggregate_train", "_check_and_log_replies", "_compute_deltat_and_mt")
#: What they keep between rounds: arrays by name, or a list of arrays.
_MEMORY: Final = ("m_t", "v_t", "momentum_vector")
_NODE: Final = 1
#: Arguments that change nothing here: cohorts and the round say it, and metrics of clients are not
#: looked at.
_IGNORED: Final = (
    *(
        "fraction_train",
        "fraction_evaluate",
        "min_train_nodes",
        "min_evaluate_nodes",
        "min_available_nodes",
    ),
    *("weighted_by_key", "train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"),
)


def check_inner(inner: FedAvg, another: bool = False) -> None:
    """Reject a strategy that does not aggregate by a mean followed by a server rule, or one that
    was used.

    A median or a trimmed mean of one reply is that reply, so looking at what it returns tells
    nothing: the code is compared. A class that replaces a helper and still returns Flower's mean,
    or a function of it, has the attribute ``aggregation_is_a_mean = True``. It must not save or
    send what it sees, as that is not committed yet: if the process dies, the round is made again
    with other noise.

    Args:
        inner: the strategy.
        another: whether another server rule is given, so that it may have none.

    Raises:
        ConfigError: it is.
    """
    name = type(inner).__name__
    module = type(inner).__module__
    base = next((base for base in MEANS if isinstance(inner, base)), None)
    replaced = [
        each
        for each in _HELPERS
        if getattr(type(inner), each, None) is not getattr(base, each, None)
    ]
    if base is None or (replaced and module.partition(".")[0] == "flwr"):
        allowed = ", ".join(sorted(strategy.__name__ for strategy in MEANS))
        raise ConfigError(
            "strategy (to be made private) must be one of flwr.serverapp.strategy that aggregates"
            f" by a mean followed by a server rule ({allowed}); got {name} of {module}, which"
            " aggregates by something else than a mean, or in messages of Flower's older"
            " interface. Its noise is not calibrated."
        )
    if replaced and not getattr(inner, "aggregation_is_a_mean", False):
        raise ConfigError(
            f"strategy {name} replaces {replaced[0]} of {base.__name__}, so that its aggregation"
            " may not be a mean. Save models in on_round; else give it the attribute"
            " aggregation_is_a_mean = True."
        )
    if any(getattr(inner, memory, None) is not None for memory in ("current_arrays", *_MEMORY)):
        raise ConfigError(
            f"strategy {name} must be new, but it has already aggregated. Create another one."
        )
    if another and isinstance(inner, MEANS[:4]):
        raise ConfigError(
            "strategy (with another optimizer) must be one without a server rule, FedAvg or"
            f" FedProx; got {name}. Two server rules would act on one update; remove one."
        )


@contextmanager
def with_values(inner: FedAvg, **values: Any) -> Iterator[None]:
    """A strategy with some attributes temporarily replaced, and no lines of its own: it is
    handed one reply, whatever came."""
    before = {name: getattr(inner, name) for name in values}
    level = _log.level
    vars(inner).update(values)
    _log.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        vars(inner).update(before)
        _log.setLevel(level)


class InnerRule:
    """θ_{t+1} from θ_t and the noisy mean update, by what an inner strategy makes of one reply.

    The inner strategy is handed a single reply with θ_t + u_t, so its mean is that, whatever its
    weights. What it keeps between rounds is set before each step and taken out after it: it is part
    of the commit. Flower's own FedAvg and FedProx make that model itself of one reply, so for
    arrays of float32 they are not called: the model is θ_t + u_t.

    Args:
        inner: the strategy.
        layout: of the model's arrays.
    """

    second_moment: SecondMoment | None = None
    second_form: SecondForm = "per-user"

    def __init__(self, inner: FedAvg, layout: ArrayLayout) -> None:
        self._inner = inner
        self._layout = layout
        self._adds = type(inner) in (FedAvg, FedProx) and layout.number == np.float32

    def __getstate__(self) -> dict[str, Any]:
        """By what a record knows the rule again: strategy and layout, without arguments that are
        ignored.
        """
        read = {name: value for name, value in vars(self._inner).items() if name not in _IGNORED}
        return {**read, "strategy": type(self._inner), "layout": self._layout}

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        """Nothing is kept before the first round."""
        return {}

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See `ServerOptimizer.step`."""
        inner = self._inner
        layout = self._layout
        if self._adds:
            moved = parameters.to("cpu", torch.float64).add_(release.mean.to("cpu", torch.float64))
            return moved.to(parameters), {}
        current = layout.trained_record(parameters)
        if hasattr(inner, "current_arrays"):
            by_name = {name: array.numpy() for name, array in current.items()}
            setattr(inner, "current_arrays", current if isinstance(inner, FedAvgM) else by_name)  # noqa: B010
        for memory in _MEMORY:
            if hasattr(inner, memory):
                setattr(inner, memory, self._arrays(memory, state.get(memory)))
        moved = layout.flat(current) + release.mean.to(torch.float64).cpu()
        # The one reply has no metrics of training.
        with with_values(inner, train_metrics_aggr_fn=lambda _replies, _weight: MetricRecord()):
            arrays, _ = inner.aggregate_train(t + 1, [self._reply(layout.trained_record(moved))])
        if arrays is None:
            name = type(inner).__name__
            raise RuntimeError(f"{name} returned no model for round {t + 1}; nothing was released.")
        kept = {
            memory: self._flat(getattr(inner, memory))
            for memory in _MEMORY
            if getattr(inner, memory, None) is not None
        }
        return layout.flat(arrays).to(parameters), kept

    def _reply(self, arrays: ArrayRecord) -> Message:
        claim_task_identity()
        weight = MetricRecord({self._inner.weighted_by_key: 1.0})
        content = RecordDict({self._inner.arrayrecord_key: arrays, "metrics": weight})
        return Message(content, _NODE, MessageType.TRAIN)

    def _flat(self, kept: Any) -> Tensor:
        parts = (
            kept if isinstance(kept, list) else [kept[name] for name, _, _ in self._layout.trained]
        )
        return torch.from_numpy(
            np.concatenate([np.asarray(p, dtype=np.float64).reshape(-1) for p in parts])
        )

    def _arrays(self, memory: str, flat: Tensor | None) -> Any:
        """What the strategy keeps under this name."""
        if flat is None:
            return None
        parts = named_parts(flat.cpu(), [(name, shape) for name, shape, _ in self._layout.trained])
        arrays = {name: part.numpy().copy() for name, part in parts.items()}
        return list(arrays.values()) if memory == "momentum_vector" else arrays
