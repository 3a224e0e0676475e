"""The version of fedmf, for statements that must say what made them."""

from __future__ import annotations

from typing import Final

#: As in pyproject.toml, which Flower reads; a package that Flower unpacks has no installed
#: metadata.
__version__: Final = "0.3.0"

#: How records name the software that wrote them.
SOFTWARE: Final = f"fedmf {__version__}"
