"""What the build backend asks for: addresses, and the README with links that hold on an index of packages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Addresses(MetadataHookInterface):
    """Metadata from `fedmf.addresses`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``urls`` and ``readme``."""
        sys.path.insert(0, self.root)
        try:
            from fedmf.addresses import project_urls, published
        finally:
            sys.path.remove(self.root)
        text = published(Path(self.root, "README.md").read_text(encoding="utf-8"))
        metadata["urls"] = project_urls()
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
