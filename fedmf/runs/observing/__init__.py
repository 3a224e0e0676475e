"""Who looks on while a run is carried out: observers, files of models, TensorBoard, early stops."""

from fedmf.runs.observing.learning import VERDICTS, Learning, judge_learning
from fedmf.runs.observing.observer import (
    Checkpoints,
    LastingObserver,
    Observer,
    ObserverError,
    Standing,
    TensorBoard,
)
from fedmf.runs.observing.stand_ins import LocalCheck, LocalOutcome, StandIns
from fedmf.runs.observing.stopping import NoProgress, StopRule, TargetReached
from fedmf.runs.observing.watch import RunResult, carried_out, observed

__all__ = [
    "VERDICTS",
    "Checkpoints",
    "LastingObserver",
    "Learning",
    "LocalCheck",
    "LocalOutcome",
    "NoProgress",
    "Observer",
    "ObserverError",
    "RunResult",
    "StandIns",
    "Standing",
    "StopRule",
    "TargetReached",
    "TensorBoard",
    "carried_out",
    "judge_learning",
    "observed",
]
