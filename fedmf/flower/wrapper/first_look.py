"""What of an app will not do what its author expects, told before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from flwr.serverapp.strategy import FedAvg

from fedmf.flower.wrapper.client_evaluation import ClientEvaluationKind
from fedmf.flower.wrapper.inner_rule import MEANS
from fedmf.runs import NoiseAndSignal, Session

_UNASKED: Final = "clients are not asked: client_evaluation='private' releases their metrics with noise"
#: Methods of a strategy that Flower's loop calls and the private one does not.
_NOT_CALLED: Final = {
    "start": "CorrelatedNoise has its own loop: what yours adds goes into observers, evaluate_fn or stop",
    "configure_evaluate": _UNASKED,
    "aggregate_evaluate": _UNASKED,
}


def findings(session: Session, inner: FedAvg, evaluation: ClientEvaluationKind) -> Iterator[str]:
    """One line for each, with its mend.

    Args:
        session: of the run that begins or goes on.
        inner: the strategy that was made private.
        evaluation: how clients evaluate.

    Guarantees:
        A function of the plan, the model's shape and the strategy's code.
    """
    base = next(base for base in MEANS if isinstance(inner, base))
    name = type(inner).__name__
    for method, why in _NOT_CALLED.items():
        replaced = getattr(type(inner), method) is not getattr(base, method)
        if replaced and (method == "start" or evaluation != "not-private"):
            yield f"{name}.{method} is never called: {why}"
    if inner.train_metrics_aggr_fn is not base().train_metrics_aggr_fn:
        yield (
            "train_metrics_aggr_fn is not called: metrics that clients report of training carry no noise. "
            "evaluation_metrics with client_evaluation='private' releases metrics with noise"
        )
    if session.plan.noise_std > 0:
        warning = NoiseAndSignal.of(session.plan, session.server.dimension).warning
        if warning is not None:
            yield warning
