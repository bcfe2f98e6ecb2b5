"""ci/store million: what a store of very many entries costs, against one of 100: FOLDER [N].

All is measured in turn on both stores, so that whatever else the machine does meets both, and warm: what was read before is in
the kernel's memory. Entries that nobody has used for long are read from the disk first, which no cache can help.
"""

import contextlib
import pathlib
import random
import statistics
import subprocess
import sys
import time

import measure
import stores

FILL = measure.RELEASE / "examples" / "fill_store"
SMALL = 100
ROUNDS = 15
# About what a small program's binary takes on real drivers: an entry of it is two blocks of 4 KiB.
BINARY = 4500
# Wanted of a hit: so many times the time in a small store.
WORST = 1.3


class Sized:
    """A store of so many entries, 100 of which programs build."""

    def __init__(self, folder, entries, **variables):
        self.entries = entries
        self.place = stores.Place(folder, SMALL, OCLCACHE_MAX_SIZE="0", STUB_BINARY_BYTES=str(BINARY), **variables)
        self.place.finish(self.place.build())
        self.place.finish(self.place.build())
        self.known, self.fresh = set(self.place.entry_files()), 1000
        if entries > SMALL:
            start = time.monotonic()
            subprocess.run([FILL, self.place.cache, str(entries)], check=True)
            stores.note(f"filled with {entries} in {time.monotonic() - start:.0f} s")

    def hits(self):
        """Microseconds of each clBuildProgram of a process that builds what is stored, but for the first, which opens the store."""
        return builds(self.place.finish(self.place.build("--times", 10 * SMALL, "--clock", "yes")))

    def misses(self, **more):
        """The same of what is not stored, and is stored then. The small store does not grow by it."""
        self.fresh += SMALL
        found = builds(self.place.finish(self.place.start("--first", self.fresh, "--keys", SMALL, "--clock", "yes", **more)))
        if self.entries == SMALL:
            for path in set(self.place.entry_files()) - self.known:
                path.unlink()
        return found

    def seconds(self, *arguments, head=False, **more):
        """How long the command takes, or until it has printed ten lines."""
        start = time.monotonic()
        process = self.place.command(*arguments, **more)
        if head:
            for _ in range(10):
                process.stdout.readline()
            took = time.monotonic() - start
            process.stdout.close()
            process.kill()
            process.wait()
            return took
        self.place.finish(process)
        return time.monotonic() - start


def builds(output):
    r"""
    >>> builds("built 3 programs, 3 different\nbuild_ns 900000 41500 40000\n")
    [41.5, 40.0]
    """
    line = next(line for line in output.splitlines() if line.startswith("build_ns "))
    return [int(number) / 1000 for number in line.split()[2:]]


def text(figures, unit):
    """Median, and what a tenth is below and a tenth above.

    >>> text([float(number) for number in range(1, 102)], "us")
    '51.0 us (11.0 to 91.0)'
    """
    digits = 1 if unit == "us" else 3
    if len(figures) == 1:
        return f"{figures[0]:.{digits}f} {unit}"
    tenths = statistics.quantiles(figures, n=10, method="inclusive")
    return f"{statistics.median(figures):.{digits}f} {unit} ({tenths[0]:.{digits}f} to {tenths[-1]:.{digits}f})"


def in_turn(stores_of, rounds, figure):
    """What `figure` gives on each, taken in turn."""
    found = [[] for _ in stores_of]
    for number in range(rounds):
        order = list(zip(stores_of, found))
        for store, figures in order if number % 2 else reversed(order):
            figures += figure(store)
    return found


def main():
    folder, many = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    machine = measure.machine()
    small, large = Sized(folder / "small", SMALL), Sized(folder / "large", many)
    both = [small, large]
    rows, hits = [], in_turn(both, ROUNDS, Sized.hits)

    def row(name, found, unit="us"):
        medians = [statistics.median(figures) for figures in found]
        rows.append([name, *(text(figures, unit) for figures in found), f"{medians[1] / medians[0]:.2f}"])
        stores.note("  ".join(rows[-1]))
        return medians[1] / medians[0]

    factor = row("a hit", hits)
    row("a miss, not stored", in_turn(both, ROUNDS, lambda store: store.misses(OCLCACHE_READONLY="1")))
    row("a miss, stored, no limit", in_turn(both, ROUNDS, Sized.misses))
    row("a miss, stored below the limit", in_turn(both, ROUNDS, lambda store: store.misses(OCLCACHE_MAX_SIZE="100Gi")))
    row("stats", in_turn(both, 5, lambda store: [store.seconds("stats")]), "s")
    row("list, its first ten lines", in_turn(both, 3, lambda store: [store.seconds("list", head=True)]), "s")
    by_key = ["list", "--sort", "key"]
    row("list --sort key, its first ten lines", in_turn(both, 3, lambda store: [store.seconds(*by_key, head=True)]), "s")
    row("list", in_turn(both, 1, lambda store: [store.seconds("list")]), "s")
    row("explain --last 5", in_turn(both, 3, lambda store: [store.seconds("explain", "--last", "5")]), "s")
    row("gc without anything to do", in_turn(both, 3, lambda store: [store.seconds("gc", OCLCACHE_MAX_SIZE="0")]), "s")
    size = {store: store.place.allocated() for store in both}
    row("a miss, stored at the limit, which evicts", in_turn(both, ROUNDS, lambda store: store.misses(OCLCACHE_MAX_SIZE=f"{size[store]}B")))
    for store in both:
        store.place.finish(store.place.build())
    row("a hit after that", in_turn(both, 5, Sized.hits))
    row("gc that removes half", in_turn(both, 1, lambda store: [store.seconds("gc", OCLCACHE_MAX_SIZE=f"{size[store] // 2}B")]), "s")
    row("clear", in_turn(both, 1, lambda store: [store.seconds("clear")]), "s")
    print(f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, load {machine['load_before']:.1f} at the start")
    print("Median (a tenth is below, a tenth above), both stores in turn, all that is read in the kernel's memory; a hit or miss is a whole")
    print(f"clBuildProgram on the stub driver, in a process that builds {10 * SMALL} programs. An entry takes {size[large] / many:.0f} bytes of disk.\n")
    measure.print_table(["", f"{SMALL} entries", f"{many} entries", "times"], rows)
    if factor > WORST:
        measure.stop(f"a hit in the large store takes {factor:.2f} times that in the small one; {WORST} is allowed")


if __name__ == "__main__":
    main()
