"""The law of what streams release, as the scripts of simulations/moments draw it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "simulations" / "moments"))
from released_moments import drawn, planned, released

__all__ = ["drawn", "planned", "released"]
