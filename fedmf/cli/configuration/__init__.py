"""Commands about configurations: one to start from, and what it may say."""

from fedmf.cli.configuration.known_keys import keys
from fedmf.cli.configuration.starting import APP, CASES, init

__all__ = ["APP", "CASES", "init", "keys"]
