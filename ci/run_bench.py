"""ci/bench: measures its parts, prints their tables and the targets, and writes every figure into target/bench/bench.json.

    run_bench.py RUNS [PART...]   the parts of a usual run, or these
"""

import json
import sys
import time

import bench_builds
import bench_busy
import bench_levels
import bench_library
import bench_processes
import bench_remote
import bench_repeated
import bench_tables
import bench_targets
import bench_texts
import figures
import measure

RESULT = measure.TOP / "target" / "bench" / "bench.json"

PARTS = {
    "small": lambda runs: list(bench_builds.small(runs)),
    "real": lambda runs: list(bench_builds.real(runs)),
    "spied": lambda runs: list(bench_builds.spied()),
    "processes": lambda runs: list(bench_processes.rows(min(runs, 3))),
    "library": bench_library.figures_of,
    "levels": lambda runs: list(bench_levels.rows(runs)),
    "busy": lambda runs: list(bench_busy.rows(runs)),
    "repeated": lambda runs: list(bench_repeated.rows(runs)),
    "texts": lambda runs: list(bench_texts.rows(runs)),
    "remote": bench_remote.rows,
}
# The others take long and are named.
USUAL = ("small", "real", "spied", "processes", "library", "levels")
NOTE = """\
Medians (least to most) of new processes, all ways in turn: {runs} runs of each, {often} of programs of 1 and 10 kernels, {few} of
real ones. PoCL's cache and a home stand in memory, new and empty for each run unless it says otherwise. without: the driver
alone. The limit: clCreateProgramWithBinary and clBuildProgram of the bytes that oclcache serves, without oclcache, from memory.
Programs of 1 kernel have {one} KiB of source, those of 10 {ten}, those of 100 {hundred}."""


def sizes():
    """KiB of source of the programs of 1, 10 and 100 kernels."""
    driver = bench_builds.drivers()[0]
    with measure.Bench(driver.icd) as bench:
        file = bench.folder / "source.cl"
        for kernels, helpers in bench_builds.SIZES:
            bench.run(bench_builds.client(kernels, helpers, "--write", file), cached=False)
            yield file.stat().st_size >> 10


def print_section(title, text):
    if text:
        print(f"\n{title}\n\n{text}")


def print_all(found, runs):
    few = min(runs, 3)
    one, ten, hundred = sizes()
    print(NOTE.format(runs=runs, often=bench_builds.often(runs), few=few, one=one, ten=ten, hundred=hundred))
    programs = [*found.get("small", ()), *found.get("real", ())]
    library = found.get("library")
    sections = {
        "From the source, or the binary, to the built program:": bench_tables.builds(programs),
        "From the start of the process to the first kernel's result:": bench_tables.processes(programs, "first result"),
        "The whole process:": bench_tables.processes(programs, "whole"),
        "First runs; the last columns are times those without oclcache:": bench_tables.first_runs(programs),
        "Whole processes without oclcache, with PoCL's cache in memory and on disk:": bench_tables.disk(programs),
        "By a library before the driver that knows nothing of oclcache:": bench_tables.spied(found.get("spied", ())),
        "Processes that start cold at once, of 10 kernels:": bench_tables.at_once(found.get("processes", ())),
        "Calls, loading and memory:": bench_tables.library(library, programs) if library else "",
        "Several caches at once, all without programs at first:": bench_tables.levels(found.get("levels", ())),
        "First hits of 10 kernels beside a busy disk:": bench_busy.table(found.get("busy", ())),
        "Five runs in a row:": bench_repeated.table(found.get("repeated", ())),
        "Sources of megabytes, whole processes:": bench_texts.table(found.get("texts", ())),
        "Programs that another machine has built, from Redis:": bench_remote.table(found.get("remote", ())),
        "Targets:": bench_targets.table(found),
    }
    for title, text in sections.items():
        print_section(title, text)


def main():
    runs, parts = int(sys.argv[1]), sys.argv[2:] or list(USUAL)
    where, start = measure.machine(), time.monotonic()
    if not bench_builds.drivers():
        measure.stop("no driver to measure")
    measure.adopt_orphans()
    found = {}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    for part in parts:
        begin = time.monotonic()
        found[part] = PARTS[part](runs)
        figures.say(f"{part}: {time.monotonic() - begin:.0f} s")
        RESULT.write_text(json.dumps({"machine": where, "runs": runs, **found}, indent=1) + "\n")
    sha = "with" if where["sha_instructions"] else "without"
    print(f"{where['cpu']}, {where['cores']} cores, {sha} SHA instructions, {where['system']}, load {where['load_before']:.1f} at the start\n")
    print_all(found, runs)
    print(f"\nEvery figure: {RESULT.relative_to(measure.TOP)}; measured in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
