"""A run as one value, the tables that describe it, and the session that carries it out.

What is asked for is loaded then: accounting for a run needs no torch.
"""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.runs.aggregator import PrivateAggregator
    from fedmf.runs.cost_estimate import NoiseAndSignal, dry_run, seconds_of_a_round
    from fedmf.runs.directory import FAILURES, LEDGER, RunDirectory, opened_record, read_header
    from fedmf.runs.execution import Execution
    from fedmf.runs.given import TaskSource, require_single_examples
    from fedmf.runs.header import RunHeader
    from fedmf.runs.loop import Clients, OnRound, Reply, RoundRecord, RoundReport, Rounds, RunResult
    from fedmf.runs.mechanism import NoiseMechanism
    from fedmf.runs.named_tasks import (
        NAMED_TASKS,
        Classification,
        FunctionTask,
        MultiLabel,
        NamedTask,
        NextToken,
        Regression,
        classification,
        next_token,
        regression,
    )
    from fedmf.runs.outputs import (
        METRICS,
        STATEMENT_TEXT,
        account,
        central,
        costs_of_run,
        metric_columns,
        write_statement,
    )
    from fedmf.runs.plan import Plan
    from fedmf.runs.released_model import ReleasedModel, WholeModel, initial_parameters, load_model
    from fedmf.runs.run import Run, difference
    from fedmf.runs.server import PrivateServer, clipped_sums
    from fedmf.runs.session import Session, new_directory
    from fedmf.runs.simulation import Request, check_users_here, in_messages, run_in_process
    from fedmf.runs.statement import run_spent, run_statement
    from fedmf.runs.statistics import FixedClipping, OwnStatistic, QuantileClipping, Statistic
    from fedmf.runs.tables.configuration import (
        Scalar,
        dotted_keys,
        load_run,
        parse_assignments,
        render_toml,
        run_of,
    )
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "FAILURES",
    "LEDGER",
    "METRICS",
    "NAMED_TASKS",
    "STATEMENT_TEXT",
    "Classification",
    "Clients",
    "Execution",
    "FixedClipping",
    "FunctionTask",
    "MultiLabel",
    "NamedTask",
    "NextToken",
    "NoiseAndSignal",
    "NoiseMechanism",
    "OnRound",
    "OwnStatistic",
    "Plan",
    "PrivateAggregator",
    "PrivateServer",
    "QuantileClipping",
    "Regression",
    "ReleasedModel",
    "Reply",
    "Request",
    "RoundRecord",
    "RoundReport",
    "Rounds",
    "Run",
    "RunDirectory",
    "RunHeader",
    "RunResult",
    "Scalar",
    "Session",
    "Statistic",
    "TaskSource",
    "WholeModel",
    "account",
    "central",
    "check_users_here",
    "classification",
    "clipped_sums",
    "costs_of_run",
    "difference",
    "dotted_keys",
    "dry_run",
    "in_messages",
    "initial_parameters",
    "load_model",
    "load_run",
    "metric_columns",
    "new_directory",
    "next_token",
    "opened_record",
    "parse_assignments",
    "read_header",
    "regression",
    "render_toml",
    "require_single_examples",
    "run_in_process",
    "run_of",
    "run_spent",
    "run_statement",
    "seconds_of_a_round",
    "write_statement",
]
