"""A run's records: the header written from its plan, and reading them all."""

from fedmf.runs.recorded.header import header_of
from fedmf.runs.recorded.reading import (
    KEY,
    LEDGER,
    Evidence,
    open_ledger,
    opened_evidence,
    read_header,
)
from fedmf.runs.recorded.round_table import PHASES, PhaseTimes, read_phases, table_of_rounds

__all__ = [
    "KEY",
    "LEDGER",
    "PHASES",
    "Evidence",
    "PhaseTimes",
    "header_of",
    "open_ledger",
    "opened_evidence",
    "read_header",
    "read_phases",
    "table_of_rounds",
]
