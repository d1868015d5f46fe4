"""Pure arithmetic over measurements, and tables of them."""

import math
import statistics


def summary(answers):
    """Medians over the answers of one program in one configuration, and how far they lie apart."""
    rates = sorted(answer["images_per_second"] for answer in answers)
    median = statistics.median(rates)
    return {
        "images_per_second": median,
        "spread": (rates[-1] - rates[0]) / median,
        "peak_rss_mb": statistics.median(answer["peak_rss_mb"] for answer in answers),
        "rounds": answers,
    }


def fair_part(cores, threads, machine=2):
    """What is left of the speed of a program that keeps so many cores busy with so many threads, when
    one more thread burns what it gets of the machine's cores and every thread gets the same."""
    return min(1.0, threads * machine / (threads + 1) / cores)


def loss_difference(ours, theirs):
    """The largest relative difference of two lists of losses; infinite where they do not match."""
    if not ours or len(ours) != len(theirs):
        return math.inf
    differences = [abs(a - b) / max(abs(b), 1e-30) for a, b in zip(ours, theirs)]
    return math.inf if any(math.isnan(d) for d in differences) else max(differences)


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def line_fit(xs, ys):
    """(intercept, slope) of the least squares line."""
    x_mean, y_mean = statistics.fmean(xs), statistics.fmean(ys)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys)) / sum(
        (x - x_mean) ** 2 for x in xs
    )
    return y_mean - slope * x_mean, slope


def correlation(xs, ys):
    """Pearson's."""
    x_mean, y_mean = statistics.fmean(xs), statistics.fmean(ys)
    both = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys))
    return both / math.sqrt(
        sum((x - x_mean) ** 2 for x in xs) * sum((y - y_mean) ** 2 for y in ys)
    )


def rate(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def rate_with_spread(program):
    """The median of several rounds, and half the distance of the outermost."""
    words = rate(program["images_per_second"])
    if len(program["rounds"]) < 2:
        return words
    return f"{words} ± {percent(program['spread'] / 2)}"


def whole(value):
    return f"{value:.0f}"


def percent(value):
    return f"{100 * value:.0f} %"


def table(columns, rows):
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
