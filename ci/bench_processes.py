"""Processes that start cold at once: the processor seconds of all of them, with and without oclcache."""

import contextlib

import bench_builds
import figures
import measure

COUNTS = (1, 2, 4, 8, 16)
# Of 16 bare processes that fill one empty cache of PoCL 3.1 at once, one fails its build (-11) in every third round.
ATTEMPTS = 10
ARGV = bench_builds.client(10, 600)


class Failed(Exception):
    """A process failed without oclcache."""


def at_once(bench, count, variables, home, may_fail=False):
    """So many processes with the same home and caches: processor seconds of all, and seconds to the end of the last."""
    runs = [bench.wait(started, may_fail) for started in [bench.start(ARGV, variables, home) for _ in range(count)]]
    if any(run.status != 0 for run in runs):
        raise Failed
    return sum(run.cpu for run in runs), max(run.start + run.seconds for run in runs) - min(run.start for run in runs)


def one_count(bench, driver, count, runs):
    row = {"driver": driver.name, "processes": count, "bare": [], "oclcache": [], "bare seconds": [], "oclcache seconds": [], "after": []}
    row["reference"] = "own cache" if driver.own_cache == bench_builds.ON else "hit"
    for cached, name in ((False, "bare"), (True, "oclcache")) * runs:
        for _ in range(ATTEMPTS):
            with contextlib.suppress(Failed), measure.fresh_home() as home, bench_builds.cache_without_programs(bench) as cache:
                variables = bench.variables(home, cached, OCLCACHE_DIR=cache)
                cpu, seconds = at_once(bench, count, variables, home, may_fail=not cached)
                row[name].append(cpu)
                row[f"{name} seconds"].append(seconds)
                # One more, from what they left: a hit, or a build from the driver's own cache.
                if cached == (row["reference"] == "hit"):
                    row["after"].append(at_once(bench, 1, variables, home)[0])
                break
            figures.say(f"{driver.name}: one of {count} processes failed without oclcache; once more")
        else:
            measure.stop(f"{driver.name}: of {count} processes one fails each time without oclcache")
    return row


def rows(runs):
    for driver in bench_builds.drivers():
        if driver.name == "rusticl":
            continue
        with measure.Bench(driver.icd) as bench:
            for count in COUNTS:
                yield one_count(bench, driver, count, runs)
        figures.say(f"{driver.name}: {', '.join(map(str, COUNTS))} processes at once, {runs} times")
