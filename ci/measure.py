"""Runs real programs with and without oclcache, each in fresh folders, and reads oclcache's own counters."""

import collections
import contextlib
import ctypes
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
LIBRARY = RELEASE / "liboclcache.so"
# ci/test gives the one that the tests have used.
SPY = TOP / os.environ.get("OCLCACHE_TEST_SPY", "target/release/examples/libspy.so")

# name: what people read; argv: the program; tolerance: by what part the numbers that it prints may differ between runs
Program = collections.namedtuple("Program", "name argv tolerance")
# seconds: from its start to its end. start: when that was, by CLOCK_MONOTONIC. cpu: seconds of it and of those that it waited for.
# built: how often the driver compiled or linked, by the spy; None without it. status: as the shell has it.
# baking: the run of `oclcache bake` after it, if any. left: processor seconds of what it left running, such as a detached baker.
Run = collections.namedtuple("Run", "seconds output built status start cpu baking left", defaults=[None, 0, 0.0, 0.0, None, 0.0])
# A program that runs: its process, when it was started, and where its output goes.
Started = collections.namedtuple("Started", "process start output errors")

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


def forget_memory():
    """Removes what caches have in memory that are gone themselves: the cache would do so after a day."""
    for live in pathlib.Path("/dev/shm").glob("oclcache-[0-9]*-*/cache"):
        try:
            cache = live.read_bytes().removeprefix(b"oclclive")
        except OSError:
            continue
        if cache and not os.path.exists(cache):
            shutil.rmtree(live.parent, ignore_errors=True)


@contextlib.contextmanager
def fresh_home():
    """A home that is new and empty, with the caches in it, and removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="oclcache-run-", dir=memory(), ignore_cleanup_errors=True) as folder:
        yield pathlib.Path(folder)
    forget_memory()


def needed(icd):
    """The variables without which a driver finds no library of its own, or no device; a file beside its .icd file has them.

    >>> needed(pathlib.Path("/nowhere/driver.icd"))
    {}
    """
    file = pathlib.Path(icd).with_suffix(".env")
    return dict(line.split("=", 1) for line in file.read_text().splitlines()) if file.exists() else {}


def adopt_orphans():
    """What programs leave running becomes a child of this process, which can wait for it and knows what it took."""
    set_child_subreaper = 36
    if ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0) != 0:
        stop("this system has no subreapers")


# Processes that run beside what is measured.
beside = set()


def children():
    tasks = pathlib.Path("/proc/self/task").glob("*/children")
    return {int(number) for task in tasks for number in task.read_text().split()}


def wait_for_orphans():
    """Waits until nothing runs any more below this process, except `beside`; the processor seconds of what was left. A program that was
    started and not waited for counts as left."""
    seconds = 0.0
    while left := children() - beside:
        _, _, usage = os.wait4(left.pop(), 0)
        seconds += usage.ru_utime + usage.ru_stime
    return seconds


class Bench:
    """One driver and one cache of oclcache, in a temporary folder that is removed at the end.

    With `spied`, a library stands before the driver that counts what is built there from source, whatever oclcache says.
    """

    def __init__(self, icd, spied=False):
        self.icd = pathlib.Path(icd)
        self.spied = spied

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="oclcache-"))
        vendors, self.ours = self.folder / "vendors", self.folder / "ours"
        for folder in vendors, self.ours:
            folder.mkdir()
        if self.spied:
            (vendors / "spy.icd").write_text(f"{SPY}\n")
        else:
            shutil.copy(self.icd, vendors)
        (self.ours / "oclcache.icd").write_text(f"{LIBRARY}\n")
        drop = ("OCLCACHE_", "OCL_ICD_", "OPENCL_", "POCL_", "PYOPENCL_")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
        self.environment.update(
            OCL_ICD_VENDORS=str(vendors),
            OCLCACHE_DIR=str(self.folder / "cache"),
            # Nothing is baked unless a run says so: a baker that goes on disturbs the next one.
            OCLCACHE_AUTOBAKE="0",
            XDG_CONFIG_HOME=str(self.folder / "config"),
            OPENCV_OPENCL_DEVICE=":CPU:0",
            OPENCV_OPENCL_CACHE_ENABLE="0",
            PYOPENCL_NO_CACHE="1",
            RUSTICL_ENABLE="llvmpipe",
            SPY_DRIVER=self.icd.read_text().splitlines()[0],
            SPY_LOG=str(self.folder / "spy.log"),
            **needed(self.icd),
        )
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)
        forget_memory()

    def variables(self, home, cached=False, **more):
        """The environment of a program whose home and caches but ours stand in this folder; cached: registered in its vendors
        directory oclcache stands in place of the driver."""
        (home / "home").mkdir(parents=True, exist_ok=True)
        variables = {**self.environment, "POCL_CACHE_DIR": str(home / "pocl"), "HOME": str(home / "home")}
        variables.update({f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA", "STATE")})
        if cached:
            variables.update(OCLCACHE_VENDORS=variables["OCL_ICD_VENDORS"], OCL_ICD_VENDORS=str(self.ours))
        return {**variables, **more}

    def start(self, argv, variables, home):
        output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        start = time.monotonic()
        process = subprocess.Popen(
            argv, env=variables, cwd=home / "home", stdin=subprocess.DEVNULL, stdout=output, stderr=errors
        )
        return Started(process, start, output, errors)

    def wait(self, started, may_fail=False):
        process = started.process
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started.start
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in started.output, started.errors:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        if process.returncode != 0 and not may_fail:
            sys.stderr.write("".join(texts))
            stop(f"{' '.join(process.args)} ended with status {process.returncode}")
        cpu = usage.ru_utime + usage.ru_stime
        return Run(seconds, texts[0], status=process.returncode, start=started.start, cpu=cpu)

    def run(self, argv, cached, may_fail=False, bake=False, registered=False, home=None, **more):
        """Runs a program, through `oclcache run` if it is cached, or with oclcache registered in its vendors directory.

        bake: what it leaves to be baked is baked when it has ended. home: the folder with its home and all caches but ours,
        which stays; without it they are empty, and gone afterwards. `more` goes into its environment.
        """
        with contextlib.ExitStack() as stack:
            home = pathlib.Path(home or stack.enter_context(fresh_home()))
            variables = self.variables(home, cached and registered, **more)
            if cached and not registered:
                argv = [str(COMMAND), "run", "-q", "--", *argv]
            log = self.folder / "spy.log"
            log.write_text("")
            run = self.wait(self.start(argv, variables, home), may_fail)
            built = self.compiled() if self.spied else None
            left = wait_for_orphans()
            baking = self.bake(home, **more) if bake else None
        return run._replace(built=built, left=left, baking=baking)

    def bake(self, home, *options, **more):
        """Bakes what is pending, in the environment of the program that left it."""
        (self.folder / "spy.log").write_text("")
        run = self.wait(self.start([str(COMMAND), "bake", *options], self.variables(home, **more), home))
        return run._replace(built=self.compiled() if self.spied else None)

    def compiled(self):
        lines = (self.folder / "spy.log").read_text().splitlines()
        return sum(line.split()[0] in COMPILED for line in lines)

    def doctor(self):
        """Has `oclcache doctor` measure the driver's own cache. It may complain."""
        with fresh_home() as home:
            self.wait(self.start([str(COMMAND), "doctor"], self.variables(home), home), may_fail=True)

    def stats(self, **more):
        """All counters. `more` goes into the environment of the command."""
        argv = [str(COMMAND), "stats", "--json"]
        done = subprocess.run(argv, env={**self.environment, **more}, capture_output=True, text=True)
        if done.returncode != 0:
            stop(f"{' '.join(argv)} ended with status {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def reset(self):
        """Has all counters begin anew."""
        subprocess.run([str(COMMAND), "stats", "--zero"], env=self.environment, capture_output=True, check=True)

    def counted_run(self, argv, bake=False, home=None, **more):
        """A run through oclcache, and what it counted; without the baking after it. The counters begin anew: what an earlier run cost
        is not set against what this one was served."""
        self.reset()
        with contextlib.ExitStack() as stack:
            home = pathlib.Path(home or stack.enter_context(fresh_home()))
            run = self.run(argv, cached=True, home=home, **more)
            counted = self.stats()
            if bake:
                run = run._replace(baking=self.bake(home, **more))
        found = {name: counted[name] for name in COUNTERS}
        found["build calls"] = sum(found.values())
        found["materialised"] = counted["materialised"]
        found["avoided"] = counted["saved_ns"] / 1e9
        former = counted.get("former_names", {})
        reasons = counted.get("bypass_reasons", {}).items()
        found["bypass_reasons"] = {reason: count for reason, count in reasons if count and reason not in former}
        return run, found


def machine():
    processor = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", processor, re.MULTILINE)
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "sha_instructions": bool(re.search(r"^flags\s*:.*\bsha_ni\b", processor, re.MULTILINE)),
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
