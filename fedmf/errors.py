"""Errors whose message is one line for the person at the keyboard."""

from __future__ import annotations

__all__ = ["ConfigError", "HorizonExceededError", "LedgerError", "ParticipationViolation"]


class LedgerError(ValueError):
    """A ledger cannot be created, opened, read or extended; the message is one line."""


class ParticipationViolation(LedgerError):
    """A round would break, or rows already do break, the participation contract."""


class ConfigError(ValueError):
    """A configuration that cannot be run; the message is one line."""


class HorizonExceededError(RuntimeError):
    """A round past the horizon n was asked for: nothing about it was calibrated, so no noise exists."""
