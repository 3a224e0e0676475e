"""Commands about published statements: make a key, check one; exact counts, which no statement has."""

from fedmf.cli.statements.operator_counts import operator_lines, stream_lines
from fedmf.cli.statements.verifying import keygen, verify

__all__ = ["keygen", "operator_lines", "stream_lines", "verify"]
