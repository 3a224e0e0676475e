"""A Flower app with an ordinary client, made private on the server; runs in this process in
seconds.
"""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fedmf import CyclicCohorts, UserLevel
from fedmf.flower import CorrelatedNoise, InProcessGrid

client_app = ClientApp()


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))


def examples(partition: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(partition)
    features = torch.randn(count, 20, generator=generator)
    return features, (features[:, 0] + features[:, 1] > 0).long()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    features, labels = examples(int(context.node_config["partition-id"]), 50)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(message.content["config"]["lr"]))
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(labels)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = make_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    features, labels = examples(10_000, 1000)
    return MetricRecord({"accuracy": float((model(features).argmax(1) == labels).float().mean())})


if __name__ == "__main__":
    torch.set_num_threads(1)  # tiny models: more threads only wait for each other
    strategy = CorrelatedNoise(
        FedAvg(),
        UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.5),
        CyclicCohorts(rounds=20, users_per_round=40),
        users=200,
    )
    result = strategy.start(
        grid=InProcessGrid(client_app, nodes=200),
        initial_arrays=ArrayRecord(make_model().state_dict()),
        num_rounds=20,
        train_config=ConfigRecord({"lr": 0.3}),
        evaluate_fn=central,
    )
    for number in (0, 10, 20):
        metrics = result.evaluate_metrics_serverapp[number]
        print(f"after {number} rounds: accuracy {metrics['accuracy']:.3f}")
    print(strategy.statement().render_text())
