"""A Flower app in which every client keeps a head of its own, and the private mean of the clients'
accuracy; runs in this process in seconds.
"""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fedmf import ClientMetric, CyclicCohorts, UserLevel
from fedmf.flower import CorrelatedNoise, InProcessGrid

USERS = 400
COHORT = 100
ROUNDS = 16
client_app = ClientApp()
#: What nobody else sees: the accuracy that each client of a round reports.
reports: list[float] = []


def make_body() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(20, 2, bias=False)


def loaded(message: Message, context: Context) -> tuple[nn.Module, nn.Module]:
    """The body that the server sent, and the head that this client keeps."""
    body = make_body()
    body.load_state_dict(message.content["arrays"].to_torch_state_dict())
    head = nn.Linear(2, 1)
    nn.init.zeros_(head.weight)
    if "head" in context.state:
        head.load_state_dict(context.state["head"].to_torch_state_dict())
    return body, head


def examples(context: Context, part: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels depend on two features that matter to everyone, in a way of this client's own."""
    user = int(context.node_config["partition-id"])
    taste = torch.randn(2, generator=torch.Generator().manual_seed(user))
    features = torch.randn(60, 20, generator=torch.Generator().manual_seed(2 * user + part))
    return features, (features[:, :2] @ taste > 0).float()


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    body, head = loaded(message, context)
    features, labels = examples(context, part=1)
    accuracy = float(((head(body(features))[:, 0] > 0) == (labels > 0.5)).float().mean())
    reports.append(accuracy)
    metrics = MetricRecord({"accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    body, head = loaded(message, context)
    features, labels = examples(context, part=0)
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(
            head(body(features))[:, 0], labels
        ).backward()
        optimizer.step()
    context.state["head"] = ArrayRecord(head.state_dict())
    return Message(RecordDict({"arrays": ArrayRecord(body.state_dict())}), reply_to=message)


if __name__ == "__main__":
    torch.set_num_threads(1)  # tiny models: more threads only wait for each other
    strategy = CorrelatedNoise(
        FedAvg(),
        UserLevel(epsilon=8.0, delta=1e-5, clip_norm=0.5),
        CyclicCohorts(rounds=ROUNDS, users_per_round=COHORT),
        users=USERS,
        extra_releases=[ClientMetric("accuracy", budget_share=0.1, reply="evaluate")],
    )
    result = strategy.start(
        grid=InProcessGrid(client_app, nodes=USERS),
        initial_arrays=ArrayRecord(make_body().state_dict()),
        num_rounds=ROUNDS,
    )
    for number in (1, 8, 16):
        metrics = result.evaluate_metrics_clientapp[number]
        half = 1.96 * metrics["accuracy_std"]
        true = sum(reports[(number - 1) * COHORT : number * COHORT]) / COHORT
        print(f"round {number}: accuracy {metrics['accuracy']:.3f} ± {half:.3f}, truly {true:.3f}")
    print(strategy.statement().render_text())
