"""From what was done and what the coordinator told: how soon the others went on."""

import dataclasses
import math
import statistics

from chaos_parts.faults import GOAL_SECONDS, KINDS


@dataclasses.dataclass
class Fault:
    time: float
    kind: str
    worker: str
    member: bool  # whether the others have to do without it
    healed: float = math.inf  # when it was undone, of those that are
    named: float = math.inf  # when the coordinator told that the worker is lost or has left
    recovered: float = math.inf  # the next committed step of the others
    allowed: float = math.inf  # seconds
    alone: bool = True  # no other fault was open meanwhile

    @property
    def seconds(self):
        return self.recovered - self.time

    def overlaps(self, begin, end):
        return self.time < end and self.recovered > begin


def first_time(marks, after, fits):
    return next((mark.time for mark in marks if mark.time > after and fits(mark)), math.inf)


def find_recovery(fault, marks):
    """Fills in when the fault was named, and when the others had gone on.

    A step that was all but done when the fault came is committed after it, without being evidence
    of anything. So the first one counts that follows the words by which the coordinator parts from
    the worker, or the end of the fault if it was over before that."""

    def is_parting(mark):
        return mark.what in ("lost", "left") and mark.worker == fault.worker

    begin = fault.time
    if fault.kind != "coordinator":
        named = first_time(marks, fault.time, is_parting)
        begin = min(named, fault.healed)
        if named == begin:
            fault.named = named
    fault.recovered = first_time(marks, begin, lambda mark: mark.what == "step")


def quantile(values, part):
    """Nearest rank; 0 of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else 0.0


def calm_seconds(marks, faults):
    """What steps take, and what tests take, while nothing happens: two lists of seconds."""
    steps, tests = [], []
    before = None  # the step that was shown before
    for mark in marks:
        calm = before is not None and not any(f.overlaps(before.time, mark.time) for f in faults)
        if mark.what == "step":
            if calm and mark.step > before.step:
                steps.append((mark.time - before.time) / (mark.step - before.step))
            before = mark
        elif mark.what == "epoch" and calm:
            tests.append(mark.time - before.time)
        if mark.what in ("epoch", "joined", "lost", "left"):
            before = None
    return steps, tests


def judge(faults, marks):
    """Fills in everything about the faults, and returns what one step and one test are taken for.

    What is allowed: the goal and one step; where faults overlap, until the last of them has to be
    over; where an epoch ended meanwhile, the time that its test takes, because nothing is committed
    then."""
    for fault in faults:
        find_recovery(fault, marks)
        # The end of the run came before anybody had to notice.
        if fault.kind in ("freeze", "cut") and fault.healed < fault.time + GOAL_SECONDS[fault.kind]:
            fault.member = fault.named < math.inf
    steps, tests = calm_seconds(marks, faults)
    one_step, one_test = quantile(steps, 0.99), quantile(tests, 0.99)
    members = [fault for fault in faults if fault.member]
    for fault in members:
        meanwhile = [other for other in members if other.overlaps(fault.time, fault.recovered)]
        fault.alone = meanwhile in ([], [fault])
        deadline = max(other.time + GOAL_SECONDS.get(other.kind, math.inf)
                       for other in [fault, *meanwhile])
        fault.allowed = deadline - fault.time + one_step
        if any(m.what == "epoch" and fault.time < m.time <= fault.recovered for m in marks):
            fault.allowed += one_test
    return {"step_median": quantile(steps, 0.5), "step": one_step, "test": one_test}


def late(faults):
    return [fault for fault in faults if fault.member and fault.seconds > fault.allowed]


def by_kind(faults):
    """One row for each kind of fault that happened to members. Median and p99 are of those that
    were alone; where none was, of all."""
    rows = []
    for kind in KINDS:
        some = [fault for fault in faults if fault.kind == kind and fault.member]
        if not some:
            continue
        alone = [fault.seconds for fault in some if fault.alone]
        judged = alone or [fault.seconds for fault in some]
        named = [fault.named - fault.time for fault in some if fault.named < math.inf]
        rows.append(
            {
                "kind": kind,
                "count": len(some),
                "alone": len(alone),
                "median": statistics.median(judged),
                "p99": quantile(judged, 0.99),
                "longest": max(fault.seconds for fault in some),
                "named_after": max(named, default=None),
                "goal": GOAL_SECONDS.get(kind),
                "late": len(late(some)),
            }
        )
    return rows


def not_back(faults, marks, seconds):
    """Workers that were given up, were mended, and did not come back within so many seconds
    although nothing else happened to them. What was mended too near the end is not looked at."""
    missing = []
    for fault in faults:
        limit = fault.healed + seconds
        if fault.named == math.inf or limit > marks[-1].time:
            continue
        joined = first_time(
            marks, fault.named, lambda mark: mark.what == "joined" and mark.worker == fault.worker
        )
        others = [
            other
            for other in faults
            if other.worker in (fault.worker, "") and fault.time < other.time < limit
        ]
        if joined > limit and not others:
            missing.append(fault.worker)
    return missing
