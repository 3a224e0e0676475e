"""The privacy of every single user as a table in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import csv, parquet

from fedmf.errors import ConfigError
from fedmf.records.ledger import Ledger
from fedmf.records.new_places import new_file
from fedmf.statements import RunHeader, user_privacy

PRIVATE: Final = (
    "This file names everyone who took part and tells when: it is as private as the participation record "
    "(ledger.sqlite). Keep it secret and never publish it; no noise was added to it."
)


def write_users(path: Path, header: RunHeader, ledger: Ledger) -> int:
    """Write a row for each user that took part: user, participations, first_round, last_round, sensitivity,
    epsilon.

    Rounds are 0-based. `UserPrivacy` says what the columns mean. A Parquet file carries the warning
    ``PRIVATE`` in its metadata, under the key ``privacy``.

    Args:
        path: a new file; its ending, .csv or .parquet, decides the format. Only its owner may read it.
        header: the run's description.
        ledger: its ledger, replayed before.

    Returns:
        The number of rows.

    Raises:
        ConfigError: another ending, there is such a file already, or it cannot be written. No part of the
            file is left then.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"the table of users must end in .csv or .parquet; got {path.name!r}.")
    with new_file(path) as file:
        spent = user_privacy(header, ledger)
        table = pa.table(
            {
                "user": pa.array(spent.users, pa.string()),
                "participations": spent.participations,
                "first_round": spent.first_round,
                "last_round": spent.last_round,
                "sensitivity": spent.sensitivity,
                "epsilon": spent.epsilon,
            }
        )
        if path.suffix == ".csv":
            csv.write_csv(table, file)
        else:
            parquet.write_table(table.replace_schema_metadata({"privacy": PRIVATE}), file)
    return table.num_rows
