"""A published statement in the words of those who collect such statements: a registry, and NIST."""

from fedmf.accounting.disclosure.deployment import PRODUCTS, SECTORS, Deployment
from fedmf.accounting.disclosure.entry import registry_entry
from fedmf.accounting.disclosure.evaluation_fields import nist_fields, nist_table
from fedmf.accounting.disclosure.yaml_text import as_yaml

__all__ = [
    "PRODUCTS",
    "SECTORS",
    "Deployment",
    "as_yaml",
    "nist_fields",
    "nist_table",
    "registry_entry",
]
