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

    matplotlib.rcParams.update({"font.size": 9, "font.family": "DejaVu Sans", "svg.hashsalt": "oclcache"})
    drivers = {}
    for driver, *rest in groups(found):
        drivers.setdefault(driver, []).append(rest)
    if not drivers:
        measure.stop("no picture: no program was measured")
    sizes = [len(rows) for rows in drivers.values()]
    figure, panels = pyplot.subplots(
        len(drivers), 1, squeeze=False, sharex=True, figsize=(8, 0.9 + 0.78 * sum(sizes)), height_ratios=sizes, layout="constrained"
    )
    figure.patch.set_facecolor("white")
    height = 0.8 / len(BARS)
    for (driver, rows), panel in zip(drivers.items(), panels[:, 0]):
        for number, (way, words, colour) in enumerate(BARS):
            for place, (_, kind, row) in enumerate(rows):
                values = of(row, way, kind)
                if not values:
                    continue
                middle, at = figures.median(values), place + (number - 1.5) * height
                spread = [[middle - min(values)], [max(values) - middle]]
                panel.barh(at, middle, height * 0.92, color=colour)
                panel.errorbar(middle, at, xerr=spread, color="#222222", linewidth=0.8, capsize=1.5)
                panel.annotate(label(middle), (max(values), at), (4, 0), textcoords="offset points", va="center", fontsize=7.5)
            panel.barh(0, 0, color=colour, label=words)
        panel.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        panel.invert_yaxis()
        panel.set_xscale("log")
        panel.set_title(driver, loc="left", fontweight="bold", fontsize=10)
        panel.grid(axis="x", color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.08)
    panels[-1, 0].set_xlabel("seconds from the start of the process to the first result; real programs: to the end")
    panels[-1, 0].xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    handles, words = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, words, loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(file, format="svg", metadata={"Date": None})


def main():
    draw(json.loads((measure.TOP / "target" / "bench" / "bench.json").read_text()), sys.argv[1])


if __name__ == "__main__":
    main()
