"""Commands about published statements: make a key, check a statement."""

from fedmf.cli.statements.signing_key import keygen
from fedmf.cli.statements.verifying import verify

__all__ = ["keygen", "verify"]
