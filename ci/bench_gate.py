"""ci/bench gate: compares this release with the figures in docs/internals/figures.md, by ratios, and fails if one is more than 5 % larger.

Each ratio is that of two ways that took turns, so a slower machine changes it less than the times. What is larger is measured once
more, since other work on the machine meets some turns more than others.
"""

import re
import sys

import bench_builds
import figures
import measure

COMMITTED = measure.TOP / "docs/internals/figures.md"
PROGRAM = "10 kernels"
# Pairs for each ratio.
TURNS = 15
LARGER = 1.05
# What is compared: a way and what it is divided by (see bench_builds), the kind of time, and the columns of the tables that have it.
RATIOS = {
    "first hit / limit": ("hit", "limit", "build", ("oclcache, first", "the limit")),
    "later hit / limit": ("hit", "limit", "later builds", ("later / limit",)),
    "first result / limit": ("hit", "limit", "first result", ("oclcache", "the limit")),
    "first run / without": ("miss", "bare", "whole", ("whole process",)),
    "first run with an empty cache / without": ("miss, new cache", "bare", "whole", ("whole process, empty cache",)),
}
UNITS = {"s": 1, "ms": 1e-3, "us": 1e-6, "": 1}


def number(cell):
    """A median, in seconds if it is a time; None of an empty cell.

    >>> number("882 us (868 to 895)"), number("1.066 (1.037 to 1.100)"), number("")
    (0.000882, 1.066, None)
    """
    found = re.match(r"([\d.]+)(?: (s|ms|us))?(?: \(|$)", cell)
    return float(found[1]) * UNITS[found[2] or ""] if found else None


def rows(text):
    r"""The rows of all tables in a page, each as a dictionary by the heads of the columns; the first column is "".

    >>> list(rows("text\n|   | a | b |\n| - | - | - |\n| x | 1 | 2 |\n"))
    [{'': 'x', 'a': '1', 'b': '2'}]
    """
    head = None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if head is None:
            head = cells
        elif not set(line) <= set("|-: "):
            yield dict(zip(head, cells))


def committed(text):
    r"""The ratios that a page tells of the program, by driver.

    >>> committed("| | oclcache, first | the limit |\n|-|-|-|\n| A: 10 kernels | 3.00 ms (2 to 4) | 1.50 ms |\n| A: 1 kernel | 1 s | 1 s |")
    {'A': {'first hit / limit': 2.0}}
    """
    found = {}
    for row in rows(text):
        driver, _, program = row.get("", "").partition(": ")
        if program != PROGRAM:
            continue
        for name, (*_, columns) in RATIOS.items():
            values = [number(row.get(column, "")) for column in columns]
            if all(values):
                found.setdefault(driver, {})[name] = round(values[0] / values[1] if values[1:] else values[0], 3)
    return found


def measured():
    """The ratios of the program on each driver that is there."""
    found = {}
    for driver in bench_builds.drivers():
        with bench_builds.subject_of(driver, PROGRAM) as subject:
            ways = bench_builds.client_ways(subject, *bench_builds.SIZES[1])
            wanted = {way for one, other, *_ in RATIOS.values() for way in (one, other)}
            subject.ways = {way: run for way, run in ways.items() if way in wanted}
            bench_builds.interleave(subject, TURNS)
            of = lambda way, kind: subject.seen[way][kind]
            each = {name: figures.ratio(of(one, kind), of(other, kind)) for name, (one, other, kind, _) in RATIOS.items()}
            found[driver.name] = {name: ratio for name, ratio in each.items() if ratio is not None}
    return found


def larger(now, then):
    """The drivers and names of ratios that are too large. What only one side has is none of them.

    >>> larger({"A": {"x": 1.04, "y": 2.2, "z": 9}, "B": {"x": 9}}, {"A": {"x": 1.0, "y": 2.0}})
    [('A', 'y')]
    """
    both = [(driver, name) for driver in then for name in then[driver] if name in now.get(driver, {})]
    return [(driver, name) for driver, name in both if now[driver][name] > LARGER * then[driver][name]]


def table(now, then):
    worse = larger(now, then)
    shown = [
        [driver, name, figures.times(then.get(driver, {}).get(name)), figures.times(ratio), "larger" if (driver, name) in worse else ""]
        for driver, ratios in now.items()
        for name, ratio in ratios.items()
    ]
    return figures.markdown(["driver", "ratio", "committed", "now", ""], shown)


def main():
    measure.adopt_orphans()
    then, now = committed(COMMITTED.read_text()), measured()
    if not now:
        measure.stop("no driver to measure")
    for driver in then:
        for name in then[driver]:
            if name not in now.get(driver, {}):
                print(f"NOT MEASURED: {driver}, {name}")
    print(table(now, then))
    worse = larger(now, then)
    if worse:
        print("\nOnce more:\n")
        now = measured()
        print(table(now, then))
        worse = [one for one in larger(now, then) if one in worse]
    if worse:
        sys.exit(f"FAILED: more than {100 * (LARGER - 1):.0f} % larger than in {COMMITTED.relative_to(measure.TOP)}, twice")


if __name__ == "__main__":
    main()
