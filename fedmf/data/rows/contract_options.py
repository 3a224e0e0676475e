"""Options of tables that may have a data contract."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedmf.data.contract import DataContract, Encoded, read_contract
from fedmf.data.public_input import PublicInput, in_words
from fedmf.data.rows.row_options import RowOptions


@dataclass(frozen=True)
class ContractOptions(RowOptions):
    """Rows of tables, whose columns a public contract may declare; abstract.

    Args:
        feature_columns: names of the feature columns.
        input_shape: of one example, channels first.
        contract: file of the data contract (docs/data-contract.md), by which numbers are scaled and
            categories coded; it declares the columns, classes and shape. Empty: numbers as they are.
    """

    feature_columns: tuple[str, ...] = ()
    input_shape: tuple[int, ...] = ()
    contract: str = ""

    def data_contract(self) -> DataContract:
        """What the file says.

        Raises:
            ValueError: it cannot be read, or does not say what it must.
        """
        return read_contract(Path(self.contract).expanduser())

    def features_of(self, contract: DataContract, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The feature columns: those that are named, else all numbers and categories but the labels."""
        return self.feature_columns or tuple(name for name in contract.named(Encoded) if name not in labels)

    def contract_inputs(self, name: str, value: str) -> tuple[PublicInput, PublicInput, PublicInput]:
        """Labels, shape and scaling, whose source is the contract.

        Args:
            name: of what the labels are.
            value: what they are.
        """
        source = f"declared: contract {self.contract}"
        return (
            PublicInput(name, value, source),
            PublicInput("shape of an example", in_words(self.input_shape) or "its coordinates", source),
            PublicInput("normalisation", "(x − centre)/unit, clipped into bounds; categories coded", source),
        )
