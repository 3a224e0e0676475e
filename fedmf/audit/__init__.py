"""An attempt to refute what a run's mechanism claims: canary users."""

from fedmf.audit.canaries import Audit, audit

__all__ = ["Audit", "audit"]
