"""``fedmf design``: what mechanisms give, before any training."""

from fedmf.cli.designs.command import AdjacencyName, design, parse_parameters

__all__ = ["AdjacencyName", "design", "parse_parameters"]
