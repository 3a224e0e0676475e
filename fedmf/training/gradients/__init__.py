"""Gradients of many users at once: written-out layers, torch.func, a loop."""

from fedmf.training.gradients.alignment import aligned_empty
from fedmf.training.gradients.gradient import FunctionalGradient, Gradient, LoopGradient, Loss
from fedmf.training.gradients.layered import LayeredGradient, layers_of

__all__ = [
    "FunctionalGradient",
    "Gradient",
    "LayeredGradient",
    "LoopGradient",
    "Loss",
    "aligned_empty",
    "layers_of",
]
