"""Hosts of a small network, as network namespaces of this machine behind one switch.

Nothing has a name outside: each namespace belongs to a process that the kernel ends with this one.
When the last process of a namespace is gone, so are its cables and limits. A run that was killed
leaves nothing behind."""

import ctypes
import os
import re
import shutil
import subprocess

from cluster_hosts import counters
from side_by_side import machine

TOOLS = {"ip": "iproute2", "tc": "iproute2", "sleep": "coreutils", "openssl": "openssl"}
CLONE_NEWNET = 0x40000000
SUBNET = "10.77.0"
INTERFACE = "eth0"
# The bucket holds several packets of 64 kB: none is cut, so that headers cost next to nothing.
BURST = "256kb"
# What a port of a switch keeps before it drops.
QUEUE = "20ms"
COMMAND_DEADLINE_SECONDS = 30


def check():
    """Raises Unable where hosts cannot be made."""
    if os.geteuid() != 0:
        raise machine.Unable("network namespaces need root")
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise machine.Unable(f"{tool} is missing: install {package}")


def parse_rate(text):
    """A rate as `tc` reads it, or None for 'none'."""
    if text == "none":
        return None
    if not re.fullmatch(r"[1-9]\d*(\.\d+)?(kbit|mbit|gbit)", text):
        raise ValueError("write it like 1gbit or 100mbit, or none")
    return text


def _call(function, *arguments):
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class Host:
    """One network namespace. close() ends it; so does the end of this program."""

    def __init__(self, name, address=None):
        self.name = name
        self.address = address

        def prepare():
            machine.die_with_parent()
            _call(machine.LIBC.unshare, CLONE_NEWNET)

        try:
            self._holder = subprocess.Popen(["sleep", "infinity"], preexec_fn=prepare)
        except subprocess.SubprocessError:
            raise machine.Unable("network namespaces are not allowed here") from None

    @property
    def pid(self):
        return self._holder.pid

    def start(self, command, **options):
        """A process on this host, which the kernel ends with this program. Only for the main
        thread: the kernel's promise ends with the thread that made it."""

        def prepare():
            machine.die_with_parent()
            namespace = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY)
            _call(machine.LIBC.setns, namespace, CLONE_NEWNET)
            os.close(namespace)

        command = [str(word) for word in command]
        return subprocess.Popen(command, preexec_fn=prepare, **options)

    def run(self, command):
        """For set-up: raises Unable with what the command says."""
        process = self.start(
            command.split(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            said, _ = process.communicate(timeout=COMMAND_DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise machine.Unable(f"{command}: no end after {COMMAND_DEADLINE_SECONDS} s") from None
        if process.returncode != 0:
            raise machine.Unable(f"{command}: {said.strip() or process.returncode}")

    def counters(self):
        """(bytes sent, bytes received) by its cable so far, headers included."""
        return counters.namespace_bytes(self.pid, INTERFACE)

    def close(self):
        self._holder.kill()
        self._holder.wait()


class Network:
    """A switch and `count` hosts, each with a cable of `rate` (None: unlimited) in both directions
    at once. For `with`."""

    def __init__(self, count, rate):
        self.rate = rate
        self.hosts = []
        self._switch = Host("switch")
        try:
            self._switch.run("ip link add bridge type bridge")
            self._switch.run("ip link set bridge up")
            for number in range(count):
                self._plug_in(number)
        except BaseException:
            self.close()
            raise

    def _plug_in(self, number):
        host = Host(f"host-{number}", f"{SUBNET}.{number + 1}")
        self.hosts.append(host)
        port = f"port{number}"
        self._switch.run(f"ip link add {port} type veth peer name {INTERFACE} netns {host.pid}")
        self._switch.run(f"ip link set {port} master bridge up")
        host.run("ip link set lo up")
        host.run(f"ip address add {host.address}/24 dev {INTERFACE}")
        host.run(f"ip link set {INTERFACE} up")
        if self.rate:
            limit = f"root tbf rate {self.rate} burst {BURST} latency {QUEUE}"
            host.run(f"tc qdisc add dev {INTERFACE} {limit}")
            self._switch.run(f"tc qdisc add dev {port} {limit}")

    def close(self):
        for host in [*self.hosts, self._switch]:
            host.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
