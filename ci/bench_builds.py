"""Programs of 1, 10 and 100 kernels, and real ones, each in every way that it can be had: bare, from the driver's own cache, from
PyOpenCL's, through oclcache for the first time and later, and from a binary in memory, which is the limit."""

import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import tempfile

import figures
import measure

CLIENT = str(measure.RELEASE / "examples" / "client")
PYOPENCL = str(measure.TOP / "benches" / "pyopencl_build.py")
AGAIN = 5
# Kernels, and functions that they could call, which are most of the source.
SIZES = ((1, 60), (10, 600), (100, 600))
# Of programs of 1 and 10 kernels, one in so many first runs is baked.
OFTEN = 2

# name: what people read; icd: its file; own_cache: whether it has one on disk, ON by itself or after something is done for it;
# sizes: which of SIZES; executes: whether kernels run
Driver = collections.namedtuple("Driver", "name icd own_cache sizes executes", defaults=[True])
ON = "on by itself"


def often(runs):
    """How often programs of 1 and 10 kernels run, which are short.

    >>> often(1), often(5)
    (1, 9)
    """
    return OFTEN * (runs - 1) + 1


def drivers():
    found = [
        ("PoCL", "OCLCACHE_TEST_POCL", ON, SIZES),
        ("Intel CPU", "OCLCACHE_TEST_INTEL", None, SIZES),
        # It compiles when a kernel is created: a hundred kernels take minutes in every way.
        ("rusticl", "OCLCACHE_TEST_RUSTICL", ON, SIZES[:2]),
        ("Intel GPU", "OCLCACHE_TEST_INTEL_GPU", "on if its folder is there", SIZES, False),
    ]
    return [Driver(name, os.environ[icd], *rest) for name, icd, *rest in found if os.environ.get(icd)]


def client(kernels, helpers, *arguments):
    return [CLIENT, "time", "--kernels", str(kernels), "--helpers", str(helpers), *map(str, arguments)]


def pyopencl(source, *arguments):
    return [os.environ["OCLCACHE_TEST_PYTHON"], "-B", "-W", "ignore", PYOPENCL, str(source), *arguments]


def series(run):
    """What one run tells, in seconds: its builds, the first and those after it; the first result and the end, from its start.

    >>> output = "build_ns=1500000000,2000000,4000000 kernels_ns=0 first_run_ns=0 first_result_at_ns=9000000000 resident_kib=2048"
    >>> times = series(measure.Run(3.0, output, start=7.0, cpu=2.5))
    >>> times["build"], times["later builds"], times["first result"], times["whole"], times["resident"]
    ([1.5], [0.003], [2.0], [3.0], [2097152])
    """
    found = {"whole": [run.seconds], "cpu": [run.cpu]}
    if run.left:
        found["cpu with baker"] = [run.cpu + run.left]
    if "first_result_at_ns=" in run.output:
        numbers = {name: [int(number) for number in text.split(",")] for name, text in re.findall(r"(\w+)=([\d,]+)", run.output)}
        first, *later = [number / 1e9 for number in numbers["build_ns"]]
        found["build"] = [first]
        found["later builds"] = [figures.median(later)] if later else []
        found["first result"] = [numbers["first_result_at_ns"][0] / 1e9 - run.start]
        found["resident"] = [1024 * number for number in numbers.get("resident_kib", [])]
    return found


class Subject:
    """One program on one driver: what it was seen to take, by way and by kind of time."""

    def __init__(self, driver, name, bench, folder):
        self.driver, self.name, self.bench, self.folder = driver, name, bench, folder
        self.ways, self.output = {}, {}
        self.seen = collections.defaultdict(lambda: collections.defaultdict(list))

    def note(self, way, run):
        self.output[way] = run.output
        for kind, values in series(run).items():
            if kind != "first result" or self.driver.executes:
                self.seen[way][kind] += values

    def row(self):
        return {"driver": self.driver.name, "program": self.name, "ways": {way: dict(kinds) for way, kinds in self.seen.items()}}

    def warm(self, name, *argv, **more):
        """A home with the caches that this program, which runs bare, leaves there."""
        home = self.folder / name
        # Intel's GPU driver has a cache where there is such a folder in the working directory.
        (home / "home" / "cl_cache").mkdir(parents=True)
        self.bench.run(list(argv), cached=False, home=home, **more)
        return home

    def first_run(self, argv):
        with cache_without_programs(self.bench) as cache:
            return self.recorded_run(argv, cache)

    def baked_run(self, argv):
        """A first run, and the processor seconds of the baker that it starts when it ends; none unless that has baked all."""
        with cache_without_programs(self.bench) as cache, measure.fresh_home() as home:
            run = self.bench.run(argv, cached=True, registered=True, home=home, OCLCACHE_DIR=cache, OCLCACHE_AUTOBAKE="1")
            rest = json.loads(self.bench.bake(home, "--json", OCLCACHE_DIR=cache).output)
        if rest["baked"]:
            figures.say(f"{self.name} on {self.driver.name}: no baker behind it, or it has left {len(rest['baked'])} programs")
            return run._replace(left=0.0)
        return run

    def in_new_cache(self, argv):
        with tempfile.TemporaryDirectory(dir=self.bench.folder) as cache:
            return self.recorded_run(argv, cache)

    def recorded_run(self, argv, cache):
        """A run that finds nothing in this cache directory. Stops unless oclcache looked there, and for all that it was asked for."""
        before = self.bench.stats(OCLCACHE_DIR=cache)
        run = self.bench.run(argv, cached=True, registered=True, OCLCACHE_DIR=cache)
        after = self.bench.stats(OCLCACHE_DIR=cache)
        if after["misses"] == before["misses"] or any(after[name] != before[name] for name in ("hits", "bypassed", "failed")):
            measure.stop(f"{self.name} on {self.driver.name} was not looked for in the cache: {before}, {after}")
        return run


@contextlib.contextmanager
def cache_without_programs(bench):
    """A cache directory that knows the driver and one small program. In an empty one the first process reads all files of a
    driver that has no build-id, once for as long as the cache and that driver are there."""
    known = bench.folder / "known"
    if not known.exists():
        bench.run(client(1, 8), cached=True, bake=True, OCLCACHE_DIR=str(known))
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        yield str(shutil.copytree(known, pathlib.Path(folder) / "cache"))


def common_ways(subject, argv, later):
    """What holds for every program; `later` is run where something may be built again."""
    bench = subject.bench
    bench.run(argv, cached=True, bake=True)
    ways = {
        "bare": lambda _: bench.run(argv, cached=False),
        "miss": lambda _: subject.first_run(argv),
        "hit": lambda _: bench.run(later, cached=True, registered=True),
    }
    if subject.driver.own_cache:
        warm = subject.warm("warm", *argv)
        ways["own cache"] = lambda _: bench.run(argv, cached=False, home=warm)
        ways["hit, own cache"] = lambda _: bench.run(later, cached=True, registered=True, home=warm)
    return ways


def client_ways(subject, kernels, helpers):
    bench, folder = subject.bench, subject.folder
    source, binary = folder / "source.cl", folder / "binary"
    argv, later = client(kernels, helpers), client(kernels, helpers, "--again", AGAIN)
    ways = common_ways(subject, argv, later)
    # The bytes that oclcache serves.
    bench.run(client(kernels, helpers, "--save", binary, "--write", source), cached=True, registered=True)
    limit = client(kernels, helpers, "--again", AGAIN, "--binary", binary)
    ways["limit"] = lambda _: bench.run(limit, cached=False)
    ways["limit beside a source"] = lambda _: bench.run([*limit, "--beside", "source"], cached=False)
    if subject.driver.own_cache:
        warm = folder / "warm"
        ways["limit, own cache"] = lambda _: bench.run(limit, cached=False, home=warm)
    ways["miss, baked"] = lambda turn: None if turn % OFTEN else subject.baked_run(argv)
    if subject.driver.name == "PoCL":
        # Unlike `folder`.
        disk = bench.folder / "disk"
        ways["bare, on disk"] = lambda turn: bench.run(argv, cached=False, POCL_CACHE_DIR=str(disk / str(turn)))
    if kernels == 10:
        ways["miss, new cache"] = lambda _: subject.in_new_cache(argv)
    if "OCLCACHE_TEST_PYTHON" in os.environ and subject.driver.name != "rusticl":
        home, cached = folder / "pyopencl", pyopencl(source, "--cached")
        subject.warm("pyopencl", *cached, PYOPENCL_NO_CACHE="0")
        ways["PyOpenCL bare"] = lambda _: bench.run(pyopencl(source), cached=False)
        ways["PyOpenCL's cache"] = lambda turn: bench.run(
            cached, cached=False, home=home, PYOPENCL_NO_CACHE="0", POCL_CACHE_DIR=str(folder / "of-pyopencl" / str(turn))
        )
    return ways


def check_served(subject, before):
    """Stops unless the cache has served all that it was to serve since it counted this."""
    after = subject.bench.stats()
    served_nothing = "hit" in subject.ways and after["hits"] == before["hits"]
    if served_nothing or any(after[name] != before[name] for name in ("misses", "bypassed", "failed")):
        measure.stop(f"{subject.name} on {subject.driver.name} was not served by the cache alone: {before}, {after}")


def interleave(subject, runs):
    """All ways in turn, so that whatever else the machine does meets all of them."""
    before = subject.bench.stats()
    for turn in range(runs):
        for way, run in subject.ways.items():
            done = run(turn)
            if done:
                subject.note(way, done)
    check_served(subject, before)
    figures.say(f"{subject.driver.name}, {subject.name}: {runs} runs each of {len(subject.ways)} ways")


@contextlib.contextmanager
def subject_of(driver, name):
    with measure.Bench(driver.icd) as bench, tempfile.TemporaryDirectory(prefix="oclcache-", dir=measure.memory()) as folder:
        yield Subject(driver, name, bench, pathlib.Path(folder))


def small(runs):
    """Programs of some kernels, on all drivers."""
    for driver in drivers():
        for kernels, helpers in driver.sizes:
            with subject_of(driver, f"{kernels} kernel{'s' if kernels > 1 else ''}") as subject:
                subject.ways = client_ways(subject, kernels, helpers)
                interleave(subject, often(runs) if kernels <= 10 and driver.name != "rusticl" else runs)
                yield subject.row()


def programs():
    """The real programs that are there, and how many drivers they are tried on: OpenCV takes minutes with an empty PoCL cache."""
    if pathlib.Path(measure.water_box().argv[0]).exists():
        yield measure.water_box(), ("PoCL", "Intel CPU")
    if "OCLCACHE_TEST_PYTHON" in os.environ:
        yield measure.tapi(), ("Intel CPU",)


def real(runs):
    for driver in drivers():
        for program, wanted in programs():
            if driver.name not in wanted:
                continue
            with subject_of(driver, program.name) as subject:
                subject.ways = common_ways(subject, program.argv, program.argv)
                if driver.name == "PoCL":
                    subject.ways["miss, baked"] = lambda _: subject.baked_run(program.argv)
                    del subject.ways["miss"]
                interleave(subject, min(runs, 3))
                bare, warm = subject.output["bare"], subject.output["hit"]
                if not measure.same_results(bare, warm, program.tolerance):
                    measure.stop(f"{program.name} printed other results through oclcache:\n{bare}---\n{warm}")
                yield subject.row()


def spied():
    """What the driver compiled in a first and in a second run, by a library that stands before it and knows nothing of oclcache.
    That is part of the driver in the key, so this has a cache of its own."""
    for driver in drivers():
        wanted = [("10 kernels", client(10, 600))]
        if driver.name in ("PoCL", "Intel CPU") and pathlib.Path(measure.water_box().argv[0]).exists():
            wanted.append((measure.water_box().name, measure.water_box().argv))
        for name, argv in wanted:
            with measure.Bench(driver.icd, spied=True) as bench:
                cold, warm = bench.run(argv, cached=True, bake=True), bench.run(argv, cached=True)
            yield {"driver": driver.name, "program": name, "first run": cold.built, "baked": cold.baking.built, "second run": warm.built}
