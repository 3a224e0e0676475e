"""The server app."""

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_app.task import Net, initial_model, load_data, test
from fedmf import CyclicCohorts, UserLevel
from fedmf.flower import CorrelatedNoise, EnrolledIdentity, NodeIdentity

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = int(context.run_config["num-server-rounds"])
    lr = float(context.run_config["learning-rate"])
    strategy = FedAvg(fraction_evaluate=0.5)
    privacy = UserLevel(epsilon=50.0, delta=1e-5, clip_norm=1.0)
    enrolled = str(context.run_config["enrolled"])
    if enrolled:  # a deployment, whose nodes have keys
        users = EnrolledIdentity(enrolled)
    else:  # a simulation
        users = NodeIdentity(int(context.run_config["num-users"]))
    cohorts = CyclicCohorts(rounds=rounds, users_per_round=users.users)
    run_dir = str(context.run_config["run-dir"])
    strategy = CorrelatedNoise(
        strategy, privacy, cohorts, users=users, mechanism="bisr", run_dir=run_dir
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(initial_model().state_dict()),
        train_config=ConfigRecord({"lr": lr}),
        num_rounds=rounds,
        evaluate_fn=central,
    )
    print(
        "accuracy",
        [round(float(row["accuracy"]), 3) for row in result.evaluate_metrics_serverapp.values()],
    )


def central(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    _, _, x, y = load_data(0, 1)
    loss, accuracy = test(model, x, y)
    return MetricRecord({"loss": loss, "accuracy": accuracy})
