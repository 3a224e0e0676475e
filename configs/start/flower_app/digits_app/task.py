"""Model, data, training and test of the app."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn


class Net(nn.Module):
    """A small CNN with GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.fc = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.fc(x.flatten(1))


def initial_model() -> Net:
    torch.manual_seed(0)
    return Net()


def load_data(partition: int, partitions: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A partition's training examples, and the central test examples."""
    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    y = torch.tensor(labels, dtype=torch.int64)
    mine = slice(300 + partition, None, partitions)
    return x[mine], y[mine], x[:300], y[:300]


def train(net: Net, x: Tensor, y: Tensor, epochs: int, lr: float) -> float:
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    loss = torch.tensor(0.0)
    for _ in range(epochs):
        for start in range(0, len(y), 50):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x[start : start + 50]), y[start : start + 50])
            loss.backward()
            optimizer.step()
    return float(loss.detach())


def test(net: Net, x: Tensor, y: Tensor) -> tuple[float, float]:
    with torch.no_grad():
        outputs = net(x)
    return float(F.cross_entropy(outputs, y)), float((outputs.argmax(1) == y).float().mean())
