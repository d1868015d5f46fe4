"""The programs that run on the hosts: Motley's coordinator and workers, PyTorch's workers, and
streams of bytes. Each call is one run, and leaves no process behind."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from cluster_hosts import counters, figures
from cluster_hosts.network import INTERFACE
from side_by_side.programs import LAYOUTS, ROOT, TORCH_PYTHON, Failed, run_json

HERE = pathlib.Path(__file__).resolve().parent
PATHS = ("gloo", "server")
# Beyond what any run needs on a slow machine; a hang must not cost the night.
START_DEADLINE_SECONDS = 180
STEP_DEADLINE_SECONDS = 180
STOP_DEADLINE_SECONDS = 120
FEWEST_STRETCHES = 3
# Short against a step, so that counters are read when a step has ended.
LOOK_SECONDS = 0.005
STREAM_SECONDS = 2.0
# What happens between two steps and is not part of them.
OTHER_EVENTS = {"waiting", "joined", "left", "decision", "outcome", "epoch", "checkpoint", "refused"}


@dataclasses.dataclass(frozen=True)
class Row:
    """A net and the job that trains it. The batch is that of one step, all workers together."""

    net: str
    input: str
    batch: int
    job: dict
    classes: int = 10


class Crew(contextlib.AbstractContextManager):
    """Processes on hosts that end together, with what each of them says in a file."""

    def __init__(self, folder):
        self._folder = pathlib.Path(folder)
        self._members = []

    def start(self, name, host, command, environment, keep_output=False):
        log = (self._folder / f"{name}.log").open("w+")
        process = host.start(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if keep_output else log,
            stderr=log,
            text=True,
        )
        self._members.append((name, process, log))
        return process

    def words(self, name):
        """The last line that a process wrote, for a message."""
        lines = (self._folder / f"{name}.log").read_text().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def check(self, may_end=False):
        """Raises Failed when a process has failed, or ended when it may not."""
        for name, process, _ in self._members:
            code = process.poll()
            if code is not None and (code != 0 or not may_end):
                raise Failed(f"{name} ended with exit code {code}: {self.words(name)}")

    def cpu_seconds(self):
        """Of all processes so far."""
        return sum(counters.process_seconds(process.pid) for _, process, _ in self._members)

    def wait(self, seconds, codes=(0,)):
        """Until all have ended. Raises Failed at the deadline, and for other exit codes."""
        end = time.monotonic() + seconds
        for name, process, _ in self._members:
            try:
                code = process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                words = self.words(name)
                raise Failed(f"{name} has not ended after {seconds} s: {words}") from None
            if code not in codes:
                raise Failed(f"{name} ended with exit code {code}: {self.words(name)}")

    def __exit__(self, *_):
        for _, process, log in self._members:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()
            log.close()


class Events:
    """The events of a run directory, as they are written."""

    def __init__(self, run):
        self._path = run / "events.jsonl"
        self._at = 0

    def new(self):
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


class Lab:
    """Runs programs on the hosts of a network. The first host has the coordinator, the others a
    worker each. All compute with one thread, and wait passively, because spinning threads would
    burn the time of the other hosts, which share the cores."""

    def __init__(self, motley, network, folder, seconds):
        self.motley = motley
        self.network = network
        self.folder = pathlib.Path(folder)
        self.seconds = seconds
        # Kernels are measured in this run: an older cache may come from a busy machine.
        self.environment = {
            "OMP_WAIT_POLICY": "passive",
            "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }
        self._runs = 0

    def _next_run(self):
        """(a new folder, a port that no run had before)."""
        self._runs += 1
        folder = self.folder / f"run-{self._runs}"
        folder.mkdir()
        return folder, 7600 + self._runs

    # --- Motley ----------------------------------------------------------------------------------

    def _bench(self, row, workers, seconds):
        command = [self.motley, "bench", "--json", "--model", row.net, "--input", row.input]
        command += ["--classes", row.classes, "--batch", row.batch // workers]
        return [*command, "--threads", 1, "--seconds", seconds]

    def forward_share(self, row):
        """The part of a step's operations that belongs to the forward pass."""
        job = {**row.job, "model.zoo": row.net, "train.batch": row.batch}
        command = [self.motley, "train", "--dry-run", "--json", *sets(job)]
        model = run_json(command, self.environment, START_DEADLINE_SECONDS)["model"]
        return model["flops_forward"] / (model["flops_forward"] + model["flops_backward"])

    def measure_kernels(self, row, workers):
        """By one device alone: what follows finds the choices in the cache."""
        run_json(self._bench(row, workers, 0.1), self.environment, START_DEADLINE_SECONDS)

    def compute(self, row, workers):
        """Seconds per step when `workers` devices with a share each compute at the same time and
        exchange nothing: the time of the slowest."""
        folder, _ = self._next_run()
        command = self._bench(row, workers, self.seconds)
        with Crew(folder) as crew:
            processes = [
                crew.start(f"bench-{i}", host, command, self.environment, True)
                for i, host in enumerate(self.network.hosts[1 : workers + 1])
            ]
            answers = [self._answer(crew, process) for process in processes]
        return max(row.batch / workers / answer["images_per_second"] for answer in answers)

    def _answer(self, crew, process):
        """What a process prints, parsed."""
        try:
            said, _ = process.communicate(timeout=START_DEADLINE_SECONDS + 20 * self.seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"no answer: {' '.join(process.args)}") from None
        crew.check(may_end=True)
        return json.loads(said)

    def cluster(self, row, workers, path, to_the_end=False):
        """One job on so many workers: what figures.Readings.summary tells, and `run`, its
        directory. It is stopped when enough was measured, or goes on to its own end."""
        folder, port = self._next_run()
        run = folder / "run"
        with Crew(folder) as crew:
            coordinator = self._start_cluster(crew, row, workers, path, folder, port)
            readings = self._watch(crew, run, workers, to_the_end)
            if not to_the_end:
                coordinator.send_signal(signal.SIGTERM)
            # 4: it was stopped before its goal.
            crew.wait(STOP_DEADLINE_SECONDS, codes=(0,) if to_the_end else (0, 4))
        if not readings.stretches:
            raise Failed(f"{row.net}: too few steps to measure anything")
        answer = readings.summary()
        answer["worker_sent_bytes"] = sum(answer["sent_bytes"][1:]) / workers
        answer["run"] = run
        answer["summary"] = json.loads((run / "summary.json").read_text())
        if not to_the_end:
            shutil.rmtree(run / "checkpoints", ignore_errors=True)  # nobody goes on with it
        return answer

    def _start_cluster(self, crew, row, workers, path, folder, port):
        hosts = self.network.hosts
        token = folder / "token"
        address = f"{hosts[0].address}:{port}"
        command = [self.motley, "serve", "--out", folder / "run", "--listen", address]
        command += ["--token-file", token]
        job = {
            **row.job,
            "model.zoo": row.net,
            "train.batch": row.batch,
            "cluster.min_workers": workers,
            "cluster.trusted_network": "true" if path == "gloo" else "false",
        }
        command += sets(job)
        coordinator = crew.start("coordinator", hosts[0], command, self.environment)
        wait_for(token.exists, crew, START_DEADLINE_SECONDS, "the coordinator's token")
        for number, host in enumerate(hosts[1 : workers + 1]):
            command = [self.motley, "join", address, "--token-file", token, "--threads", 1]
            command += ["--name", f"worker-{number}", "--retry-seconds", 20]
            # The order of joining is that of the summation.
            environment = {**self.environment, "RANK": str(number), "WORLD_SIZE": str(workers)}
            crew.start(f"worker-{number}", host, command, environment)
        return coordinator

    def _watch(self, crew, run, workers, to_the_end):
        hosts = self.network.hosts[: workers + 1]
        events, readings = Events(run), figures.Readings()
        heard = time.monotonic()
        while time.monotonic() < heard + STEP_DEADLINE_SECONDS:
            for event in events.new():
                heard = time.monotonic()
                kind = event["event"]
                if kind == "step":
                    readings.add(reading(event, hosts, crew))
                elif kind == "run_finished":
                    return readings
                elif kind in ("lost", "run_failed"):
                    raise Failed(event["message"])
                elif kind in OTHER_EVENTS:
                    readings.interrupt()
            enough = readings.seconds >= self.seconds
            if enough and len(readings.stretches) >= FEWEST_STRETCHES and not to_the_end:
                return readings
            crew.check(may_end=to_the_end)
            time.sleep(LOOK_SECONDS)
        raise Failed(f"no step within {STEP_DEADLINE_SECONDS} s: {crew.words('coordinator')}")

    def train_here(self, row, **changes):
        """The same job by `motley train` on one device: its run directory. With lanes=N on so many
        cores; with steps=0 it stops before the first one."""
        folder, _ = self._next_run()
        run = folder / "run"
        job = {**row.job, "model.zoo": row.net, "train.batch": row.batch}
        job["device.threads"] = changes.get("lanes", 1)
        if changes.get("steps") == 0:
            job["train.max_seconds"] = 1e-6
        with Crew(folder) as crew:
            command = [self.motley, "train", "--out", run, *sets(job)]
            crew.start("train", self.network.hosts[0], command, self.environment)
            crew.wait(STOP_DEADLINE_SECONDS + START_DEADLINE_SECONDS)
        return run

    def weights(self, run):
        """(parameters, running statistics) of a run's last checkpoint."""
        file = run.parent / "weights.safetensors"
        command = [self.motley, "export", run, "--safetensors", file]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=STOP_DEADLINE_SECONDS
        )
        if done.returncode != 0:
            raise Failed(f"motley export: {done.stderr.strip()}")
        return figures.read_safetensors(file)

    # --- PyTorch ---------------------------------------------------------------------------------

    def best_layout(self, row):
        """The memory layout in which PyTorch is faster here, with one thread."""
        rates = {}
        for layout in LAYOUTS:
            command = [TORCH_PYTHON, ROOT / "bench/torch_step.py", row.net, "--input", row.input]
            command += ["--classes", row.classes, "--batch", row.batch, "--threads", 1]
            command += ["--layout", layout, "--seconds", min(self.seconds, 2.0)]
            answer = run_json(command, self.environment, START_DEADLINE_SECONDS)
            rates[layout] = answer["images_per_second"]
        return max(rates, key=rates.get)

    def ddp(self, row, workers, layout):
        """One run of DistributedDataParallel; the same figures as those of cluster()."""
        folder, port = self._next_run()
        hosts = self.network.hosts[1 : workers + 1]
        command = [TORCH_PYTHON, ROOT / "bench/torch_ddp.py", row.net, "--input", row.input]
        command += ["--classes", row.classes, "--batch", row.batch // workers]
        command += ["--layout", layout, "--seconds", self.seconds, "--workers", workers]
        command += ["--meet", f"{hosts[0].address}:{port}", "--interface", INTERFACE]
        with Crew(folder) as crew:
            processes = [
                crew.start(f"ddp-{r}", host, [*command, "--rank", r], self.environment, True)
                for r, host in enumerate(hosts)
            ]
            answers = [self._answer(crew, process) for process in processes]
        return {
            "steps": answers[0]["steps"],
            "step_seconds": answers[0]["step_seconds"],
            "windows": answers[0]["windows"],
            "parameters": answers[0]["parameters"],
            "cpu_seconds": sum(answer["cpu_seconds"] for answer in answers),
            "machine_seconds": answers[0]["machine_seconds"],
            "worker_sent_bytes": sum(answer["sent_bytes"] for answer in answers) / workers,
        }

    # --- Streams ---------------------------------------------------------------------------------

    def bandwidth(self, tls):
        """Bytes per second of TCP between two hosts, in each of both directions at once."""
        folder, port = self._next_run()
        options = ["--tls", *self._certificate(folder)] if tls else []
        one, other = self.network.hosts[:2]
        with Crew(folder) as crew:
            receivers, senders = [], []
            for i, host in enumerate((one, other)):
                command = [sys.executable, HERE / "stream.py", "receive", host.address, port]
                receivers.append(
                    crew.start(f"receive-{i}", host, [*command, *options], self.environment, True)
                )
                receivers[-1].stdout.readline()  # it listens
            for i, (host, to) in enumerate(((one, other), (other, one))):
                command = [sys.executable, HERE / "stream.py", "send", to.address, port]
                command += ["--seconds", STREAM_SECONDS, *options]
                senders.append(crew.start(f"send-{i}", host, command, self.environment))
            rates = [self._answer(crew, process) for process in receivers]
        return sum(rates) / len(rates)

    def _certificate(self, folder):
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"]
        command += ["ec_paramgen_curve:prime256v1", "-nodes", "-days", "1", "-subj", "/CN=stream"]
        command += ["-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return certificate, key


def reading(event, hosts, crew):
    """The counters of this moment, at which a step was told."""
    sent, received = zip(*(host.counters() for host in hosts))
    return figures.Reading(
        event["step"], event["time"], sent, received, crew.cpu_seconds(), counters.machine_seconds()
    )


def sets(job):
    return [word for key, value in job.items() for word in ("--set", f"{key}={value}")]


def wait_for(condition, crew, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        crew.check()
        if time.monotonic() > end:
            raise Failed(f"{what} is not there after {seconds} s")
        time.sleep(LOOK_SECONDS)
