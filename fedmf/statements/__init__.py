"""A run's plan and what it states: its record, its figures, its words."""

from typing import TYPE_CHECKING

from fedmf.lazy import lazily

if TYPE_CHECKING:
    from fedmf.statements.composed import (
        ComposedStatement,
        SampledGaussians,
        StatedCost,
        UserCosts,
        compose,
        joined_mu,
        planned_mu,
        run_costs,
    )
    from fedmf.statements.evidence import adjacencies, allowed_patterns, evidence_of
    from fedmf.statements.header import RunHeader
    from fedmf.statements.joint_statement import Branch, JointStatement, build_joint_statement
    from fedmf.statements.page import StatementParts, render_document, render_page
    from fedmf.statements.per_user import user_privacy
    from fedmf.statements.plain import detection_limit, detection_percent, odds_factor
    from fedmf.statements.plan import Plan
    from fedmf.statements.privacy_statement import (
        PrivacyStatement,
        as_json,
        build_statement,
        planned_statement,
    )
    from fedmf.statements.summary import laid_out, shortened, summarise, what_it_leaves, what_speaks_against
    from fedmf.statements.text import render, verdict_lines
    from fedmf.statements.words import OPERATING_SYSTEM_KEY, PUBLIC_KEY
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "OPERATING_SYSTEM_KEY",
    "PUBLIC_KEY",
    "Branch",
    "ComposedStatement",
    "JointStatement",
    "Plan",
    "PrivacyStatement",
    "RunHeader",
    "SampledGaussians",
    "StatedCost",
    "StatementParts",
    "UserCosts",
    "adjacencies",
    "allowed_patterns",
    "as_json",
    "build_joint_statement",
    "build_statement",
    "compose",
    "detection_limit",
    "detection_percent",
    "evidence_of",
    "joined_mu",
    "laid_out",
    "odds_factor",
    "planned_mu",
    "planned_statement",
    "render",
    "render_document",
    "render_page",
    "run_costs",
    "shortened",
    "summarise",
    "user_privacy",
    "verdict_lines",
    "what_it_leaves",
    "what_speaks_against",
]
