"""Runs real programs with and without oclcache, each in fresh folders, and reads oclcache's own counters."""

import collections
import json
import math
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
RELEASE = TOP / "target" / "release"
COMMAND = RELEASE / "oclcache"
SPY = RELEASE / "examples" / "libspy.so"

# name: what people read; argv: the program; tolerance: by what part the numbers that it prints may differ between runs
Program = collections.namedtuple("Program", "name argv tolerance")
# built: how often the driver compiled or linked, by the spy; None without it. status: as the shell has it
Run = collections.namedtuple("Run", "seconds output built status", defaults=[None, 0])

COUNTERS = ("hits", "misses", "bypassed", "failed")
# What the spy writes for a call that makes the driver compile or link: all but builds of programs from a binary.
COMPILED = ("source-build", "il-build", "other-build", "compile", "link")


def water_box():
    return Program("OpenMM, water box with PME", [str(TOP / "target" / "programs" / "water_box")], 1e-4)


def tapi():
    return Program("OpenCV T-API, 73 operations", [os.environ["OCLCACHE_TEST_PYTHON"], str(TOP / "tests" / "programs" / "tapi.py")], 0)


def memory():
    """A folder in memory, if there is one: PoCL waits for the disk after each file that it writes into its cache, bare and
    through oclcache alike, and how long a disk takes is not what is measured."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Bench:
    """One driver and one cache of oclcache, in a temporary folder that is removed at the end.

    With `spied`, a library stands before the driver that counts what is built there from source, whatever oclcache says.
    """

    def __init__(self, icd, spied=False):
        self.icd = pathlib.Path(icd)
        self.spied = spied

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="oclcache-"))
        vendors = self.folder / "vendors"
        vendors.mkdir()
        if self.spied:
            (vendors / "spy.icd").write_text(f"{SPY}\n")
        else:
            shutil.copy(self.icd, vendors)
        drop = ("OCLCACHE_", "OCL_ICD_", "OPENCL_", "POCL_")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
        self.environment.update(
            OCL_ICD_VENDORS=str(vendors),
            OCLCACHE_DIR=str(self.folder / "cache"),
            XDG_CONFIG_HOME=str(self.folder / "config"),
            OPENCV_OPENCL_DEVICE=":CPU:0",
            OPENCV_OPENCL_CACHE_ENABLE="0",
            PYOPENCL_NO_CACHE="1",
            SPY_DRIVER=self.icd.read_text().splitlines()[0],
            SPY_LOG=str(self.folder / "spy.log"),
        )
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, argv, cached, may_fail=False, **more):
        """Runs a program with a fresh PoCL cache, home and working directory; cached: through oclcache. `more` goes into its
        environment."""
        fresh = pathlib.Path(tempfile.mkdtemp(prefix="oclcache-run-", dir=memory()))
        home = fresh / "home"
        home.mkdir()
        environment = {**self.environment, "POCL_CACHE_DIR": str(fresh / "pocl"), "HOME": str(home)}
        environment.update({f"XDG_{kind}_HOME": str(fresh / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA", "STATE")}, **more)
        if cached:
            argv = [str(COMMAND), "run", "-q", "--", *argv]
        (self.folder / "spy.log").write_text("")
        start = time.monotonic()
        done = subprocess.run(argv, env=environment, cwd=home, capture_output=True, text=True, errors="replace")
        seconds = time.monotonic() - start
        shutil.rmtree(fresh, ignore_errors=True)
        if done.returncode != 0 and not may_fail:
            sys.stderr.write(done.stdout + done.stderr)
            stop(f"{' '.join(argv)} ended with status {done.returncode}")
        built = self.compiled() if self.spied else None
        return Run(seconds, done.stdout, built, done.returncode)

    def compiled(self):
        lines = (self.folder / "spy.log").read_text().splitlines()
        return sum(line.split()[0] in COMPILED for line in lines)

    def stats(self):
        argv = [str(COMMAND), "stats", "--json"]
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True)
        if done.returncode != 0:
            stop(f"{' '.join(argv)} ended with status {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def counted_run(self, argv, **more):
        """A run through oclcache, and what it added to the counters."""
        before = self.stats()
        run = self.run(argv, cached=True, **more)
        after = self.stats()
        added = {name: after[name] - before[name] for name in COUNTERS}
        added["build calls"] = sum(added.values())
        added["materialised"] = after["materialised"] - before["materialised"]
        reasons = after.get("bypass_reasons", {})
        added["bypass_reasons"] = {
            reason: count - before.get("bypass_reasons", {}).get(reason, 0)
            for reason, count in reasons.items()
            if count != before.get("bypass_reasons", {}).get(reason, 0)
        }
        return run, added


def machine():
    model = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
        "load_before": os.getloadavg()[0],
    }


def stop(message):
    sys.exit(f"error: {message}")


def same_results(one, other, tolerance):
    """Whether two outputs say the same: equal texts, and numbers that differ by no more than this part of themselves.

    >>> same_results("energy -100.00 kJ", "energy -100.001 kJ", 1e-4)
    True
    >>> same_results("energy -100.00 kJ", "energy -101.00 kJ", 1e-4), same_results("a 1", "b 1", 1), same_results("1", "1 2", 1)
    (False, False, False)
    """
    number = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")
    if number.sub("#", one) != number.sub("#", other):
        return False
    pairs = zip(number.findall(one), number.findall(other))
    return all(math.isclose(float(a), float(b), rel_tol=tolerance, abs_tol=0) for a, b in pairs)


def print_table(head, rows):
    """Prints rows of texts, the first column to the left and the others to the right."""
    rows = [head, *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        print("  ".join(cells).rstrip())
