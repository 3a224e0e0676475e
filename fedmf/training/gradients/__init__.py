"""Gradients of many users at once: written-out layers, torch.func, a loop."""

from fedmf.training.gradients.alignment import aligned_empty
from fedmf.training.gradients.gradient import (
    Accumulation,
    Batch,
    FunctionalGradient,
    Gradient,
    LoopGradient,
    Loss,
    MicroBatches,
    flat_gradient,
)
from fedmf.training.gradients.layered import LayeredGradient, adapted, layers_of

__all__ = [
    "Accumulation",
    "Batch",
    "FunctionalGradient",
    "Gradient",
    "LayeredGradient",
    "LoopGradient",
    "Loss",
    "MicroBatches",
    "adapted",
    "aligned_empty",
    "flat_gradient",
    "layers_of",
]
