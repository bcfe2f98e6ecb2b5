"""The remote level: programs that another machine has built come from Redis through a proxy that delays each direction, in pairs
with local hits; misses with and without a remote store; stores that cannot be reached; and a cluster in network namespaces."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import bench_builds
import figures
import measure

HELPER = measure.RELEASE / "oclcache-remote"
MANIFEST = measure.TOP / "src" / "oclcache-remote" / "Cargo.toml"
STUB = measure.RELEASE / "examples" / "libstub_driver.so"
CLUSTER_TEST = "sixty_four_processes_on_eight_hosts_compile_each_program_once"
CLUSTER_LINE = re.compile(r"cluster: (\d+) compilations, ([\d.]+) s, alone ([\d.]+) s")
# Milliseconds.
ROUND_TRIPS = (1, 10)
# As many programs as OpenMM's water box has, which take as long on Intel's CPU runtime, and 100 KiB each.
PROGRAMS = 18
STUB_VARIABLES = {"STUB_BUILD_MS": "190", "STUB_BINARY_BYTES": "102400"}
ONE_BY_ONE, BUNDLE = "one by one", "with the bundle"
PATIENCE = 60
# In a cluster with more processes than processors a compilation must take long, so there are few runs.
CLUSTER_RUNS = 10
CLUSTER_PROGRAMS = 3
# What a remote hit may take above local hits, in seconds for all programs, by the round trip; with the bundle of their keys.
ABOVE_LOCAL = {1: (0.040, 0.015), 10: (0.220, 0.040)}
COLD = 0.020
UNREACHABLE = 1.01
MISS = 1.02
CLUSTER_TIMES, CLUSTER_PLUS = 1.15, 0.5


def wait_for(what, is_true):
    """The bound is far above what any machine needs."""
    until = time.monotonic() + PATIENCE
    while not is_true():
        if time.monotonic() > until:
            measure.stop(f"{what} takes more than {PATIENCE} s")
        time.sleep(0.02)


def end(process):
    process.kill()
    process.wait()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def redis():
    """A server that keeps nothing on disk; its port."""
    port = free_port()
    options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--maxmemory", "256mb"]
    with tempfile.TemporaryDirectory() as folder:
        argv = ["redis-server", *options, "--maxmemory-policy", "allkeys-lru", "--dir", folder]
        server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        try:
            wait_for("the start of Redis", lambda: ask(port, 0, "PING") == ["PONG"])
            yield port
        finally:
            end(server)


def ask(port, database, *words):
    """The lines of the answer of Redis."""
    argv = ["redis-cli", "-p", str(port), "-n", str(database), *words]
    return subprocess.run(argv, capture_output=True, text=True).stdout.split()


@contextlib.contextmanager
def proxy(port, milliseconds):
    argv = [sys.executable, "-B", str(pathlib.Path(__file__).with_name("latency_proxy.py")), str(port), str(milliseconds)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        yield int(process.stdout.readline())
    finally:
        end(process)
        process.stdout.close()


def round_trip(port):
    """What a command takes through a connection that is there, in seconds."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        taken = []
        for _ in range(11):
            start = time.monotonic()
            client.sendall(b"PING\r\n")
            client.recv(64)
            taken.append(time.monotonic() - start)
    return figures.median(taken)


class Machine:
    """A home with an empty cache that knows the driver, and a helper of its own."""

    def __init__(self, lab, folder, url, **more):
        self.lab, self.home = lab, pathlib.Path(folder)
        self.cache = shutil.copytree(lab.known, self.home / "cache-of-oclcache")
        (self.home / "run").mkdir()
        remote = {"OCLCACHE_REMOTE": url, **lab.identity} if url else {}
        self.more = {"OCLCACHE_DIR": str(self.cache), "XDG_RUNTIME_DIR": str(self.home / "run"), **lab.more, **remote, **more}
        self.started = []

    def variables(self):
        return self.lab.bench.variables(self.home, cached=True, **self.more)

    def command(self, program, *arguments):
        done = subprocess.run([str(program), *arguments], env=self.variables(), capture_output=True, text=True)
        if done.returncode != 0:
            measure.stop(f"{program} {' '.join(arguments)} ended with status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def serve(self):
        """Starts the helper, and waits until it has connected to the store, as HELLO has it do."""
        output = subprocess.DEVNULL
        helper = subprocess.Popen([str(HELPER), "serve"], env=self.variables(), stdin=output, stdout=output, stderr=output)
        self.started.append(helper)
        wait_for("the start of the helper", lambda: re.search(r"^helper +runs", self.command(HELPER, "status"), re.MULTILINE))
        # A process that loads the driver has the helper connect.
        self.run([bench_builds.CLIENT, "load"])
        wait_for("the connection of the helper", lambda: "round trip" in self.command(HELPER, "status"))

    def run(self, argv):
        return self.lab.bench.wait(self.lab.bench.start(argv, self.variables(), self.home))

    def counted(self):
        return json.loads(self.command(measure.COMMAND, "stats", "--json"))

    def close(self):
        """Ends its helpers, also those that programs have started."""
        home = f"HOME={self.home / 'home'}".encode()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_helper = os.readlink(process / "exe") == str(HELPER)
                if is_helper and home in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)
                    # `run_bench` adopts what others have started.
                    os.waitpid(int(process.name), 0)
        for helper in self.started:
            helper.wait()


class Lab:
    """One program on one driver, and a store that has what another machine built of it."""

    def __init__(self, bench, program):
        self.bench, self.argv, self.more, self.is_baked = bench, *program
        with bench_builds.cache_without_programs(bench) as known:
            self.known = pathlib.Path(shutil.copytree(known, bench.folder / "known-for-remote"))
        self.identity = {"OCLCACHE_REMOTE_KEY_FILE": str(bench.folder / "remote.key"), "OCLCACHE_REMOTE_CONTENT": "all"}

    @contextlib.contextmanager
    def machine(self, url, **more):
        with measure.fresh_home() as folder:
            machine = Machine(self, folder, url, **more)
            try:
                yield machine
            finally:
                machine.close()

    def fill(self, port):
        """Another machine builds, and sends entries and bundle."""
        self.port, url = port, f"redis://127.0.0.1:{port}"
        with self.machine(url) as builder:
            builder.command(HELPER, "set-up")
            builder.serve()
            builder.run(self.argv)
            if self.is_baked:
                builder.command(measure.COMMAND, "bake")
            count = lambda letter: len(ask(self.port, 0, "KEYS", f"*/{letter}/*"))
            wait_for("the bundle", lambda: count("b") > 0)
            builder.command(HELPER, "push")
            self.programs = count("e")

    @contextlib.contextmanager
    def without_bundles(self):
        names = ask(self.port, 0, "KEYS", "*/b/*")
        for name in names:
            ask(self.port, 0, "RENAME", name, f"hidden-{name}")
        try:
            yield
        finally:
            for name in names:
                ask(self.port, 0, "RENAME", f"hidden-{name}", name)

    def hits(self, url, is_warm):
        """A process that takes everything from the store, and one after it that takes everything from its own cache."""
        with self.machine(url, OCLCACHE_REMOTE_READONLY="1") as machine:
            if is_warm:
                machine.serve()
            before = machine.counted()
            remote = machine.run(self.argv).seconds
            between = machine.counted()
            local = machine.run(self.argv).seconds
            after = machine.counted()
        added = lambda one, other, name: other[name] - one[name]
        if added(between, after, "hits") < self.programs:
            measure.stop(f"{added(between, after, 'hits')} local hits in place of {self.programs}: {after}")
        return remote, local, added(before, between, "hits")

    def miss(self, url, is_warm=True):
        """A process that compiles everything."""
        with self.machine(url) as machine:
            if url and is_warm:
                machine.serve()
            return machine.run(self.argv).seconds


def hit_rows(lab, runs, name):
    for milliseconds in ROUND_TRIPS:
        with proxy(lab.port, milliseconds) as port:
            url, trip = f"redis://127.0.0.1:{port}", round_trip(port)
            ways = [(ONE_BY_ONE, True), (BUNDLE, True)]
            if milliseconds == ROUND_TRIPS[0]:
                ways.append((BUNDLE, False))
            seen = {way: {"remote": [], "local": [], "served": []} for way in ways}
            for _ in range(runs):
                for kind, is_warm in ways:
                    with contextlib.nullcontext() if kind == BUNDLE else lab.without_bundles():
                        for column, value in zip(seen[kind, is_warm], lab.hits(url, is_warm)):
                            seen[kind, is_warm][column].append(value)
            for (kind, is_warm), columns in seen.items():
                yield {
                    "part": "hits", "program": name, "programs": lab.programs, "trip": milliseconds, "measured trip": trip, "kind": kind,
                    "warm": is_warm, **columns,
                }
        figures.say(f"{name}, a round trip of {milliseconds} ms: {runs} pairs each")


def miss_rows(lab, runs, name):
    """In turn: no remote store, an empty one at each round trip, one that refuses connections, one that never answers."""
    with contextlib.ExitStack() as stack:
        proxies = {milliseconds: stack.enter_context(proxy(lab.port, milliseconds)) for milliseconds in ROUND_TRIPS}
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
        empty = lambda milliseconds: f"redis://127.0.0.1:{proxies[milliseconds]}/1"
        addresses = {
            "no remote store": (None, False),
            **{f"an empty store, {milliseconds} ms": (empty(milliseconds), True) for milliseconds in ROUND_TRIPS},
            "connection refused": (f"redis://127.0.0.1:{free_port()}", False),
            "no answer": (f"redis://127.0.0.1:{silent.getsockname()[1]}", False),
        }
        seen = {way: [] for way in addresses}
        for _ in range(runs):
            for way, (url, is_warm) in addresses.items():
                ask(lab.port, 1, "FLUSHDB")
                seen[way].append(lab.miss(url, is_warm))
    yield {"part": "misses", "program": name, "programs": lab.programs, "seconds": seen}
    figures.say(f"{name}: {runs} misses each way")


def unused_row(lab, runs, name):
    """Local hits with a remote store that is configured, and without."""
    seen = {"configured": [], "none": []}
    with lab.machine(f"redis://127.0.0.1:{lab.port}") as one, lab.machine(None) as other:
        for machine in one, other:
            machine.run(lab.argv)
            if lab.is_baked:
                machine.command(measure.COMMAND, "bake")
        for _ in range(3 * runs):
            for way, machine in ("configured", one), ("none", other):
                seen[way].append(machine.run(lab.argv).seconds)
    return {"part": "local", "program": name, "programs": lab.programs, **seen}


def cluster_row():
    if os.geteuid() != 0:
        figures.say("no cluster: network namespaces can be made by root only")
        return []
    more = {"OCLCACHE_TEST_BUILT": str(measure.RELEASE), "OCLCACHE_TEST_RUNS": str(CLUSTER_RUNS)}
    argv = ["cargo", "test", "--locked", "--quiet", "--manifest-path", str(MANIFEST), "--test", "all", "--"]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(measure.TOP / "target" / "remote"), **more}
    done = subprocess.run([*argv, "--ignored", "--nocapture", CLUSTER_TEST], env=environment, capture_output=True, text=True)
    found = CLUSTER_LINE.findall(done.stdout)
    if len(found) != CLUSTER_RUNS:
        measure.stop(f"the cluster failed: {done.stdout}{done.stderr}")
    columns = zip(*[(int(count), float(together), float(alone)) for count, together, alone in found])
    return [dict(zip(("part", "compilations", "together", "alone"), ("cluster", *map(list, columns))))]


def programs():
    """Name, the driver's file, and what a lab takes: the program, more variables, whether entries are baked."""
    stub = [bench_builds.CLIENT, "many", "--keys", str(PROGRAMS)]
    yield f"{PROGRAMS} programs of 100 KiB, the stub driver", None, (stub, STUB_VARIABLES, False)
    program = measure.water_box()
    for driver in bench_builds.drivers():
        if driver.name in ("PoCL", "Intel CPU") and os.path.exists(program.argv[0]):
            yield f"{program.name}, {driver.name}", driver.icd, (program.argv, {}, driver.name == "PoCL")


def rows(runs):
    found = []
    for name, icd, program in programs():
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            stub = pathlib.Path(folder) / "stub.icd"
            stub.write_text(f"{STUB}\n")
            bench = stack.enter_context(measure.Bench(icd or stub))
            # First, since it waits for all processes below this one.
            lab = Lab(bench, program)
            lab.fill(stack.enter_context(redis()))
            found += hit_rows(lab, runs, name)
            # Where entries are baked, a miss asks in the same way, and compiles for longer.
            if not lab.is_baked:
                found += miss_rows(lab, runs, name)
            found.append(unused_row(lab, runs, name))
    return found + cluster_row()


def parts_of(found, part):
    return [row for row in found if row["part"] == part]


def above(row):
    """By how much each run that the store served took longer than the local one after it.

    >>> above({"remote": [3.0, 2.0], "local": [1.0, 1.5]})
    [2.0, 0.5]
    """
    return [remote - local for remote, local in zip(row["remote"], row["local"])]


def kind_of(row):
    return f"{row['trip']} ms, {row['kind']}{'' if row['warm'] else ', helper cold'}"


def compiled(found, program):
    """What the program takes without a store, if that was measured."""
    return next((row["seconds"]["no remote store"] for row in parts_of(found, "misses") if row["program"] == program), [])


def hit_table(found):
    lines = []
    for row in parts_of(found, "hits"):
        bare = compiled(found, row["program"])
        served = f"{figures.median(row['served']):.0f} of {row['programs']}"
        times = [figures.seconds(values) for values in (row["remote"], row["local"], above(row))]
        lines.append([f"{row['program']}: {kind_of(row)}", *times, figures.against(row["remote"], bare), served])
    head = ["round trip, how", "from the store", "local hits", "difference", "from the store / compiled", "served"]
    return figures.markdown(head, lines)


def miss_table(found):
    lines = []
    for row in parts_of(found, "misses"):
        bare = row["seconds"]["no remote store"]
        for way, seconds in row["seconds"].items():
            ratio = "" if seconds is bare else figures.against(seconds, bare)
            lines.append([f"{row['program']}: {way}", figures.seconds(seconds), ratio])
    for row in parts_of(found, "local"):
        for way, words in ("none", "local hits, no remote store"), ("configured", "local hits, a remote store"):
            ratio = "" if way == "none" else figures.against(row[way], row["none"])
            lines.append([f"{row['program']}: {words}", figures.seconds(row[way]), ratio])
    return figures.markdown(["whole process", "time", "/ without a remote store"], lines)


def cluster_table(found):
    lines = []
    for row in parts_of(found, "cluster"):
        counts = sorted(set(row["compilations"]))
        lines.append([f"{CLUSTER_PROGRAMS} programs of 1.5 s", ", ".join(map(str, counts)), figures.seconds(row["together"]), figures.seconds(row["alone"])])
    return figures.markdown(["64 processes on 8 hosts", "compiled", "until all end", "one process without a remote store"], lines)


def table(found):
    return "\n\n".join(filter(None, (hit_table(found), miss_table(found), cluster_table(found))))
