"""What bench/cluster measures. measure_*() give what goes into the JSON, report_*() the text."""

import statistics

from cluster_hosts import data, figures
from cluster_hosts.programs import PATHS, Row
from side_by_side.figures import percent, table

EQUALITY_LIMIT = 1e-4
OTHERS_LIMIT = 0.2
# Of one step, all workers together.
BATCHES = {"lenet": 256, "alexnet": 32}
# Measuring it would read every image before the first step.
NORMALISED = {"data.mean": "0.5,0.5,0.5", "data.std": "0.25,0.25,0.25"}
# A checkpoint in the middle would be measured with the steps. Shares are equal, as PyTorch's are: a
# plan would leave out workers that only add bytes.
PLAIN = {"checkpoint.every_seconds": 1e6, "train.tune": "off"}
ENDLESS = {**PLAIN, "train.epochs": 10**6, "train.schedule": "constant"}
ONCE = {**PLAIN, "train.epochs": 1}


class Datasets:
    """Makes what the nets are trained on when it is first asked for."""

    def __init__(self, archive, folder):
        self.archive = archive
        self.folder = folder

    def digits(self):
        return {"data.train": "mnist" if data.mnist_is_here() else "glyphs"}

    def images(self, train_per_class, test_per_class):
        subset = self.folder / f"images-{train_per_class}.tar"
        if not subset.exists():
            data.write_subset(self.archive, subset, train_per_class, test_per_class)
        return {"data.train": f"images:{subset}", **NORMALISED}


def lenet(sets):
    job = {**sets.digits(), **ENDLESS, "train.learning_rate": 0.01}
    return Row("lenet", "1x28x28", BATCHES["lenet"], job)


def alexnet(sets):
    job = {**sets.images(100, 2), **ENDLESS, "train.learning_rate": 0.001}
    return Row("alexnet", "3x224x224", BATCHES["alexnet"], {**job, "data.resize": "224x224"})


def lenet_once(_):
    """As many steps as take some seconds, so that the bytes of some can be counted; slow ones,
    because rounding errors grow with what is learnt."""
    job = {"data.train": "glyphs", **ONCE, "train.learning_rate": 0.001}
    return Row("lenet", "1x28x28", 100, job)  # 80 steps


def resnet_once(sets):
    """Batch norm over four samples makes much of a rounding error within a few steps, also between
    one lane and two: hence few of them, and short ones."""
    job = {**sets.images(16, 4), **ONCE, "train.learning_rate": 0.002, "train.bn_batch": 4}
    return Row("resnet18_cifar", "3x32x32", 32, job)  # 5 steps


SPEED_ROWS = {"lenet": lenet, "alexnet": alexnet}
EQUALITY_ROWS = {"lenet": lenet_once, "resnet18_cifar": resnet_once}
NEEDS_IMAGES = {"alexnet", "resnet18_cifar"}


def measure_bandwidth(lab, say):
    plain, tls = lab.bandwidth(tls=False), lab.bandwidth(tls=True)
    say(f"a TCP stream each way: {plain / 1e6:.0f} MB/s, with TLS {tls / 1e6:.0f} MB/s")
    return {"plain": plain, "tls": tls}


def measure_speed(lab, row, workers, rounds, layout, bandwidth, say):
    """One net on so many workers: computing alone, both paths and PyTorch, in turn."""
    programs = {path: lambda path=path: lab.cluster(row, workers, path) for path in PATHS}
    programs["ddp"] = lambda: lab.ddp(row, workers, layout)
    answers, alone = {name: [] for name in programs}, []

    def told(name, seconds):
        say(f"{row.net} x {workers}, {name}: {1e3 * seconds:.1f} ms per step")

    lab.measure_kernels(row, workers)
    for _ in range(rounds):
        alone.append(lab.compute(row, workers))
        told("computing alone", alone[-1])
        for name, run in programs.items():
            answers[name].append(run())
            told(name, answers[name][-1]["step_seconds"])
    result = {
        "net": row.net,
        "batch": row.batch,
        "workers": workers,
        "floats": answers["ddp"][0]["parameters"],  # neither net has running statistics
        "layout": layout,
        "alone_seconds": statistics.median(alone),
        "alone_rounds": alone,
        "forward_share": lab.forward_share(row),
        "programs": {name: figures.over_rounds(of_it) for name, of_it in answers.items()},
    }
    for name, program in result["programs"].items():
        predict(result, name, program, bandwidth, lab.network.rate is not None)
    result["valid"] = all(
        figures.bytes_agree(result["programs"][path]["sent_bytes"],
                            result["programs"][path]["counted_bytes"])
        for path in PATHS
    )
    return result


def predict(result, name, program, bandwidth, limited):
    """Adds to a program what its bytes cost."""
    path = name if name in PATHS else "gloo"  # by which PyTorch sums as well
    floats, workers = result["floats"], result["workers"]
    stream = bandwidth["tls" if path == "server" else "plain"]
    program["counted_bytes"] = figures.counted_bytes(path, floats, workers)
    program["bytes_seconds"] = figures.bytes_on_busiest_cable(path, floats, workers) / stream
    program["in_turn_seconds"] = figures.in_turn_seconds(
        result["alone_seconds"], program["bytes_seconds"]
    )
    program["earliest_seconds"] = figures.earliest_seconds(
        result["alone_seconds"], program["bytes_seconds"], result["forward_share"], limited
    )


NAMES = {"gloo": "Motley, Gloo", "server": "Motley, server", "ddp": "PyTorch DDP"}


def worst(results, name, reference):
    """(ratio, where) of one program's slowest step against what it is compared with."""
    return max(
        (result["programs"][name]["step_seconds"] / reference(result, result["programs"][name]),
         f"{result['net']} x {result['workers']}")
        for result in results
    )


def ddp_seconds(result):
    return result["programs"]["ddp"]["step_seconds"]


def milliseconds(seconds):
    return f"{1e3 * seconds:.1f}"


def megabytes(count):
    return f"{count / 1e6:.2f}"


def speed_line(result, name):
    program = result["programs"][name]
    step = program["step_seconds"]
    spread = f" ± {percent(program['spread'] / 2)}" if len(program["rounds"]) > 1 else ""
    line = [
        result["net"],
        result["workers"],
        NAMES[name],
        milliseconds(step) + spread,
        f"{ddp_seconds(result) / step:.2f}",
        megabytes(program["sent_bytes"]),
        megabytes(program["counted_bytes"]),
        f"{program['busy_cores']:.1f}",
    ]
    if name not in PATHS:  # what PyTorch computes alone is not measured
        return line + [""] * 6
    expected = [program["in_turn_seconds"], program["earliest_seconds"]]
    times = [result["alone_seconds"], program["bytes_seconds"], *expected]
    return line + [milliseconds(t) for t in times] + [f"{step / t:.2f}" for t in expected]


def report_speed(results, limited):
    """The table, and below it how the worst rows stand to their goals."""
    text = table(
        ["net", "workers", "program", "ms per step", "times as fast as DDP",
         "MB sent per worker and step", "counted", "cores busy", "computing alone, ms",
         "its bytes, ms", "in turn, ms", "earliest, ms", "step / in turn", "step / earliest"],
        [speed_line(result, name) for result in results for name in result["programs"]],
    )
    backward = "max(backward pass, its bytes)" if limited else "backward pass + its bytes"
    lines = [
        text,
        "",
        "its bytes = bytes on the busiest cable / stream (with TLS for the server); in turn = "
        f"computing alone + its bytes; earliest = forward pass + {backward}",
    ]
    ratio, where = worst(results, "gloo", lambda result, _: ddp_seconds(result))
    lines.append(f"Gloo against DDP: at worst {ratio:.2f} times its step ({where}); goal 1")
    ratio, where = worst(results, "server", lambda _, program: program["in_turn_seconds"])
    lines.append(f"server against computing and its bytes in turn: at worst {ratio:.2f} ({where}); "
                 "goal 1.2")
    others = max(p["cores_of_others"] for r in results for p in r["programs"].values())
    if others > OTHERS_LIMIT:
        lines.append(f"WARNING: other programs took up to {others:.1f} cores meanwhile; figures of "
                     "such a run mean little")
    for result in results:
        if not result["valid"]:
            lines.append(f"INVALID: {result['net']} x {result['workers']}: the bytes on the wire "
                         "are not those of docs/protocol.md")
    return "\n".join(lines)


def measure_equality(lab, row, workers, say):
    """The weights of a short job on the hosts against those of `motley train`. For comparison: what
    two lanes of one device make of the same job, and how far it moved the weights at all."""
    alone = lab.weights(lab.train_here(row))
    lanes = lab.weights(lab.train_here(row, lanes=2))
    start = lab.weights(lab.train_here(row, steps=0))
    floats = sum(map(len, alone))
    results = []
    for path in PATHS:
        answer = lab.cluster(row, workers, path, to_the_end=True)
        weights = lab.weights(answer["run"])
        result = {
            "net": row.net,
            "batch": row.batch,
            "workers": workers,
            "path": path,
            "steps": answer["summary"]["steps"],
            "difference": figures.relative_difference(weights[0], alone[0]),
            "of_two_lanes": figures.relative_difference(lanes[0], alone[0]),
            "moved": figures.relative_difference(start[0], alone[0]),
            "step_seconds": answer["step_seconds"],
            "sent_bytes": answer["worker_sent_bytes"],
            "counted_bytes": figures.counted_bytes(path, floats, workers),
        }
        if alone[1]:
            result["statistics"] = figures.relative_difference(weights[1], alone[1])
        result["valid"] = result["difference"] < EQUALITY_LIMIT and figures.bytes_agree(
            result["sent_bytes"], result["counted_bytes"]
        )
        say(f"{row.net} x {workers}, {path}: weights differ by {result['difference']:.1e}")
        results.append(result)
    return results


def report_equality(results):
    text = table(
        ["net", "workers", "path", "steps", "weights differ by", "running statistics",
         "two lanes of one device", "training moved them by", "MB sent per worker and step",
         "counted", "as it should be"],
        [
            [r["net"], r["workers"], r["path"], r["steps"], f"{r['difference']:.1e}",
             f"{r['statistics']:.1e}" if "statistics" in r else "", f"{r['of_two_lanes']:.1e}",
             f"{r['moved']:.1e}", megabytes(r["sent_bytes"]), megabytes(r["counted_bytes"]),
             "yes" if r["valid"] else "NO"]
            for r in results
        ],
    )
    return (f"{text}\n\nagainst `motley train` with one lane; the largest difference over the "
            f"largest weight; limit {EQUALITY_LIMIT:g}")
