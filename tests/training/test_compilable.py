"""Compiled programs train only what they know every field of: what they do not know is left to torch."""

from __future__ import annotations

import dataclasses

from support.fused import task_of

from fedmf.training import LocalSGD
from fedmf.training.compilable import DONE
from fedmf.training.fused import FusedProgram


@dataclasses.dataclass(frozen=True)
class Later(LocalSGD):
    """As a later version might have it."""

    weight_decay: float = 0.0


def test_a_field_that_programs_do_not_know_is_left_to_torch() -> None:
    task = task_of([8, 3], "dense layers only")
    assert FusedProgram.of(task, Later()) is not None
    assert FusedProgram.of(task, Later(weight_decay=0.1)) is None


def test_fields_that_programs_know_are_fields_of_local_sgd() -> None:
    assert {field.name for field in dataclasses.fields(LocalSGD)} >= DONE
