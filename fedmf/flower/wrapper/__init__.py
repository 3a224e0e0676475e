"""`CorrelatedNoise`: any Flower strategy whose aggregation is a mean, made private."""

from fedmf.flower.wrapper.enrolled_users import EnrolledUsers
from fedmf.flower.wrapper.identity import NodesAreUsers, UsersSayWho, user_id_mod
from fedmf.flower.wrapper.strategy import CorrelatedNoise

__all__ = ["CorrelatedNoise", "EnrolledUsers", "NodesAreUsers", "UsersSayWho", "user_id_mod"]
