"""The table of ci/bench: bare and cold against warm through oclcache, in new processes, on PoCL and on Intel's CPU runtime."""

import json
import os
import pathlib
import re
import statistics
import sys
import tempfile

import measure

CLIENT = [str(measure.RELEASE / "examples" / "client"), "time", "--kernels", "10"]
STUB = measure.RELEASE / "examples" / "libstub_driver.so"
RESULT = measure.TOP / "target" / "bench" / "bench.json"


def client_seconds(run):
    """Seconds from clCreateProgramWithSource to the last clCreateKernel, and to the first kernel's result.

    >>> client_seconds(measure.Run(9, "kernels=10 build_ns=1500000000 first_run_ns=500000000"))
    {'source to last kernel': 1.5, 'source to first result': 2.0}
    """
    times = dict(re.findall(r"(\w+)=(\d+)", run.output))
    if not {"build_ns", "first_run_ns"} <= times.keys():
        measure.stop(f"the client printed no times: {run.output!r}")
    built, ran = int(times["build_ns"]) / 1e9, int(times["first_run_ns"]) / 1e9
    return {"source to last kernel": built, "source to first result": built + ran}


def in_turn(bench, argv, runs, seconds_of):
    """Bare and warm seconds by name. Both alternate, so that whatever else the machine does meets both."""
    bare, warm = [], []
    first, _ = bench.counted_run(argv)
    for turn in range(runs):
        bare.append(bench.run(argv, cached=False))
        again, count = bench.counted_run(argv)
        if count["hits"] == 0 or count["hits"] != count["build calls"]:
            measure.stop(f"a warm run was not served by the cache alone: {count}")
        warm.append(again)
        print(f"{os.path.basename(argv[0])}: {turn + 1} of {runs}", file=sys.stderr)
    names = seconds_of(first)
    return [(name, [seconds_of(run)[name] for run in bare], [seconds_of(run)[name] for run in warm]) for name in names]


def check_by_spy(icd, argv):
    """A warm run has nothing compiled by the driver, by the spy's count. The spy is part of the driver in the key, so this
    has a cache of its own."""
    with measure.Bench(icd, spied=True) as bench:
        cold, warm = bench.run(argv, cached=True), bench.run(argv, cached=True)
    if cold.built == 0 or warm.built != 0:
        measure.stop(f"{argv}: the driver compiled {cold.built} programs in a cold run and {warm.built} in a warm one")
    return f"{os.path.basename(argv[0])}: {cold.built} cold, {warm.built} warm"


def compare_results(bench, program):
    bare, warm = bench.run(program.argv, cached=False), bench.run(program.argv, cached=True)
    if not measure.same_results(bare.output, warm.output, program.tolerance):
        measure.stop(f"{program.name} printed other results through oclcache:\n{bare.output}---\n{warm.output}")


def measure_all(runs):
    """Rows of (driver, what, bare seconds, warm seconds), and what the spy counted."""
    rows, spied = [], []
    for driver, variable in ("PoCL", "OCLCACHE_TEST_POCL"), ("Intel", "OCLCACHE_TEST_INTEL"):
        icd = os.environ.get(variable)
        if not icd:
            continue
        with measure.Bench(icd) as bench:
            rows += [(driver, f"ten kernels, {row[0]}", *row[1:]) for row in in_turn(bench, CLIENT, runs, client_seconds)]
        spied.append(f"{driver}, {check_by_spy(icd, CLIENT)}")
        if driver == "PoCL":
            continue
        for program in programs():
            with measure.Bench(icd) as bench:
                rows += [(driver, *row) for row in in_turn(bench, program.argv, runs, lambda run: {program.name: run.seconds})]
                compare_results(bench, program)
            spied.append(f"{driver}, {check_by_spy(icd, program.argv)}")
    return rows, spied


def hook_cost(runs):
    """Nanoseconds of clRetainKernel on a kernel that oclcache does not know, on a driver that does next to nothing in it: bare
    and through oclcache, in turn."""
    with tempfile.TemporaryDirectory(prefix="oclcache-") as folder:
        icd = pathlib.Path(folder) / "stub.icd"
        icd.write_text(f"{STUB}\n")
        with measure.Bench(icd) as bench:
            argv = [CLIENT[0], "hook"]
            both = [(retain_ns(bench.run(argv, cached=False)), retain_ns(bench.run(argv, cached=True))) for _ in range(runs)]
    return [list(column) for column in zip(*both)]


def retain_ns(run):
    r"""
    >>> retain_ns(measure.Run(9, "create program: code 0\nretain_ns=12.5\n"))
    12.5
    """
    found = re.search(r"^retain_ns=([\d.]+)$", run.output, re.MULTILINE)
    return float(found[1]) if found else measure.stop(f"the client printed no time: {run.output!r}")


def spread(nanoseconds):
    """
    >>> spread([9.0, 10.5, 12.0])
    '10.5 ns (9.0 to 12.0)'
    """
    return f"{statistics.median(nanoseconds):.1f} ns ({min(nanoseconds):.1f} to {max(nanoseconds):.1f})"


def programs():
    """The whole programs that are there."""
    if pathlib.Path(measure.water_box().argv[0]).exists():
        yield measure.water_box()
    if "OCLCACHE_TEST_PYTHON" in os.environ:
        yield measure.tapi()


def text(seconds):
    """Median and spread, in a unit that suits.

    >>> text([0.0013, 0.0012, 0.0015])
    '1.30 ms (1.20 to 1.50)'
    """
    median = statistics.median(seconds)
    factor, unit = (1, "s") if median >= 1 else (1000, "ms")
    return f"{median * factor:.2f} {unit} ({min(seconds) * factor:.2f} to {max(seconds) * factor:.2f})"


def main():
    runs = int(sys.argv[1])
    where = measure.machine()
    rows, spied = measure_all(runs)
    if not rows:
        measure.stop("no driver to measure")
    print(f"{where['cpu']}, {where['cores']} cores, {where['system']}, load {where['load_before']:.1f} at the start")
    print(f"Median (least to most) of {runs} runs, each a new process with an empty PoCL cache in memory; warm: every build call a hit.\n")
    table = []
    for driver, what, bare, warm in rows:
        table.append([f"{driver}: {what}", text(bare), text(warm), f"{statistics.median(bare) / statistics.median(warm):.1f}"])
    measure.print_table(["", "without oclcache, cold", "with oclcache, warm", "times faster"], table)
    bare, hooked = hook_cost(runs)
    added = statistics.median(hooked) - statistics.median(bare)
    print(f"\nclRetainKernel of a kernel that oclcache does not know: {spread(bare)} bare, {spread(hooked)} hooked; {added:+.1f} ns")
    print("\nPrograms that the driver compiled, counted before the driver: " + "; ".join(spied))
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    keys = ("driver", "what", "bare_seconds", "warm_seconds")
    RESULT.write_text(json.dumps({"machine": where, "rows": [dict(zip(keys, row)) for row in rows], "retain_ns": {"bare": bare, "hooked": hooked}}, indent=1) + "\n")
    print(f"\nEvery figure: {RESULT.relative_to(measure.TOP)}")


if __name__ == "__main__":
    main()
