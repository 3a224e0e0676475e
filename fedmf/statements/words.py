"""What every privacy statement says in words, and which of its figures are not private.

Texts with places such as ``{one}`` are filled in by the unit of the guarantee (`Unit.say`).
"""

from __future__ import annotations

from typing import Final

OPERATING_SYSTEM_KEY: Final = "operating system randomness"
PUBLIC_KEY: Final = "public seed: simulation only, gives no privacy"
TRUST: Final = {
    "server": "server re-clips every {one}'s update",
    "workers": "workers clip; the server trusts the slice sums",
}
#: What the record of participation tells without noise: keys of the operator's statement alone.
REALISED: Final = (
    "epsilon_realised",
    "epsilon_realised_quantiles",
    "epsilon_realised_histogram",
    "mu_realised",
    "rho_realised",
    "realised_max_participations",
    "realised_min_separation",
    "realised_patterns",
    "realised_worst_pattern",
    "rounds_empty",
    "users_participated",
    "evaluation_realised",
)
#: What a run may show that is not private, by the name that its header gives it.
NOT_PRIVATE: Final = {
    "central test part": (
        "central test part: its examples belong to users that are trained on; the metrics whose names end in "
        "not_private were computed on them without noise, no epsilon counts them, and publishing them is "
        "outside the guarantee"
    ),
    "federated evaluation": (
        "federated evaluation: this run computed metrics on the very examples that it trains on without "
        "noise; no epsilon counts them, they depend on who took part in which round, and publishing them is "
        "outside the guarantee"
    ),
}
NOT_COVERED: Final = (
    "evaluation metrics on held-out data are computed without noise: test {many} have no protection",
    "hyper-parameter search: each further run on the same {many} adds to what they lose",
    "the number and identity of participants and the ledger itself are not released by the mechanism; "
    "publishing them is outside the guarantee",
    "what the times at which messages arrive and the durations of rounds tell",
    "compromise of the noise key: whoever learns it can subtract the noise",
    "floating point: the analysis is for real numbers, the noise is added in finite precision",
)
REALISED_NOT_COVERED: Final = (
    "realised figures in this statement are computed from the record of participation without noise: they "
    "are for the operator, and what may be published is what fedmf account --publish writes"
)
ASSUMPTIONS: Final = (
    "every {one}'s update was clipped to the clip norm before it was summed",
    "one {one}'s data change that {one}'s own contribution and nothing else: not which other {many}' updates "
    "are in a sum, not which rounds there are, not when the run ends. epsilon_planned then holds whatever "
    "the examples are; {broken} enters as a zero vector",
    "epsilon_planned_so_far holds if the round at which the run stopped does not depend on the data",
)
SHARED_WORKERS: Final = (
    "no worker process is killed by the system because of {a}'s data: such a worker's reply would count "
    "as zero for all its {many} (isolation 'process' trains each {one} in a process of its own)"
)
SHARED_TIME: Final = (
    "no {one}'s data hold up the reply of the node beyond the time limit of a round: all {many} of the "
    "message would be absent (isolation 'process' with user_seconds limits each {one}'s time)"
)
INEXACT_GROUPS: Final = (
    "the rounding of other {many}' updates, which depends on how many examples {a} has where {many} are "
    "computed together on a GPU or with engine 'vectorised', tells nothing"
)
REALISED_ASSUMPTION: Final = (
    "epsilon_realised holds if neither {a}'s participation nor the round at which the run stopped "
    "depends on the data"
)
LOST_ROUNDS: Final = (
    "this run went on from a backup: rounds released after it are counted as spent, by every {one} that was "
    "planned for them, and no others were released"
)
ROUNDED_STORAGE: Final = (
    "noise that is kept is rounded, which a larger noise makes up for but with probability 1e-20: delta is "
    "larger by as much"
)
SECRECY: Final = (
    "epsilon_planned and epsilon_planned_so_far hold while the cohorts, drawn as the sampling says, stay "
    "secret: whoever knows who took part when has epsilon_planned_known_cohorts at most"
)
SECRETS: Final = (
    "the noise key (noise.key) and every backup of it: for ever, also after the run",
    "the sums and updates before noise, wherever they were logged or kept",
    "the record of participation (ledger.sqlite, evaluation.sqlite), files of single {many}' budgets and "
    "exports of it",
    "which {many} failed and why (failures.jsonl): it tells about their data",
)
SECRET_COHORTS: Final = (
    "who took part in which round: the amplified epsilon_planned holds only against those who do not know it"
)
