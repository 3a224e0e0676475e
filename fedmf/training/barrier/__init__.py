"""What keeps a user's failure with that user: loading and training."""

from fedmf.training.barrier.description import Failures, UserFailure, described, pass_interrupt, silent
from fedmf.training.barrier.group import Group
from fedmf.training.barrier.loading import example_counts, load_examples

__all__ = [
    "Failures",
    "Group",
    "UserFailure",
    "described",
    "example_counts",
    "load_examples",
    "pass_interrupt",
    "silent",
]
