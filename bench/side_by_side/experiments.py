"""The experiments of bench/vs_torch. For each: measure(bench, row, rounds) gives what goes into the
JSON for one row, and report(results, options) gives the text of all rows.

A result is valid when the losses of both programs agree; figures of others mean nothing."""

import contextlib
import dataclasses
import pathlib
import statistics
import typing

from side_by_side import figures, machine, plot
from side_by_side.programs import ROWS, THREADS, Failed

LOSS_TOLERANCE = 1e-3
BATCHES = (1, 4, 16, 64, 256)
QUOTAS = (1.0, 0.75, 0.5, 0.25)  # whole first: kernels are then measured without a quota
# What a larger batch may take of the memory that is free.
MEMORY_SHARE = 0.8


def judged(result, ours, theirs, steps=None):
    """The result, with the comparison of the first losses (none: all there are) in all rounds."""
    worst = max(figures.loss_difference(a["losses"][:steps], b["losses"][:steps])
                for a, b in zip(ours, theirs))
    return {**result, "loss_difference": worst, "valid": worst < LOSS_TOLERANCE}


def verdict(result, words):
    return words if result["valid"] else "INVALID"


def label(result):
    row = ROWS[result["row"]]
    return [row.name, row.input, result["batch"]]


def header(row):
    return {"row": row.name, "batch": row.batch}


def measure_speed(bench, row, rounds):
    start = bench.prepare(row)
    config = bench.best_torch(row, start)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(bench.motley(row))
        theirs.append(bench.torch(row, start, **config))
    motley, torch = figures.summary(ours), figures.summary(theirs)
    result = {
        **header(row),
        "motley": motley,
        "torch": {**config, **torch},
        "ratio": motley["images_per_second"] / torch["images_per_second"],
        "memory_ratio": motley["peak_rss_mb"] / torch["peak_rss_mb"],
    }
    return judged(result, ours, theirs)


def report_speed(results, _):
    rows = []
    for result in results:
        motley, torch = result["motley"], result["torch"]
        rows.append(
            label(result)
            + [figures.rate_with_spread(p) for p in (motley, torch)]
            + [f"{torch['threads']} x {torch['layout']}"]
            + [verdict(result, f"{result['ratio']:.2f}")]
            + [figures.whole(p["peak_rss_mb"]) for p in (motley, torch)]
            + [f"{result['loss_difference']:.0e}"]
        )
    text = figures.table(
        ["net", "input", "batch", "Motley images/s", "PyTorch images/s", "PyTorch's best",
         "ratio", "Motley MB", "PyTorch MB", "losses differ by"],
        rows,
    )
    valid = [result for result in results if result["valid"]]
    if not valid:
        return text
    ratios = [result["ratio"] for result in valid]
    return (
        f"{text}\n\nratio: smallest {min(ratios):.2f}, geometric mean "
        f"{figures.geometric_mean(ratios):.2f}; memory against PyTorch's: at most "
        f"{figures.percent(max(result['memory_ratio'] for result in valid))}"
    )


def measure_lanes(bench, row, rounds):
    start = bench.prepare(row)
    configs = [bench.best_torch(row, start, [threads]) for threads in THREADS]
    ours = {threads: [] for threads in THREADS}
    theirs = {threads: [] for threads in THREADS}
    for _ in range(rounds):
        for config in configs:
            threads = config["threads"]
            ours[threads].append(bench.motley(row, threads))
            theirs[threads].append(bench.torch(row, start, **config))
    result = header(row)
    for name, answers in (("motley", ours), ("torch", theirs)):
        few, many = (figures.summary(answers[threads]) for threads in THREADS)
        gain = many["images_per_second"] / few["images_per_second"]
        result[name] = {"one": few, "two": many, "gain": gain}
    return judged(result, sum(ours.values(), []), sum(theirs.values(), []))


def report_lanes(results, _):
    rows = []
    for result in results:
        cells = []
        for program in (result["motley"], result["torch"]):
            cells += [figures.rate(program[k]["images_per_second"]) for k in ("one", "two")]
            cells.append(verdict(result, f"{program['gain']:.2f}"))
        rows.append(label(result) + cells)
    return figures.table(
        ["net", "input", "batch", "Motley, 1 thread", "2 threads", "gain",
         "PyTorch, 1 thread", "2 threads", "gain"],
        rows,
    )


def measure_interrupted(bench, row, rounds):
    start = bench.prepare(row)
    config = bench.best_torch(row, start, THREADS[-1:])
    ours, theirs = {"quiet": [], "busy": []}, {"quiet": [], "busy": []}
    for _ in range(rounds):
        for state in ours:
            with machine.busy_core() if state == "busy" else contextlib.nullcontext():
                ours[state].append(bench.motley(row))
                theirs[state].append(bench.torch(row, start, **config))
    result = header(row)
    for name, answers in (("motley", ours), ("torch", theirs)):
        quiet, busy = figures.summary(answers["quiet"]), figures.summary(answers["busy"])
        kept = busy["images_per_second"] / quiet["images_per_second"]
        cores = statistics.median(answer["busy_cores"] for answer in answers["quiet"])
        result[name] = {"quiet": quiet, "busy": busy, "kept": kept, "busy_cores": cores,
                        "kept_of_fair_share": kept / figures.fair_part(cores, THREADS[-1])}
    result["torch"].update(config)
    return judged(result, sum(ours.values(), []), sum(theirs.values(), []))


def report_interrupted(results, _):
    rows = []
    for result in results:
        cells = []
        for program in (result["motley"], result["torch"]):
            cells += [figures.rate(program[k]["images_per_second"]) for k in ("quiet", "busy")]
            cells.append(verdict(result, figures.percent(program["kept"])))
            cells.append(f"{program['busy_cores']:.2f}")
            cells.append(figures.percent(program["kept_of_fair_share"]))
        rows.append(label(result) + cells)
    return figures.table(
        ["net", "input", "batch", "Motley, quiet", "interrupted", "kept", "cores", "of fair share",
         "PyTorch, quiet", "interrupted", "kept", "cores", "of fair share"],
        rows,
    )


def fits_memory(cells, batch):
    """Whether a batch probably fits, by what the smaller ones took."""
    known = [
        (cell["batch"], max(p["peak_rss_mb"] for p in (cell["motley"], cell["torch"]) if p))
        for cell in cells
    ]
    if len(known) < 2:
        return True
    (b0, m0), (b1, m1) = known[-2:]
    return m1 + (m1 - m0) / (b1 - b0) * (batch - b1) < MEMORY_SHARE * machine.memory_available_mb()


def measure_batch(bench, row, config, rounds):
    """One batch size. PyTorch refuses batch norm over a single value; Motley then stands alone."""
    start = bench.prepare(row)
    ours, theirs, refusal = [], [], None
    for _ in range(rounds):
        ours.append(bench.motley(row))
        if refusal:
            continue
        try:
            theirs.append(bench.torch(row, start, **config))
        except Failed as failed:
            refusal = str(failed)
    cell = {"batch": row.batch, "motley": figures.summary(ours), "torch": None}
    if refusal:
        return {**cell, "torch_failed": refusal, "valid": True}
    # Batch norms over a few values amplify rounding: at batch 4 PyTorch's own float32 and float64
    # part within five steps.
    return judged({**cell, "torch": figures.summary(theirs)}, ours, theirs, steps=2)


def slope(cells, program):
    """Megabytes per image of the batch."""
    known = [(cell["batch"], cell[program]["peak_rss_mb"]) for cell in cells if cell[program]]
    return figures.line_fit(*zip(*known))[1] if len(known) > 1 else None


def measure_batches(bench, row, rounds):
    config = bench.best_torch(row, bench.prepare(row))
    cells, left_out = [], []
    for batch in BATCHES:
        if fits_memory(cells, batch):
            cells.append(measure_batch(bench, row._replace(batch=batch), config, rounds))
        else:
            left_out.append(batch)
    return {
        **header(row),
        "torch_config": config,
        "batches": cells,
        "left_out_for_memory": left_out,
        "megabytes_per_image": {name: slope(cells, name) for name in ("motley", "torch")},
        "valid": all(cell["valid"] for cell in cells),
    }


def report_batches(results, _):
    rows, notes = [], []
    for result in results:
        for cell in result["batches"]:
            cells = [result["row"], ROWS[result["row"]].input, cell["batch"]]
            for key, form in (("images_per_second", figures.rate), ("peak_rss_mb", figures.whole)):
                cells.append(verdict(cell, form(cell["motley"][key])))
                cells.append(form(cell["torch"][key]) if cell["torch"] else "failed")
            rows.append(cells)
        slopes = result["megabytes_per_image"]
        said = [f"{title} {slopes[name]:.2f}" for name, title in
                (("motley", "Motley"), ("torch", "PyTorch")) if slopes[name] is not None]
        notes.append(f"{result['row']}: MB per image: {', '.join(said)}")
        if result["left_out_for_memory"]:
            notes.append(f"{result['row']}: too large for this memory: batches "
                         + ", ".join(map(str, result["left_out_for_memory"])))
    columns = ["net", "input", "batch", "Motley images/s", "PyTorch images/s", "Motley MB",
               "PyTorch MB"]
    return figures.table(columns, rows) + "\n\n" + "\n".join(notes)


def measure_flops(bench, row, rounds):
    points = []
    for threads in THREADS:
        for quota in QUOTAS:
            answers = []
            for _ in range(rounds):
                limit = machine.cpu_quota(quota * threads)
                with limit if quota < 1.0 else contextlib.nullcontext() as group:
                    answers.append(bench.motley(row, threads, group))
            answers.sort(key=lambda answer: answer["images_per_second"])
            # Both figures of one run: they saw the same machine.
            median = answers[len(answers) // 2]
            points.append({"threads": threads, "quota": quota, "rounds": answers,
                           **{k: median[k] for k in ("gemm_gflops", "images_per_second")}})
    gemm = [point["gemm_gflops"] for point in points]
    rates = [point["images_per_second"] for point in points]
    return {**header(row), "points": points, "correlation": figures.correlation(gemm, rates),
            "valid": True}


def report_flops(results, options):
    series, rows = {}, []
    for result in results:
        fastest = max(point["images_per_second"] for point in result["points"])
        name = f"{result['row']} (correlation {result['correlation']:.3f})"
        series[name] = []
        for point in result["points"]:
            words = f"{point['threads']} lanes, {figures.percent(point['quota'])}"
            rate = point["images_per_second"]
            series[name].append((point["gemm_gflops"], rate / fastest, words))
            rows.append([result["row"], point["threads"], figures.percent(point["quota"]),
                         figures.whole(point["gemm_gflops"]), figures.rate(rate)])
    drawing = plot.scatter(
        "Training speed against the GEMM rate",
        "GEMM GFLOP/s on the same device",
        "images/s, of each net's fastest",
        series,
    )
    file = pathlib.Path(options.plot)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(drawing)
    text = figures.table(["net", "lanes", "quota", "GEMM GFLOP/s", "images/s"], rows)
    notes = [f"{r['row']}: correlation {r['correlation']:.3f}" for r in results]
    return "\n".join([text, "", *notes, f"plot: {file}"])


@dataclasses.dataclass
class Experiment:
    about: str
    rows: typing.Sequence[str]
    measure: typing.Callable
    report: typing.Callable
    needs_torch: bool = True


EXPERIMENTS = {
    "speed": Experiment("training speed and memory", list(ROWS), measure_speed, report_speed),
    "lanes": Experiment(
        "two threads over one", ("lenet", "resnet18-224"), measure_lanes, report_lanes
    ),
    "interrupted": Experiment(
        "what is kept while another program burns a core",
        list(ROWS),
        measure_interrupted,
        report_interrupted,
    ),
    "batches": Experiment(
        "speed and memory against the batch",
        ("lenet", "resnet18-32"),
        measure_batches,
        report_batches,
    ),
    "flops": Experiment(
        "Motley's speed against the GEMM rate under CPU quotas (root, cgroup v1)",
        ("resnet18-32", "alexnet"),
        measure_flops,
        report_flops,
        needs_torch=False,
    ),
}
