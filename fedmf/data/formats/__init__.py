"""Data in the formats of folders of images and of the standard benchmarks."""

from fedmf.data.formats.cifar import Cifar10
from fedmf.data.formats.decoded_rows import DecodedRows
from fedmf.data.formats.image_folder import ImageFolder
from fedmf.data.formats.leaf import Leaf
from fedmf.data.formats.token_rows import TokenRows

__all__ = ["Cifar10", "DecodedRows", "ImageFolder", "Leaf", "TokenRows"]
