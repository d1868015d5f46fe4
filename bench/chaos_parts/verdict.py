"""What does not hold after a run: each function gives a list of complaints, in words."""

import json

from chaos_parts import cluster, ledger, recovery
from side_by_side import figures
from side_by_side.programs import run_json

# A worker that was cut off notices it after ten heartbeats, and then pauses between tries.
RETURN_SECONDS = 20.0
# Rounding alone drives two runs apart; in the second epoch by about a thousandth.
EPOCHS_ALONE = 2
LOSS_TOLERANCE = 0.005


def endings(running, code, codes):
    """Everybody ended by themselves, in good order, and nobody is left."""
    wrong = []
    if code is None:
        wrong.append("the coordinator did not end with the job")
    elif code != 0:
        wrong.append(f"the coordinator's exit code is {code}: {running.last_words()}")
    for worker in running.workers:
        ended = codes[worker.name]
        expected = -9 if worker.disturbed == "kill" else 0
        if ended is None:
            wrong.append(f"worker {worker.name} did not end with the job")
        elif ended != expected:
            wrong.append(f"worker {worker.name}: exit code {ended}: {worker.last_words()}")
    left = cluster.children_left()
    if left:
        wrong.append(f"processes are left: {left}")
    return wrong


def accuracy(running, target):
    reached = json.loads((running.run / "summary.json").read_text())["accuracy"]
    return [] if reached >= target else [f"accuracy {reached:.4f}, the target is {target}"]


def tests_of(run):
    """By epoch, the tests that count."""
    events = ledger.that_count(ledger.read_events(run / "events.jsonl"))
    return {e["epoch"]: e for e in events if e["event"] == "epoch" and e["complete"]}


def losses(running, keys, seconds):
    """The first epochs are trained once more by `motley train`. Updates that were lost, or samples
    that came twice, make other training losses, whatever the books say."""
    alone = running.folder / "alone"
    command = [running.motley, "train", "--json", "--out", alone]
    for key, value in {**keys, "train.epochs": EPOCHS_ALONE}.items():
        command += ["--set", f"{key}={value}"]
    run_json(command, running.environment, seconds)
    ours, theirs = tests_of(running.run), tests_of(alone)
    wrong = []
    for epoch in sorted(set(ours) & set(theirs)):
        here, there = ours[epoch]["train_loss"], theirs[epoch]["train_loss"]
        if figures.loss_difference([here], [there]) > LOSS_TOLERANCE:
            wrong.append(f"epoch {epoch}: training loss {here:.4f}, on one machine {there:.4f}")
    return wrong


def times(faults, marks, zero):
    """The others went on in time, and who was given up has come back."""
    wrong = [
        f"{fault.kind} {fault.worker} at {fault.time - zero:.2f} s: the others went on after "
        f"{fault.seconds:.2f} s, allowed {fault.allowed:.2f} s"
        for fault in recovery.late(faults)
    ]
    return wrong + [
        f"worker {name} did not come back within {RETURN_SECONDS:.0f} s"
        for name in recovery.not_back(faults, marks, RETURN_SECONDS)
    ]
