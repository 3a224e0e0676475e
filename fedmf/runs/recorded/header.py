"""What the ledger of a run says about it, as it is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedmf.noise import NoiseKey
from fedmf.statements import Plan, RunHeader

if TYPE_CHECKING:
    from fedmf.data import PublicInput
    from fedmf.runs.run import Run


def header_of(
    run: Run,
    plan: Plan,
    key: NoiseKey,
    dimension: int,
    test_owner: str = "nobody",
    arrays: tuple[tuple[str, tuple[int, ...]], ...] = (),
    constants: Sequence[PublicInput] = (),
) -> RunHeader:
    """What the ledger must remember to account for the run and to continue it exactly."""
    return RunHeader(
        run=run.to_dict(),
        plan=plan,
        dimension=dimension,
        arrays=arrays,
        key_fingerprint=key.fingerprint if run.is_private else None,
        key_public=key.public,
        clipped_by="server" if run.execution.messages == "per-user" else "workers",
        not_private=("central test part",) if test_owner == "training users" else (),
        public_inputs=tuple(map(dataclasses.asdict, (*run.task_source.public_inputs(), *constants))),
    )
