"""Processes that start cold at once: the processor seconds of all of them, with and without oclcache."""

import bench_builds
import figures
import measure

COUNTS = (1, 2, 4, 8, 16)
ARGV = bench_builds.client(10, 600)


def at_once(bench, count, variables, home):
    """So many processes with the same home and caches: processor seconds of all, and seconds to the end of the last."""
    runs = [bench.wait(started) for started in [bench.start(ARGV, variables, home) for _ in range(count)]]
    return sum(run.cpu for run in runs), max(run.start + run.seconds for run in runs) - min(run.start for run in runs)


def one_count(bench, driver, count, runs):
    row = {"driver": driver.name, "processes": count, "bare": [], "oclcache": [], "bare seconds": [], "oclcache seconds": [], "after": []}
    row["reference"] = "own cache" if driver.own_cache else "hit"
    for _ in range(runs):
        for cached, name in (False, "bare"), (True, "oclcache"):
            with measure.fresh_home() as home, bench_builds.cache_without_programs(bench) as cache:
                variables = bench.variables(home, cached, OCLCACHE_DIR=cache)
                cpu, seconds = at_once(bench, count, variables, home)
                row[name].append(cpu)
                row[f"{name} seconds"].append(seconds)
                # One more, from what they left: a hit, or a build from the driver's own cache.
                if cached == (row["reference"] == "hit"):
                    row["after"].append(at_once(bench, 1, variables, home)[0])
    return row


def rows(runs):
    for driver in bench_builds.drivers():
        if driver.name == "rusticl":
            continue
        with measure.Bench(driver.icd) as bench:
            for count in COUNTS:
                yield one_count(bench, driver, count, runs)
        figures.say(f"{driver.name}: {', '.join(map(str, COUNTS))} processes at once, {runs} times")
