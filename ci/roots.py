"""Roots of distributions, made by debootstrap, and programs that run in them.

The caller is root, in a mount and a process namespace of its own: with them all mounts go.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

# An ordinary user of a root.
USER = "person"


def run(*argv, **options):
    done = subprocess.run([str(word) for word in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, argv))}: status {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def sources():
    """This distribution's release, and where apt has its packages from: of each place its URI, release and component."""
    words = "$(ORIGIN)|$(CODENAME)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)"
    lines = run("apt-get", "indextargets", "--format", words, "Created-By: Packages").splitlines()
    of = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', pathlib.Path("/etc/os-release").read_text(), re.MULTILINE))
    name, codename = of["ID"], of["VERSION_CODENAME"]
    rows = [line.split("|") for line in lines]
    found = [row[2:] for row in rows if row[0].lower() == name and row[1].startswith(codename)]
    return codename, list(dict.fromkeys(map(tuple, found)))


def write_sources(root, places):
    """Has apt in a root take packages from there."""
    text = "".join(f"deb {uri} {release} {component}\n" for uri, release, component in places)
    (root / "etc/apt/sources.list").write_text(text)


def bootstrap(path, codename, places):
    """A minimal root of a release of the distribution, with the names of the network as they are here."""
    main = next((uri for uri, release, _ in places if release == codename), None)
    if main is None:
        sys.exit(f"apt knows no place of {codename}: is /etc/apt/sources.list as the distribution made it?")
    shutil.rmtree(path, ignore_errors=True)
    print(f"making a root of {codename}", flush=True)
    run("debootstrap", "--variant=minbase", codename, path, main)
    write_sources(path, places)
    for name in ("resolv.conf", "hosts"):
        shutil.copy(f"/etc/{name}", path / "etc" / name)


def copy(base, path):
    shutil.rmtree(path, ignore_errors=True)
    run("cp", "--archive", "--reflink=auto", base, path)


class Root:
    """A root to run programs in."""

    def __init__(self, path):
        self.path = path
        run("mount", "--bind", "/proc", path / "proc")
        run("mount", "--bind", "/sys", path / "sys")
        # Not the machine's own folder: the root is removed as a whole in the end.
        run("mount", "-t", "tmpfs", "-o", "mode=755", "devices", path / "dev")
        for name in ("null", "zero", "full", "random", "urandom", "tty"):
            (path / "dev" / name).touch()
            run("mount", "--bind", f"/dev/{name}", path / "dev" / name)

    def unmount(self):
        for name in ("proc", "sys", "dev"):
            # A baker may still be ending in there.
            run("umount", "--recursive", "--lazy", self.path / name)

    def command(self, argv, user="root"):
        """The words and the environment to run a program in the root, as a user with nothing else set."""
        home = "/root" if user == "root" else f"/home/{user}"
        given = {"HOME": home, "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        group = user if user == "root" else ""
        return ["chroot", f"--userspec={user}:{group}", str(self.path), *map(str, argv)], given

    def inside(self, *argv, user="root"):
        words, given = self.command(argv, user)
        return run(*words, env=given, cwd="/")

    def user(self, *argv):
        return self.inside(*argv, user=USER)

    def apt(self, *argv):
        return self.inside("apt-get", "-y", "-q", "--no-install-recommends", *argv)
