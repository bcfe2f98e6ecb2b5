"""Several caches at once: PyOpenCL's, the driver's and ours, all without programs at first, in four runs of one program, each
against the same without ours."""

import collections
import os

import bench_builds
import figures
import measure

RUNS = 4
KERNELS, HELPERS = 2, 120

# pyopencl, driver: whether PyOpenCL's cache and the driver's are on.
Levels = collections.namedtuple("Levels", "name pyopencl driver")
LEVELS = {
    "PoCL": (Levels("all on", True, True), Levels("PyOpenCL's off", False, True), Levels("PoCL's off", True, False)),
    "Intel CPU": (Levels("all on", True, True), Levels("PyOpenCL's off", False, True)),
}


def variables(levels):
    """What turns off a cache that is on by itself.

    >>> variables(Levels("", False, False))
    {'PYOPENCL_NO_CACHE': '1', 'POCL_KERNEL_CACHE': '0'}
    """
    return {"PYOPENCL_NO_CACHE": "0" if levels.pyopencl else "1", "POCL_KERNEL_CACHE": "1" if levels.driver else "0"}


def files(folder):
    return {path for path in folder.rglob("*") if path.is_file()}


def sequence(bench, argv):
    """The times of the runs without oclcache and of those with it, in turn. What is pending after a run is baked before the next."""
    with measure.fresh_home() as bare, measure.fresh_home() as ours, bench_builds.cache_without_programs(bench) as cache:
        more = {"registered": True, "OCLCACHE_DIR": cache, "OCLCACHE_AUTOBAKE": "1"}
        take = lambda cached, home: bench_builds.series(bench.run(argv, cached, home=home, **more))
        return [(take(False, bare), take(True, ours)) for _ in range(RUNS)]


def watched(driver, levels, argv):
    """What each level does in the runs with oclcache, and what the driver compiles then, by the spy."""
    seen = []
    with measure.Bench(driver.icd, spied=True) as bench, measure.fresh_home() as home:
        bench.environment.update(variables(levels))
        for _ in range(RUNS):
            before = files(home / "pocl")
            run, count = bench.counted_run(argv, home=home)
            kept = len(files(home / "pocl") - before)
            cached = "was_cached=1" in run.output
            seen.append(
                {
                    "PyOpenCL": "off" if not levels.pyopencl else "hit" if cached else "miss",
                    "PoCL": "" if driver.name != "PoCL" else "off" if not levels.driver else f"{kept} files new",
                    "oclcache": ", ".join(f"{count[name]} {word}" for name, word in WORDS if count[name]) or "nothing to do",
                    "compiled": run.built,
                }
            )
            bench.bake(home)
    return seen


WORDS = (("hits", "hit"), ("misses", "miss"), ("bypassed", "bypassed"), ("failed", "failed"))


def rows(runs):
    if "OCLCACHE_TEST_PYTHON" not in os.environ:
        return
    for driver in bench_builds.drivers():
        for levels in LEVELS.get(driver.name, ()):
            with measure.Bench(driver.icd) as bench:
                source = bench.folder / "source.cl"
                bench.run(bench_builds.client(KERNELS, HELPERS, "--write", source), cached=False)
                argv = bench_builds.pyopencl(source, *(["--cached"] if levels.pyopencl else []))
                what = watched(driver, levels, argv)
                bench.environment.update(variables(levels))
                taken = [sequence(bench, argv) for _ in range(runs)]
            for number in range(RUNS):
                sides = [[one[number][side] for one in taken] for side in (0, 1)]
                row = {"driver": driver.name, "levels": levels.name, "run": number + 1, **what[number]}
                for side, name in zip(sides, ("bare", "ours")):
                    for kind in "whole", "build", "first result":
                        row[f"{name} {kind}"] = [value for one in side for value in one[kind]]
                yield row
            figures.say(f"{driver.name}, {levels.name}: {runs} times {RUNS} runs")
