"""What oclcache is to reach, and whether the figures of one run of ci/bench show it."""

import bench_busy
import bench_remote
import bench_repeated
import bench_texts
import figures
from bench_tables import missed as missed_way
from bench_tables import of

LARGER = 1.02
DRIVERS = ("PoCL", "Intel CPU")
WATER = "OpenMM, water box with PME"


def difference(one, other):
    """
    >>> difference([3, 1, 2], [1, 1, 1])
    1
    """
    return figures.median(one) - figures.median(other)


def verdict(holds):
    return "holds" if holds else "does not hold"


def at_most(what, value, limit, show):
    """
    >>> at_most("a", 3, 2, str)
    ['a', 'at most 2', '3', 'does not hold']
    """
    return [what, f"at most {show(limit)}", show(value), verdict(value <= limit)]


def ratio_at_most(what, one, other, limit):
    """
    >>> ratio_at_most("a", [1.0, 1.01, 1.05], [1.0, 1.0, 1.0], 1.02)
    ['a', 'at most 1.02', '1.010 (1.000 to 1.050)', 'holds']
    """
    return [what, f"at most {limit:.2f}", figures.against(one, other), verdict(figures.ratio(one, other) <= limit)]


def ratio_at_least(what, one, other, limit):
    """
    >>> ratio_at_least("a", [12.5], [1], 10)
    ['a', 'at least 10', '12.5', 'holds']
    """
    return [what, f"at least {limit}", figures.against(one, other), verdict(figures.ratio(one, other) >= limit)]


def microseconds(seconds):
    return f"{1e6 * seconds:.0f} us"


def hits(rows):
    for row in rows:
        if row["driver"] not in DRIVERS:
            continue
        later, limit = of(row, "hit", "later builds"), of(row, "limit", "later builds")
        name = f"{row['driver']}, {row['program']}: later hits"
        if row["program"] == "10 kernels":
            yield ratio_at_most(f"{name} / limit", later, limit, 1.10)
        if row["program"] == "1 kernel":
            yield at_most(f"{name} above the limit", difference(later, limit), 150e-6, microseconds)


def misses(rows):
    for row in rows:
        if row["driver"] not in DRIVERS:
            continue
        for kind, words in ("build", "build call"), ("whole", "whole process"):
            miss, bare = of(row, missed_way(row), kind), of(row, "bare", kind)
            if miss:
                yield ratio_at_most(f"{row['driver']}, {row['program']}: a miss / bare, {words}", miss, bare, LARGER)


def pocl(rows, spied):
    found = {row["program"]: row for row in rows if row["driver"] == "PoCL"}
    wanted = (("10 kernels", "first result", 10, 1), (WATER, "whole", 20, 2))
    for program, kind, than_bare, than_own in wanted:
        row = found.get(program)
        if row:
            hit, bare, own = (of(row, way, kind) for way in ("hit", "bare", "own cache"))
            words = "start to first result" if kind == "first result" else "whole process"
            yield ratio_at_least(f"PoCL, {program}, {words}: bare / oclcache", bare, hit, than_bare)
            yield ratio_at_least(f"PoCL, {program}, {words}: PoCL's own cache / oclcache", own, hit, than_own)
    for row in spied:
        yield at_most(f"{row['driver']}, {row['program']}: compiled in the second run", row["second run"], 0, str)


def at_once(rows):
    """16 processes against one compilation and 16 hits; on PoCL one and 15 builds from its own cache."""
    for driver in DRIVERS:
        found = {row["processes"]: row for row in rows if row["driver"] == driver}
        if 16 in found:
            after = [cpu for row in found.values() for cpu in row["after"]]
            times = 16 if found[16]["reference"] == "hit" else 15
            expected = figures.median(found[1]["bare"]) + times * figures.median(after)
            words = f"one compilation and {times} {'hits' if times == 16 else 'builds from its own cache'}"
            yield at_most(f"{driver}, 16 processes: CPU / {words}", figures.median(found[16]["oclcache"]) / expected, 1.15, figures.times)


def library(found, rows):
    mebibytes = lambda number: f"{number / (1 << 20):.2f} MiB"
    milliseconds = lambda seconds: f"{1e3 * seconds:.2f} ms"
    yield at_most("size of the library", found["size"], 3 << 20, mebibytes)
    for driver, both in found["load"].items():
        kinds = ("first call", "resident", "own")
        added = {kind: difference(both["oclcache"][kind], both["bare"][kind]) for kind in kinds}
        yield at_most(f"{driver}: added to the first clGetPlatformIDs", added["first call"], 2e-3, milliseconds)
        yield at_most(f"{driver}: resident memory added by loading", added["resident"], 4 << 20, mebibytes)
        yield at_most(f"{driver}: memory in no file added by loading", added["own"], 1 << 20, mebibytes)
    for row in rows:
        hit, limit = of(row, "hit", "resident"), of(row, "limit", "resident")
        if hit and row["driver"] in DRIVERS:
            yield at_most(f"{row['driver']}, {row['program']}: resident memory added by hits", difference(hit, limit), 4 << 20, mebibytes)


def levels(rows):
    for row in rows:
        name = f"{row['driver']}, {row['levels']}, run {row['run']}: with / without"
        yield ratio_at_most(name, row["ours whole"], row["bare whole"], LARGER)


def busy(rows):
    for row in rows:
        times = bench_busy.percentile(row["busy"], bench_busy.PERCENT) / figures.median(row["idle"])
        yield at_most(f"{row['driver']}: {bench_busy.PERCENT} % of first hits beside a busy disk / idle", times, 1.5, figures.times)


def repeated(rows):
    for driver in dict.fromkeys(row["driver"] for row in rows):
        of_driver = [row for row in rows if row["driver"] == driver]
        slower = sum(map(bench_repeated.is_slower, of_driver))
        yield at_most(f"{driver}: slower ones of {len(of_driver)} runs in a row", slower, 0, str)


def texts(rows):
    for row in rows:
        for way in "miss", "hit":
            yield ratio_at_most(f"{row['driver']}, {row['text']}: {way} / bare", row[way], row["bare"], bench_texts.LARGER)


def remote(found):
    milliseconds = lambda seconds: f"{1e3 * seconds:.1f} ms"
    warm = {}
    for row in bench_remote.parts_of(found, "hits"):
        name, extra = f"{row['program']}: {bench_remote.kind_of(row)}", figures.median(bench_remote.above(row))
        yield at_most(f"{name}: not served", row["programs"] - figures.median(row["served"]), 0, str)
        if row["warm"]:
            warm[row["program"], row["trip"], row["kind"]] = extra
            limit = bench_remote.ABOVE_LOCAL[row["trip"]][row["kind"] == bench_remote.BUNDLE]
            yield at_most(f"{name}: above local hits", extra, limit, milliseconds)
        else:
            cold = extra - warm[row["program"], row["trip"], row["kind"]]
            yield at_most(f"{name}: above a warm one", cold, bench_remote.COLD, milliseconds)
    for row in bench_remote.parts_of(found, "misses"):
        bare = row["seconds"]["no remote store"]
        for way, seconds in row["seconds"].items():
            if seconds is not bare:
                limit = bench_remote.MISS if way.startswith("an empty store") else bench_remote.UNREACHABLE
                yield ratio_at_most(f"{row['program']}: {way} / no remote store", seconds, bare, limit)
    for row in bench_remote.parts_of(found, "local"):
        yield ratio_at_most(f"{row['program']}: local hits, a remote store / none", row["configured"], row["none"], LARGER)
    for row in bench_remote.parts_of(found, "cluster"):
        yield at_most("64 processes on 8 hosts: compilations above one for each program", max(row["compilations"]) - bench_remote.CLUSTER_PROGRAMS, 0, str)
        limit = bench_remote.CLUSTER_TIMES * figures.median(row["alone"]) + bench_remote.CLUSTER_PLUS
        yield at_most("64 processes on 8 hosts: until all end", figures.median(row["together"]), limit, milliseconds)


def missed(lines):
    r"""What does not hold, by name.

    >>> missed([["a", "at most 2", "3", "does not hold"], ["b", "at most 2", "1", "holds"]])
    'Missed, 1 of 2:\n- a: 3, wanted at most 2'
    """
    wrong = [f"- {what}: {value}, wanted {wanted}" for what, wanted, value, outcome in lines if outcome != verdict(True)]
    return "\n".join([f"Missed, {len(wrong)} of {len(lines)}:", *wrong]) if wrong else ""


def table(found):
    """Every target that the parts which were measured have figures for, and by name those that are missed."""
    programs = [*found.get("small", ()), *found.get("real", ())]
    lines = [*hits(programs), *misses(programs), *pocl(programs, found.get("spied", ()))]
    lines += at_once(found.get("processes", ()))
    if "library" in found:
        lines += library(found["library"], programs)
    lines += levels(found.get("levels", ()))
    lines += [*busy(found.get("busy", ())), *repeated(found.get("repeated", ())), *texts(found.get("texts", ()))]
    lines += remote(found.get("remote", ()))
    return "\n\n".join(filter(None, (figures.markdown(["target", "wanted", "found", ""], lines), missed(lines))))
