"""What is done to the machine while others are measured, and undone afterwards."""

import contextlib
import ctypes
import os
import pathlib
import platform
import signal
import subprocess
import sys
import time

# Short against a window of the measurement, so that each holds many periods.
QUOTA_PERIOD_US = 20_000
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class Unable(Exception):
    """The machine does not offer what an experiment needs."""


def die_with_parent():
    """For preexec_fn: the kernel ends the child even when this program is killed outright."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def busy_core():
    """Another program that burns the last of our cores."""
    core = max(os.sched_getaffinity(0))

    def prepare():
        die_with_parent()
        os.sched_setaffinity(0, {core})

    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=prepare)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def cpu_cgroup():
    """The folder of this process in the hierarchy of cgroup v1's cpu controller."""
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            break
    else:
        raise Unable("CPU quotas: no cpu controller of cgroup v1 is mounted")
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return pathlib.Path(mount) / path.lstrip("/")
    raise Unable("CPU quotas: this process is in no group of the cpu controller")


def remove_cgroup(group):
    """Waits for its last processes: the kernel lets them go a moment after they were reaped."""
    for _ in range(100):
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)
    print(f"vs_torch: {group} could not be removed", file=sys.stderr)


@contextlib.contextmanager
def cpu_quota(cores):
    """A group whose processes get so many cores' worth of time; yields its folder."""
    group = cpu_cgroup() / f"motley-vs-torch-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise Unable(f"CPU quotas: {error}; they need root") from error
    try:
        (group / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(round(cores * QUOTA_PERIOD_US)))
        yield group
    finally:
        remove_cgroup(group)


def memory_available_mb():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024.0
    return float("inf")


def description():
    cpu = "unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],
    }
