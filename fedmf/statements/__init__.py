"""A run's plan and what it states: its record, its figures, its words."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.statements.composed import Costs, compose, joined_mu
    from fedmf.statements.header import RunHeader
    from fedmf.statements.plan import Plan
    from fedmf.statements.spent import Spent, run_spent
    from fedmf.statements.statement import OPERATORS, PrivacyStatement, run_statement
    from fedmf.statements.words import ALWAYS_NOT_COVERED, SPENT_ASSUMPTION, SPENT_NOT_COVERED
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "ALWAYS_NOT_COVERED",
    "OPERATORS",
    "SPENT_ASSUMPTION",
    "SPENT_NOT_COVERED",
    "Costs",
    "Plan",
    "PrivacyStatement",
    "RunHeader",
    "Spent",
    "compose",
    "joined_mu",
    "run_spent",
    "run_statement",
]
