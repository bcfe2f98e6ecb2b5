"""File systems to try a cache on, each mounted below a folder. The caller is root, in a mount and a process namespace of its own:
with them all mounts go, and so do the processes that serve them."""

import os
import pathlib
import subprocess
import time

import measure

MB = 1 << 20


class Missing(Exception):
    """A file system that cannot be had here, and why."""


def run(*argv):
    try:
        done = subprocess.run([str(word) for word in argv], capture_output=True, text=True)
    except FileNotFoundError:
        raise Missing(f"no {argv[0]}") from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"{argv[0]}: {words[0] if words else 'failed'}")


def made(path):
    path.mkdir(parents=True, exist_ok=True)
    return path


def tmpfs(folder, size=256 * MB):
    run("mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "oclcache", made(folder))
    return folder


def on_loop(folder, kind, size, *options, make=()):
    image = folder.with_suffix(".img")
    with open(image, "wb") as file:
        file.truncate(size)
    run(f"mkfs.{kind}", "-q", *make, image)
    run("mount", "-o", ",".join(["loop", *options]), image, made(folder))
    return folder


def ext4(folder):
    return on_loop(folder, "ext4", 256 * MB)


def ext4_noatime(folder):
    return on_loop(folder, "ext4", 256 * MB, "noatime")


def xfs(folder):
    return on_loop(folder, "xfs", 320 * MB)


def btrfs(folder):
    return on_loop(folder, "btrfs", 320 * MB)


def overlay(folder, lower=None):
    """`lower` is what lies below, as the image of a container."""
    base = tmpfs(folder.with_suffix(".layers"))
    parts = {name: made(base / name) for name in ("lower", "upper", "work")}
    parts["lower"] = lower or parts["lower"]
    options = ",".join(f"{key}={parts[name]}" for key, name in (("lowerdir", "lower"), ("upperdir", "upper"), ("workdir", "work")))
    run("mount", "-t", "overlay", "-o", options, "overlay", made(folder))
    return folder


def bindfs(folder):
    """FUSE. Locks are the kernel's, of this mount only."""
    below = tmpfs(folder.with_suffix(".below"))
    run("bindfs", below, made(folder))
    return folder


def lockless(folder):
    """FUSE without locks and without shared mappings."""
    below = tmpfs(folder.with_suffix(".below"))
    python = "/usr/bin/python3"  # whose packages are Debian's
    server = subprocess.Popen([python, "-B", str(measure.TOP / "tests" / "support" / "lockless.py"), str(below), str(made(folder))], stderr=subprocess.PIPE, text=True)
    for _ in range(100):
        if os.path.ismount(folder):
            return folder
        if server.poll() is not None:
            break
        time.sleep(0.05)
    server.kill()
    words = server.stderr.read().strip().splitlines()
    raise Missing(f"lockless.py: {words[-1] if words else 'does not mount'}")


def nfs(folder):
    run("mount", "-t", "nfs", "127.0.0.1:/", made(folder))
    return folder


KINDS = {
    "tmpfs": tmpfs,
    "ext4": ext4,
    "ext4, noatime": ext4_noatime,
    "xfs": xfs,
    "btrfs": btrfs,
    "overlay": overlay,
    "FUSE (bindfs)": bindfs,
    "FUSE without locks": lockless,
    "NFS": nfs,
}


def small_ext4(folder):
    """So small that it is soon full; nothing is kept for root."""
    return on_loop(folder, "ext4", 4 * MB, make=("-m", "0", "-b", "1024", "-N", "1000"))


def with_quota(folder):
    """btrfs: other file systems' quotas need kernels that often lack them."""
    on_loop(folder, "btrfs", 320 * MB)
    run("btrfs", "quota", "enable", folder)
    run("btrfs", "subvolume", "create", folder / "limited")
    run("btrfs", "qgroup", "limit", str(2 * MB), folder / "limited")
    return folder / "limited"
