"""What privacy statements say in sentences.

Texts with places such as ``{one}`` are filled in by the unit of the guarantee (`Unit.say`).
"""

from __future__ import annotations

from typing import Final

TRUST: Final = {
    "server": "the server itself clips every {one}'s update",
    "workers": "workers clip updates; the server relies on the sums that they send",
}
#: What a run may show that is not private, by the name that its header gives it.
NOT_PRIVATE: Final = {
    "central test part": (
        "central test part: its examples belong to users who also train the model. The metrics whose "
        "names end in not_private were computed on them without noise: no epsilon counts them, and "
        "publishing them is outside of the promise"
    ),
}
NOT_COVERED: Final = (
    "{many} who only test the model: metrics on held-out data are computed without noise, so these "
    "{many} have no protection",
    "further runs on the same {many}, such as trying other settings (hyper-parameter search): each releases "
    "more about them than this epsilon counts",
    "who took part: the number and identity of participants, and the ledger that records who took part in "
    "which round, are not hidden by the noise; publishing them is outside of the promise",
)
ASSUMPTIONS: Final = (
    "every {one}'s update was clipped, that is cut to the clip norm at most, before it was added to those of "
    "others: what one {one} can change is then no more than the noise was made for",
    "one {one}'s data change nothing but that {one}'s own contribution: not which other {many}' updates are "
    "in a sum, not which rounds there are, not when the run ends. epsilon then holds whatever the "
    "data are; {broken} counts as a contribution of zeros",
    "the data did not decide in which round the run stopped: epsilon_so_far, which counts the rounds "
    "released until then, rests on that",
    "model, loss and all functions of one's own are pure: what they give for one {one} depends on that "
    "{one}'s data and on the released model alone, not on what they saw before, such as a moving average "
    "kept in a Python attribute or a shared random generator. A trial before the run refuses those that are "
    "seen to remember; it cannot prove that none does",
)
SHARED_WORKERS: Final = (
    "no worker process is killed by the system because of {a}'s data, say for the memory they take: its "
    "reply would count as zeros for all {many} that it serves, which shows in the sum"
)
SHARED_TIME: Final = (
    "no {one}'s data hold up the reply of the node beyond the time limit of a round: all {many} of the "
    "message would be left out, which shows in the sum"
)
INEXACT_GROUPS: Final = (
    "differences in the last digits give nothing away: where {many} are computed together on a GPU, "
    "the rounding of other {many}' updates depends on how many examples {a} has"
)
AVAILABLE: Final = (
    "no {one}'s data decide whether that {one} is connected when a round begins, or whether its reply "
    "arrives: both decide which other {many} are drawn, then and later"
)
SECRECY: Final = (
    "the cohorts stay secret: no one against whom epsilon and epsilon_so_far hold "
    "knows who took part in which round, which was drawn at random as the sampling says. Against anyone who "
    "knows it, epsilon_known_cohorts is promised"
)
SECRETS: Final = (
    "the noise key (noise.key) and every backup of it, for ever, also after the run: anyone who has it can "
    "subtract the noise",
    "the sums and updates before noise, wherever they were logged or kept: nothing protects those",
    "the record of who took part (ledger.sqlite) and whatever was exported of it",
    "which {many} failed and why (failures.jsonl): it tells something about their data",
)
SECRET_COHORTS: Final = (
    "who took part in which round: epsilon, which is smaller for this secrecy (amplification), holds "
    "only against those who do not know it"
)
