"""Flower on this machine alone: the in-process grid, and whole apps on it, without Ray."""

from fedmf.flower.local_run.grid import CallsHere, InProcessGrid
from fedmf.flower.local_run.local_app import run_app

__all__ = ["CallsHere", "InProcessGrid", "run_app"]
