"""Does to a running cluster what was planned, undoes it in time, and remembers it."""

import heapq
import itertools
import signal
import sys
import time

from chaos_parts.faults import choose_victim
from chaos_parts.recovery import Fault


class Deeds:
    """`slots`: how many workers there may be at once."""

    def __init__(self, running, slots):
        self.running = running
        self.slots = slots
        self.faults = []
        self.skipped = 0  # for want of a victim that can be spared
        self.zero = time.monotonic()
        self.undoings = []  # a heap of (time, number, function)
        self.numbers = itertools.count()

    def say(self, text):
        print(f"chaos: {time.monotonic() - self.zero:7.2f} s  {text}", file=sys.stderr, flush=True)

    def run(self, actions, seconds):
        """All actions, each in its time, and then everything mended."""
        try:
            for action in actions:
                if not self.wait(self.zero + action.at):
                    return
                self.act(action)
            self.wait(self.zero + seconds)
        finally:
            while self.undoings:
                heapq.heappop(self.undoings)[2]()

    def wait(self, until):
        """Watches, and undoes what is due. False when the coordinator has ended."""
        while True:
            now = time.monotonic()
            if self.undoings and self.undoings[0][0] <= now:
                heapq.heappop(self.undoings)[2]()
                continue
            if now >= until:
                return True
            next_time = min(until, self.undoings[0][0]) if self.undoings else until
            if not self.running.watch(next_time - now):
                return False

    def undo_after(self, seconds, function):
        heapq.heappush(self.undoings, (time.monotonic() + seconds, next(self.numbers), function))

    def act(self, action):
        if action.kind == "add":
            self.add()
            return
        if action.kind == "coordinator":
            self.coordinator(action.hold)
            return
        victim = choose_victim(self.running.workers, action.pick)
        if victim is None:
            self.skipped += 1
            return
        self.say(f"{action.kind} {victim.name}" + ("" if victim.working else ", not a member yet"))
        victim.disturbed = action.kind
        fault = Fault(time.monotonic(), action.kind, victim.name, victim.working)
        self.faults.append(fault)
        getattr(self, action.kind)(victim, fault, action.hold)

    def add(self):
        taken = {worker.slot for worker in self.running.living()}
        for slot in range(self.slots):
            if slot not in taken:
                self.say(f"add {self.running.start_worker(slot).name}")
                return

    def kill(self, victim, fault, hold):
        victim.process.kill()
        victim.process.wait()
        self.undo_after(hold, self.add)

    def leave(self, victim, fault, hold):
        victim.process.terminate()
        self.undo_after(hold, self.add)

    def freeze(self, victim, fault, hold):
        victim.process.send_signal(signal.SIGSTOP)

        def undo():
            victim.process.send_signal(signal.SIGCONT)
            self.healed(victim, fault)

        self.undo_after(hold, undo)

    blink = freeze

    def cut(self, victim, fault, hold):
        self.running.net.cut(victim.slot)

        def undo():
            self.running.net.mend(victim.slot)
            self.healed(victim, fault)

        self.undo_after(hold, undo)

    def healed(self, victim, fault):
        victim.disturbed = ""
        fault.healed = time.monotonic()
        self.say(f"{'mend' if fault.kind == 'cut' else 'continue'} {victim.name}")

    def coordinator(self, hold):
        self.say("kill the coordinator")
        self.running.kill_serve()
        self.wait(time.monotonic() + hold)
        self.say("serve --resume")
        self.faults.append(Fault(time.monotonic(), "coordinator", "", member=True))
        self.running.sets["cluster.min_workers"] = 1
        self.running.start_serve(resume=True)
