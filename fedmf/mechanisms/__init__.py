"""Strategy matrices, their sensitivity and error, and every mechanism by name, one file each."""

from importlib import import_module
from pkgutil import iter_modules

# Each mechanism registers itself.
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
