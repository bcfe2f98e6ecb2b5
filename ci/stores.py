"""A cache of the stub driver in a folder of its own, processes that use it at once, and what must be true of it afterwards."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import measure

CLIENT = measure.RELEASE / "examples" / "client"
STUB = measure.RELEASE / "examples" / "libstub_driver.so"
LIBRARY = measure.RELEASE / "liboclcache.so"
# A process that waits so long waits for ever, in seconds.
PATIENCE = 300


class Failed(Exception):
    """A promise that does not hold."""


class Place:
    """A cache, the stub driver below it, and what its programs compute by a bare run."""

    def __init__(self, folder, keys, library=LIBRARY, command=measure.COMMAND, cache=None, version="v1", **variables):
        self.folder, self.keys, self.version, self.library, self.executable = pathlib.Path(folder), keys, version, library, command
        self.cache = pathlib.Path(cache) if cache else self.folder / "cache"
        self.is_removed = False
        self.words, self.log = self.folder / "words", self.folder / "compiled.log"
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, registered in ("driver", STUB), ("oclcache", library), ("home", None):
            (self.folder / name).mkdir(exist_ok=True)
            if registered:
                (self.folder / name / f"{name}.icd").write_text(f"{registered}\n")
        drop = ("OCLCACHE_", "OCL_", "OPENCL_", "STUB_", "XDG_")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
        self.environment.update(
            HOME=str(self.folder / "home"),
            OCLCACHE_DIR=str(self.cache),
            OCLCACHE_VENDORS=str(self.folder / "driver"),
            OCLCACHE_SYSTEM_DIRS="",
            # What one process missed the next one finds, and nothing goes on behind these.
            OCLCACHE_RECORD="inline",
            OCLCACHE_AUTOBAKE="0",
            STUB_LOG=str(self.log),
            **variables,
        )
        if not self.words.exists():
            self.finish(self.start("--keys", keys, "--write", self.words, cached=False))

    def start(self, *arguments, cached=True, **more):
        """A client that builds programs, in a process of its own."""
        vendors = self.folder / ("oclcache" if cached else "driver")
        environment = {**self.environment, "OCL_ICD_VENDORS": str(vendors), **more}
        if not cached:
            del environment["STUB_LOG"]
        argv = [str(CLIENT), "many", *map(str, arguments)]
        return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def build(self, *arguments, **more):
        """A client that checks what it builds."""
        return self.start("--keys", self.keys, "--expect", self.words, *arguments, **more)

    def finish(self, process):
        """What a process printed; it must end well."""
        try:
            output, errors = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failed(f"{process.args} hangs") from None
        if process.returncode != 0:
            raise Failed(f"{' '.join(process.args)}: {ending(process.returncode)}: {errors.strip()}")
        return output

    def compiled(self, run):
        """How often the driver compiles while something runs."""
        before = self.compilations()
        run()
        return self.compilations() - before

    def compilations(self):
        return sum(line.startswith("compile ") for line in self.log.read_text().splitlines()) if self.log.exists() else 0

    def command(self, *arguments, **more):
        """The command on this cache, ready to run."""
        environment = {**self.environment, **more}
        return subprocess.Popen([str(self.executable), *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def oclcache(self, *arguments, **more):
        return self.finish(self.command(*arguments, **more))

    def entry_files(self):
        """Path and allocated bytes of each entry; what goes meanwhile is left out."""
        found = {}
        for shard in scan(self.cache / self.version / "entries"):
            for file in scan(shard.path):
                try:
                    found[pathlib.Path(file.path)] = file.stat(follow_symlinks=False).st_blocks * 512
                except FileNotFoundError:
                    pass
        return found

    def allocated(self):
        return sum(self.entry_files().values())

    def allocated_at_once(self, processes):
        """The same while these processes stand still: files that come while others go would both count."""
        running = [process for process in processes if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGSTOP)
        for process in running:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        try:
            return self.allocated()
        finally:
            for process in running:
                process.send_signal(signal.SIGCONT)

    def heal(self, all_stored=True):
        """A run on what others have left computes what it must, and so does the next, which compiles nothing."""
        self.finish(self.build())
        again = self.compiled(lambda: self.finish(self.build()))
        if all_stored and again:
            raise Failed(f"{again} programs of {self.keys} were compiled by a run after a whole one")

    def check_entries(self):
        """Each file below entries is one of ours, whole and under its own name."""
        listed = json.loads(self.oclcache("list", "--json"))
        damaged = [row["key"] for row in listed if row["damaged"]]
        if damaged:
            raise Failed(f"{len(damaged)} entries are damaged: {damaged[0]}")
        names = {file.name for file in self.entry_files()}
        if len(names) != len(listed):
            raise Failed(f"{len(names)} files, {len(listed)} entries: {sorted(names - {row['key'] + '.entry' for row in listed})[:3]}")
        return len(listed)


def scan(path):
    try:
        with os.scandir(path) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def ending(code):
    """
    >>> ending(-11), ending(1)
    ('ended by SIGSEGV', 'status 1')
    """
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"status {code}"


def wait_until(moment):
    time.sleep(max(0.0, moment - time.monotonic()))


def note(text):
    print(text, file=sys.stderr, flush=True)
