"""What the kernel counts: bytes of an interface, and time of processors."""

import os
import pathlib

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def interface_bytes(text, interface):
    """(sent, received) of an interface, from what /proc/net/dev says. Headers are included."""
    for line in text.splitlines():
        name, _, values = line.partition(":")
        if name.strip() == interface:
            words = values.split()
            return int(words[8]), int(words[0])
    raise KeyError(interface)


def namespace_bytes(pid, interface):
    """The same for the network namespace of a process."""
    return interface_bytes(pathlib.Path(f"/proc/{pid}/net/dev").read_text(), interface)


def process_seconds(pid):
    """Processor time of a process so far; 0 when it is gone."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS_PER_SECOND


def machine_seconds():
    """Processor time of all processes of the machine so far, and what other machines on the same
    hardware took away. Interrupts are not in it: they belong to nobody."""
    words = pathlib.Path("/proc/stat").read_text().split(maxsplit=9)
    user, nice, system, stolen = (int(words[i]) for i in (1, 2, 3, 8))
    return (user + nice + system + stolen) / TICKS_PER_SECOND
