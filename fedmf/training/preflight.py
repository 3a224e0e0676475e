"""A trial of a task on made-up examples, so that errors are seen before anything is released.

The examples are drawn from the declared structure. Model, loss and metrics are called on them, a
made-up user is trained, and its update must depend on its examples alone.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn

from fedmf.data.structure import Features, device_of
from fedmf.errors import ConfigError
from fedmf.models.frozen import refuse_live_statistics
from fedmf.training.engines import LoopEngine, made_up_group, outputs_of
from fedmf.training.interference import interference
from fedmf.training.local import chosen_path, trainer_on
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.rng import kept_generators, other_states
from fedmf.training.task import Task
from fedmf.training.unmoved import unmoved_parameters
from fedmf.training.user_failures import described, silent

#: Logs a warning, the same one only once in a process.
_warn_once: Final = cache(logging.getLogger("fedmf").warning)
#: Examples of a made-up user.
_WIDTH = 5
#: Difference by rounding between the loss of an example alone and among others.
_TOLERANCE = {"rtol": 1e-3, "atol": 1e-5, "equal_nan": True}
#: Factor of the parameters in a second pass, which shows what a module does to large ones.
_LARGER = 16.0


@torch.inference_mode(False)
def preflight(task: Task, local: LocalSGD, users: int | None = None) -> None:
    """Train made-up users as the run will, and compute the metrics of made-up examples.

    Only the central test part of the data set is read, so whether this raises tells nothing about
    any user.

    Args:
        task: the task to try.
        local: local training and its engine.
        users: how many are planned to be trained in one call (`chosen_path`).

    Raises:
        ConfigError: one line that names the cause and where in the task's own code it was raised;
            the exception of that code is its ``__cause__``.

    Guarantees:
        Neither the model nor a global random generator moves. A warning names parameters that no
        user can move (`unmoved_parameters`); nothing else is printed.
        A model and loss for which the update of a made-up user depends on others are rejected: see
        `interference`.
    """
    _compare_with_test_part(task)
    refuse_live_statistics(task.model.module)
    untouched = replace(task, loss=copy.deepcopy(task.loss))  # it has seen no example yet
    group = made_up_group(task, _WIDTH)
    features, labels = group.examples(torch.arange(group.width, device=task.device))
    first_features, first_labels = group.examples(torch.arange(1, device=task.device))
    with silent(), kept_generators(task.device):
        before = other_states()
        outputs = _outputs_and_losses(task, features, labels)
        _outputs_and_losses(task, first_features, first_labels)
        with _stage("loss must be differentiable in the parameters"):
            updates = LoopEngine(task, local).train(task.model.initial().to(task.device), group)
        _require_same_states(before)
        if not torch.isfinite(updates).all():
            raise ConfigError(
                "update of a user must be finite; got one that is not for made-up examples."
            )
        unmoved = ""
        with suppress(Exception):  # more examples than the run ever takes at once may be too many
            unmoved = unmoved_parameters(untouched)
        with _stage(f"model and loss must be trainable with engine {local.engine!r}"):
            path = chosen_path(untouched, local, users).path
            # `chosen_path` tries the other paths itself, with what follows on frozen layers.
            if path == "loop" or untouched.after_frozen_layers is not untouched:
                grouped = path != "loop"
                fault = interference(trainer_on(path), untouched, local, grouped)
                _refuse_interference(fault)
    if unmoved:
        _warn_once("model: %s.", unmoved)
    for metric in task.metrics:
        with _stage(
            f"metric {metric.name} must be a number computed from outputs {_seen(outputs)}"
        ):
            float(metric.of(outputs, labels))


def _require_same_states(before: dict[str, Any]) -> None:
    """Reject random numbers from generators that are not seeded for each user."""
    after = other_states()
    moved = [name for name in before if after[name] != before[name]]
    if moved:
        raise ConfigError(
            "model and loss must draw random numbers from torch's generator alone, which is"
            f" seeded for each user; they drew some from {' and '.join(moved)}. Use torch.rand"
            " and similar functions."
        )


def _refuse_interference(why: str) -> None:
    if why:
        raise ConfigError(
            f"update of a user must depend on that user's examples alone; {why}. Model and loss"
            " must keep nothing from one user to the next, in an attribute, a buffer, a generator"
            " or a global."
        )


def _compare_with_test_part(task: Task) -> None:
    structure = task.structure
    dataset = task.dataset
    tests = len(dataset.test_labels)
    device = device_of(dataset.test_features)
    try:
        structure.features.check("test_features", dataset.test_features, tests, device)
        structure.labels.check("test_labels", dataset.test_labels, tests, device)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"test part must be as the task's structure declares: {error}") from None


def _outputs_and_losses(task: Task, features: Features, labels: Tensor) -> Tensor:
    """Check model and loss on these examples of one user, and return the outputs."""
    examples = len(labels)
    with _stage("model must be one that can be copied, since each thread has its own"):
        model = task.model.copied()
    theta = model.initial().to(task.device)
    with torch.no_grad():
        with _stage(f"model must take the declared features, {task.structure.features}"):
            outputs = model.forward(theta, features)
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != (examples,):
            hint = ""
            if not isinstance(outputs, Tensor):
                hint = " Concatenate the outputs into one tensor."
            raise ConfigError(
                f"model must return one row for each of {examples} examples; got {_seen(outputs)}."
                f"{hint}"
            )
        with _stage(
            f"loss must take outputs {_seen(outputs)} and declared labels {task.structure.labels}"
        ):
            losses = task.loss(outputs, labels)
            alone = task.loss(outputs[:1], labels[:1])
        if not isinstance(losses, Tensor) or losses.shape != (examples,):
            raise ConfigError(
                f"loss must return one number for each example, shape ({examples},); got"
                f" {_seen(losses)}."
            )
        if not torch.isfinite(losses).any():
            raise ConfigError(
                f"loss must be finite; got {float(losses[0])} for every made-up example."
            )
        if not torch.allclose(alone, losses[:1], **_TOLERANCE):
            raise ConfigError(
                "loss must treat examples one by one; got another loss for an example among others "
                f"({float(losses[0]):.6g}) than alone ({float(alone[0]):.6g})."
            )
    _refuse_changed_state(task, features)
    return outputs


def _refuse_changed_state(task: Task, features: Features) -> None:
    """Reject a module that changes its parameters or buffers in a pass."""
    with _stage("model must be one that can be copied"):
        module = copy.deepcopy(task.model.module).to(task.device)
    with torch.no_grad():
        before = _copied_state(module)
        outputs_of(module, features)
        _require_same_state(before, module)
        for parameter in module.parameters():
            parameter.mul_(_LARGER)
        before = _copied_state(module)
        with suppress(Exception):  # large parameters may be none that the module can take
            outputs_of(module, features)
        _require_same_state(before, module)


def _require_same_state(before: dict[str, Tensor], module: nn.Module) -> None:
    after = _state(module)
    for name in sorted(before.keys() | after.keys()):
        if not _same_bits(before.get(name), after.get(name)):
            raise ConfigError(
                "model must not change its parameters or buffers in a pass; got another"
                f" {name!r}. What it keeps of examples would be released without clipping or"
                " noise: freeze that part (fedmf.freeze), or keep nothing."
            )


def _state(module: nn.Module) -> dict[str, Tensor]:
    tensors = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor.detach() for name, tensor in tensors}


def _copied_state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in _state(module).items()}


def _same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether both have the same type, shape and bits; NaN is equal to itself."""
    if one is None or other is None:
        return False
    same_type = one.dtype == other.dtype and one.shape == other.shape
    return same_type and torch.equal(_bytes_of(one), _bytes_of(other))


def _bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of all numbers, in which NaN is equal to itself."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


@contextmanager
def _stage(requirement: str) -> Iterator[None]:
    """Turn any error within into one that names the requirement that it breaks."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # a task's own code may raise anything
        raise ConfigError(f"{requirement}; got {described(error)}.") from error


def _seen(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__
