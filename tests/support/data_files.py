"""Small data files that tests write, and a digest of all that a data set gives."""

from __future__ import annotations

import hashlib
from pathlib import Path

import datasets
import numpy as np

from fedmf.data import FederatedDataset

__all__ = ["digest_of", "write_images", "write_rows"]


def write_rows(path: Path) -> str:
    """A CSV file of 60 rows with a user and a label column."""
    rng = np.random.default_rng(5)
    rows = [
        f"u{i % 7},{rng.normal():.6f},{rng.normal():.6f},{rng.normal():.6f},{rng.normal():.6f},{i % 3}"
        for i in range(60)
    ]
    path.write_text("who,a,b,c,d,y\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


def write_images(path: Path, split: str = "train", count: int = 48) -> str:
    """A folder in Hugging Face's format with images, labels and writers."""
    rng = np.random.default_rng(len(split))
    datasets.Dataset.from_dict(
        {
            "image": [rng.integers(0, 256, size=(4, 6, 3), dtype=np.uint8) for _ in range(count)],
            "label": rng.integers(0, 3, size=count).tolist(),
            "writer": [f"w{i % 5}" for i in range(count)],
        },
        features=datasets.Features(
            {
                "image": datasets.Image(),
                "label": datasets.Value("int64"),
                "writer": datasets.Value("string"),
            }
        ),
    ).to_parquet(path / f"{split}-0.parquet")
    return str(path)


def digest_of(dataset: FederatedDataset) -> str:
    """Of ids, examples of every user and test part, to the bit."""
    digest = hashlib.sha256()
    parts = [dataset.examples(np.array([u])) for u in range(dataset.users)]
    for x, y in [*parts, (dataset.test_features, dataset.test_labels)]:
        digest.update(f"{tuple(x.shape)}{x.dtype}{y.dtype}".encode())
        digest.update(x.contiguous().numpy().tobytes() + y.numpy().tobytes())
    return hashlib.sha256(f"{list(dataset.user_ids)}{digest.hexdigest()}".encode()).hexdigest()[:16]
