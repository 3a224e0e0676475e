"""A run as one value, its plan, and the session, the server and the loop that carry it out.

Names are loaded on demand: accounting for a run needs no torch.
"""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.release.plan import Plan
    from fedmf.runs.loop import Clients, Reply, RoundRecord, TrainingLoop
    from fedmf.runs.run import Run
    from fedmf.runs.session import Session
    from fedmf.runs.statistics import Statistic
    from fedmf.runs.tasks import FunctionTask
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "Clients",
    "FunctionTask",
    "Plan",
    "Reply",
    "RoundRecord",
    "Run",
    "Session",
    "Statistic",
    "TrainingLoop",
]
