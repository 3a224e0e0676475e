"""Strategy matrices, their sensitivity and error, and every mechanism by name, one file each.

A mechanism registers itself when its module is loaded, and all of them are loaded here; `optimise` and
`second_moment`, which bring torch, wait until a search or a second moment needs them.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    if _module.name not in {"optimise", "second_moment"}:
        import_module(f"{__name__}.{_module.name}")
