"""ci/store pairs: what one process does to a store while another does the same or something else to it, for all pairs."""

import json
import pathlib
import random
import shutil
import signal
import threading
import time

import measure
import stores

KEYS = 40


class Role:
    """Something that is done to a store again and again until the time is over. `damages`: what nobody reads stays bad.
    `counts`: the counter by which the cache says that it was done."""

    def __init__(self, name, step, damages=False, counts=None):
        self.name, self.step, self.damages, self.counts = name, step, damages, counts


def client(**variables):
    """A new process each time, which lives for a moment."""

    def step(place, chance):
        place.finish(place.build("--seed", chance.randrange(1, 1 << 20), "--times", chance.choice([5, 50, 200]), **variables))

    return step


def command(*arguments, **variables):
    """The command may find the ground gone under its feet, and may say so; it never does by itself."""

    def step(place, chance):
        process = place.command(*arguments, **variables)
        output, errors = process.communicate(timeout=stores.PATIENCE)
        if process.returncode != 0 and not (process.returncode == 1 and place.is_removed and "No such file" in errors):
            raise stores.Failed(f"oclcache {' '.join(arguments)}: {stores.ending(process.returncode)}: {errors.strip()}")

    return step


def new_programs(**variables):
    """Programs that nobody has built yet; what they compute is nobody's matter."""

    def step(place, chance):
        first = chance.randrange(KEYS, 1 << 30)
        place.finish(place.start("--first", first, "--keys", 50, **variables))

    return step


def some_entries(place, chance):
    there = sorted(place.entry_files())
    return chance.sample(there, k=min(5, len(there)))


def damage(place, chance):
    """Bytes change in the entries' place, as a disk or a careless hand would do it, and readers set them aside."""
    for path in some_entries(place, chance):
        try:
            whole = path.read_bytes()
            kind = chance.choice(["flip", "cut", "empty"])
            at = chance.randrange(8, max(9, len(whole)))  # behind what tells whose it is
            bad = {"flip": whole[:at] + bytes([~byte & 255 for byte in whole[at : at + 1]]) + whole[at + 1 :], "cut": whole[:at], "empty": b""}[kind]
            other = place.folder / "damaged"
            other.write_bytes(bad)
            other.replace(path)
        except FileNotFoundError:
            pass  # removed meanwhile
    place.finish(place.build())


def remove_entries(place, chance):
    for path in some_entries(place, chance):
        path.unlink(missing_ok=True)
    time.sleep(0.005)


def remove_all(place, chance):
    """As `rm -rf` does it, which does not mind what comes back meanwhile."""
    place.is_removed = True
    shutil.rmtree(place.cache, ignore_errors=True)
    time.sleep(chance.uniform(0, 0.05))


def killed(place, chance):
    """A process that stores and hits, and is killed."""
    process = place.build("--seed", chance.randrange(1, 1 << 20), "--seconds", 3600)
    time.sleep(chance.uniform(0, 0.1))
    process.send_signal(signal.SIGKILL)
    process.communicate()


ROLES = [
    Role("reader", client(OCLCACHE_READONLY="1")),
    Role("user", client()),
    Role("writer", new_programs(), counts="stored"),
    Role("recacher", client(OCLCACHE_RECACHE="1")),
    Role("evictor", new_programs(OCLCACHE_MAX_SIZE="100k"), counts="evicted"),
    Role("gc", command("gc")),
    Role("gc, small", command("gc", OCLCACHE_MAX_SIZE="100k")),
    Role("clearer", command("clear")),
    Role("damager", damage, damages=True, counts="set_aside"),
    Role("rm entry", remove_entries),
    Role("rm -rf", remove_all),
    Role("killed", killed),
    Role("lister", command("list")),
    Role("stats", command("stats", "--zero")),
]


def act(role, place, until, seed, failures):
    chance, steps = random.Random(seed), 0
    try:
        while time.monotonic() < until:
            role.step(place, chance)
            steps += 1
    except stores.Failed as failed:
        failures.append(f"{role.name}: {failed}")
    if steps == 0 and not failures:
        failures.append(f"{role.name} has done nothing")


def pair(folder, one, other, seconds):
    """What went wrong, as texts. A program that reads and writes is there from the beginning to the end, too."""
    place, failures = stores.Place(folder, KEYS), []
    place.finish(place.build())
    until = time.monotonic() + seconds
    witness = place.build("--seed", 1, "--seconds", int(seconds) + 1)
    threads = [threading.Thread(target=act, args=(role, place, until, seed, failures)) for seed, role in enumerate((one, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        place.finish(witness)
        if one is other and one.counts and not json.loads(place.oclcache("stats", "--json"))[one.counts]:
            failures.append(f"{one.name} with itself: nothing is {one.counts}")
        place.heal()
        if not one.damages and not other.damages:
            place.check_entries()
    except stores.Failed as failed:
        failures.append(str(failed))
    return failures


def pairs(folder, seconds, names=()):
    """The table, and all failures."""
    roles = [role for role in ROLES if not names or role.name in names]
    rows, failures = [], []
    for one in roles:
        row = [one.name]
        for other in roles:
            if roles.index(other) > roles.index(one):
                row.append("")
                continue
            wrong = pair(pathlib.Path(folder) / f"{one.name}-{other.name}".replace(" ", "_"), one, other, seconds)
            failures += [f"{one.name} with {other.name}: {text}" for text in wrong]
            for text in wrong:
                stores.note(failures[-1])
            row.append("WRONG" if wrong else "ok")
        stores.note("  ".join(row))
        rows.append(row)
    measure.print_table(["", *(role.name for role in roles)], rows)
    return failures
