"""A scatter plot as SVG, written without libraries."""

import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 480
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 60
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


def ticks(top):
    """Round numbers from 0 to at least `top`, about five of them."""
    rough = top / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough)
    return [i * step for i in range(math.ceil(top / step - 1e-9) + 1)]


def text(x, y, words, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(words)}</text>'


def line(x1, y1, x2, y2, colour):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def scatter(title, x_label, y_label, series):
    """`series`: {legend: [(x, y, label), ...]}; both axes begin at 0. Returns the SVG's text."""
    points = [point for some in series.values() for point in some]
    x_ticks, y_ticks = ticks(max(p[0] for p in points)), ticks(max(p[1] for p in points))

    def place(x, y):
        return (
            LEFT + x / x_ticks[-1] * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y / y_ticks[-1] * (HEIGHT - TOP - BOTTOM),
        )

    right, top = place(x_ticks[-1], y_ticks[-1])
    left, bottom = place(0, 0)
    parts = [text(WIDTH / 2, TOP - 16, title, more='font-size="15"')]
    for x in x_ticks:
        at = place(x, 0)[0]
        parts += [line(at, top, at, bottom, "#ddd"), text(at, bottom + 18, f"{x:g}")]
    for y in y_ticks:
        at = place(0, y)[1]
        parts += [line(left, at, right, at, "#ddd"), text(left - 8, at + 4, f"{y:g}", "end")]
    parts.append(text((left + right) / 2, HEIGHT - 16, x_label))
    middle = (top + bottom) / 2
    parts.append(text(18, middle, y_label, more=f'transform="rotate(-90 18 {middle:.1f})"'))
    for number, (legend, some) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        for x, y, label in some:
            at_x, at_y = place(x, y)
            parts.append(
                f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="5" fill="{colour}">'
                f"<title>{escape(label)}</title></circle>"
            )
        at = top + 18 + 20 * number
        parts.append(f'<circle cx="{left + 16:.1f}" cy="{at - 4:.1f}" r="5" fill="{colour}"/>')
        parts.append(text(left + 28, at, legend, "start"))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )
