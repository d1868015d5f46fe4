"""The folder of one run of bench/cluster. It can hold gigabytes of checkpoints, so what a killed
run has left is removed by the next one."""

import contextlib
import os
import pathlib
import shutil
import tempfile

PREFIX = "motley-bench-cluster-"


def remove_leftovers(parent):
    for folder in parent.glob(f"{PREFIX}*-*"):
        owner = folder.name.removeprefix(PREFIX).split("-")[0]
        if owner.isdecimal() and not pathlib.Path("/proc", owner).exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def workspace():
    """A folder that is gone afterwards."""
    remove_leftovers(pathlib.Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as folder:
        yield pathlib.Path(folder)
