"""The server: it adds what the hospitals send, divides and steps, and has no secret."""

from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM

from fedmf.flower import SiloSums
from silos.task import MODEL

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = SiloSums(
        FedAvgM(server_momentum=0.5, min_train_nodes=1, min_available_nodes=1),
        training="doses",
        clip_norm=0.5,
        users_per_round=150,
    )
    result = strategy.start(
        grid,
        ArrayRecord({name: Array(values) for name, values in MODEL.items()}),
        num_rounds=int(context.run_config["num-server-rounds"]),
        timeout=float(context.run_config["timeout"]),
    )
    for name, array in (result.arrays or {}).items():
        print(name, array.numpy().round(2))
