"""The two programs: each call is one process that measures one configuration and ends."""

import collections
import json
import os
import pathlib
import subprocess
import sys

from side_by_side import figures, machine

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# The interpreter of the distribution: python3-torch installs for it and for no other.
TORCH_PYTHON = "/usr/bin/python3"
THREADS = (1, 2)
LAYOUTS = ("nchw", "channels_last")
# Beyond what any row needs on a slow machine; a hang must not cost the night.
DEADLINE_SECONDS = 600
# Enough to tell configurations apart, when --seconds is longer.
SEARCH_SECONDS = 1.0

Row = collections.namedtuple("Row", "name motley torch input classes batch")
ROWS = {
    row.name: row
    for row in (
        Row("lenet", "lenet", "lenet", "1x28x28", 10, 64),
        Row("resnet18-32", "resnet18", "resnet18", "3x32x32", 10, 64),
        Row("alexnet", "alexnet", "alexnet", "3x224x224", 1000, 32),
        Row("resnet18-224", "resnet18", "resnet18", "3x224x224", 1000, 8),
        Row("mobilenet_v2", "mobilenet_v2", "mobilenet_v2", "3x224x224", 1000, 16),
        Row("squeezenet1_1", "squeezenet", "squeezenet1_1", "3x224x224", 1000, 16),
    )
}


class Failed(Exception):
    """A program did not answer."""


def run_json(command, environment, deadline, cgroup=None):
    """What a process prints, parsed. It runs in `cgroup`, and is killed at its deadline."""

    def prepare():
        machine.die_with_parent()
        if cgroup is not None:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    command = [str(word) for word in command]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=deadline,
            preexec_fn=prepare,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"no answer within {deadline:.0f} s: {' '.join(command)}") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["(it said nothing)"]
        raise Failed(f"exit code {done.returncode}: {' '.join(command)}: {lines[-1]}")
    return json.loads(done.stdout)


class Bench:
    """Measures either program. Both train without dropout from the same start, and wait passively,
    because spinning threads would burn the time of whoever shares the cores."""

    def __init__(self, motley, seconds, folder):
        self.motley_program = motley
        self.seconds = seconds
        self.folder = pathlib.Path(folder)
        # Kernels are measured in this run: an older cache may come from a busy machine.
        self.environment = {
            "OMP_WAIT_POLICY": "passive",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }
        self.deadline = DEADLINE_SECONDS + 20 * seconds
        self.update = {}

    def say(self, row, program, answer):
        print(
            f"vs_torch: {row.name} batch {row.batch}, {program}, {answer['threads']} threads: "
            f"{figures.rate(answer['images_per_second'])} images/s",
            file=sys.stderr,
        )

    def motley(self, row, threads=THREADS[-1], cgroup=None, save=None):
        command = [self.motley_program, "bench", "--json", "--no-dropout"]
        command += ["--model", row.motley, "--input", row.input, "--classes", row.classes]
        command += ["--batch", row.batch, "--threads", threads]
        # Writing the start costs memory, so that run is not one of those measured.
        command += ["--save", save, "--seconds", 0.1] if save else ["--seconds", self.seconds]
        answer = run_json(command, self.environment, self.deadline, cgroup)
        self.say(row, "Motley, not counted" if save else "Motley", answer)
        return answer

    def torch(self, row, start, threads, layout, seconds=None):
        command = [TORCH_PYTHON, ROOT / "bench/torch_step.py", row.torch]
        command += ["--input", row.input, "--classes", row.classes, "--batch", row.batch]
        command += ["--threads", threads, "--layout", layout, "--start", start]
        command += ["--seconds", seconds or self.seconds]
        for name, value in self.update.items():
            command += ["--" + name.replace("_", "-"), value]
        answer = run_json(command, self.environment, self.deadline)
        self.say(row, f"PyTorch {layout}", answer)
        return answer

    def prepare(self, row):
        """The folder with the weights and the batch that both begin with."""
        start = self.folder / f"{row.name}-{row.batch}"
        answer = self.motley(row, save=start)
        self.update = {name: answer[name] for name in ("learning_rate", "momentum")}
        return start

    def best_torch(self, row, start, threads=THREADS):
        """The configuration in which PyTorch is fastest, of so many threads: {threads, layout}.
        Each has two turns, because other programs may spoil one; a look has one."""
        seconds = min(self.seconds, SEARCH_SECONDS)
        answers = [
            self.torch(row, start, count, layout, seconds)
            for _ in range(2 if self.seconds >= SEARCH_SECONDS else 1)
            for count in threads
            for layout in LAYOUTS
        ]
        best = max(answers, key=lambda answer: answer["images_per_second"])
        return {"threads": best["threads"], "layout": best["layout"]}
