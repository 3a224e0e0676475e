"""A run's plan and what it states: its record, its figures, its words."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.statements.composed import UserCosts, compose, composed_text, joined_mu, run_costs
    from fedmf.statements.document import in_full, in_short, mechanism, promise, sensitivity, up
    from fedmf.statements.header import RunHeader
    from fedmf.statements.per_user import user_privacy
    from fedmf.statements.plan import Plan
    from fedmf.statements.privacy_statement import (
        PrivacyStatement,
        as_json,
        build_statement,
    )
    from fedmf.statements.text import run_text, summarise
    from fedmf.statements.words import OPERATING_SYSTEM_KEY, PUBLIC_KEY
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "OPERATING_SYSTEM_KEY",
    "PUBLIC_KEY",
    "Plan",
    "PrivacyStatement",
    "RunHeader",
    "UserCosts",
    "as_json",
    "build_statement",
    "compose",
    "composed_text",
    "in_full",
    "in_short",
    "joined_mu",
    "mechanism",
    "promise",
    "run_costs",
    "run_text",
    "sensitivity",
    "summarise",
    "up",
    "user_privacy",
]
