"""``fedmf design`` and ``restate``: what mechanisms give, before any training or after a publication."""

from fedmf.cli.designs.command import AdjacencyName, design, parse_parameters
from fedmf.cli.designs.restatement import restate

__all__ = ["AdjacencyName", "design", "parse_parameters", "restate"]
