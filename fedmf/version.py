"""The version of fedmf, which statements and records name."""

from __future__ import annotations

from typing import Final

#: As in pyproject.toml, which Flower reads; a package that Flower unpacks has no installed
#: metadata.
__version__: Final = "0.4.0"

#: How records name the software that wrote them.
SOFTWARE: Final = f"fedmf {__version__}"
