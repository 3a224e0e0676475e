"""Commands about published statements: make a key, check a statement."""

from fedmf.cli.statements.verifying import keygen, verify

__all__ = ["keygen", "verify"]
