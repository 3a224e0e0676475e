"""Strategy matrices, their sensitivity and error, and every mechanism by name, one file each.

A mechanism registers itself when its module is loaded, and all of them are loaded here; `optimise`, which
brings torch and SciPy, waits until a search begins.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    if _module.name != "optimise":
        import_module(f"{__name__}.{_module.name}")
