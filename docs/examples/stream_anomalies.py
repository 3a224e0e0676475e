"""A stream of patients, its private density, and what that finds strange.

    python docs/examples/stream_anomalies.py [picture.png]

The breast cancer data that ships with scikit-learn. A clinic's stream sees ten measurements of one
benign case after another. What it publishes is private for each of them; with it anyone can tell
how unusual the measurements of a new patient are. Here the new ones are patients it never saw,
benign and malignant.
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

import fedmf

#: Public ranges of the measurements, from a textbook and not from these patients.
LOW = np.array([5, 8, 40, 100, 0.05, 0, 0, 0, 0.1, 0.04])
HIGH = np.array([30, 40, 200, 2600, 0.17, 0.4, 0.5, 0.2, 0.3, 0.1])


def main() -> float:
    frame = load_breast_cancer(as_frame=True).frame
    columns = [name for name in frame.columns if name.startswith("mean ")]
    frame[columns] = np.clip(2 * (frame[columns] - LOW) / (HIGH - LOW) - 1, -1, 1)
    frame["patient"] = [f"patient {i}" for i in range(len(frame))]
    benign = frame[frame["target"] == 1]
    malignant = frame[frame["target"] == 0]
    seen = benign[:250]
    new = benign[250:]

    budget = {
        "epsilon": 8.0,
        "delta": 1e-5,
        "clip_norm": 1.6,
        "rounds": len(seen),
        "weight": "density",
    }
    with fedmf.PrivateStream(
        tempfile.mkdtemp() + "/state", columns=columns, adjacency="replace-one", **budget
    ) as stream:
        releases = stream.push_many(seen[["patient", *columns]], users="patient")
        print(stream.statement()["epsilon"] <= 8.0, "epsilon is at most 8")

    last = releases[-1]
    for name, mean, low, high in zip(
        columns, last.mean, last.mean_low, last.mean_high, strict=True
    ):
        print(f"{name}: {mean:.2f} [{low:.2f}, {high:.2f}]")
    benign_scores = last.score(new[columns])
    malignant_scores = last.score(malignant[columns])
    limit = last.threshold(0.05)
    found, false = (100 * (scores > limit).mean() for scores in (malignant_scores, benign_scores))
    print(
        f"above the threshold for 5 % false alarms: {found:.0f} % of malignant,"
        f" {false:.0f} % of benign ones"
    )
    truth = np.repeat([0, 1], [len(new), len(malignant)])
    area = float(roc_auc_score(truth, np.concatenate([benign_scores, malignant_scores])))
    print(f"malignant ones have the larger score in {100 * area:.0f} of 100 pairs")
    if len(sys.argv) > 1:
        draw(sys.argv[1], benign_scores, malignant_scores, area, budget["epsilon"])
    return area


def draw(file: str, benign: np.ndarray, malignant: np.ndarray, area: float, epsilon: float) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    edges = np.geomspace(min(benign.min(), malignant.min()), max(benign.max(), malignant.max()), 30)
    for scores, color, name in (
        (benign, "#0072B2", "benign"),
        (malignant, "#D55E00", "malignant"),
    ):
        axes.hist(scores, edges, color=color, alpha=0.6, label=f"{name}, never seen by the stream")
    axes.set(
        xscale="log", xlabel="score: squared distance under the private density", ylabel="patients"
    )
    axes.set_yticks(range(0, 30, 5))
    axes.set_xticks([3, 10, 30, 100, 300], ["3", "10", "30", "100", "300"])
    axes.set_title(
        f"250 patients seen, ε = {epsilon:g}, area under the curve {area:.2f}", fontsize=11
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main()
