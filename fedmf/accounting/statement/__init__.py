"""The privacy statement of a run: its record, its figures, its words."""

from fedmf.accounting.statement.evidence import adjacencies, allowed_patterns, evidence_of
from fedmf.accounting.statement.header import RunHeader
from fedmf.accounting.statement.joint_statement import Branch, JointStatement, build_joint_statement
from fedmf.accounting.statement.page import StatementParts, render_document, render_page
from fedmf.accounting.statement.per_user import user_privacy
from fedmf.accounting.statement.plain import detection_limit, detection_percent, odds_factor
from fedmf.accounting.statement.privacy_statement import (
    PrivacyStatement,
    as_json,
    build_statement,
    planned_statement,
)
from fedmf.accounting.statement.summary import (
    laid_out,
    shortened,
    summarise,
    what_it_leaves,
    what_speaks_against,
)
from fedmf.accounting.statement.text import joint_verdict_lines, render, verdict_lines
from fedmf.accounting.statement.words import OPERATING_SYSTEM_KEY, PUBLIC_KEY, REALISED_ASSUMPTION

__all__ = [
    "OPERATING_SYSTEM_KEY",
    "PUBLIC_KEY",
    "REALISED_ASSUMPTION",
    "Branch",
    "JointStatement",
    "PrivacyStatement",
    "RunHeader",
    "StatementParts",
    "adjacencies",
    "allowed_patterns",
    "as_json",
    "build_joint_statement",
    "build_statement",
    "detection_limit",
    "detection_percent",
    "evidence_of",
    "joint_verdict_lines",
    "laid_out",
    "odds_factor",
    "planned_statement",
    "render",
    "render_document",
    "render_page",
    "shortened",
    "summarise",
    "user_privacy",
    "verdict_lines",
    "what_it_leaves",
    "what_speaks_against",
]
