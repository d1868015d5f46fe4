"""Pure arithmetic over what was measured on the hosts, and what docs/protocol.md counts."""

import array
import dataclasses
import json
import math
import operator
import statistics
import struct

BYTES_PER_FLOAT = 4
# A larger difference between the bytes on the wire and those counted is not explained by headers.
BYTES_TOLERANCE = 0.1
# As often as a run of Motley tells a step at most.
WINDOW_SECONDS = 1.0


@dataclasses.dataclass
class Reading:
    """Counters at the moment a step was told. The host of the coordinator is the first."""

    step: int
    seconds: float
    sent: list
    received: list
    cpu_seconds: float  # of the processes of the run
    machine_seconds: float  # of all processes of the machine


class Readings:
    """The stretches between readings in which nothing but steps happened."""

    def __init__(self):
        self._stretches = []
        self._last = None

    def add(self, reading):
        if self._last is not None and reading.step > self._last.step:
            self._stretches.append((self._last, reading))
        self._last = reading

    def interrupt(self):
        """Something else happens from here to the next reading: an evaluation, a new member."""
        self._last = None

    @property
    def stretches(self):
        """The first one warms up, unless it is the only one."""
        return self._stretches[1:] or self._stretches

    @property
    def seconds(self):
        return sum(b.seconds - a.seconds for a, b in self.stretches)

    def summary(self):
        """Per step: seconds (the median of the stretches' means), bytes sent and received by each
        host, and processor time of the run and of the machine."""
        pairs = self.stretches
        steps = sum(b.step - a.step for a, b in pairs)
        means = [(b.seconds - a.seconds) / (b.step - a.step) for a, b in pairs]

        def per_step(values):
            return sum(values(b) - values(a) for a, b in pairs) / steps

        hosts = range(len(pairs[0][0].sent))
        return {
            "steps": steps,
            "step_seconds": statistics.median(means),
            "windows": means,
            "cpu_seconds": per_step(lambda reading: reading.cpu_seconds),
            "machine_seconds": per_step(lambda reading: reading.machine_seconds),
            "sent_bytes": [per_step(lambda reading: reading.sent[h]) for h in hosts],
            "received_bytes": [per_step(lambda reading: reading.received[h]) for h in hosts],
        }


def windows(instants):
    """Mean seconds per step of each stretch of at least a second between instants, which stand
    before the first step and after each; what is left at the end counts if it is all there is."""
    means, begin = [], 0
    for end in range(1, len(instants)):
        elapsed = instants[end] - instants[begin]
        if elapsed >= WINDOW_SECONDS or (end == len(instants) - 1 and not means):
            means.append(elapsed / (end - begin))
            begin = end
    return means


def counted_bytes(path, floats, workers):
    """What one worker sends per step, with `floats` parameters and running statistics together.
    By either path it receives as much."""
    if path == "server":
        return BYTES_PER_FLOAT * floats
    return 2 * BYTES_PER_FLOAT * floats * (workers - 1) / workers


def bytes_on_busiest_cable(path, floats, workers):
    """In each direction: of the coordinator through the server, of any worker by Gloo."""
    return counted_bytes(path, floats, workers) * (workers if path == "server" else 1)


def in_turn_seconds(alone_seconds, bytes_seconds):
    """A step that computes first and then moves its bytes over the busiest cable."""
    return alone_seconds + bytes_seconds


def earliest_seconds(alone_seconds, bytes_seconds, forward_share, limited):
    """A gradient exists only after the forward pass, and the next one needs the whole new model: so
    bytes can travel only while the backward pass goes on, and after it. On cables without a limit
    bytes cost what they cost the processors, and these are the ones that compute."""
    if not limited:
        return in_turn_seconds(alone_seconds, bytes_seconds)
    forward = forward_share * alone_seconds
    return forward + max(alone_seconds - forward, bytes_seconds)


def over_rounds(answers):
    """The median round of one program, with the spread of all."""
    ordered = sorted(answer["step_seconds"] for answer in answers)
    median = statistics.median(ordered)
    return {
        "step_seconds": median,
        "spread": (ordered[-1] - ordered[0]) / median,
        "sent_bytes": statistics.median(answer["worker_sent_bytes"] for answer in answers),
        "busy_cores": statistics.median(a["cpu_seconds"] / a["step_seconds"] for a in answers),
        "cores_of_others": max(map(cores_of_others, answers)),
        "rounds": answers,
    }


def cores_of_others(answer):
    """How many cores other programs of the machine took during the steps."""
    return max(0.0, answer["machine_seconds"] - answer["cpu_seconds"]) / answer["step_seconds"]


def bytes_agree(measured, counted):
    """Headers and control may be added; what is not counted at all may not."""
    slack = BYTES_TOLERANCE * counted + 100e3
    return abs(measured - counted) <= slack


def relative_difference(ours, theirs):
    """The largest difference of two arrays, over the largest value: the measure of the design's
    limit. Infinite where they do not match or one is not finite."""
    if len(ours) != len(theirs) or not len(theirs):
        return math.inf
    differences = array.array("d", map(operator.sub, ours, theirs))
    # The sum is not finite as soon as one of them is not; max() would pass over a NaN.
    if not math.isfinite(math.fsum(map(abs, differences))):
        return math.inf
    return max(map(abs, differences)) / max(max(map(abs, theirs)), 1e-30)


def read_safetensors(path):
    """(parameters, running statistics) of an exported net, each one flat array."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    flat = array.array("f"), array.array("f")
    for name, entry in sorted(header.items()):
        begin, end = entry["data_offsets"]
        statistic = name.rpartition(".")[2].startswith("running_")
        flat[statistic].frombytes(data[8 + length + begin : 8 + length + end])
    return flat
