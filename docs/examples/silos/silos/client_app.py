"""A hospital: its patients' updates are clipped, summed and noised here, and nowhere else."""

from flwr.app import Context

from fedmf.flower import Silo, silo_app
from silos.task import MODEL, patients_of, trained


def silo(context: Context) -> Silo:
    node = context.node_config  # set by the hospital; the run config is the server's
    patients = patients_of(str(node["data"]))
    return Silo(
        str(node["silo"]),
        users=list(patients),
        model=MODEL,
        train=lambda user, model: trained(model, patients[user]),
    )


app = silo_app(silo)
