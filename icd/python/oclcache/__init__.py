"""oclcache for Python programs: a compiler cache for OpenCL.

    import oclcache

    oclcache.enable()  # before the first OpenCL call
    import pyopencl

`enable` does for this process, and for the programs that it starts, what `oclcache run` does for a program.
"""

# Others are imported where they are used: the console script needs none of them.
import os

__all__ = ["Error", "disable", "enable", "stats"]
__version__ = "@VERSION@"

_COMMAND = os.path.join(os.path.dirname(os.path.abspath(__file__)), "oclcache")
# In the auxiliary vector, which pairs of machine words make up (getauxval(3)).
_AT_SECURE = 23

# The variables as they were before `enable`, in the order of the changes; None if one was not set.
_before = {}


class Error(RuntimeError):
    """The cache cannot be enabled in this process. The message says what to do."""


def enable():
    """Have OpenCL programs of this process, and of programs that it starts, built through the cache.

    Returns True, or False with a warning if this machine has no place for the cache. The process works without it then.

    Raises Error if an OpenCL loader has already opened its drivers, or if the process has raised privileges.
    """
    if _is_elevated():
        raise Error(
            "this process has more privileges than the user who started it, so oclcache does not change its drivers; "
            "start it without them, or install oclcache for the machine with `oclcache install --system`"
        )
    import subprocess
    import warnings

    try:
        output = _output("environment")
    except (OSError, subprocess.CalledProcessError) as error:
        warnings.warn("oclcache is not enabled: {}".format(_words_of(error)), RuntimeWarning, stacklevel=2)
        return False
    items = [os.fsdecode(item).partition(" ") for item in output.split(b"\0")[:-1]]
    variables = dict(rest.split("=", 1) for kind, _, rest in items if kind == "set")
    if not variables:
        # The loader reads a registration of oclcache's anyway.
        return True
    opened = _opened_driver([rest for kind, _, rest in items if kind == "driver"])
    if opened:
        raise Error(
            "an OpenCL loader has already opened `{}` in this process; call `oclcache.enable()` before the first OpenCL "
            "call, or start the program with `oclcache run`".format(opened)
        )
    for name, value in variables.items():
        _before.setdefault(name, os.environ.get(name))
        os.environ[name] = value
    return True


def disable():
    """Undo `enable`, for programs that this process starts from now on.

    The process itself keeps its drivers as they are once it has made an OpenCL call.
    """
    for name, value in _before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _before.clear()


def stats():
    """The numbers of `oclcache stats --json`, as a dictionary: hits, misses, entries and others, of all programs of this user."""
    import json
    import subprocess

    try:
        return json.loads(_output("stats", "--json").decode())
    except subprocess.CalledProcessError as error:
        raise Error(_words_of(error)) from None


def main():
    """The console script: becomes the command."""
    import sys

    # Under its own name, which the command's messages use if it is the one that a shell finds.
    os.execv(_COMMAND, [os.path.abspath(sys.argv[0]), *sys.argv[1:]])


def _output(*arguments):
    import subprocess

    done = subprocess.run([_COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
    return done.stdout


def _words_of(error):
    said = getattr(error, "stderr", None)
    text = said.decode(errors="replace").strip() if said else str(error)
    return text[len("oclcache: ") :] if text.startswith("oclcache: ") else text


def _is_elevated():
    """Whether the process has privileges that the user who started it does not have. In doubt it has."""
    if os.getuid() != os.geteuid() or os.getgid() != os.getegid():
        return True
    import struct

    try:
        with open("/proc/self/auxv", "rb") as file:
            pairs = struct.iter_unpack("@LL", file.read())
    except OSError:
        return True
    return any(kind == _AT_SECURE and value != 0 for kind, value in pairs)


def _mapped():
    """The files that this process has mapped, by path."""
    with open("/proc/self/maps", "rb") as file:
        fields = [line.rstrip(b"\n").split(None, 5) for line in file]
    return {os.fsdecode(row[5]) for row in fields if len(row) == 6 and row[5].startswith(b"/")}


def _opened_driver(drivers):
    """A driver that a loader has opened; None if there is none.

    A loader that is only mapped, as after `import pyopencl`, has not yet read which drivers there are.
    """
    mapped = _mapped()
    if not any(_stem(path) == "libOpenCL" or _stem(path).startswith("libOpenCL-") for path in mapped):
        return None
    # Only names are compared: `libpocl.so.2` in an .icd file is mapped as `/usr/lib/libpocl.so.2.10.0`.
    stems = {_stem(driver) for driver in drivers}
    return next((path for path in sorted(mapped) if _stem(path) in stems), None)


def _stem(path):
    return os.path.basename(path).partition(".so")[0]
