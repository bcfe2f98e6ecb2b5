"""Makes the roots of ci/matrix, tries everything in them, and makes the tables of docs/internals/distributions.md.

run_matrix.py NAMESPACE FOLDER PACKAGE RELEASE...

NAMESPACE is that of the machine's mounts, which this must not run in. FOLDER has what was built, of that PACKAGE is ours; roots, fetched
packages and results go there, too. The caller is root, in a mount and a process namespace of its own: with them all mounts go.
"""

import json
import os
import pathlib
import re
import sys

import measure
from matrix_cells import DOORS, cells
from matrix_installs import WAYS, installs, upgrade
from matrix_programs import RELEASES, MatrixRoot

PAGE = measure.TOP / "docs/internals/distributions.md"
BEGIN, END = "<!-- ci/matrix -->", "<!-- end of ci/matrix -->"
# The release whose loader and drivers are upgraded below the package, and to what.
OLD, NEW = "trixie", "sid"


def say(row, words):
    print(f"{'ok     ' if words == 'hit' else 'FAILED ' if words else '-      '} {row}: {words or 'not possible'}", flush=True)


def collect(root, rows, show):
    """The rows, as far as they come: the next root is tried even if this one breaks."""
    found = []
    try:
        for row in rows:
            found.append(row)
            show(row)
    finally:
        root.remove()
    return found


def show_cell(row):
    name = f"{row['release']}, {row['loader']}, {row['driver']}"
    if "error" in row:
        print(f"none    {name}: {row['error']}", flush=True)
    for door, words in row["doors"].items():
        say(f"{name}, {door}", words)


def show_install(row):
    name = f"{row['release']}, {row['loader']}"
    if "error" in row:
        print(f"none    {name}: {row['error']}", flush=True)
    for way, words in row["ways"].items():
        say(f"{name}, {way}", words)


def measured(folder, release, package):
    root = MatrixRoot(folder, release, "cells")
    found = {"cells": collect(root, cells(root), show_cell)}
    root = MatrixRoot(folder, release, "installs")
    found["installs"] = collect(root, installs(root, package), show_install)
    if release == OLD:
        root = MatrixRoot(folder, release, "upgrade")
        rows = upgrade(root, package, NEW)
        found["upgrade"] = collect(root, rows, lambda row: say(f"{OLD} to {NEW}, {row['step']}, {row['versions']}", row["outcome"]))
    return found


def failures(found):
    """Everything of one release that is neither a hit nor impossible.

    >>> cell = {"release": "sid", "loader": "L", "driver": "D", "doors": {"a": "hit", "b": None, "c": "x"}}
    >>> failures({"cells": [cell], "installs": []})
    ['sid, L, D, c: x']
    """
    of_cells = [(f"{row['release']}, {row['loader']}, {row['driver']}, {door}", words) for row in found["cells"] for door, words in row["doors"].items()]
    of_ways = [(f"{row['release']}, {row['loader']}, {way}", words) for row in found["installs"] for way, words in row["ways"].items()]
    of_steps = [(f"{row['release']}, {row['step']}", row["outcome"]) for row in found.get("upgrade", ())]
    return [f"{name}: {words}" for name, words in of_cells + of_ways + of_steps if words not in ("hit", None)]


def table(head, rows):
    """
    >>> print(table(["a", "b"], [["one", "hit"]]))
    | a   | b   |
    | --- | --- |
    | one | hit |
    """
    widths = [max(3, *(len(row[number]) for row in [head, *rows])) for number in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in lines)


def short(words):
    """
    >>> short("hit"), short(None), short("the driver compiles")
    ('hit', '-', '**no**')
    """
    return {"hit": "hit", None: "-"}.get(words, "**no**")


def plain(text):
    """One that a table of Markdown can hold: no path of a version, no bar.

    >>> plain("a | b `c`")
    "a / b 'c'"
    """
    return text.replace("|", "/").replace("`", "'")


def markdown(results):
    """The tables of all releases."""
    cells_of = [row for release in RELEASES for row in results[release]["cells"]]
    used = [row for row in cells_of if "error" not in row]
    rows = [[RELEASES[row["release"]], row["loader"], row["driver"], *(short(row["doors"][door]) for door in DOORS)] for row in used]
    parts = [table(["release", "loader", "driver", *DOORS], rows)]
    unusable = [[RELEASES[row["release"]], row["loader"], row["driver"], f"`{plain(row['error'])}`"] for row in cells_of if "error" in row]
    parts += ["These have no device there or cannot be installed, without oclcache, either:", table(["release", "loader", "driver", "its own error"], unusable)]
    rows = [[RELEASES[row["release"]], row["loader"], *(short(row["ways"].get(way)) for way in WAYS)] for release in RELEASES for row in results[release]["installs"]]
    parts += ["PyOpenCL on PoCL, after an installation in each way:", table(["release", "loader", *WAYS], rows)]
    steps = [[row["step"], row["versions"], short(row["outcome"])] for row in results[OLD]["upgrade"]]
    parts += [f"The same with the Debian package, while {RELEASES[OLD]} is upgraded to {RELEASES[NEW].split()[-1]} below it:", table(["step", "loader and driver", "PyOpenCL"], steps)]
    wrong = [f"- {plain(words.splitlines()[0])}" for release in RELEASES for words in failures(results[release])]
    return "\n\n".join([*parts, *(["What is not a hit:", "\n".join(wrong)] if wrong else [])])


def put(page, text):
    """
    >>> put(f"a\\n{BEGIN}\\nold\\n{END}\\nb\\n", "new") == f"a\\n{BEGIN}\\n\\nnew\\n\\n{END}\\nb\\n"
    True
    """
    between = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    return between.sub(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", page)


def main():
    outer, folder, package, *releases = sys.argv[1:]
    if os.readlink("/proc/self/ns/mnt") == outer:
        sys.exit("what this mounts must go with it: start it by ci/matrix")
    folder = pathlib.Path(folder).resolve()
    wrong = []
    for release in releases:
        found = measured(folder, release, package)
        (folder / f"{release}.json").write_text(json.dumps(found, indent=1))
        wrong += failures(found)
    files = {release: folder / f"{release}.json" for release in RELEASES}
    if all(file.exists() for file in files.values()):
        results = {release: json.loads(file.read_text()) for release, file in files.items()}
        PAGE.write_text(put(PAGE.read_text(), markdown(results)))
        print(f"the tables of {PAGE.relative_to(measure.TOP)} are made")
    if wrong:
        sys.exit("\n".join(["FAILED", *wrong]))


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    main()
