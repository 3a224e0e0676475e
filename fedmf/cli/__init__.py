"""The ``fedmf`` command line."""

from fedmf.cli.app import main

__all__ = [
    "main",
]
