"""A coordinator and its workers as real processes of this machine, and what the coordinator tells.

Everything is done in the one thread of the caller: a process ends with the thread that started it
(machine.die_with_parent), and there is nothing to lock."""

import collections
import ctypes
import dataclasses
import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

from chaos_parts import network
from side_by_side import machine
from side_by_side.programs import ROOT, Failed

BUILD_DEADLINE_SECONDS = 3600
# Until a process listens, or has joined, on a machine where several start at once.
START_SECONDS = 60
TERMINAL_WIDTH = 250
PR_SET_CHILD_SUBREAPER = 36

# What the coordinator told, and when, on time.monotonic(). what: step, epoch, joined, lost, left,
# other. `step`: steps done, for a step. `worker`: for those about one.
Mark = collections.namedtuple("Mark", "time what step worker text")

# On a terminal the present line is drawn over, and this erases what is left of the old one.
ENDS = re.compile(rb"\r|\n|\x1b\[K")
STEP = re.compile(r"epoch \S+  step (\d+)")
ABOUT_A_WORKER = (
    ("joined", re.compile(r"(\S+) joined from ")),
    ("lost", re.compile(r"(\S+) \(\S+\) is lost: ")),
    ("left", re.compile(r"(\S+) left; ")),
)


def parse_line(when, text):
    """A Mark of one line that `motley serve` shows."""
    step = STEP.match(text)
    if step:
        return Mark(when, "step", int(step[1]), None, text)
    for what, pattern in ABOUT_A_WORKER:
        found = pattern.match(text)
        if found:
            return Mark(when, what, None, found[1], text)
    return Mark(when, "epoch" if text.startswith("epoch ") else "other", None, None, text)


class LineReader:
    """Cuts what a program shows on a terminal into lines."""

    def __init__(self):
        self.rest = b""

    def take(self, some):
        *whole, self.rest = ENDS.split(self.rest + some)
        return [line.decode(errors="replace") for line in whole if line]


def build_motley():
    print("building Motley's release preset", file=sys.stderr)
    for command in (
        ["scripts/setup.sh"],
        ["cmake", "--preset", "release"],
        ["cmake", "--build", "--preset", "release"],
    ):
        subprocess.run(
            command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, timeout=BUILD_DEADLINE_SECONDS
        )
    return ROOT / "build/release/apps/motley/motley"


def find_motley(given):
    """The program that was given, or the release preset, built."""
    motley = pathlib.Path(given).resolve() if given else build_motley()
    if not os.access(motley, os.X_OK):
        raise machine.Unable(f"{motley} is no program")
    return motley


def data_at_hand():
    """mnist where it is in the cache, otherwise the generated set: nothing is fetched."""
    home = os.environ.get("XDG_DATA_HOME") or pathlib.Path.home() / ".local/share"
    return "mnist" if pathlib.Path(home, "motley/mnist").is_dir() else "glyphs"


def adopt_orphans():
    """From now on every descendant that loses its parent becomes a child of this process."""
    machine.LIBC.prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)


def children_left():
    """Process ids of children of this process, zombies included. An own look, not that of Popen:
    it also sees what the processes themselves may have started."""
    listed = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in listed]


@dataclasses.dataclass
class Worker:
    name: str
    slot: int  # its place among the workers, and its host
    process: subprocess.Popen
    log: pathlib.Path
    started: float
    working: bool = False  # a member, as the coordinator told
    disturbed: str = ""  # what was done to it and not undone

    @property
    def alive(self):
        return self.process.poll() is None

    def last_words(self):
        said = self.log.read_text(errors="replace").strip().splitlines()[-2:]
        return " / ".join(said or ["(it said nothing)"])


class Cluster:
    """`motley serve` and the workers of one run directory. `sets`: keys of the job.

    `net`: the Network whose hosts they run on; None: all on this machine's own loopback."""

    def __init__(self, motley, folder, sets, net=None):
        self.motley = str(motley)
        self.folder = pathlib.Path(folder)
        self.run = self.folder / "run"
        self.sets = sets
        self.net = net
        self.marks = []
        self.workers = []  # all that were ever started
        self.serve = None
        self.terminal = None
        self.lines = LineReader()
        self.join = None  # (address, token)
        self.environment = {
            **os.environ,
            "TERM": "xterm",
            "CI": "",  # with CI set there are no lines that are drawn over
            "NO_COLOR": "1",
            "OMP_WAIT_POLICY": "passive",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }

    def start_process(self, command, host, **streams):
        def prepare():
            machine.die_with_parent()
            os.setsid()  # a Ctrl-C is for this program, which then ends them in order
            if host is not None:
                network.set_namespace(host)

        command = [self.motley, *(str(word) for word in command)]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            preexec_fn=prepare,
            **streams,
        )

    # --- The coordinator ---

    def start_serve(self, resume=False):
        """Starts it, and returns when it listens. On a terminal it shows a step as soon as it is
        committed, but not more often than ten times a second."""
        words = ["serve", "--out", self.run]
        for key, value in self.sets.items():
            words += ["--set", f"{key}={value}"]
        if resume:  # where it listened before; without a checkpoint it begins anew
            words += ["--resume", "auto"]
        else:
            words += ["--listen", f"{self.net.address if self.net else '127.0.0.1'}:0"]
        self.terminal, far_end = pty.openpty()
        fcntl.ioctl(far_end, termios.TIOCSWINSZ, struct.pack("4H", 50, TERMINAL_WIDTH, 0, 0))
        self.lines = LineReader()
        self.join = None
        with open(self.folder / "serve.err", "ab") as errors:
            self.serve = self.start_process(
                words, self.net.hub if self.net else None, stdout=far_end, stderr=errors
            )
        os.close(far_end)
        self.wait_for(lambda: self.join, START_SECONDS, "the coordinator listens")

    def kill_serve(self):
        self.serve.kill()
        self.serve.wait()
        self.watch(0)
        self.close_terminal()
        self.serve = None
        for worker in self.workers:
            worker.working = False

    def close_terminal(self):
        if self.terminal is not None:
            os.close(self.terminal)
        self.terminal = None

    def watch(self, seconds):
        """Reads what the coordinator tells, for so long. False when it has ended by itself."""
        if self.serve is None:
            time.sleep(seconds)
            return True
        end = time.monotonic() + seconds
        while self.terminal is not None:
            left = max(0.0, end - time.monotonic())
            if not select.select([self.terminal], [], [], left)[0]:
                return True
            try:
                some = os.read(self.terminal, 65536)
            except OSError:  # how the end of a terminal is told
                some = b""
            if not some:
                self.close_terminal()
                break
            now = time.monotonic()
            for line in self.lines.take(some):
                self.note(parse_line(now, line))
        return False

    def note(self, mark):
        self.marks.append(mark)
        if mark.what != "step":
            with open(self.folder / "serve.log", "a") as log:
                log.write(f"{mark.time:.3f} {mark.text}\n")
        found = re.match(r"motley join (\S+) --token (\S+)", mark.text)
        if found:
            self.join = (found[1], found[2])
        if mark.what in ("joined", "lost", "left"):
            for worker in self.workers:
                if worker.name == mark.worker:
                    worker.working = mark.what == "joined"

    def wait_for(self, holds, seconds, what):
        end = time.monotonic() + seconds
        while not holds():
            if not self.watch(0.05) and not holds():
                raise Failed(f"the coordinator has ended before {what}: {self.last_words()}")
            if time.monotonic() > end:
                raise Failed(f"{seconds:.0f} s have passed before {what}: {self.last_words()}")

    def last_words(self):
        told = [mark.text for mark in self.marks if mark.what == "other"][-1:]
        said = (self.folder / "serve.err").read_text(errors="replace").strip().splitlines()[-2:]
        return " / ".join(said or told or ["(it said nothing)"])

    # --- Workers ---

    def start_worker(self, slot, extra=()):
        """`extra`: more words of `motley join`."""
        name = f"w{len(self.workers)}"
        address, token = self.join
        log = self.folder / f"{name}.log"
        words = ["join", address, "--token", token, "--threads", 1, "--name", name, *extra]
        with open(log, "wb") as out:
            process = self.start_process(
                words, self.net.host(slot) if self.net else None, stdout=out, stderr=out
            )
        worker = Worker(name, slot, process, log, time.monotonic())
        self.workers.append(worker)
        return worker

    def living(self):
        return [worker for worker in self.workers if worker.alive]

    def wait_for_members(self, count):
        self.wait_for(
            lambda: sum(worker.working for worker in self.workers) >= count,
            START_SECONDS,
            f"{count} workers have joined",
        )

    def wait_for_step(self):
        self.wait_for(
            lambda: any(mark.what == "step" for mark in self.marks), START_SECONDS, "the first step"
        )

    # --- The end ---

    def wait_for_end(self, seconds):
        """The exit codes of the coordinator and, by name, of all workers. None for those that have
        not ended by then."""
        end = time.monotonic() + seconds
        while self.serve.poll() is None and time.monotonic() < end:
            self.watch(0.1)
        self.watch(0)
        while self.living() and time.monotonic() < end:
            time.sleep(0.05)
        return self.serve.poll(), {worker.name: worker.process.poll() for worker in self.workers}

    def close(self):
        """Ends whatever is left."""
        processes = [worker.process for worker in self.workers]
        for process in [self.serve, *processes] if self.serve else processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for pid in children_left():  # what they may have started, if orphans are adopted
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.close_terminal()
