"""``fedmf keys``: what a configuration may say."""

from __future__ import annotations

import textwrap

import typer


def keys(
    words: list[str] = typer.Argument(
        None, metavar="[WORD]...", help="Show keys in whose name or meaning all these words are."
    ),
) -> None:
    """List configuration keys with their meaning and default.

    Each can stand in a TOML file, in --set TABLE.KEY=VALUE, and in a Flower run config.

    Example: fedmf keys clip norm
    """
    from fedmf.addresses import linked
    from fedmf.errors import ConfigError
    from fedmf.runs.tables import keys as all_keys

    wanted = [word.lower() for word in words or []]
    found = [
        key for key in all_keys() if all(word in f"{key.dotted} {key.meaning}".lower() for word in wanted)
    ]
    if not found:
        raise ConfigError(f"no key has {' and '.join(map(repr, wanted))} in its name or meaning.")
    for key in found:
        defaults = {value for value in key.defaults.values() if value not in (None, "")}
        said = f"default {defaults.pop()}" if len(defaults) == 1 else "default depends on the kind"
        typer.echo(f"{key.dotted}  ({key.type.__name__}{', ' + said if key.defaults else ''})")
        typer.echo(textwrap.indent(textwrap.fill(linked(key.meaning), 100), "    "))
