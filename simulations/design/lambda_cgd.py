"""DP-λCGD (Kalinin et al. 2026), Figure 6: what column normalization gains, over epochs k and
separation b.

    python simulations/design/lambda_cgd.py

Ratio of the RMSE of column-normalized DP-λCGD to that of plain DP-λCGD, λ optimized for each, n =
kb.
"""

from __future__ import annotations

from pictures import draw, epochs, rmse

from fedmf.participation import Participation

EPOCHS = (1, 2, 4, 8, 16)
SEPARATIONS = (16, 32, 64, 128, 256)


def main() -> None:
    curves = {
        epochs(k): [
            (b, rmse("normalized-cgd", contract) / rmse("cgd", contract))
            for b in SEPARATIONS
            if (contract := Participation(k * b, k, b))
        ]
        for k in EPOCHS
    }
    panel = (curves, "rounds of an epoch b", "RMSE relative to plain DP-λCGD")
    draw("lambda-cgd-fig6", {"DP-λCGD with normalized columns": panel})


if __name__ == "__main__":
    main()
