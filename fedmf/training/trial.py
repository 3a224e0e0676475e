"""A task tried on made-up examples, so that what is wrong is known before anything is spent or written."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedmf.data import Features, each, named, row_count, structure_of
from fedmf.errors import ConfigError
from fedmf.models import FlatModel
from fedmf.training.barrier import described, silent
from fedmf.training.clipping import FixedPointSum
from fedmf.training.engines import gradient_program, refuse_batch_statistics
from fedmf.training.gradients import Accumulation, Batch, flat_gradient
from fedmf.training.local_sgd import LocalSGD
from fedmf.training.task import Task

_USERS, _WIDTH = 2, 5
#: Losses of an example alone and among others may differ by rounding.
_TOLERANCE = {"rtol": 1e-3, "atol": 1e-5, "equal_nan": True}


def preflight(task: Task, local: LocalSGD, clip_norm: float = 1.0) -> None:
    """Train on made-up users with the chosen engine, clip, and compute the metrics of made-up examples.

    The examples are drawn from the declared structure; of the data set only the central test part is looked
    at, so whether this raises tells nothing about any user.

    Args:
        task: any.
        local: local training and its engine.
        clip_norm: ζ > 0.

    Raises:
        ConfigError: one line that names the cause and where in the task's own code it was raised; the
            exception of that code is its ``__cause__``.

    Guarantees:
        Nothing is printed, and neither the model nor a global random generator moves.
    """
    _compare_with_test_part(task)
    refuse_batch_statistics(task.model.module)
    gpus = [task.device] if task.device.type == "cuda" else []
    with silent(), torch.random.fork_rng(devices=gpus):
        batch = _made_up(task)
        examples = batch.part(0)
        before = _generators(gpus)
        outputs, labels = _outputs_and_losses(task, examples), examples.labels
        if not all(map(torch.equal, before, _generators(gpus))):
            raise ConfigError(
                "model and loss must not draw random numbers, or one user's update would depend on who is "
                "trained before; they drew some. Call the module's eval(), or set dropout to 0."
            )
        _outputs_and_losses(task, examples.part(slice(1)))
        _train(task, local, clip_norm, batch)
    for metric in task.metrics:
        with _stage(f"metric {metric.name} must be a number computed from outputs {_seen(outputs)}"):
            float(metric.of(outputs, labels))


def _generators(gpus: list[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, gpus)]


def _compare_with_test_part(task: Task) -> None:
    structure, dataset = task.structure, task.dataset
    parts = {
        "test_features": (structure.features, dataset.test_features),
        "test_labels": (structure.labels, dataset.test_labels),
    }
    for name, (declared, values) in parts.items():
        if not declared.fits(values):
            got = structure_of(values)
            raise ConfigError(f"{name} must be as the task's structure declares, {declared}; got {got}.")
    if row_count(dataset.test_features) != len(dataset.test_labels):
        raise ConfigError(
            "test_features and test_labels must be of the same examples; got "
            f"{row_count(dataset.test_features)} and {len(dataset.test_labels)}."
        )


def _made_up(task: Task) -> Batch:
    """Examples of a few users, the last of each padding, the largest valid whole numbers among them."""
    shape = (_USERS, _WIDTH)
    structure = task.structure
    features, labels = structure.sample(torch.Generator().manual_seed(0), shape)
    for part, drawn in ((structure.features, features), (structure.labels, labels)):
        for name, values in named(drawn).items():
            bound = part.named[name].bound
            if bound is not None:
                values.view(-1)[0] = bound - 1
            values[:, -1] = values[:, 0]
    weights = torch.full(shape, 1.0 / (_WIDTH - 1))
    weights[:, -1] = 0.0
    features = each(lambda values: values.to(task.device), features)
    return Batch(features, labels.to(task.device), weights.to(task.device))


def _outputs_and_losses(task: Task, batch: Batch) -> Tensor:
    """The outputs, once model, loss and gradient are what they must be on these examples of one user."""
    features, labels, examples = batch.features, batch.labels, len(batch.labels)
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
        with _stage(f"loss must take outputs {_seen(outputs)} and declared labels {task.structure.labels}"):
            losses = task.loss(outputs, labels)
            alone = task.loss(outputs[:1], labels[:1])
        if not isinstance(losses, Tensor) or losses.shape != (examples,):
            raise ConfigError(
                f"loss must return one number for each example, shape ({examples},); got {_seen(losses)}."
            )
        if not torch.isfinite(losses).any():
            raise ConfigError(f"loss must be finite; got {float(losses[0])} for every made-up example.")
        if not torch.allclose(alone, losses[:1], **_TOLERANCE):
            raise ConfigError(
                "loss must treat examples one by one; got another loss for an example among others "
                f"({float(losses[0]):.6g}) than alone ({float(alone[0]):.6g})."
            )
    with _stage("loss must be differentiable in the parameters"):
        weights = torch.full((examples,), 1.0 / examples, device=task.device)
        gradient = flat_gradient(model, task.loss, theta, Batch(features, labels, weights))
    if not torch.isfinite(gradient).all():
        raise ConfigError("gradient of the loss must be finite; got one that is not for made-up examples.")
    _refuse_changed_constants(task, features)
    return outputs


def _refuse_changed_constants(task: Task, features: Features) -> None:
    """Compare frozen parameters and buffers with what a pass of the module by itself leaves of them."""
    with _stage("model must be one that can be copied"):
        module = copy.deepcopy(task.model.module).to(task.device)
    with torch.no_grad():
        module(features) if isinstance(features, Tensor) else module(**features)
    kept, left = (
        {name: (tensor.dtype, tensor.shape, _bits(tensor)) for name, tensor in model.constants.items()}
        for model in (task.model, FlatModel(module))
    )
    changed = sorted(
        name
        for name in kept.keys() | left.keys()
        if name not in kept
        or name not in left
        or kept[name][:2] != left[name][:2]
        or not torch.equal(kept[name][2], left[name][2])
    )
    if not changed:
        return
    raise ConfigError(
        f"model must not change its buffers in a pass; got another {changed[0]!r}. What it keeps of examples "
        "would be released without clipping or noise."
    )


def _bits(tensor: Tensor) -> Tensor:
    """Of each number, as bytes: NaN is then equal to itself."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _train(task: Task, local: LocalSGD, clip_norm: float, batch: Batch) -> None:
    with _stage(f"model and loss must be trainable with engine {local.engine!r}"):
        gradient = gradient_program(task, local).make()
        origin = task.model.initial().to(task.device)
        models = origin.repeat(_USERS, 1)
        with torch.no_grad():
            gradient.accumulate(batch, Accumulation(models, models, beta=1.0, alpha=-local.learning_rate))
        total = FixedPointSum(origin.numel(), clip_norm, task.device)
        counted = total.add_updates(models, origin)
    if not counted.all():
        raise ConfigError("update of a user must be finite; got one that is not for made-up examples.")


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
