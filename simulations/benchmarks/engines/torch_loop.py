"""The workload in plain PyTorch: nn.Module, torch.optim.SGD, user after user, clipping, Gaussian noise.

Prints the seconds of each round as JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
import workload
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=workload.MODELS, required=True)
    options = parser.parse_args()
    features, labels = workload.users_data()
    model = workload.build(options.model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    seconds = []
    for t in range(workload.WARM_UP + workload.ROUNDS):
        begun = time.perf_counter()
        start = nn.utils.parameters_to_vector(parameters).detach().clone()
        total = torch.zeros_like(start)
        for user in workload.cohort(t):
            nn.utils.vector_to_parameters(start.clone(), parameters)
            optimizer = torch.optim.SGD(parameters, lr=workload.LEARNING_RATE)
            order = user * workload.EXAMPLES + torch.randperm(workload.EXAMPLES)
            for rows in order.split(workload.BATCH):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(features[rows]), labels[rows]).backward()
                optimizer.step()
            update = nn.utils.parameters_to_vector(parameters).detach() - start
            total += update * min(1.0, workload.CLIP_NORM / float(update.norm()))
        total += torch.randn_like(total) * (workload.NOISE_MULTIPLIER * workload.CLIP_NORM)
        nn.utils.vector_to_parameters(start + total / workload.COHORT, parameters)
        seconds.append(time.perf_counter() - begun)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
