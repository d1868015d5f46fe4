"""Whether every sample was trained on once per epoch, by the files of a run directory."""

import json
import pathlib


def read_events(file):
    """Its events. A last line without its end was being written when the process was killed."""
    lines = pathlib.Path(file).read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]


def that_count(events):
    """The events without those that a resume went back behind."""
    kept = []
    for event in events:
        if event["event"] == "rolled_back":
            kept = [old for old in kept if old["step"] <= event["step"]]
        kept.append(event)
    return kept


def samples_after(step, size, batch):
    """Samples of the first `step` steps, when every epoch is cut into batches and a rest."""
    steps_per_epoch = -(-size // batch)
    epochs, steps = divmod(step, steps_per_epoch)
    return epochs * size + min(size, steps * batch)


def has_short_steps(events, groups=1):
    """Whether a worker stopped at a deadline. Its samples come later, and then the number of samples
    does not follow from the number of steps any more; that of every epoch still does. Of several
    groups, the one that ends an epoch's rest may be before the others."""
    return groups > 1 or any(event["event"] == "short_step" for event in events)


def fits(samples, step, size, batch, short):
    expected = samples_after(step, size, batch)
    return samples <= step * batch if short else samples == expected


def check_events(events, size, batch, groups=1):
    """What does not hold, in words."""
    wrong = []
    counted = that_count(events)
    short = has_short_steps(events, groups)
    for event in counted:
        if "samples" not in event or event["event"] in ("short_step", "unreachable"):
            continue
        expected = samples_after(event["step"], size, batch)
        if not fits(event["samples"], event["step"], size, batch, short):
            wrong.append(
                f"event {event['event']}: {event['samples']} samples after {event['step']} steps, "
                f"not {expected}"
            )
    tests = {}
    for event in counted:
        if event["event"] == "epoch" and event["complete"]:
            if event["epoch"] in tests and not event["again"]:
                wrong.append(f"epoch {event['epoch']} ended twice")
            tests[event["epoch"]] = event["samples"]
    if sorted(tests) != list(range(len(tests))):
        wrong.append(f"epochs that ended: {sorted(tests)}")
    for epoch, samples in tests.items():
        if samples != (epoch + 1) * size:
            wrong.append(f"epoch {epoch} ended after {samples} samples, not {(epoch + 1) * size}")
    steps = [event["step"] for event in counted]
    if steps != sorted(steps):
        wrong.append("the steps of the events do not ascend")
    return wrong


def check_manifest(manifest, size, batch, short=False):
    wrong = []
    ranges = manifest["committed"]
    end = 0
    for begin, stop in ranges:
        if begin < end or stop <= begin:
            wrong.append(f"checkpoint: ranges {ranges}")
            break
        end = stop
    if end > size or manifest["epoch_size"] != size:
        wrong.append(f"checkpoint: an epoch of {manifest['epoch_size']}, ranges until {end}")
    done = manifest["epoch"] * size + sum(stop - begin for begin, stop in ranges)
    expected = samples_after(manifest["step"], size, batch)
    exact = fits(manifest["samples"], manifest["step"], size, batch, short)
    if manifest["samples"] != done or not exact:
        wrong.append(
            f"checkpoint: {manifest['samples']} samples; the epochs and ranges have {done}, "
            f"{manifest['step']} steps {expected}"
        )
    return wrong


def check_summary(summary, events, size, batch, groups=1):
    wrong = []
    short = has_short_steps(events, groups)
    expected = samples_after(summary["steps"], size, batch)
    if not fits(summary["samples"], summary["steps"], size, batch, short):
        wrong.append(
            f"summary: {summary['samples']} samples after {summary['steps']} steps, not {expected}"
        )
    if summary["samples"] // size != summary["epochs"]:
        wrong.append(f"summary: {summary['epochs']} epochs in {summary['samples']} samples")
    # The devices of a summary are those of its process.
    before = [event for event in events if event["event"] == "run_started"][-1]
    here = summary["samples"] - samples_after(before["step"], size, batch)
    of_devices = sum(device["samples"] for device in summary["devices"])
    known = not short or before["step"] == 0
    if known and of_devices != here:
        wrong.append(f"summary: devices did {of_devices} samples of {here}")
    if summary.get("bytes_sent", {}).get("private_data", 0) != 0:
        wrong.append("summary: private data was sent")
    return wrong


def check(run, groups=1):
    """Everything that does not hold in a run directory."""
    run = pathlib.Path(run)
    events = read_events(run / "events.jsonl")
    size, batch = events[0]["train_samples"], events[0]["batch"]
    summary = json.loads((run / "summary.json").read_text())
    manifest = json.loads((run / "checkpoints/latest/manifest.json").read_text())
    wrong = check_events(events, size, batch, groups)
    wrong += check_manifest(manifest, size, batch, has_short_steps(events, groups))
    wrong += check_summary(summary, events, size, batch, groups)
    if manifest["step"] != summary["steps"]:
        wrong.append(f"the last checkpoint is of step {manifest['step']} of {summary['steps']}")
    return wrong
