"""Training sets for the nets: small, so that a run does not spend its time on reading them."""

import collections
import os
import pathlib
import tarfile


def mnist_is_here():
    """Where `motley data get mnist` keeps it; see docs/formats.md."""
    home = os.environ.get("XDG_DATA_HOME", "")
    folder = pathlib.Path(home if os.path.isabs(home) else pathlib.Path.home() / ".local/share")
    return any(folder.glob("motley/mnist/*"))


def write_subset(archive, target, train_per_class, test_per_class):
    """Copies the first images of each class of a tar file with train/CLASS/ and test/CLASS/."""
    wanted = {"train": train_per_class, "test": test_per_class}
    taken = collections.Counter()
    with tarfile.open(archive) as source, tarfile.open(target, "w") as subset:
        for member in source:
            part, *between = member.name.removeprefix("./").split("/")[:-1] or [""]
            folder = (part, *between)
            if not member.isfile() or taken[folder] >= wanted.get(part, 0):
                continue
            taken[folder] += 1
            subset.addfile(member, source.extractfile(member))
    return taken
