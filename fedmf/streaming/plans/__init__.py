"""What is fixed before the first row of a private stream."""

from fedmf.streaming.plans.plan import StreamPlan

__all__ = ["StreamPlan"]
