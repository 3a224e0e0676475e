"""The server app: every user each round, with so little noise that the sum can be read off the model."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedmf.flower import CorrelatedNoise, UsersSayWho
from fedmf.runs import Waiting
from hostile_app.task import CLIP, model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train to the horizon."""
    config = context.run_config
    users, rounds = int(config["users"]), int(config["num-server-rounds"])
    wait = Waiting(refusals=0, min_replies=int(config["min-replies"]), grace=float(config["grace"]))
    strategy = CorrelatedNoise(
        FedAvg(), epsilon=1e9, delta=1e-5, clipping_norm=CLIP, num_users=users, users_per_round=users,
        num_rounds=rounds, mechanism="identity", noise_seed=1, run_dir=str(config["run-dir"]),
        identity=UsersSayWho([str(place) for place in range(users)]), waiting=wait,
    )  # fmt: skip
    strategy.start(grid=grid, initial_arrays=model(), timeout=60.0)
