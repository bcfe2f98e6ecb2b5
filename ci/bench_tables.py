"""The tables of ci/bench, in Markdown, from the figures of its parts."""

import figures

WAYS = (
    ("bare", "without"),
    ("own cache", "driver's own cache"),
    ("PyOpenCL's cache", "PyOpenCL's cache"),
    ("hit", "oclcache"),
    ("hit, own cache", "oclcache and driver's"),
    ("limit", "the limit"),
    ("limit, own cache", "the limit and driver's"),
)


def of(row, way, kind):
    """The figures of one way, empty if there are none.

    >>> of({"ways": {"bare": {"whole": [1.0]}}}, "bare", "whole"), of({"ways": {}}, "hit", "build")
    ([1.0], [])
    """
    return row["ways"].get(way, {}).get(kind, [])


def title(row):
    return f"{row['driver']}: {row['program']}"


def builds(rows):
    """From clCreateProgramWithSource, or clCreateProgramWithBinary, to the end of clBuildProgram."""
    table = []
    for row in rows:
        if not of(row, "hit", "later builds"):
            continue
        others = [of(row, way, "build") for way in ("bare", "own cache", "PyOpenCL's cache")]
        cells = [title(row), *map(figures.seconds, others)]
        for kind in ("build", "later builds"):
            ours, limit, beside = (of(row, way, kind) for way in ("hit", "limit", "limit beside a source"))
            cells += [figures.seconds(ours), figures.seconds(beside), figures.seconds(limit), figures.against(ours, limit)]
        table.append(cells)
    head = ["", "without", "driver's own cache", "PyOpenCL's cache"]
    head += [f"{what}{when}" for when in (", first", ", later") for what in ("oclcache", "the limit and a source", "the limit", "times")]
    return figures.markdown(head, table)


def processes(rows, kind):
    """From the start of a process to its first result, or to its end."""
    table = []
    for row in rows:
        if of(row, "bare", kind):
            gain = figures.against(of(row, "bare", kind), of(row, "hit", kind))
            table.append([title(row), *(figures.seconds(of(row, way, kind)) for way, _ in WAYS), gain])
    return figures.markdown(["", *(name for _, name in WAYS), "times faster"], table)


def missed(row):
    """By which name the first run is known: where baking is most of it, there is none without."""
    return "miss" if "miss" in row["ways"] else "miss, baked"


def first_runs(rows):
    table = []
    for row in rows:
        miss = missed(row)
        ratios = [figures.against(of(row, miss, kind), of(row, "bare", kind)) for kind in ("build", "whole", "cpu")]
        ratios.append(figures.against(of(row, "miss, baked", "cpu with baker"), of(row, "bare", "cpu")))
        ratios.append(figures.against(of(row, "miss, new cache", "whole"), of(row, "bare", "whole")))
        whole = [figures.seconds(of(row, way, "whole")) for way in ("bare", miss)]
        table.append([title(row), *whole, *ratios])
    head = ["", "without", "first run", "build call", "whole process", "CPU", "CPU with the baker's", "whole process, empty cache"]
    return figures.markdown(head, table)


def disk(rows):
    """PoCL's cache on a disk, bare, against memory."""
    ratio = lambda row: figures.against(of(row, "bare, on disk", "whole"), of(row, "bare", "whole"))
    table = [
        [title(row), *(figures.seconds(of(row, way, "whole")) for way in ("bare", "bare, on disk")), ratio(row)]
        for row in rows
        if of(row, "bare, on disk", "whole")
    ]
    return figures.markdown(["", "in memory", "on disk", "times"], table)


def at_once(rows):
    table = []
    for row in rows:
        ratio = figures.against(row["oclcache"], row["bare"])
        cells = [figures.seconds(row[name]) for name in ("bare", "oclcache")]
        wall = [figures.seconds(row[name]) for name in ("bare seconds", "oclcache seconds")]
        table.append([f"{row['driver']}: {row['processes']}", *cells, ratio, *wall])
    return figures.markdown(["processes", "CPU without", "CPU with oclcache", "times", "until all end, without", "with oclcache"], table)


def levels(rows):
    table = []
    for row in rows:
        taken = [figures.seconds(row[name]) for name in ("bare whole", "ours whole")]
        ratio = figures.against(row["ours whole"], row["bare whole"])
        did = [row["PyOpenCL"], row["PoCL"], row["oclcache"], str(row["compiled"])]
        build = figures.seconds(row["ours build"])
        table.append([f"{row['driver']}, {row['levels']}: run {row['run']}", *did, build, *taken, ratio])
    head = ["", "PyOpenCL's cache", "PoCL's", "oclcache", "compiled", "build call", "without oclcache", "with oclcache", "times"]
    return figures.markdown(head, table)


def nanoseconds(values):
    """
    >>> nanoseconds([9.0, 10.5, 12.0])
    '10.5 ns (9.0 to 12.0)'
    """
    return f"{figures.median(values):.1f} ns ({min(values):.1f} to {max(values):.1f})"


def mebibytes(values):
    """
    >>> mebibytes([3 << 20, 5 << 19])
    '2.75 MiB (2.50 to 3.00)'
    """
    least, middle, most = (value / (1 << 20) for value in (min(values), figures.median(values), max(values)))
    return f"{middle:.2f} MiB ({least:.2f} to {most:.2f})"


CALLS = (
    ("set_argument_ns", "clSetKernelArg, which is not hooked"),
    ("retain_ns", "clRetainKernel of a kernel that is not ours, hooked"),
    ("retain_known_ns", "clRetainKernel of a kernel that was built from source, hooked"),
)


def fixed(row, way):
    """By how much the first build of each process took longer than its later ones.

    >>> fixed({"ways": {"hit": {"build": [3.0], "later builds": [1.0]}}}, "hit")
    [2.0]
    """
    return [first - later for first, later in zip(of(row, way, "build"), of(row, way, "later builds"))]


def library(found, rows):
    """What is measured without any driver's work; "without" is the limit where programs are built."""
    table = []
    for name, title_of in CALLS:
        both = found["hooks"][name]
        table.append([title_of, *(nanoseconds(both[way]) for way in ("bare", "oclcache"))])
    for driver, both in found["load"].items():
        kinds = [
            ("first call", "first clGetPlatformIDs", figures.seconds),
            ("resident", "resident after it", mebibytes),
            ("own", "of that, in no file", mebibytes),
        ]
        for kind, word, show in kinds:
            table.append([f"{word}, {driver}", *(show(both[way][kind]) for way in ("bare", "oclcache"))])
    for row in rows:
        if of(row, "limit", "resident"):
            cells = [mebibytes(of(row, way, "resident")) for way in ("limit", "hit")]
            table.append([f"resident after the first result, {title(row)}", *cells])
    for row in rows:
        cells = [figures.seconds(fixed(row, way)) for way in ("limit", "hit")]
        if all(cells):
            table.append([f"first build of a process above the later ones, {title(row)}", *cells])
    cells = [figures.seconds(found["run"][name]) for name in ("registered", "oclcache run")]
    table.append(["whole process, registered and through `oclcache run`", *cells])
    return figures.markdown(["", "without", "with oclcache"], table)


def spied(rows):
    kinds = ("first run", "baked", "second run")
    table = [[title(row), *(str(row[kind]) for kind in kinds)] for row in rows]
    return figures.markdown(["compiled by the driver", "in the first run", "by the baker", "in the second run"], table)
