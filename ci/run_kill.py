"""ci/store kill: processes that store, hit and evict are killed at random moments; what they leave must be good."""

import os
import random
import signal
import time

import stores

WRITERS = 6
LIMIT = 2_000_000
KEYS = 400
# The total and its lock, and those of the last who looked.
MOST_STATS = 4


def kill(folder, times, cache=None, folds=True):
    """Kills so many processes. Returns what was done and what was found. `folds`: counters of dead processes become one file, for
    which the file system must have locks."""
    place = stores.Place(folder, KEYS, cache=cache, OCLCACHE_MAX_SIZE=f"{LIMIT}B", STUB_BINARY_BYTES="12000")
    chance = random.Random()
    pool = {}

    def start():
        # Every other build is one of a few, so that there are hits as well.
        process = place.build("--hot", 20, "--seed", chance.randrange(1, 1 << 20), "--seconds", 3600)
        pool[process] = time.monotonic()

    for _ in range(WRITERS):
        start()
    most = 0
    for number in range(times):
        # Half of them early: while they open the cache and find their driver.
        time.sleep(chance.choice([chance.uniform(0, 0.02), chance.uniform(0, 0.15)]))
        victim = chance.choice(list(pool))
        for process in pool:
            if process.poll() is not None:
                raise stores.Failed(f"a program that nobody killed: {stores.ending(process.returncode)}: {process.stderr.read().strip()}")
        end(victim)
        del pool[victim]
        start()
        most = max(most, place.allocated_at_once(pool))
        if number % 100 == 99:
            stores.note(f"killed {number + 1}")
    for process in pool:
        end(process)
    entry = max(place.entry_files().values(), default=0)
    if most > LIMIT + WRITERS * entry:
        raise stores.Failed(f"{most} bytes were allocated; {LIMIT} and {WRITERS} entries of {entry} are allowed")
    count = place.check_entries()
    place.heal(all_stored=False)
    before, after = leftovers(place, folds)
    place.check_entries()
    return {"killed": times, "compilations": place.compilations(), "entries left": count, "most bytes": most, "files besides, before a sweep": before, "after it": after}


def end(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()


def leftovers(place, folds):
    """What stands in the store besides entries, by directory; a sweep removes it when it has become old."""
    root, before = place.cache / place.version, count_by_directory(place)
    for path in [*(root / "tmp").glob("*"), *(root / "loading").glob("*")]:
        old = time.time() - 30 * 86400
        os.utime(path, (old, old))
    place.oclcache("gc")
    place.oclcache("stats")
    after = count_by_directory(place)
    if after.get("tmp") or after.get("loading"):
        raise stores.Failed(f"a sweep has left {after} of {before}")
    if folds and after.get("stats", 0) > MOST_STATS:
        raise stores.Failed(f"{after['stats']} files of counters are left of {before['stats']}, though all processes are dead")
    return before, after


def count_by_directory(place):
    """How many files there are below the directory of the version, by its directories."""
    counts, root = {}, place.cache / place.version
    for path in root.rglob("*"):
        part = path.relative_to(root).parts
        if path.is_file() and part[0] != "entries":
            counts[part[0]] = counts.get(part[0], 0) + 1
    return counts
