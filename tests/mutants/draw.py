"""Draw faults from the rooms that privacy rests on: a seed and this file decide, nobody's choice does."""

from __future__ import annotations

import random
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.operators import faults_of

SEED, EACH = 20_261_122, 18
ROOT = Path(__file__).parents[2]
#: Files of each room. Left out are kernels that need a GPU and pages of words, which carry no promise.
ROOMS = {
    "noise": ("fedmf/noise/**/*.py",),
    "clip": ("fedmf/training/clipping/*.py",),
    "ledger": ("fedmf/records/*.py"),
    "accounting": ("fedmf/accounting/**/*.py",),
    "wrapper": ("fedmf/flower/wrapper/*.py", "fedmf/flower/boundary/*.py"),
    "streams": ("fedmf/streaming/**/*.py",),
}
LEFT_OUT = (
    "/gpu",
    "/statements/",
    "/accounting/published/",
    "/accounting/disclosure/",
    "statements.py",
    "__init__.py",
)


def files_of(room: str) -> list[str]:
    """The room's files, relative to the root, in order."""
    found = {str(path.relative_to(ROOT)) for pattern in ROOMS[room] for path in ROOT.glob(pattern)}
    return sorted(path for path in found if not any(part in path for part in LEFT_OUT))


def drawn(room: str) -> list[Mutant]:
    """EACH faults of the room, no two of one line."""
    generator = random.Random(f"{SEED} {room}")
    sites = [
        Mutant.of(room, file, source, fault, text)
        for file in files_of(room)
        for source in [(ROOT / file).read_text(encoding="utf-8")]
        for fault, text in faults_of(source)
    ]
    generator.shuffle(sites)
    chosen: dict[tuple[str, str, str], Mutant] = {}
    for mutant in sites:
        chosen.setdefault((mutant.file, mutant.within, mutant.before), mutant)
        if len(chosen) == EACH:
            break
    return [mutant.named(f"{room}-{i + 1:02}") for i, mutant in enumerate(chosen.values())]
