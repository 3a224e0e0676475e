"""The server rule of a Flower strategy as an optimizer of fedmf.

`check_inner` accepts strategies that aggregate by a mean followed by a rule of the server; applied
to the noisy mean of a release, that rule is post-processing.
"""

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
from fedmf.clipping.memory import in_parts, new_vector
from fedmf.errors import ConfigError
from fedmf.flower.compat import claim_task_identity
from fedmf.flower.layout import ArrayLayout
from fedmf.flower.messages import decoded
from fedmf.moments import SecondMoment
from fedmf.optim import RoundRelease
from fedmf.runs.model_layout import named_parts

_log: Final = logging.getLogger("flwr")
#: Strategies whose aggregation is a mean followed by a rule of the server.
MEANS: Final = (FedAvgM, FedAdam, FedAdagrad, FedYogi, FedProx, FedAvg)
#: Their methods that compute the mean; a subclass that replaces one may compute something else.
_HELPERS: Final = ("aggregate_train", "_check_and_log_replies", "_compute_deltat_and_mt")
#: Their attributes that last from round to round: arrays by name, or a list of arrays.
_MEMORY: Final = ("m_t", "v_t", "momentum_vector")
#: Attributes that are set before each step and read after it.
HANDLED: Final = ("current_arrays", *_MEMORY)
_NODE: Final = 1
#: Arguments without effect here: nodes are chosen by the cohort, and metrics of clients are unused.
_IGNORED: Final = (
    "fraction_train",
    "fraction_evaluate",
    "min_train_nodes",
    "min_evaluate_nodes",
    "min_available_nodes",
    "weighted_by_key",
    "train_metrics_aggr_fn",
    "evaluate_metrics_aggr_fn",
)


def base_of(inner: FedAvg) -> type[FedAvg] | None:
    """Return the strategy of `MEANS` that a strategy is or extends, or None."""
    for base in MEANS:
        if isinstance(inner, base):
            return base
    return None


def check_inner(inner: FedAvg, other_rule: bool = False) -> None:
    """Reject a used strategy, or one that is not a mean followed by a server rule.

    A median or a trimmed mean of one reply is that reply, so the result shows nothing: the code is
    compared. A class that replaces a helper and still returns Flower's mean, or a function of it,
    has the attribute ``aggregation_is_a_mean = True``. It must neither save nor send its
    arguments, which are not committed yet: if the process dies, the round is computed again with
    other noise.

    Args:
        inner: the strategy.
        other_rule: whether another server rule is given, so that the strategy must have none.

    Raises:
        ConfigError: the strategy is rejected.
    """
    name = type(inner).__name__
    module = type(inner).__module__
    base = base_of(inner)
    replaced = []
    for helper in _HELPERS:
        if getattr(type(inner), helper, None) is not getattr(base, helper, None):
            replaced.append(helper)
    if base is None or (replaced and module.partition(".")[0] == "flwr"):
        allowed = ", ".join(sorted(strategy.__name__ for strategy in MEANS))
        raise ConfigError(
            "strategy (to be made private) must be one of flwr.serverapp.strategy that aggregates"
            f" by a mean followed by a server rule ({allowed}); got {name} of {module}, which"
            " aggregates by something other than a mean, or uses messages of Flower's older"
            " interface. Noise is not calibrated for it."
        )
    if replaced and not getattr(inner, "aggregation_is_a_mean", False):
        raise ConfigError(
            f"strategy {name} replaces {replaced[0]} of {base.__name__}, so that its aggregation"
            " may not be a mean. Save models in on_round; else give it the attribute"
            " aggregation_is_a_mean = True."
        )
    for attribute in HANDLED:
        if getattr(inner, attribute, None) is not None:
            raise ConfigError(
                f"strategy {name} must be new, but it has already aggregated. Create another one."
            )
    if other_rule and isinstance(inner, MEANS[:4]):
        raise ConfigError(
            "strategy (with another optimizer) must be one without a server rule, FedAvg or"
            f" FedProx; got {name}. Two server rules would act on one update; remove one."
        )


@contextmanager
def with_values(inner: FedAvg, **values: Any) -> Iterator[None]:
    """Replace attributes of a strategy within the block, and silence its own log."""
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
    """The server rule of an inner strategy: θ_{t+1} from θ_t and the noisy mean update u_t.

    The inner strategy gets a single reply with θ_t + u_t, which is then its mean, whatever the
    weights. Its memory is set before each step and read after it, because it is part of the commit.
    Flower's own FedAvg and FedProx return θ_t + u_t itself, so for arrays of float32 they are not
    called.

    Args:
        inner: the strategy.
        layout: layout of the model's arrays.
    """

    second_moment: SecondMoment | None = None
    second_form: SecondForm = "per-user"

    def __init__(self, inner: FedAvg, layout: ArrayLayout) -> None:
        self._inner = inner
        self._layout = layout
        self._adds = type(inner) in (FedAvg, FedProx) and layout.number == np.float32

    def __getstate__(self) -> dict[str, Any]:
        """Return strategy and layout, by which a record recognizes the rule."""
        used = {name: value for name, value in vars(self._inner).items() if name not in _IGNORED}
        return {**used, "strategy": type(self._inner), "layout": self._layout}

    def init(self, parameters: Tensor) -> dict[str, Tensor]:
        return {}

    def step(
        self, t: int, parameters: Tensor, release: RoundRelease, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        inner = self._inner
        layout = self._layout
        if self._adds:
            return _sum(parameters, release.mean), {}
        current = layout.trained_record(parameters)
        self._set_memory(current, state)
        moved = layout.flat(current) + release.mean.to(torch.float64).cpu()
        # The one reply has no metrics of training.
        with with_values(inner, train_metrics_aggr_fn=lambda _replies, _weight: MetricRecord()):
            arrays, _ = inner.aggregate_train(t + 1, [self._reply(layout.trained_record(moved))])
        if arrays is None:
            name = type(inner).__name__
            raise RuntimeError(f"{name} returned no model for round {t + 1}; nothing was released.")
        return layout.flat(arrays).to(parameters), self._memory()

    def _reply(self, arrays: ArrayRecord) -> Message:
        claim_task_identity()
        weight = MetricRecord({self._inner.weighted_by_key: 1.0})
        content = RecordDict({self._inner.arrayrecord_key: arrays, "metrics": weight})
        return Message(content, _NODE, MessageType.TRAIN)

    def _set_memory(self, current: ArrayRecord, state: Mapping[str, Tensor]) -> None:
        """Set the strategy's model and memory to those before a round."""
        inner = self._inner
        if hasattr(inner, "current_arrays"):
            model: Any = current
            if not isinstance(inner, FedAvgM):  # the others hold the model as NumPy arrays
                model = decoded(current)
            setattr(inner, "current_arrays", model)  # noqa: B010
        for name in _MEMORY:
            if not hasattr(inner, name):
                continue
            value: Any = None
            if name in state:
                value = self._arrays(state[name])
                if name == "momentum_vector":
                    value = list(value.values())
            setattr(inner, name, value)

    def _memory(self) -> dict[str, Tensor]:
        """Return the strategy's memory after a round, each part as a flat vector."""
        memory = dict[str, Tensor]()
        for name in _MEMORY:
            value = getattr(self._inner, name, None)
            if value is not None:
                memory[name] = self._flat(value)
        return memory

    def _flat(self, arrays: Any) -> Tensor:
        """Join arrays, a list or by name, to a float64 vector in the order of the layout."""
        if not isinstance(arrays, list):
            arrays = [arrays[name] for name, _, _ in self._layout.trained]
        return torch.from_numpy(np.concatenate(arrays, axis=None, dtype=np.float64))

    def _arrays(self, flat: Tensor) -> dict[str, Any]:
        """Cut a flat vector into arrays by name."""
        shapes = [(name, shape) for name, shape, _ in self._layout.trained]
        parts = named_parts(flat.cpu(), shapes)
        return {name: part.numpy().copy() for name, part in parts.items()}


def _sum(parameters: Tensor, mean: Tensor) -> Tensor:
    """Return θ_t + u_t in the type of θ_t, in reused memory."""
    moved = new_vector(parameters.numel(), parameters.dtype, parameters.device)

    def add(part: slice) -> None:
        torch.add(parameters[part], mean[part], out=moved[part])

    in_parts(add, moved)
    return moved
