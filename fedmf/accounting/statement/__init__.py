"""The privacy statement of a run: its record, its figures, its words."""

from fedmf.accounting.statement.header import RunHeader, sampling_claim
from fedmf.accounting.statement.page import render_page
from fedmf.accounting.statement.per_user import user_privacy
from fedmf.accounting.statement.privacy_statement import PrivacyStatement, build_statement
from fedmf.accounting.statement.words import OPERATING_SYSTEM_KEY, PUBLIC_KEY

__all__ = [
    "OPERATING_SYSTEM_KEY",
    "PUBLIC_KEY",
    "PrivacyStatement",
    "RunHeader",
    "build_statement",
    "render_page",
    "sampling_claim",
    "user_privacy",
]
