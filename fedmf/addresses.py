"""Where source and documentation are: the one place in which whoever publishes fedmf says so.

The command line, errors and the site take addresses from here. While they are
empty nothing names one, and readers are told of the source distribution, which has all pages.
"""

from __future__ import annotations

import re
from typing import Final

from fedmf.version import __version__

#: Of the repository, without a slash at its end, such as ``https://host/owner/fedmf``; empty: there is none.
REPOSITORY: Final[str] = ""
#: Of the site that ``make docs`` builds, without a slash at its end; empty if it is nowhere.
SITE: Final[str] = ""

_PAGE: Final = re.compile(r"\bdocs/([\w/-]+)\.md(#[\w-]+)?")


def linked(text: str, repository: str = REPOSITORY, site: str = SITE) -> str:
    """A text in which every page is named so that somebody finds it who has no checkout.

    Args:
        text: that names pages by their place in a checkout.
        repository: its address; the pages of this very version are meant.
        site: its address, which comes first.

    >>> linked("see docs/deploy.md", "", "")
    'see docs/deploy.md of the source distribution'
    >>> linked("see docs/deploy.md#steps.", "", "https://fedmf.example")
    'see https://fedmf.example/deploy.html#steps.'
    """

    def place(found: re.Match[str]) -> str:
        page, anchor = found[1], found[2] or ""
        if site:
            return f"{site}/{page}.html{anchor}"
        if repository:
            return f"{repository}/blob/v{__version__}/docs/{page}.md{anchor}"
        return f"{found[0]} of the source distribution"

    return _PAGE.sub(place, text)
