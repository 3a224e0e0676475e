"""Commands about published statements: make a key, check a statement, write it for a registry."""

from fedmf.cli.statements.registering import registry
from fedmf.cli.statements.signing_key import keygen
from fedmf.cli.statements.verifying import verify

__all__ = ["keygen", "registry", "verify"]
