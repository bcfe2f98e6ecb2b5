"""What ci/differ does: random programs on the bare driver and behind a cache that earlier ones filled; whatever differs is a defect.

The first way is by chance: a new program, twice bare and twice behind the cache. What finds wrong hits is the second one: an earlier
case with one thing changed around it. The bare driver tells what is worth changing: of thousands of names in its libraries that could
be variables, many are set at once, and only where that changes anything are they looked at one by one.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time

import differ_cases
import differ_shrink
import differ_sides
import differ_surroundings
import measure

# So many names are set at once, at most.
GROUP = 1000
# A case that has failed in one way is minimized and kept so often; later ones are counted only.
KEPT = 1
# Earlier cases that are searched for the one whose entry was served.
SEARCHED = 150
WAYS = {"new": 4, "probe": 1, "sequence": 4, "composed": 3, "changed": 16, "variants": 8, "group": 6, "default": 3, "baked": 1}
# Where recording waits for the third run, that is more of what can go wrong.
WAYS_OF_COSTLY = {**WAYS, "default": 10}

# A case that ran: its document, and what it printed bare.
Base = collections.namedtuple("Base", "case bare")


class Pool:
    """What is known of one driver, by all workers."""

    def __init__(self, names, asked, deadline):
        self.names, self.asked, self.deadline = names, asked, deadline
        self.effective, self.tried = set(), set()
        self.counts, self.lock = collections.Counter(), threading.Lock()
        self.failures, self.kept = collections.Counter(), []
        self.start = time.monotonic()

    def count(self, **more):
        with self.lock:
            self.counts.update(more)

    def elapsed(self):
        return time.monotonic() - self.start

    def is_over(self):
        return time.monotonic() > self.deadline

    def is_new(self, sign):
        """Whether a failure is one that was not seen often yet."""
        with self.lock:
            self.failures[sign] += 1
            return self.failures[sign] <= KEPT


class Worker:
    """One process at a time, and a store of its own that its cases fill."""

    def __init__(self, index, sides, scratch, pool, arguments):
        self.index, self.sides, self.scratch, self.pool, self.arguments = index, sides, scratch, pool, arguments
        self.bases, self.probes, self.history = [], [], {mode: [] for mode in differ_sides.MODES}
        self.number, self.seed = 0, ""

    def work(self):
        while not self.pool.is_over():
            self.number += 1
            self.seed = f"{self.arguments.seed}-{self.index}-{self.number}"
            chance = random.Random(self.seed)
            ways = WAYS_OF_COSTLY if self.sides.driver in differ_sides.COSTLY else WAYS
            way = chance.choices(list(ways), weights=ways.values())[0] if self.probes else "probe"
            getattr(self, way)(chance)

    def new(self, chance):
        case, _ = differ_cases.built(chance)
        self.first(case, "new")

    def probe(self, chance):
        self.first(differ_cases.probe(chance), "new")
        self.probes = self.bases[-1:] + self.probes[:4]

    def sequence(self, chance):
        case, _ = differ_cases.sequence(chance)
        self.first(case, "sequence")

    def composed(self, chance):
        case, _ = differ_cases.composed(chance)
        self.first(case, "composed")

    def default(self, chance):
        """As it is without settings, and with the third run that the first ones lead to."""
        make = chance.choice([differ_cases.sequence, differ_cases.sequence, differ_cases.composed, lambda chance: differ_cases.built(chance, 1)])
        case, _ = make(chance)
        self.compare(case, "default", "default")

    def baked(self, chance):
        case, _ = chance.choice([differ_cases.built, differ_cases.composed, differ_cases.sequence])(chance)
        self.compare(case, "baked", "baked")

    def first(self, case, kind):
        bare = self.compare(case, "inline", kind)
        if bare and bare.ending == "ended with status 0":
            self.bases.append(Base(case, bare))

    def base(self, chance):
        """Earlier ones, those of late more often."""
        return self.bases[-min(len(self.bases), differ_cases.heavy(chance, 1, 1000))]

    def changed(self, chance):
        base = self.base(chance)
        case, kind = differ_surroundings.change(chance, base.case, self.pool)
        self.against(base, case, kind, chance.choice([1, 1, 2]))

    def variants(self, chance):
        base = self.base(chance)
        if base.case["calls"][0]["call"] == "context":
            self.compare(differ_surroundings.variants(chance, base.case, self.pool), "inline", "variants", times=1)

    def against(self, base, case, kind, times=1):
        bare = self.compare(case, "inline", kind, base, times)
        is_plain = case["calls"][0]["call"] != "thread"
        if bare and is_plain and bare.output != base.bare.output and bare.ending == base.bare.ending and self.number % 4 == 0:
            self.bases.append(Base(case, bare))

    def group(self, chance):
        """Many variables at once, bare, until each that changes anything is found."""
        base = chance.choice(self.probes or self.bases)
        family = chance.choice(differ_surroundings.FAMILIES)
        with self.pool.lock:
            names = [name for name in self.pool.names if name not in self.pool.effective and (name, family) not in self.pool.tried]
        # What the driver asks for is more likely to change something than what only looks like a name: it is tried again and again.
        if chance.random() < 0.6:
            names = sorted(self.pool.asked - self.pool.effective)
        else:
            names = chance.sample(names, k=min(GROUP, len(names)))
        values = {name: differ_surroundings.value(chance, family, base.case) for name in names}

        def changes(some):
            case = differ_surroundings.with_variables(base.case, {name: values[name] for name in some})
            self.pool.count(groups=1)
            return differ_sides.difference(base.bare, self.sides.run(case)) is not None

        while names and not self.pool.is_over() and changes(names):
            found = names
            while len(found) > 1:
                half = found[: len(found) // 2]
                found = half if changes(half) else found[len(found) // 2 :]
            names = [name for name in names if name not in found]
            # Where several act together none does alone.
            if changes(found):
                with self.pool.lock:
                    self.pool.effective.update(found)
                self.against(base, differ_surroundings.with_variables(base.case, {name: values[name] for name in found}), "variable")
        with self.pool.lock:
            self.pool.tried.update((name, family) for name in names)

    def compare(self, case, mode, kind, base=None, times=None):
        """Runs a case on both sides; what it printed bare if that is stable and nothing differs."""
        bare = self.sides.run(case)
        # A hit compiles nothing, so it may live where the driver's compiler ends the process, as on a stack that is too small for it.
        if bare.ending == differ_sides.ending(-1):
            self.pool.count(dead=1)
            return None
        # What a base printed, twice, is not asked for again.
        if not (base and not differ_sides.difference(base.bare, bare)) and differ_sides.difference(bare, self.sides.run(case)):
            self.pool.count(unstable=1)
            return None
        self.pool.count(cases=1, changing=int(bool(base) and bare.output != base.bare.output), **{f"kind {kind}": 1})
        for cached, found in self.sides.differences(case, mode, bare, times):
            self.pool.count(hits=cached.hits, builds=cached.builds)
            if found:
                self.failed(case, mode, kind, base, found)
                return None
        self.history[mode].append(case)
        return bare

    def failed(self, case, mode, kind, base, found):
        """One that differs: made small and kept, unless one like it is."""
        sign = (kind, mode, *differ_sides.shape(found))
        seconds = self.pool.elapsed()
        self.pool.count(failing=1)
        if not self.pool.is_new(sign):
            return
        say(f"{seconds:5.0f} s  seed {self.seed}, {kind}, {mode}, run {found.run}: bare {shorten(found.bare)}, cached {shorten(found.cached)}")
        if self.scratch.reads_its_stack(case):
            self.pool.count(unstable=1, failing=-1)
            say("         what the driver finds on its stack: no difference")
            return
        kept = {"driver": self.arguments.driver, "mode": mode, "before": [base.case] if base else [], "case": case}
        if not self.fails(kept):
            kept["before"] = self.history[mode][-SEARCHED:]
            if not self.fails(kept):
                # Bare once more: what it does now and then is no defect of ours.
                if any(differ_sides.difference(self.sides.run(case), self.sides.run(case)) for _ in range(3)):
                    self.pool.count(unstable=1, failing=-1)
                    return
                say("         not again on an empty cache: kept as it is, after all cases before it")
        kept = differ_shrink.shrunk(self.scratch, kept, differ_sides.shape(found))
        kept["found"] = {"seed": self.seed, "kind": kind, "seconds": round(seconds), "bare": shorten(found.bare), "cached": shorten(found.cached)}
        self.keep(kept)

    def fails(self, kept):
        return differ_shrink.difference(self.scratch, kept) is not None

    def keep(self, kept):
        text = json.dumps(kept, indent=1) + "\n"
        name = f"{self.arguments.driver}-{kept['found']['kind']}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
        folder = pathlib.Path(self.arguments.keep)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        with self.pool.lock:
            self.pool.kept.append((kept["found"], folder / name, summary(kept)))
        say(f"         kept as {folder / name}: {summary(kept)}")


def say(text):
    print(text, file=sys.stderr, flush=True)


def shorten(line, most=160):
    return line if len(line) <= most else line[: most // 2] + " ... " + line[-most // 2 :]


def summary(kept):
    """What is left of a case, in one line."""
    process = kept["case"].get("process", {})
    parts = [f"{len(kept['before'])} before"]
    if process.get("variables"):
        parts.append(" ".join(f"{name}={shorten(value, 40)}" for name, value in list(process["variables"].items())[:3]))
    parts += [name for name in process if name != "variables"] + ["state"] * ("state" in kept["case"])
    return ", ".join(parts + [" ".join(call["call"] for call in differ_shrink.walk(kept["case"]["calls"]))])


def replay(paths, arguments, folder):
    """Whether all of these kept cases run alike on both sides."""
    wrong = 0
    for path in paths:
        kept = json.loads(pathlib.Path(path).read_text())
        if arguments.driver and kept["driver"] != arguments.driver:
            continue
        if not differ_sides.icd_of(kept["driver"]):
            say(f"skipped: {path} ({kept['driver']} is not there)")
            continue
        sides = differ_sides.Sides(folder / "replay", kept["driver"], differ_sides.Built(arguments.built))
        found = differ_shrink.difference(sides, kept)
        say(f"{path}: {f'run {found.run}: bare {shorten(found.bare)}, cached {shorten(found.cached)}' if found else 'equal'}")
        wrong += found is not None
    return wrong


def search(arguments, folder):
    """Runs until the time is over; how many failing cases there are."""
    built = differ_sides.Built(arguments.built)

    def several(letter):
        return [differ_sides.Sides(folder / f"{letter}{index}", arguments.driver, built, folder / "preloads") for index in range(arguments.workers)]

    sides, scratch = several("w"), several("s")
    case, _ = differ_cases.built(random.Random(arguments.seed))
    bare = sides[0].run(case)
    if not bare.output:
        measure.stop(f"{arguments.driver} does not run: {bare.ending}")
    libraries = differ_surroundings.libraries(sides[0], case)
    names = differ_surroundings.names(libraries)
    asked = differ_surroundings.asked(sides[0], case)
    say(
        f"{arguments.driver}: {len(names)} names in {len(libraries)} libraries that could be variables, {len(asked.intersection(names))} of them asked for "
        f"as usual, and {len(asked.difference(names))} names more; seed {arguments.seed}, {arguments.seconds} s"
    )
    names = sorted(asked.union(names))
    pool = Pool(names, asked, time.monotonic() + arguments.seconds)
    workers = [Worker(index, sides[index], scratch[index], pool, arguments) for index in range(arguments.workers)]
    with concurrent.futures.ThreadPoolExecutor(arguments.workers) as executor:
        for done in [executor.submit(worker.work) for worker in workers]:
            done.result()
    report(pool)
    return pool.counts["failing"]


def report(pool):
    counts, seconds = pool.counts, pool.elapsed()
    kinds = ", ".join(f"{name.removeprefix('kind ')} {count}" for name, count in sorted(counts.items()) if name.startswith("kind "))
    say(
        f"{counts['cases']} cases in {seconds:.0f} s ({counts['cases'] / seconds:.1f} a second; {kinds}), {counts['unstable']} unstable ones discarded, and {counts['dead']} in which the bare driver ends the process; "
        f"{counts['changing']} changes changed what is seen bare; {counts['hits']} of {counts['builds']} builds were hits; "
        f"{len(pool.tried)} names and values of {len(pool.names)} names tried in {counts['groups']} groups, {len(pool.effective)} of them change something; "
        f"{counts['failing']} cases differ"
    )
    for found, path, text in sorted(pool.kept, key=lambda kept: kept[0]["seconds"]):
        say(f"differs: {path} (after {found['seconds']} s, seed {found['seed']}): {text}")


def main():
    parser = argparse.ArgumentParser(description="Builds on the bare driver and behind the cache, and whether they differ.")
    parser.add_argument("seconds", nargs="?", type=int, default=600)
    parser.add_argument("--seed", default=None)
    parser.add_argument("--driver")
    parser.add_argument("--replay", nargs="+", metavar="FILE", default=[])
    parser.add_argument("--built", default=str(measure.RELEASE), help="where cargo has built")
    parser.add_argument("--keep", default=str(measure.TOP / "tests" / "differ"), help="where failing cases go")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    arguments.seed = arguments.seed or str(random.SystemRandom().randrange(1 << 32))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="oclcache-differ-", dir=measure.memory()))
    # Directories of the cache must not be writable for others, whatever the caller's umask is.
    os.umask(0o022)
    try:
        if arguments.replay:
            failures = replay(arguments.replay, arguments, folder)
        else:
            failures = search(arguments, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        measure.forget_memory()
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
