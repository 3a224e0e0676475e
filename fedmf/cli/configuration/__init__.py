"""Commands about configurations: one to start from, and what it may say."""

from fedmf.cli.configuration.known_keys import keys
from fedmf.cli.configuration.starting import CASES, init

__all__ = ["CASES", "init", "keys"]
