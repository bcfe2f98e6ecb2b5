"""What oclcache costs a program that it does nothing for: hooks, the first call, memory, and the size of the library."""

import pathlib
import re
import tempfile

import bench_builds
import measure

STUB = measure.RELEASE / "examples" / "libstub_driver.so"
# Each run takes milliseconds.
OFTEN = 8


def numbers(run):
    r"""What the client prints as NAME=NUMBER.

    >>> numbers(measure.Run(9, "create program: code 0\nretain_ns=12.5 platforms=1\n"))
    {'retain_ns': 12.5, 'platforms': 1.0}
    """
    return {name: float(number) for name, number in re.findall(r"(\w+)=([\d.]+)", run.output)}


def in_turn(bench, argv, runs):
    """The numbers of bare runs and of those with oclcache, by name."""
    both = {}
    for _ in range(runs):
        for way, cached in ("bare", False), ("oclcache", True):
            for name, number in numbers(bench.run(argv, cached, registered=True)).items():
                both.setdefault(name, {"bare": [], "oclcache": []})[way].append(number)
    return both


def figures_of(runs):
    """hooks: nanoseconds of calls on a driver that does next to nothing in them. load: the first clGetPlatformIDs with the
    loader's own start, what is resident after it, and what of that is in no file, by driver. run: seconds of a whole program
    on that driver, by itself and through `oclcache run`."""
    found = {"size": measure.LIBRARY.stat().st_size, "load": {}}
    with tempfile.TemporaryDirectory(prefix="oclcache-") as folder:
        stub = pathlib.Path(folder) / "stub.icd"
        stub.write_text(f"{STUB}\n")
        with measure.Bench(stub) as bench:
            found["hooks"] = in_turn(bench, [bench_builds.CLIENT, "hook"], runs)
        icds = {"a driver that does nothing": stub, **{driver.name: driver.icd for driver in bench_builds.drivers()}}
        for name, icd in icds.items():
            with measure.Bench(icd) as bench:
                both = in_turn(bench, [bench_builds.CLIENT, "load"], OFTEN * runs)
            found["load"][name] = {
                way: {
                    "first call": [(one + two) / 1e9 for one, two in zip(both["open_ns"][way], both["platforms_ns"][way])],
                    "resident": [1024 * number for number in both["resident_kib"][way]],
                    "own": [1024 * number for number in both["own_kib"][way]],
                }
                for way in ("bare", "oclcache")
            }
        with measure.Bench(stub) as bench:
            argv = [bench_builds.CLIENT, "load"]
            both = [
                (bench.run(argv, cached=True, registered=True).seconds, bench.run(argv, cached=True).seconds)
                for _ in range(OFTEN * runs)
            ]
        found["run"] = dict(zip(("registered", "oclcache run"), map(list, zip(*both))))
    return found
