"""What only the operator knows of a deployment."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import Final

__all__ = ["PRODUCTS", "SECTORS", "Deployment"]

#: What the registry takes for data_product_type and data_product_sector.
PRODUCTS: Final = (
    "Summary statistics",
    "Machine learning model",
    "Dataset",
    "Synthetic data",
    "Interactive API",
    "SQL queries",
)
SECTORS: Final = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")


@dataclass(frozen=True)
class Deployment:
    """What a registry asks of the operator of a deployment; no statement knows it.

    Args:
        name: of the data product.
        curators: who publishes it, one or more.
        use: what it is meant for.
        region: what the data describe, or whose law applies.
        description: of the data product, brief.
        date: of its publication, YYYY-MM-DD.
        authors: who fills in the entry, one or more.
        product: one of `PRODUCTS`.
        sector: one of `SECTORS`, or empty.
        sources: addresses of texts about it, and of the published statement.
        bias: what is known of the error for different groups of people; empty if it was not looked at.

    Raises:
        ValueError: a text is empty, or a value is none of the registry's.
    """

    name: str
    curators: tuple[str, ...]
    use: str
    region: str
    description: str
    date: str
    authors: tuple[str, ...]
    product: str = "Machine learning model"
    sector: str = ""
    sources: tuple[str, ...] = ()
    bias: str = ""

    def __post_init__(self) -> None:
        for field in ("name", "use", "region", "description"):
            if not getattr(self, field).strip():
                raise ValueError(f"{field} (of the deployment) must not be empty.")
        for field in ("curators", "authors"):
            if not getattr(self, field) or not all(text.strip() for text in getattr(self, field)):
                raise ValueError(f"{field} (of the deployment) must name one or more; got none.")
        for field, choices in (("product", PRODUCTS), ("sector", ("", *SECTORS))):
            if getattr(self, field) not in choices:
                raise ValueError(
                    f"{field} (of the deployment) must be one of {', '.join(filter(None, choices))}; got "
                    f"{getattr(self, field)!r}."
                )
        try:
            shown = datetime.date.fromisoformat(self.date).isoformat()
        except ValueError:
            shown = None
        if shown != self.date:
            raise ValueError(f"date (of publication) must be a day as YYYY-MM-DD; got {self.date!r}.")

    @property
    def slug(self) -> str:
        """A stable part of an address, made of the name, the first curator and the year."""
        words = re.findall(r"[a-z0-9]+", f"{self.name} {self.curators[0]} {self.date[:4]}".lower())
        return "-".join(words)
