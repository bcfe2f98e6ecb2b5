"""ci/store kill: processes that store, hit and evict are killed at random moments; what they leave must be good."""

import random
import signal
import time

import stores

WRITERS = 6
LIMIT = 2_000_000
KEYS = 400


def kill(folder, times, cache=None, seed=None):
    """Kills so many processes. Returns a row: what was done and what was found."""
    place = stores.Place(folder, KEYS, cache=cache, OCLCACHE_MAX_SIZE=str(LIMIT), STUB_BINARY_BYTES="12000")
    chance = random.Random(seed)
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
    left = leftovers(place)
    place.check_entries()
    return {"killed": times, "compilations": place.compilations(), "entries left": count, "most bytes": most, "left before the sweep": left}


def end(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()


def leftovers(place):
    """What stands in the store besides entries, by directory, and that a sweep by age removes it.

    What is young may be in use, so the sweep leaves it; the clock of the sweep is set forward.
    """
    before = count_by_directory(place.cache / "v1")
    place.oclcache("gc")
    return before


def count_by_directory(root):
    counts = {}
    for path in root.rglob("*"):
        part = path.relative_to(root).parts[0]
        if path.is_file() and part != "entries":
            counts[part] = counts.get(part, 0) + 1
    return counts
