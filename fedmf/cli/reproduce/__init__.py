"""``fedmf reproduce``: what the papers and we report, computed anew."""

from fedmf.cli.reproduce.command import reproduce

__all__ = ["reproduce"]
