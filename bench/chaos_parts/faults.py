"""What is done to whom, and when: decided by a seed before anything starts."""

import collections
import random

# kind: one of those below. pick: 0 to 1, which of those that it may happen to. hold: seconds until
# it is undone (continued, mended, or somebody else takes the place).
Action = collections.namedtuple("Action", "at kind pick hold")

# In the order of the report. A blink is a freeze that is over before anybody can notice it.
KINDS = ("kill", "freeze", "cut", "blink", "leave", "add", "coordinator")
# Goals of the time from the fault to the next committed step of the others, without that step.
GOAL_SECONDS = {"kill": 1.0, "freeze": 3.0, "cut": 3.0, "blink": 3.0}
HOLD_SECONDS = {
    "kill": (1.0, 4.0),
    "freeze": (3.5, 8.0),
    "cut": (3.5, 12.0),
    "blink": (0.1, 1.0),
    "leave": (1.0, 4.0),
    "add": (0.0, 0.0),
    "coordinator": (0.5, 3.0),
}
# Between two; some are shorter than a recovery, so that faults meet other faults.
GAP_SECONDS = {"long": (0.7, 6.0), "quick": (0.7, 3.5)}


def plan(seed, seconds, can_cut, with_coordinator, form="long"):
    """The actions of a run, by time. The first ones are a kill, a freeze and a cut, in any order:
    a quick run has each of them."""
    rng = random.Random(seed)
    main = ["kill", "freeze"] + ["cut"] * can_cut
    others = ["blink", "leave", "add"] + ["coordinator"] * with_coordinator
    actions = []
    at = 0.0
    while True:
        for some in (main, main + others):
            for kind in rng.sample(some, len(some)):
                at += rng.uniform(*GAP_SECONDS[form])
                if at >= seconds:
                    return actions
                hold = rng.uniform(*HOLD_SECONDS[kind])
                actions.append(Action(at, kind, rng.random(), hold))


def choose_victim(workers, pick):
    """Of the living and undisturbed workers one, so that another that works is left; or None."""
    free = [worker for worker in workers if worker.alive and not worker.disturbed]
    working = [worker for worker in free if worker.working]
    if len(working) == 1:
        free = [worker for worker in free if not worker.working]
    if not working or not free:
        return None
    return free[int(pick * len(free))]
