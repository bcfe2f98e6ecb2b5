"""Draws the picture of ci/bench: how long programs take, from target/bench/bench.json.

    draw_figures.py FILE   an SVG file
"""

import json
import sys

import figures
import measure
from bench_tables import of

BARS = (
    ("bare", "driver alone, its cache empty", "#b5483a"),
    ("own cache", "driver's own cache", "#d9a13b"),
    ("hit", "oclcache, driver's cache empty", "#2f6f8f"),
    ("limit", "the limit: binary in memory", "#9aa5ad"),
)


def groups(found):
    """(driver, label, kind of time, row) of what is drawn: first results of programs of kernels, ends of real ones."""
    for row in [*found.get("small", ()), *found.get("real", ())]:
        kind = "first result" if of(row, "bare", "first result") else "whole"
        yield row["driver"], row["program"].split(",")[0], kind, row


def label(seconds):
    """
    >>> label(1.234), label(0.0567), label(12.3)
    ('1.2 s', '57 ms', '12 s')
    """
    if seconds >= 1:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{1e3 * seconds:.0f} ms"


def draw(found, file):
    # Not needed to read the figures, and not everywhere.
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"font.size": 9, "font.family": "DejaVu Sans", "svg.fonttype": "none", "svg.hashsalt": "oclcache"})
    drivers = {}
    for driver, *rest in groups(found):
        drivers.setdefault(driver, []).append(rest)
    if not drivers:
        measure.stop("no picture: no program was measured")
    bars = [sum(len(present(row, kind)) + 1 for _, kind, row in rows) for rows in drivers.values()]
    figure, panels = pyplot.subplots(
        len(drivers), 1, squeeze=False, sharex=True, figsize=(8, 1.4 + 0.16 * sum(bars)), height_ratios=bars, layout="constrained"
    )
    # Its own background, for pages of any color.
    figure.patch.set_facecolor("white")
    for (driver, rows), panel in zip(drivers.items(), panels[:, 0]):
        draw_driver(panel, driver, rows)
    last = panels[-1, 0]
    last.set_xlabel("seconds, on a logarithmic scale: from the start of the process to the first result, or to its end for real programs")
    last.xaxis.label.set_fontsize(8)
    last.set_xlim(left=0.01)
    last.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=color) for _, _, color in BARS]
    figure.legend(handles, [words for _, words, _ in BARS], loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(file, format="svg", metadata={"Date": None})


def present(row, kind):
    return [(of(row, way, kind), color) for way, _, color in BARS if of(row, way, kind)]


def draw_driver(panel, driver, rows):
    place, ticks = 0, []
    for _, kind, row in rows:
        bars = present(row, kind)
        ticks.append(place + (len(bars) - 1) / 2)
        for values, color in bars:
            middle, most = figures.median(values), max(values)
            panel.barh(place, middle, 0.92, color=color)
            panel.errorbar(middle, place, xerr=[[middle - min(values)], [most - middle]], color="#222222", linewidth=0.8, capsize=1.5)
            panel.annotate(label(middle), (most, place), (4, 0), textcoords="offset points", va="center", fontsize=7.5)
            place += 1
        place += 1
    panel.set_yticks(ticks, [name for name, _, _ in rows])
    panel.set_ylim(place - 1, -1)
    panel.set_xscale("log")
    panel.set_title(driver, loc="left", fontweight="bold", fontsize=10)
    panel.grid(axis="x", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.margins(x=0.08)


def main():
    draw(json.loads((measure.TOP / "target" / "bench" / "bench.json").read_text()), sys.argv[1])


if __name__ == "__main__":
    main()
