"""A task tried on made-up examples, so that errors are found before anything is spent or
written.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedmf.data.structure import Features, device_of, each
from fedmf.errors import ConfigError
from fedmf.training.engines import LoopEngine, made_up_group, refuse_batch_statistics
from fedmf.training.interference import interference
from fedmf.training.local import chosen_path, trainer_on
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.rng import kept_generators, other_states
from fedmf.training.task import Task
from fedmf.training.user_failures import described, silent

#: Examples of a made-up user.
_WIDTH = 5
#: Losses of an example alone and among others may differ by rounding.
_TOLERANCE = {"rtol": 1e-3, "atol": 1e-5, "equal_nan": True}
#: How much larger parameters are in a second pass: what a module does to large ones is then seen as
#: well.
_LARGER = 16.0


def preflight(task: Task, local: LocalSGD) -> None:
    """Train made-up users as the run will, and compute the metrics of made-up examples.

    The examples are drawn from the declared structure; of the data set only the central test part
    is looked at, so whether this raises tells nothing about any user.

    Args:
        task: any.
        local: local training and its engine.

    Raises:
        ConfigError: one line that names the cause and where in the task's own code it was raised;
            the exception of that code is its ``__cause__``.

    Guarantees:
        Nothing is printed, and neither the model nor a global random generator moves.
        A model and loss for which the update of a made-up user depends on others are rejected: see
        `interference`.
    """
    _compare_with_test_part(task)
    refuse_batch_statistics(task.model.module)
    untouched = replace(task, loss=copy.deepcopy(task.loss))  # it has seen nobody yet
    group = made_up_group(task, _WIDTH)
    features, labels = (
        each(lambda values: values[: group.width], part) for part in (group.features, group.labels)
    )
    with silent(), kept_generators(task.device):
        before = other_states()
        outputs = _outputs_and_losses(task, features, labels)
        _outputs_and_losses(task, each(lambda values: values[:1], features), labels[:1])
        with _stage("loss must be differentiable in the parameters"):
            updates = LoopEngine(task, local).train(task.model.initial().to(task.device), group)
        if moved := [name for name, state in other_states().items() if state != before[name]]:
            raise ConfigError(
                "model and loss must draw random numbers from torch's generator alone, which is"
                f" seeded for each user; they drew some from {' and '.join(moved)}. Use torch.rand"
                " and similar functions."
            )
        if not torch.isfinite(updates).all():
            raise ConfigError(
                "update of a user must be finite; got one that is not for made-up examples."
            )
        with _stage(f"model and loss must be trainable with engine {local.engine!r}"):
            path, *_ = chosen_path(untouched, local)
            if path == "loop":  # of others `chosen_path` knows it
                _refuse_interference(interference(trainer_on(path), untouched, local, beside=False))
    for metric in task.metrics:
        with _stage(
            f"metric {metric.name} must be a number computed from outputs {_seen(outputs)}"
        ):
            float(metric.of(outputs, labels))


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
    """The outputs, after model and loss were checked on these examples of one user."""
    examples = len(labels)
    with _stage("model must be one that can be copied, since each thread has its own"):
        model = task.model.copied()
    theta = model.initial().to(task.device)
    with torch.no_grad():
        with _stage(f"model must take the declared features, {task.structure.features}"):
            outputs = model.forward(theta, features)
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != (examples,):
            raise ConfigError(
                f"model must return one row for each of {examples} examples; got {_seen(outputs)}."
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
    """Compare parameters and buffers with what passes of the module by itself leave of them."""
    with _stage("model must be one that can be copied"):
        module = copy.deepcopy(task.model.module).to(task.device)
    with torch.no_grad():
        for factor in (1.0, _LARGER):
            for parameter in module.parameters():
                parameter.mul_(factor)
            before = {name: tensor.clone() for name, tensor in _state(module).items()}
            with nullcontext() if factor == 1.0 else suppress(Exception):
                module(features) if isinstance(features, Tensor) else module(**features)
            after = _state(module)
            changed = sorted(
                name for name in before.keys() | after.keys() if not _same(before, after, name)
            )
            if changed:
                raise ConfigError(
                    "model must not change its parameters or buffers in a pass; got another"
                    f" {changed[0]!r}. What it keeps of examples would be released without clipping"
                    " or noise, and evaluation would change the model."
                )


def _state(module: nn.Module) -> dict[str, Tensor]:
    tensors = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor.detach() for name, tensor in tensors}


def _same(before: dict[str, Tensor], after: dict[str, Tensor], name: str) -> bool:
    """Whether both have the same type, shape and bits; NaN is equal to itself."""
    if name not in before or name not in after:
        return False
    one = before[name]
    other = after[name]
    return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(
        _bits(one), _bits(other)
    )


def _bits(tensor: Tensor) -> Tensor:
    """Of each number, as bytes: NaN is then equal to itself."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


@contextmanager
def _stage(requirement: str) -> Iterator[None]:
    """Whatever is raised inside breaks this requirement."""
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
