"""ci/store limit: eight writers of large entries on a small limit, a hot set beside them; free space and age as limits, too."""

import os
import pathlib
import time

import stores

WRITERS = 8
LIMIT = 50_000_000
BINARY = 100_000
HOT = 20


def limit(folder, seconds, cache=None, limit=LIMIT, compile_ms=20, allowed=0):
    """Allocated bytes never exceed the limit by more than one entry per writer, and what is hit all the time stays.

    Where compiling takes no time the whole store is replaced within a moment, and nothing in it is used all the time.
    `allowed`: how many programs of the hot set may go, where others slow down the one that uses them.
    """
    place = stores.Place(folder, HOT, cache=cache, OCLCACHE_MAX_SIZE=f"{limit}B", STUB_BINARY_BYTES=str(BINARY))
    place.finish(place.build())
    entry = max(place.entry_files().values(), default=0)
    hot = place.build("--seed", 1, "--seconds", int(seconds) + 1)
    writers = [place.start("--first", 1_000_000 * (number + 1), "--keys", 1_000_000, "--seconds", int(seconds), STUB_BUILD_MS=str(compile_ms)) for number in range(WRITERS)]
    until, most, samples = time.monotonic() + seconds, 0, 0
    while time.monotonic() < until:
        most = max(most, place.allocated_at_once([*writers, hot]))
        samples += 1
        time.sleep(0.02)
    for process in [*writers, hot]:
        place.finish(process)
    most = max(most, place.allocated())
    if most > limit + WRITERS * entry:
        raise stores.Failed(f"{most} bytes were allocated; {limit} and {WRITERS} entries of {entry} are allowed")
    stored = place.compilations()
    if stored * entry < 2 * limit:
        raise stores.Failed(f"{stored} programs do not fill the store twice: give it more seconds")
    kept = place.allocated()
    if kept < limit * 0.8:
        raise stores.Failed(f"{kept} bytes are left of a limit of {limit}: more went than had to")
    again = place.compilations() - HOT - new_programs(place)
    lost = place.compiled(lambda: place.finish(place.build()))
    if compile_ms and again + lost > allowed:
        raise stores.Failed(f"of {HOT} programs that were used all the time {again} were compiled again meanwhile and {lost} afterwards")
    place.check_entries()
    return {"limit": limit, "most bytes": most, "entry": entry, "compiled": stored, "hot ones again": again, "samples": samples, "left": place.allocated()}


def new_programs(place):
    """Compilations that are none of the hot set's."""
    return sum(int(line.rsplit("=", 1)[1]) >= 1_000_000 for line in place.log.read_text().splitlines() if line.startswith("compile "))


def age(folder, cache=None):
    """What was not used for so long goes; what was stays."""
    place = stores.Place(folder, 10, cache=cache, OCLCACHE_MAX_AGE="10d", OCLCACHE_MAX_SIZE="0")
    place.finish(place.build())
    old = sorted(place.entry_files())[:5]
    for path in old:
        touch(path, days=11)
    for path in set(place.entry_files()) - set(old):
        touch(path, days=9)
    place.oclcache("gc")
    left = set(place.entry_files())
    if left & set(old) or len(left) != 5:
        raise stores.Failed(f"{len(left & set(old))} of 5 old entries are left, and {len(left - set(old))} of 5 young ones")
    return {"aged": len(old), "left": len(left)}


def used_again(folder, cache=None):
    """A hit dates an entry by itself, whatever the file system does about times of access."""
    place = stores.Place(folder, 10, cache=cache)
    place.finish(place.build())
    for path in place.entry_files():
        touch(path, days=30)
    place.finish(place.build("--keys", 5))
    dated = sum(time.time() - path.stat().st_mtime < 86400 for path in place.entry_files())
    if dated != 5:
        raise stores.Failed(f"5 of 10 entries were used, {dated} are dated")
    return {"used": 5, "dated": dated}


def touch(path, days):
    moment = time.time() - days * 86400
    os.utime(path, (moment, moment))


def free_space(folder, cache, size):
    """On a file system of this size in bytes: what must stay free stays free, and programs are stored nevertheless."""
    free = size // 2
    place = stores.Place(folder, 10, cache=cache, OCLCACHE_MIN_FREE=f"{free}B", OCLCACHE_MAX_SIZE="0", STUB_BINARY_BYTES=str(BINARY))
    least = [size]
    writers = [place.start("--first", 1_000_000 * (number + 1), "--keys", size // BINARY) for number in range(4)]
    while any(process.poll() is None for process in writers):
        state = os.statvfs(cache)
        least.append(state.f_bavail * state.f_frsize)
        time.sleep(0.005)
    for process in writers:
        place.finish(process)
    entry = max(place.entry_files().values(), default=0)
    if not entry:
        raise stores.Failed("nothing is stored")
    if min(least) < free - 4 * entry:
        raise stores.Failed(f"{min(least)} bytes were free at the least; {free} must be, but for 4 entries of {entry}")
    return {"to stay free": free, "least free": min(least), "entries": len(place.entry_files())}
