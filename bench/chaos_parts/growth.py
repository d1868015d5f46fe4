"""Whether the memory, the descriptors or the threads of a process grow."""

import collections
import os
import pathlib
import statistics

from side_by_side import figures

LARGEST_SLOPE_MB_PER_MINUTE = 1.0
SHORTEST_JUDGED_SECONDS = 60.0
# Of the time that a process lives: caches fill, and the allocator finds its size.
WARM_UP = 0.2
# Medians of two quarters may differ by so much. gRPC keeps a pool of threads that breathes.
SLACK_DESCRIPTORS = 0
SLACK_THREADS = 4
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20

Sample = collections.namedtuple("Sample", "seconds rss_mb descriptors threads")


def read_process(pid, seconds):
    """A Sample; None when it is gone."""
    folder = pathlib.Path("/proc", str(pid))
    try:
        pages = int((folder / "statm").read_text().split()[1])
        descriptors, threads = (len(os.listdir(folder / kind)) for kind in ("fd", "task"))
        return Sample(seconds, pages * PAGE_MB, descriptors, threads)
    except (FileNotFoundError, ProcessLookupError):
        return None


def grows(values, slack):
    """Whether the last quarter lies above the first by more than that."""
    quarter = max(1, len(values) // 4)
    return statistics.median(values[-quarter:]) > statistics.median(values[:quarter]) + slack


def judge(samples):
    """The figures of one process. flat: None where it did not live long enough to tell."""
    begin, end = samples[0].seconds, samples[-1].seconds
    judged = [s for s in samples if s.seconds >= begin + WARM_UP * (end - begin)]
    verdict = {"seconds": end - begin, "mb_per_minute": None, "flat": None}
    for figure in ("rss_mb", "descriptors", "threads"):
        verdict[figure] = {
            "first": getattr(judged[0], figure),
            "last": getattr(judged[-1], figure),
            "largest": max(getattr(sample, figure) for sample in samples),
        }
    if judged[-1].seconds - judged[0].seconds >= SHORTEST_JUDGED_SECONDS:
        _, slope = figures.line_fit([s.seconds / 60 for s in judged], [s.rss_mb for s in judged])
        verdict["mb_per_minute"] = slope
        verdict["flat"] = (
            slope < LARGEST_SLOPE_MB_PER_MINUTE
            and not grows([s.descriptors for s in judged], SLACK_DESCRIPTORS)
            and not grows([s.threads for s in judged], SLACK_THREADS)
        )
    return verdict
