"""What a build call pays for its key: the scan of source and headers, the look at every place where a header could be, hashing,
and asking the driver for the source. Measured by the library itself, in a process that builds the same program again and again:
its parts are private to the crate, where benches of criterion or divan, which stand outside, do not reach them."""

import hashlib
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

import measure

CLIENT = measure.RELEASE / "examples" / "client"
STUB = measure.RELEASE / "examples" / "libstub_driver.so"
TIMES = 1000
HEADERS = 20


def functions(size, prefix):
    """So many bytes of functions with comments, as kernels have them.

    >>> len(functions(8 << 10, "a"))
    8192
    """
    text = ""
    while True:
        number = len(text)
        one = (
            f"/* {prefix}: the next of many */\n#ifdef {prefix.upper()}_{number}\n#define {prefix}_scale{number}(x) ((x) * {number}.5f)\n#endif\n"
            f"static float {prefix}_function{number}(float x, float y) {{\n    float a = fma(x, {number}.25f, y); // and so on\n"
            f"    return select(a, mix(x, y, 0.5f), isless(a, y)) + smoothstep(x, y, a) * {number}.0f;\n}}\n"
        )
        if len(text) + len(one) > size:
            return text.ljust(size - 1) + "\n"
        text += one


def without_headers(folder):
    kernel = "__kernel void f(__global float *out) { out[get_global_id(0)] = 1.0f; }\n"
    (folder / "plain.cl").write_text(functions((64 << 10) - len(kernel), "own") + kernel)
    return ["--source", str(folder / "plain.cl"), "--options", "-DN=4 -cl-mad-enable"]


def with_headers(folder):
    """A short kernel over headers of 8 KiB each; the first five include five others each besides."""
    include = folder / "include"
    include.mkdir()
    for number in range(HEADERS):
        others = "".join(f'#include "header{other}.h"\n' for other in range(number + 1, number + 6) if number < 5 and other < HEADERS)
        guarded = f"#ifndef HEADER{number}\n#define HEADER{number}\n{others}"
        rest = functions((8 << 10) - len(guarded) - len("#endif\n"), f"header{number}")
        (include / f"header{number}.h").write_text(f"{guarded}{rest}#endif\n")
    source = "".join(f'#include "header{number}.h"\n' for number in range(HEADERS))
    (folder / "headers.cl").write_text(source + "__kernel void f(__global float *out) { out[get_global_id(0)] = 1.0f; }\n")
    return ["--source", str(folder / "headers.cl"), "--options", f"-I {include} -DN=4"]


def microseconds(log):
    r"""What each call but the first took, which also opens the cache and identifies the driver.

    >>> microseconds("planned key_ns=900000\nbuild\nplanned key_ns=41500\nplanned key_ns=40000\n")
    [41.5, 40.0]
    """
    return [int(number) / 1000 for number in re.findall(r"\bkey_ns=(\d+)", log)][1:]


def spread(figures):
    """
    >>> spread([float(number) for number in range(1, 102)])
    '51.0 us (11.0 to 91.0)'
    """
    tenths = statistics.quantiles(figures, n=10, method="inclusive")
    return f"{statistics.median(figures):.1f} us ({tenths[0]:.1f} to {tenths[-1]:.1f})"


def sha_alone():
    """What SHA-256 of 64 KiB takes by itself, by OpenSSL: how busy the machine is shows here, too."""
    text, figures = bytes(64 << 10), []
    for _ in range(TIMES):
        start = time.perf_counter_ns()
        hashlib.sha256(text).digest()
        figures.append((time.perf_counter_ns() - start) / 1000)
    return figures


def drivers(folder):
    stub = folder / "stub.icd"
    stub.write_text(f"{STUB}\n")
    yield "a driver of one library", stub
    for name, variable in ("PoCL", "OCLCACHE_TEST_POCL"), ("Intel CPU", "OCLCACHE_TEST_INTEL"):
        if os.environ.get(variable):
            yield name, pathlib.Path(os.environ[variable])


def main():
    has_sha = bool(re.search(r"^flags\s*:.*\bsha_ni\b", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    rows = []
    with tempfile.TemporaryDirectory(prefix="oclcache-") as name:
        folder = pathlib.Path(name)
        programs = {"64 KiB without headers": without_headers(folder), f"{HEADERS} headers of 8 KiB": with_headers(folder)}
        for driver, icd in drivers(folder):
            for what, arguments in programs.items():
                with measure.Bench(icd) as bench:
                    log = bench.folder / "log"
                    argv = [str(CLIENT), "keys", "--times", str(TIMES + 1), *arguments]
                    logged = {"OCLCACHE_LOG": "debug", "OCLCACHE_LOG_FILE": str(log)}
                    # From the second time on each build is to be a hit.
                    bench.run(argv, cached=True, OCLCACHE_RECORD="inline", OCLCACHE_AUTOBAKE="0", **logged)
                    stats, figures = bench.stats(), microseconds(log.read_text())
                if stats["hits"] != TIMES or len(figures) != TIMES:
                    measure.stop(f"{driver}, {what}: {stats['hits']} hits and {len(figures)} figures of {TIMES} builds: {stats}")
                rows.append([f"{what}, {driver}", spread(figures)])
    rows.append(["SHA-256 of 64 KiB, by itself", spread(sha_alone())])
    print(f"\nThe key of a build, median of {TIMES} (a tenth is below, a tenth above), SHA instructions: {'yes' if has_sha else 'no'}\n")
    measure.print_table(["", "time"], rows)


if __name__ == "__main__":
    main()
