"""Five runs of one program in a row, each a new process, with oclcache and without: on each driver, with the baker and without,
with the caches of driver and PyOpenCL kept and emptied, of a program in C style and of one that uses PyOpenCL."""

import collections
import contextlib
import itertools
import math
import os
import statistics
import tempfile

import bench_builds
import figures
import measure

RUNS = 5
KERNELS, HELPERS = 2, 120
LARGER = 1.02
# Fewer pairs have no interval that says anything.
LEAST = 5
# The 97.5 % quantile of Student's distribution, by degrees of freedom; the last one for all that are larger.
STUDENT = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 14: 2.145, 19: 2.093, 29: 2.045, 10**9: 1.960}

# baker: whether programs start it. kept: whether the caches of the driver and of PyOpenCL stay from run to run.
Case = collections.namedtuple("Case", "baker kept program")


def interval(ratios):
    """The 95 % interval of the mean ratio, by the logarithms.

    >>> [round(end, 3) for end in interval([1.0, 1.0, 1.0, 1.0, 1.0])]
    [1.0, 1.0]
    >>> [round(end, 2) for end in interval([0.9, 1.0, 1.1, 1.0, 1.0])]
    [0.91, 1.09]
    """
    logs = [math.log(ratio) for ratio in ratios]
    freedom = len(logs) - 1
    quantile = STUDENT[max(known for known in STUDENT if known <= freedom)]
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    middle = statistics.mean(logs)
    return math.exp(middle - half), math.exp(middle + half)


def sequences(bench, driver, case, argv):
    """Five pairs of times, without and with oclcache, in turn."""
    kind = "whole" if driver.executes else "build"
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        homes = [enter(measure.fresh_home()) if case.kept else None for _ in range(2)]
        cache = enter(tempfile.TemporaryDirectory(dir=bench.folder))
        more = {"PYOPENCL_NO_CACHE": "0", "OCLCACHE_DIR": cache, "OCLCACHE_AUTOBAKE": str(int(case.baker))}
        take = lambda cached: bench_builds.series(bench.run(argv, cached, registered=True, home=homes[cached], **more))[kind][0]
        return [(take(False), take(True)) for _ in range(RUNS)]


def rows(runs):
    for driver in bench_builds.drivers():
        with measure.Bench(driver.icd) as bench:
            source = bench.folder / "source.cl"
            bench.run(bench_builds.client(KERNELS, HELPERS, "--write", source), cached=False)
            programs = {"C": bench_builds.client(KERNELS, HELPERS)}
            if "OCLCACHE_TEST_PYTHON" in os.environ:
                programs["PyOpenCL"] = bench_builds.pyopencl(source)
            for case in (Case(*each) for each in itertools.product((True, False), (True, False), programs)):
                taken = [sequences(bench, driver, case, programs[case.program]) for _ in range(max(LEAST, runs))]
                for number in range(RUNS):
                    pairs = [sequence[number] for sequence in taken]
                    bare, ours = ([pair[way] for pair in pairs] for way in range(2))
                    yield {"driver": driver.name, **case._asdict(), "run": number + 1, "bare": bare, "ours": ours}
                figures.say(f"{driver.name}, {case}: {len(taken)} times {RUNS} runs")


def is_slower(row):
    """Whether a run was slower than without oclcache, as far as chance allows to say so."""
    return interval([ours / bare for bare, ours in zip(row["bare"], row["ours"])])[0] > LARGER


def name(row):
    baker = "with the baker" if row["baker"] else "without the baker"
    caches = "other caches kept" if row["kept"] else "other caches emptied"
    return f"{row['driver']}, {row['program']}, {baker}, {caches}: run {row['run']}"


def table(found):
    lines = []
    for row in found:
        least, most = interval([ours / bare for bare, ours in zip(row["bare"], row["ours"])])
        verdict = "slower" if is_slower(row) else ""
        between = f"{figures.times(least)} to {figures.times(most)}"
        lines.append([name(row), figures.seconds(row["bare"]), figures.seconds(row["ours"]), between, verdict])
    return figures.markdown(["", "without oclcache", "with oclcache", "95 % interval of the ratio", ""], lines)
