"""First hits in a process, on an idle disk and beside a writer that has the disk of the cache written out every 100 ms."""

import contextlib
import math
import subprocess
import sys
import time

import bench_builds
import figures
import measure

# Runs in turn, idle and busy.
BLOCK = 5
# Of each state, at least: a 95th percentile of fewer is their largest.
LEAST = 20
PERCENT = 95
WRITER = """
import os, sys, time
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
block = os.urandom(1 << 20)
while True:
    for number in range(8):
        os.pwrite(file, block, number << 20)
    os.fsync(file)
    time.sleep(0.1)
"""


def percentile(values, percent):
    """The least value that so many percent of all do not exceed.

    >>> percentile([5, 1, 4, 2, 3], 95), percentile(range(1, 101), 95), percentile([7], 95)
    (5, 95, 7)
    """
    return sorted(values)[math.ceil(percent / 100 * len(values)) - 1]


@contextlib.contextmanager
def busy_disk(folder):
    """A process that writes 8 MiB below this folder, and waits for the disk, again and again."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder / "written")])
    measure.beside.add(writer.pid)
    try:
        time.sleep(0.3)
        if writer.poll() is not None:
            measure.stop("the process that keeps the disk busy has ended")
        yield
    finally:
        writer.kill()
        writer.wait()
        measure.beside.discard(writer.pid)


def rows(runs):
    for driver in bench_builds.drivers():
        kernels, helpers = bench_builds.SIZES[1]
        argv = bench_builds.client(kernels, helpers)
        seen = {"idle": [], "busy": []}
        with measure.Bench(driver.icd) as bench:
            bench.run(argv, cached=True, bake=True)
            hit = lambda: bench_builds.series(bench.run(argv, cached=True, registered=True))["build"]
            for _ in range(math.ceil(max(LEAST, 3 * runs) / BLOCK)):
                for _ in range(BLOCK):
                    seen["idle"] += hit()
                with busy_disk(bench.folder):
                    for _ in range(BLOCK):
                        seen["busy"] += hit()
            count = bench.stats()
            if count["misses"] > 1 or count["bypassed"] or count["failed"]:
                measure.stop(f"{driver.name} was not served by the cache alone: {count}")
        yield {"driver": driver.name, **seen}
        figures.say(f"{driver.name}: {len(seen['busy'])} first hits beside a busy disk")


def table(found):
    lines = []
    for row in found:
        worst = percentile(row["busy"], PERCENT)
        times = figures.times(worst / figures.median(row["idle"]))
        lines.append([row["driver"], figures.seconds(row["idle"]), figures.seconds(row["busy"]), figures.seconds([worst]), times])
    return figures.markdown(["", "idle disk", "busy disk", f"{PERCENT} % of those within", "times the idle median"], lines)
