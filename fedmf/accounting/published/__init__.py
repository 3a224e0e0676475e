"""What published deployments really give."""

from fedmf.accounting.published.deployed import DEPLOYED, DeployedModel, gallery
from fedmf.accounting.published.restatement import Restatement, restate, zcdp_epsilon

__all__ = ["DEPLOYED", "DeployedModel", "Restatement", "gallery", "restate", "zcdp_epsilon"]
