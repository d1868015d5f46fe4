"""Hosts of their own on this machine, behind cables that can be cut. Needs root.

Each host is a network namespace that nobody has named: the kernel removes it, with its end of the
cable, when the last process in it and this program have ended, however they ended."""

import contextlib
import ctypes
import os
import subprocess

from side_by_side import machine

CLONE_NEWNET = 0x40000000
SUBNET = "10.99.0"
SWITCH = "02:00:00:00:00:01"
COMMAND_SECONDS = 10


def set_namespace(descriptor):
    if machine.LIBC.setns(descriptor, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")


def new_namespace():
    """The descriptor that keeps it alive."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    if machine.LIBC.unshare(CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        os.close(own)
        raise machine.Unable(f"network namespaces: {os.strerror(error)}; they need root")
    descriptor = os.open("/proc/self/ns/net", os.O_RDONLY)
    set_namespace(own)
    os.close(own)
    return descriptor


def ip(namespace, *words):
    """Runs `ip` there."""
    try:
        subprocess.run(
            ["ip", *(str(word) for word in words)],
            check=True,
            timeout=COMMAND_SECONDS,
            stdout=subprocess.DEVNULL,
            preexec_fn=lambda: set_namespace(namespace),
        )
    except FileNotFoundError:
        raise machine.Unable("network namespaces: there is no `ip`; install iproute2") from None


class Network:
    """A switch, the coordinator's host at it, and one host per worker."""

    address = f"{SUBNET}.1"  # of the coordinator

    def __init__(self):
        self.hosts = {}
        self.hub = new_namespace()
        ip(self.hub, "link", "set", "lo", "up")
        # Without an address of its own it takes one of its cables', another with every new cable,
        # and those who know the old one talk to nobody for a while.
        ip(self.hub, "link", "add", "switch", "address", SWITCH, "type", "bridge")
        ip(self.hub, "addr", "add", f"{SUBNET}.1/24", "dev", "switch")
        ip(self.hub, "link", "set", "switch", "up")

    def host(self, number):
        """The namespace of worker `number`, from 0; made when it is first asked for."""
        if number in self.hosts:
            return self.hosts[number]
        host = new_namespace()
        cable = f"cable{number}"
        end = f"/proc/{os.getpid()}/fd/{host}"
        ip(self.hub, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", end)
        ip(self.hub, "link", "set", cable, "master", "switch", "up")
        ip(host, "link", "set", "lo", "up")
        ip(host, "addr", "add", f"{SUBNET}.{number + 2}/24", "dev", "eth0")
        ip(host, "link", "set", "eth0", "up")
        self.hosts[number] = host
        return host

    def cut(self, number):
        ip(self.hub, "link", "set", f"cable{number}", "down")

    def mend(self, number):
        ip(self.hub, "link", "set", f"cable{number}", "up")

    def close(self):
        for namespace in (*self.hosts.values(), self.hub):
            with contextlib.suppress(OSError):
                os.close(namespace)
