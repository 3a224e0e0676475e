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
from fedmf.accounting.statement.text import render
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
    "odds_factor",
    "planned_statement",
    "render",
    "render_document",
    "render_page",
    "user_privacy",
]
