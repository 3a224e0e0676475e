"""One public seed, one result: every optimizer, part, model, kind of cohorts on every path."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import numpy as np
import pytest
from support.triton_worker import needs_gpu

from conformance.paths import AGGREGATED, FEW, ON_GPU, PATHS, PROCESSES, REFERENCE, WRAPPED, Path
from conformance.subjects import (
    AXES,
    COHORTS,
    LOCAL,
    MODELS,
    OPTIMIZERS,
    PARTS,
    PLAIN,
    SIZES,
    Subject,
    singles,
    task_of,
)
from conformance.table import carried_out as released
from conformance.table import cells, judged, planned, ulps
from fedmf.accounting import SecondForm
from fedmf.cohorts import COHORTS as COHORT_KINDS
from fedmf.flower import CorrelatedNoise
from fedmf.noise import NoiseStorage
from fedmf.optim import OPTIMIZERS as OPTIMIZER_KINDS
from fedmf.optim.blocks import BlockKind
from fedmf.parts import CLIPPINGS
from fedmf.parts import PARTS as PART_KINDS
from fedmf.runs import Execution, Run
from fedmf.runs.evaluation import EVALUATIONS
from fedmf.training import LocalSGD, engines
from fedmf.training.clipping import FixedPointSum
from fedmf.training.local import LocalTrainer
from fedmf.training.local_sgd import LocalEngine, Precision

#: What is refused, by the beginning of the reason, and how many subjects it is about.
REFUSED = {
    "model must be one that torch.func can batch with engine 'vectorised'": 1,
    "form (of the second moment) must be 'per-user' or 'squared-mean'; got 'joint-clip'": 1,
    "clipping must be 'fixed' for an optimizer that needs a second moment": 1,
    "count (of canaries) must be 0 with an optimizer that needs a second moment": 1,
    "count (of canaries) must be 0 with check-in cohorts": 1,
    "health must be left out with an optimizer that needs a second moment": 1,
    "health must be left out with cohorts that come as they can": 1,
    "own (statistic) must be left out with an optimizer that needs a second moment": 1,
    "CorrelatedNoise has no argument for fedmf's evaluation without noise": 1,
    "PrivateAggregator has no argument for evaluations": 1,
}
TABLE = dict(planned())
#: Combinations in which sums are of two moments and something else, or users hostile.
COMBINED = [
    Subject(model="hostile users", optimizer="jme-adam"),
    Subject(model="hostile users", part="private evaluation"),
    Subject(optimizer="jme-adam", part="private evaluation"),
    Subject(optimizer="jme-adam", part="replace-one"),
]


def by_turns() -> dict[Subject, tuple[Path, ...]]:
    """Each value by itself with every engine: how sums travel, and the wrapper, by turns."""
    auto, found = [path for path in PATHS if path.engine == "auto"], dict[Subject, tuple[Path, ...]]()
    vectorised = [path for path in PATHS if path.engine == "vectorised"]
    looped = [path for path in (*PATHS, WRAPPED, AGGREGATED) if path.engine == "loop" and path != REFERENCE]
    place = dict.fromkeys(AXES, 0)
    for subject in (subject for subject in TABLE if TABLE[subject] != FEW):
        axis = next((axis for axis in AXES if getattr(subject, axis) != getattr(PLAIN, axis)), None)
        turn = place[axis] = place[axis] + 1 if axis else 0
        mine = (paths[turn % len(paths)] for paths in (auto, vectorised, looped))
        found[subject] = (REFERENCE, *mine) if axis else (*PATHS, WRAPPED, AGGREGATED, PROCESSES[0])
    return found | {subject: TABLE[subject] for subject in COMBINED}


TURNS = by_turns()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


@pytest.mark.filterwarnings("ignore")  # of torch.func about a module that it cannot batch
@pytest.mark.parametrize("subject", TURNS, ids=str)
def test_values_have_one_result_with_every_engine(subject: Subject) -> None:
    check(subject, TURNS[subject])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("subject", TABLE, ids=str)
def test_every_path_has_one_result(subject: Subject) -> None:
    check(subject, TABLE[subject])


@needs_gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("subject", singles(), ids=str)
def test_a_gpu_has_the_same_result(subject: Subject) -> None:
    check(subject, ON_GPU)


def test_every_kind_of_path_takes_its_turn() -> None:
    """The table by turns leaves out no value, and of paths one of those with processes."""
    assert {path for paths in TURNS.values() for path in paths} == {*PATHS, PROCESSES[0], WRAPPED, AGGREGATED}
    assert TURNS.keys() >= set(singles())
    for paths in TURNS.values():
        assert {path.engine for path in paths} == (
            set(get_args(LocalEngine)) if paths != FEW else {"loop", "auto"}
        )


def check(subject: Subject, paths: Sequence[Path]) -> None:
    found = cells(subject, paths)
    wrong = [f"{cell.path}: {cell.reason}" for cell in found if cell.verdict == "differs"]
    wrong += [
        f"{cell.path} is refused: {cell.reason}"
        for cell in found
        if cell.verdict == "refused" and not any(cell.reason.startswith(reason) for reason in REFUSED)
    ]
    assert not wrong, "\n".join(wrong)


def test_what_is_refused_is_listed_and_nothing_else() -> None:
    """The combinations that are refused, found again without training: a reason nobody meets is taken off."""
    met = Counter[str]()
    for subject, paths in TABLE.items():
        alone = [
            path for path in paths if path.host != "fedmf" or path.engine == "vectorised" or path == REFERENCE
        ]
        parts = {subject.part, subject.optimizer, subject.model}
        if not parts & {
            "clip norm",
            "canaries",
            "health",
            "own statistic",
            "own rule, joint-clip",
            "one by one",
            "evaluation, not private",
        }:
            continue
        reasons = {cell.reason for cell in cells(subject, alone) if cell.verdict == "refused"}
        met.update(next(known for known in REFUSED if reason.startswith(known)) for reason in reasons)
    assert met == REFUSED


def names(values: Iterable[Any], field: str) -> set[Any]:
    return {getattr(value, field) for value in values if hasattr(value, field)}


def test_every_kind_that_fedmf_has_is_in_the_table() -> None:
    """A new kind of optimizer, cohorts, engine, message, evaluation, clipping or storage must enter."""
    assert names(OPTIMIZERS.values(), "kind") == OPTIMIZER_KINDS.keys()
    assert names(OPTIMIZERS.values(), "blocks") == set(get_args(BlockKind))
    forms = names(OPTIMIZERS.values(), "second_form") | {"joint-clip"}
    assert forms == set(get_args(SecondForm))
    assert {cohorts.kind for cohorts in COHORTS.values()} == COHORT_KINDS.keys()
    runs = [Subject(part=part).run(REFERENCE) for part in PARTS]
    assert {run.evaluation.kind for run in runs} == EVALUATIONS.keys()
    assert {run.clipping.kind for run in runs} == CLIPPINGS.keys()
    assert {run.noise.storage.dtype for run in runs} == literals(NoiseStorage, "dtype")
    assert {run.privacy.adjacency for run in runs} == {"zero-out", "replace-one"}  # type: ignore[union-attr]
    paths = [*PATHS, *PROCESSES]
    assert {path.engine for path in paths} == set(get_args(LocalEngine))
    assert {path.messages for path in paths} == literals(Execution, "messages")
    assert {path.isolation for path in paths} == literals(Execution, "isolation")
    assert {LocalSGD(**values).precision for values in LOCAL.values()} == set(get_args(Precision))


def test_every_part_that_fedmf_has_is_in_the_table() -> None:
    """Each kind of each: what it releases is then compared on every path."""
    chosen = {(part.name, part.kind) for name in PARTS for part in Subject(part=name).run(REFERENCE).parts}
    known = {(name, kind) for name, kinds in PART_KINDS.items() for kind in kinds}
    missing = ", ".join(f"{name} of kind {kind}" for name, kind in sorted(known - chosen))
    assert not missing, f"PARTS of tests/conformance/subjects.py must have every part; it has no {missing}."


def literals(value: type, field: str) -> set[str]:
    """The texts that an annotation admits."""
    stated = next(found[field] for base in value.__mro__ if field in (found := inspect.get_annotations(base)))
    return set(re.findall(r"['\"]([^'\"]+)['\"]", str(stated)))


def test_every_value_of_a_run_is_an_axis() -> None:
    """And every field of local training and execution either varies here or is no path.

    A part that fedmf does not have takes every path in tests/runs/test_another_part.py.
    """
    assert {field.name for field in dataclasses.fields(Run)} == {
        "task", "cohorts", "optimizer", "local", "clipping", "canaries", "evaluation", "mechanism", "privacy",
        "execution", "beside",
    }  # fmt: skip
    varied = set().union(*LOCAL.values()) | {"batch_size", "engine"}
    assert {field.name for field in dataclasses.fields(LocalSGD)} - varied == {"learning_rate", "seed"}
    paths = {field.name for field in dataclasses.fields(Path)} - {"engine", "host", "device"}
    waiting = {"round_timeout", "handshake_timeout", "min_replies", "grace", "refusals", "silent_retries"}
    limits = {"user_examples", "user_steps", "user_megabytes", "user_seconds"}
    kept = {"evaluate_every", "checkpoint_every", "output_dir", "resume", "restored_from_backup"}
    elsewhere = {"worker_cpus", "worker_gpus", "ray_address", "enrolment"}  # Ray, GPUs, deployments
    assert {
        field.name for field in dataclasses.fields(Execution)
    } == paths | waiting | limits | kept | elsewhere


def test_every_argument_of_the_wrapper_is_an_axis_or_no_path() -> None:
    given = {
        "strategy", "epsilon", "delta", "clipping_norm", "num_users", "users_per_round", "num_rounds",
        "mechanism", "client_evaluation", "evaluation_metrics", "private_evaluation", "noise_seed", "run_dir",
        "adjacency", "cohorts", "amplified", "server_optimizer", "adaptive_clipping",
        "canaries",
    }  # fmt: skip
    others = {"identity", "frozen", "tied", "max_epsilon", "user_budgets", "waiting", "trusted_subclass"}
    others |= {"observers", "stop"}  # who only looks on: tests/flower/wrapper/test_looked_on.py
    others |= {"beside"}  # every part: the axis of parts, and tests/runs/test_another_part.py
    assert inspect.signature(CorrelatedNoise).parameters.keys() == given | others


def test_the_models_reach_every_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both compiled programs train users here, and so does each kind of gradient."""
    trained, made = Counter[str](), set[str]()
    for program in (engines.LowRankProgram, engines.FusedProgram):
        monkeypatch.setattr(program, "received", noting(program.received, trained, program.__name__))
    for name in ("LayeredGradient", "FunctionalGradient", "LoopGradient", "MicroBatches"):
        kind = getattr(engines, name)
        monkeypatch.setattr(kind, "__init__", noting(kind.__init__, made, name))
    known = {name for name in engines.__dict__ if name.endswith("Program") and name != "GradientProgram"}
    assert known == {"LowRankProgram", "FusedProgram"}
    counts = np.array(SIZES)
    chosen = set[str]()
    for model in MODELS:
        trainer = LocalTrainer(task_of(model), LocalSGD(batch_size=2))
        which = engines.chosen(trainer._programs, counts)
        chosen |= {type(trainer._programs[place - 1]).__name__ for place in which if place}
        trainer.add_updates(
            task_of(model).model.initial(), task_of(model).dataset.user_ids, 0,
            FixedPointSum(task_of(model).model.dimension, 0.3, "cpu"),
        )  # fmt: skip
    LocalTrainer(task_of("dense chain"), LocalSGD(micro_batch=1)).updates(
        task_of("dense chain").model.initial(), ["u0"], 0
    )
    assert chosen == known == trained.keys()
    assert made == {"LayeredGradient", "FunctionalGradient", "LoopGradient", "MicroBatches"}


def noting(inner: Any, into: Any, name: str) -> Any:
    """A function that notes its name when it is called."""

    def noted(*arguments: Any, **named: Any) -> Any:
        into.update({name: 1} if isinstance(into, Counter) else {name})
        return inner(*arguments, **named)

    return noted


def test_a_user_left_out_of_one_sum_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """So would the table see a path that forgets somebody, or a feature of somebody."""
    expected = released(PLAIN, REFERENCE)
    inner = LocalTrainer.add_updates

    def forgetful(trainer: Any, parameters: Any, users: Any, t: int, total: Any) -> Any:
        kept = list(users) if t != 1 else list(users)[:-1]
        failed = inner(trainer, parameters, kept, t, total)
        total.add_nothing(len(users) - len(kept))
        return failed

    monkeypatch.setattr(LocalTrainer, "add_updates", forgetful)
    cell = judged(PLAIN, REFERENCE, released(PLAIN, REFERENCE), expected)
    assert cell.verdict == "differs"
    assert cell.ulps > 1e4


def test_distances_are_in_units_of_the_last_place() -> None:
    ones = np.ones(3, np.float32)
    assert ulps(ones, ones) == 0
    assert ulps(np.nextafter(ones, 2), ones) == 1
    assert ulps(ones * np.nan, ones) == np.inf
    assert ulps(ones[:2], ones) == np.inf


def test_axes_start_with_the_plain_run() -> None:
    assert {axis: next(iter(values)) for axis, values in AXES.items()} == dataclasses.asdict(PLAIN)
