"""Both sides of ci/differ: a case run on the bare driver, and behind the cache, in surroundings that are equal but for that."""

import collections
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess

import measure

# A process that takes so long hangs, in seconds.
PATIENCE = 90
# How a case comes to the cache. inline: recorded inside of the miss. default: as it is without settings, and run several times.
# baked: as it is without settings, and baked after the run.
MODES = ("inline", "default", "baked")
# How often a case runs behind the cache: what the third run of a process records the fourth one is served.
TIMES = {"inline": 2, "default": 4, "baked": 2}
# Drivers that compile when they are asked for a binary, which may end the process: recorded inline, as somebody has asked for, that
# happens once for a program. As it is without settings it never may.
COSTLY = ("pocl",)
# What a process printed and how it ended; hits: how many builds were served.
Ran = collections.namedtuple("Ran", "output ending hits builds")
# What differs: the run behind the cache, counted from 1, and the first line, bare and behind it.
Difference = collections.namedtuple("Difference", "run bare cached")


# What PoCL's logs of failing builds have of other programs before their last line: remarks of LLVM about what it has made machine
# code of or read meanwhile, in the one context of the process, which an inner program is as well.
REMARKS = re.compile(r"(?<=\\n)(?:<unknown>:0:0: |ignoring debug info)[^\\]*?(?=Device \w)")
# The number that Intel's CPU runtime gives to what it compiles, where a log names a place in the source.
COMPILED = re.compile(r"(?<![\d:])\d+(?=:\d+:\d+: )|(?<=In file included from )\d+(?=:\d+:)")

# What Intel's CPU runtime says of link options that it does not know is read from memory that it has freed: bare runs differ, too.
FREED = re.compile(r'(?<=Unrecognized link options: ).*(?=\\n\\x00"$)')


def normalized(text):
    """Without what a driver draws at random, such as PoCL's temporary files, which its logs name; and without what a hit may change
    by the page on limits: the number that Intel's CPU runtime gives to what it compiles, and remarks about other programs.

    >>> normalized("/tmp/p/tempfile_aB3xYz.cl:1:2: error, tempfile_results.csv")
    '/tmp/p/tempfile_*.cl:1:2: error, tempfile_results.csv'
    >>> normalized('4 d log: 70 bytes "12:326:19: error: x\\\\n<unknown>:0:0: 2 instructions in functionDevice y"')
    '4 d log: "*:326:19: error: x\\\\nDevice y"'
    >>> normalized('4 d log: 9 bytes "Unrecognized link options: \\\\xb0}\\\\n\\\\x00"'), normalized('4 d log: 4 bytes "Unrecognized link options: \\\\n\\\\x00"')
    ('4 d log: "Unrecognized link options: *\\\\n\\\\x00"', '4 d log: "Unrecognized link options: *\\\\n\\\\x00"')
    >>> normalized('4 d log: 30 bytes "In file included from 8:7:\\\\ni/h.h:1:2: error"')
    '4 d log: "In file included from *:7:\\\\ni/h.h:1:2: error"'
    >>> normalized('4 d log: 9 bytes "Device y failed to build the program\\\\n\\\\x00"')
    '4 d log: "Device y failed to build the program\\\\n\\\\x00"'
    """
    text = re.sub(r"tempfile_[A-Za-z0-9]{6}(?![A-Za-z0-9])", "tempfile_*", text)
    return "\n".join(map(normalized_log, text.split("\n")))


def normalized_log(line):
    if " log: " not in line:
        return line
    changed = REMARKS.sub("", COMPILED.sub("*", FREED.sub("*", line)))
    # Its size, too, where there is any of these, or where the other side may have some.
    may_have_remarks = line.rstrip('"').endswith("failed to build the program\\n\\x00")
    return line if changed == line and not may_have_remarks else re.sub(r" log: \d+ bytes", " log:", changed)


def difference(bare, cached, run=1):
    """Where two runs differ, if they do. Which signal ends a process is chance, where memory is read that is not the driver's."""
    if bare.output == cached.output and bare.ending == cached.ending:
        return None
    lines, others = bare.output.splitlines() + [bare.ending], cached.output.splitlines() + [cached.ending]
    for line, other in zip(lines, others):
        if line != other:
            return Difference(run, line, other)
    return Difference(run, bare.ending, cached.ending)


def builds_a_source_again(case):
    """Whether a process builds or compiles equal texts more than once.

    >>> source = {"call": "source", "strings": ["a", "b"]}
    >>> builds_a_source_again({"calls": [source]}), builds_a_source_again({"calls": [source, {**source, "strings": ["ab"]}]})
    (False, True)
    """
    texts = ["".join(call["strings"]) for call in case["calls"] if call["call"] == "source"]
    return len(texts) > len(set(texts))


def with_lost_logs(bare, cached):
    """What a process printed behind the cache, with the bare log wherever its own is empty; see the page on limits: PoCL keeps a log in
    its own cache only where it compiled, not where a hit put the program.

    >>> with_lost_logs('1 p log: 2 bytes "w\\\\x00"\\n2 p code 0', '1 p log: 1 bytes "\\\\x00"\\n2 p code 1')
    '1 p log: 2 bytes "w\\\\x00"\\n2 p code 1'
    """
    lines, others = bare.split("\n"), cached.split("\n")
    if len(lines) != len(others):
        return cached
    return "\n".join(line if is_empty_log(other) and same_object(line, other) else other for line, other in zip(lines, others))


def is_empty_log(line):
    return re.search(r' log:( \d bytes)? "(\\x00)?"$', line) is not None


def same_object(line, other):
    return line.partition(" log:")[0] == other.partition(" log:")[0]


class Watch:
    """Compares the runs of one case behind the cache with a bare one, in order."""

    def __init__(self, driver, mode, bare, case):
        self.bare, self.may_die, self.runs, self.deaths = bare, mode == "inline" and driver in COSTLY, 0, []
        self.may_lose_logs = driver == "pocl" and builds_a_source_again(case)

    def difference(self, cached):
        self.runs += 1
        # Only where one build was served and another one was not.
        if self.may_lose_logs and 0 < cached.hits < cached.builds:
            cached = cached._replace(output=with_lost_logs(self.bare.output, cached.output))
        if self.is_death_of_recording(cached):
            self.deaths.append(cached.output)
            return None
        return difference(self.bare, cached, self.runs)

    def is_death_of_recording(self, cached):
        """Each time further on than the time before."""
        if not self.may_die or cached.ending != "ended by a signal" or self.bare.ending == cached.ending:
            return False
        further = not self.deaths or len(cached.output) > len(self.deaths[-1])
        return further and self.bare.output.startswith(cached.output)

    def wants_more(self):
        """Whether the last run has told nothing yet."""
        return self.runs == len(self.deaths)


# Overwrites the stack below the driver's code, whenever that asks for a variable. Intel's CPU runtime takes what is on its stack for the
# value of CL_CONFIG_CPU_FORCE_MAX_WORK_GROUP_SIZE where that is empty: a kernel's work-groups have 67108864 items at most, or 8192
# where zeros were there (measured).
FILLER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
static void __attribute__((noinline)) fill(void)
{
    char below[16384];
    memset(below, FILL, sizeof below);
    __asm__ volatile("" : : "r"(below) : "memory");
}
#define FILLED(function) \\
    char *function(const char *name) \\
    { \\
        static char *(*next)(const char *); \\
        if (!next) \\
            next = (char *(*)(const char *))dlsym(RTLD_NEXT, #function); \\
        char *value = next(name); \\
        fill(); \\
        return value; \\
    }
FILLED(getenv)
FILLED(secure_getenv)
"""


class Built:
    """What cargo has built: the library, the command and the program that carries out cases."""

    def __init__(self, folder):
        folder = pathlib.Path(folder).resolve()
        self.command, self.client = folder / "oclcache", folder / "examples" / "differ"
        # Cargo leaves the library that belongs to a test run beside the test's own binary.
        library = folder / "deps" / "liboclcache.so"
        self.library = library if folder.name == "debug" and library.exists() else folder / "liboclcache.so"


class Sides:
    """One driver, and caches in a folder of its own."""

    def __init__(self, folder, driver, built, preloads=None):
        self.folder, self.driver, self.built = pathlib.Path(folder), driver, built
        # The same preloaded library has one path for all that share it.
        self.preloads = pathlib.Path(preloads or self.folder / "preloads")
        self.work, self.pocl = self.folder / "work", self.folder / "pocl"
        for path in (self.folder, self.preloads, self.folder / "driver", self.folder / "ours", self.folder / "home", self.folder / "tmp"):
            path.mkdir(parents=True, exist_ok=True)
        (self.folder / "driver" / "driver.icd").write_text(pathlib.Path(icd_of(driver)).read_text())
        (self.folder / "ours" / "ours.icd").write_text(f"{built.library}\n")

    def clear(self):
        """Empties the caches."""
        for mode in MODES:
            shutil.rmtree(self.folder / f"cache-{mode}", ignore_errors=True)
        measure.forget_memory()

    def environment(self, case, mode=None):
        """That of a case; `mode` is how it comes to the cache, None is bare."""
        environment = {
            "PATH": os.environ["PATH"],
            "LC_ALL": "C.UTF-8",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            "POCL_CACHE_DIR": str(self.pocl),
            "MESA_SHADER_CACHE_DIR": str(self.pocl),
            "RUSTICL_ENABLE": "llvmpipe",
            "OCL_ICD_VENDORS": str(self.folder / "driver"),
            **measure.needed(icd_of(self.driver)),
        }
        process = case.get("process", {})
        environment.update(process.get("variables", {}))
        if "preload" in process:
            preload = self.preload(process["preload"])
            # A driver may need directories of libraries, too.
            search = [variables["LD_LIBRARY_PATH"] for variables in (preload, environment) if "LD_LIBRARY_PATH" in variables]
            environment.update(preload, **({"LD_LIBRARY_PATH": ":".join(search)} if search else {}))
        if mode:
            environment.update(
                OCL_ICD_VENDORS=str(self.folder / "ours"),
                OCLCACHE_VENDORS=str(self.folder / "driver"),
                OCLCACHE_DIR=str(self.folder / f"cache-{mode}"),
                OCLCACHE_SYSTEM_DIRS="none",
                OCLCACHE_AUTOBAKE="0",
                OCLCACHE_LOG="info",
            )
            if mode == "inline":
                environment["OCLCACHE_RECORD"] = "inline"
        return environment

    def preload(self, preload):
        """The variables by which a library that is generated comes into a process."""
        source, how = preload["source"], preload["how"]
        digest = hashlib.sha256((source + how).encode()).hexdigest()[:16]
        # A name of its own, or a folder of its own, so that no two libraries take turns at one path.
        folder = self.preloads / digest
        plain = folder / "libpreloaded.so"
        if not plain.exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "preloaded.c").write_text(source)
            argv = ["gcc", "-shared", "-fPIC", "-O1", "-fno-builtin", "-o", str(plain), str(folder / "preloaded.c"), "-ldl"]
            if how == "soname":
                argv.insert(1, f"-Wl,-soname,libother-{digest}.so.1")
            subprocess.run(argv, check=True, stderr=subprocess.DEVNULL)
        if how == "token":
            # What $LIB stands for differs between distributions, hence a link for each.
            for name in ("lib", "lib64", f"lib/{os.uname().machine}-linux-gnu"):
                (folder / "t" / name).mkdir(parents=True, exist_ok=True)
                link = folder / "t" / name / plain.name
                if not link.exists():
                    link.symlink_to(plain)
            return {"LD_PRELOAD": f"{folder}/t/$LIB/{plain.name}"}
        if how == "soname":
            return {"LD_PRELOAD": plain.name, "LD_LIBRARY_PATH": str(folder)}
        return {"LD_PRELOAD": str(plain)}

    def run(self, case, mode=None):
        """One process."""
        for path in self.work, self.pocl, self.folder / "tmp":
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        document = self.folder / "case.json"
        document.write_text(json.dumps(case))
        process = case.get("process", {})
        argv = [str(self.built.client), str(document)]
        if "cpus" in process:
            argv = ["taskset", "-c", process["cpus"], *argv]
        limits = [f"--{name}={value}" for name, value in process.get("limits", {}).items()]
        if limits:
            argv = ["prlimit", *limits, *argv]
        try:
            done = subprocess.run(
                argv, env=self.environment(case, mode), cwd=self.work, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE
            )
            output, errors, code = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as hung:
            output, errors, code = hung.stdout or b"", hung.stderr or b"", None
        errors = errors.decode(errors="replace")
        return Ran(
            normalized(output.decode(errors="replace")),
            ending(code),
            errors.count('outcome="hit"') + errors.count("outcome=hit"),
            errors.count("outcome="),
        )

    def reads_its_stack(self, case):
        """Whether what a bare process prints depends on what was on its stack before: then the driver reads what it has not written."""
        if "preload" in case.get("process", {}):
            return False
        filled = []
        for fill in ("0", "0x55"):
            library = self.preload({"how": "path", "source": f"#define FILL {fill}\n{FILLER}"})
            process = case.get("process", {})
            variables = {**process.get("variables", {}), **library}
            filled.append(self.run({**case, "process": {**process, "variables": variables}}))
        return difference(*filled) is not None

    def bake(self):
        environment = self.environment({}, "baked")
        subprocess.run([str(self.built.command), "bake"], env=environment, capture_output=True, timeout=10 * PATIENCE)

    def differences(self, case, mode, bare, times=None):
        """Its runs behind the cache, one after the other, up to the first that differs: the run, and the difference."""
        watch = Watch(self.driver, mode, bare, case)
        while watch.runs < (times or TIMES[mode]) or watch.wants_more():
            cached = self.run(case, mode)
            found = watch.difference(cached)
            yield cached, found
            if found:
                return
            if mode == "baked" and watch.runs == 1:
                self.bake()


def icd_of(driver):
    """The file that names a driver's library, if that is there."""
    return os.environ.get(f"OCLCACHE_TEST_{driver.upper().replace('-', '_')}")


def ending(code):
    """
    >>> ending(0), ending(1), ending(-6), ending(None)
    ('ended with status 0', 'ended with status 1', 'ended by a signal', 'hangs')
    """
    if code is None:
        return "hangs"
    return "ended by a signal" if code < 0 else f"ended with status {code}"


def shape(found):
    """What kind of difference one is: of the same kind are those of one defect, mostly."""
    return shape_of(found.bare), shape_of(found.cached)


def shape_of(line):
    """A line without what changes from case to case.

    >>> shape_of("12 k0-1 log: 8 bytes \\"some text\\""), shape_of("7: run: [3ff0, 0]"), shape_of("4: build: code -59")
    ('log', 'run: []', 'build: code -59')
    """
    line = re.sub(r"^[\d.]+:? ?", "", line)
    if re.search(r"\bcode -?\d+", line):
        return re.sub(r"\b\w*-?\d+:|\bdevice-\d ", "", line)
    line = re.sub(r"\[.*\]", "[]", line)
    return re.sub(r"\b[a-z]+-?\d+(-\d+)? |: \d+ bytes.*|\bargument \d+", "", line)
