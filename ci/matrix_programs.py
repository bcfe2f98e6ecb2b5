"""Programs in a root, with the library that counts what the driver does between oclcache and the driver, and what is wrong with them."""

import collections
import difflib
import itertools
import json
import pathlib
import re
import shutil
import signal
import subprocess

import measure
from roots import USER, Root, bootstrap, copy, run, sources

# By what people call them, the newest last.
RELEASES = {"bookworm": "Debian 12", "trixie": "Debian 13", "sid": "Debian sid"}
LOADERS = {"ocl-icd-libopencl1": "ocl-icd", "khronos-opencl-icd-libopencl1": "Khronos"}
# What programs need beside a loader.
PROGRAMS = ("python3-pyopencl", "clinfo")

# Where things are in a root.
OURS, TOOLS = pathlib.Path("opt/oclcache"), pathlib.Path("opt/tools")
LIBRARY, COMMAND = f"/{OURS}/liboclcache.so", f"/{OURS}/oclcache"
SPY, CLIENT, PYTHON_PROGRAM = f"/{TOOLS}/libspy.so", f"/{TOOLS}/client", f"/{TOOLS}/pyopencl_program.py"
VENDORS = pathlib.Path("etc/OpenCL/vendors")
# Seconds for one program.
LIMIT = 300

Ran = collections.namedtuple("Ran", "status output errors compiled loaded")


def places(release):
    """Where the packages of a release are: at this machine's mirrors, so this machine must run one of the releases."""
    own, found = sources()
    uris = {name: uri for uri, name, _ in found}
    main, security = uris.get(own), uris.get(f"{own}-security")
    if own not in RELEASES or not main or not (security or release == "sid"):
        measure.stop(f"apt here knows no place of {release}: this needs {' or '.join(RELEASES.values())}, with its sources of packages")
    rows = [(main, release, "main")]
    if release != "sid":
        rows += [(main, f"{release}-updates", "main"), (security, f"{release}-security", "main")]
    return rows


class MatrixRoot(Root):
    """A root whose packages are fetched once for all roots, with our files and a user."""

    def __init__(self, folder, release, name):
        self.release, base = release, folder / release
        if not base.exists():
            new = base.with_suffix(".new")
            bootstrap(new, release, places(release))
            new.rename(base)
        path = folder / f"{release}.{name}"
        copy(base, path)
        archives = folder / f"{release}.archives"
        archives.mkdir(exist_ok=True)
        super().__init__(path)
        run("mount", "--bind", archives, path / "var/cache/apt/archives")
        self.homes = 0
        self.built = folder / "built"
        # A mirror may be a snapshot, whose release has its signature still and is older than it says it is good for.
        self.write("etc/apt/apt.conf.d/99matrix", 'Acquire::Check-Valid-Until "false";\n')
        self.apt("update")
        self.apt("full-upgrade")
        self.inside("useradd", "--create-home", USER)
        for folder, names in ((OURS, ("liboclcache.so", "oclcache")), (TOOLS, ("libspy.so", "client"))):
            (path / folder).mkdir(parents=True)
            for name in names:
                shutil.copy(self.built / name, path / folder)
        shutil.copy(measure.TOP / "tests/support/pyopencl_program.py", path / TOOLS)

    def unmount(self):
        run("umount", "--lazy", self.path / "var/cache/apt/archives")
        super().unmount()

    def remove(self):
        self.unmount()
        shutil.rmtree(self.path, ignore_errors=True)

    def attempt(self, *argv, home=None, variables=None, user=USER):
        """Runs a program whose failure is a result."""
        variables = {**({"HOME": home} if home else {}), **(variables or {})}
        words = ["env", f"--chdir={home or '/'}", *(f"{name}={value}" for name, value in variables.items()), *argv]
        words, given = self.command(words, user)
        try:
            done = subprocess.run(words, env=given, cwd="/", capture_output=True, timeout=LIMIT, check=False)
        except subprocess.TimeoutExpired as late:
            return subprocess.CompletedProcess(words, -signal.SIGALRM, (late.stdout or b"").decode(), f"not done after {LIMIT} s")
        return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def new_home(self):
        """An empty home, in which no cache is."""
        self.homes += 1
        home = f"/home/{USER}/{self.homes}"
        self.user("mkdir", home)
        return home

    def write(self, path, text):
        path = self.path / str(path).lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def packages(self, pattern):
        """The names of packages that apt knows, in the order of the alphabet."""
        return sorted(line.split()[0] for line in self.inside("apt-cache", "search", "--names-only", pattern).splitlines())

    def try_install(self, *names):
        """None, or why apt does not install them."""
        done = self.attempt("apt-get", "-y", "-q", "--no-install-recommends", "install", *names, user="root")
        if done.returncode == 0:
            return None
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "Depends" in line or line.startswith("E:")]
        return "apt: " + " ".join(" ".join(lines[:2]).split())

    def version(self, package):
        """That of its authors: 7.1 of 7.1-9, and 20250722 of 0~20250722-2."""
        text = self.inside("dpkg-query", "-W", "-f", "${Version}", package)
        return text.split(":", 1)[-1].rsplit("-", 1)[0].split("+")[0].removeprefix("0~")

    def files(self, package):
        """The .icd files of a driver's package."""
        listed = self.inside("dpkg", "-L", package).split()
        return [pathlib.Path(path) for path in listed if path.startswith(f"/{VENDORS}/") and path.endswith(".icd")]


def counted(lines):
    """How often the driver compiled or linked, and how often it loaded a binary.

    >>> counted(["create-source", "source-build 0", "binary-build 0", "binary-build 0", "link -17"])
    (2, 2)
    """
    kinds = [line.split()[0] for line in lines if line]
    return sum(kind in measure.COMPILED for kind in kinds), kinds.count("binary-build")


def last_lines(ran):
    """What a program said in the end, in one line, and what ended it.

    >>> last_lines(Ran(1, "a\\nb\\n", "c\\n\\nd\\n", 0, 0))
    'c; d'
    >>> last_lines(Ran(-11, "", "", 0, 0))
    'SIGSEGV'
    >>> last_lines(Ran(0, "x\\n", "", 0, 0))
    'x'
    """
    lines = [line.strip() for line in ran.errors.splitlines() if line.strip()][-3:]
    if not lines:
        lines = [line.strip() for line in ran.output.splitlines() if line.strip()][-3:]
    if ran.status < 0:
        lines.append(signal.Signals(-ran.status).name)
    return "; ".join(lines)[-400:]


def wrong_lines(said):
    """What the doctor says is wrong.

    >>> wrong_lines("ok a b\\nwrong c d\\n -> e\\noclcache: 1 thing is wrong\\n")
    'wrong c d; oclcache: 1 thing is wrong'
    """
    lines = [" ".join(line.split()) for line in said.splitlines()]
    return "; ".join(line for line in lines if line.startswith(("wrong", "oclcache: ")))


def difference(bare, ran):
    """The first lines that a program prints otherwise than without oclcache; lines that bare runs print differently do not count.

    >>> run = lambda text: Ran(0, text, "", 0, 0)
    >>> difference([run("a\\nb\\n"), run("a\\nc\\n")], run("a\\nd\\n"))
    ''
    >>> difference([run("a\\nb\\n"), run("a\\nb\\n")], run("a\\nd\\n"))
    '-b +d'
    """
    texts = [one.output.splitlines() for one in bare]
    mine = ran.output.splitlines()
    loose = {number for number, lines in enumerate(itertools.zip_longest(*texts)) if len(set(lines)) > 1}
    kept = [[line for number, line in enumerate(lines) if number not in loose] for lines in (texts[0], mine)]
    lines = [line for line in difflib.unified_diff(*kept, n=0, lineterm="") if line[:2] not in ("--", "++", "@@")]
    return " ".join(lines[:6])


class Program:
    """One program in a root, as a user with a home of this program's own."""

    def __init__(self, root, argv, variables, driver, home=None):
        self.root, self.argv, self.home = root, argv, home or root.new_home()
        self.log = f"{self.home}/spy.log"
        # What drivers write while they run without hardware is there.
        self.variables = {**variables, "SPY_DRIVER": driver, "SPY_LOG": self.log}

    def run(self, more=None, prefix=()):
        log = self.root.path / self.log.lstrip("/")
        log.unlink(missing_ok=True)
        done = self.root.attempt(*prefix, *self.argv, home=self.home, variables={**self.variables, **(more or {})})
        lines = log.read_text().splitlines() if log.exists() else []
        return Ran(done.returncode, done.stdout, done.stderr, *counted(lines))

    def oclcache(self, command, *argv, more=None, prefix=()):
        return self.root.attempt(*prefix, command, *argv, home=self.home, variables={**self.variables, **(more or {})})

    def hits(self, command, more):
        done = self.oclcache(command, "stats", "--json", more=more)
        return json.loads(done.stdout)["hits"] if done.returncode == 0 else 0


def wrong_with(program, bare, command, more=None, prefix=()):
    """Runs a program twice through oclcache, and bakes between; what is wrong, or None.

    That is: other output than bare, no hit in the second run, a driver that compiles there, or a doctor that says something is wrong.
    """
    cold = program.run(more, prefix)
    if cold.status != bare[0].status or difference(bare, cold):
        return f"the first run differs from a bare one: {difference(bare, cold)} status {cold.status}: {last_lines(cold)}"
    baked = program.oclcache(command, "bake", more=more)
    if baked.returncode != 0:
        return f"bake: status {baked.returncode}: {baked.stderr[-300:]}"
    before = program.hits(command, more)
    warm = program.run(more, prefix)
    if warm.status != bare[0].status or difference(bare, warm):
        return f"the second run differs from a bare one: {difference(bare, warm)} status {warm.status}: {last_lines(warm)}"
    if warm.compiled:
        log = program.oclcache(program.argv[0], *program.argv[1:], more={**(more or {}), "OCLCACHE_LOG": "info"}, prefix=prefix).stderr
        return f"the driver compiles {warm.compiled} times in the second run: {log[-600:]}"
    if program.hits(command, more) <= before:
        return "no hit in the second run"
    doctor = program.oclcache(command, "doctor", more=more, prefix=prefix)
    if not is_true(doctor.returncode, doctor.stdout + doctor.stderr):
        return f"doctor: status {doctor.returncode}: {wrong_lines(doctor.stdout + doctor.stderr)}"
    return None


def is_true(status, said):
    """Whether it is true of a driver that hits: nothing is wrong, but for a driver that does not compile the doctor's program, which has
    mathematics in it (rusticl of Debian's unpatched libclc).

    >>> is_true(0, "oclcache: everything is fine"), is_true(1, "wrong a\\n"), is_true(0, "")
    (True, False, False)
    >>> is_true(1, "wrong b cannot build the program of this check, even without oclcache: x\\n")
    True
    """
    if status == 0:
        return bool(re.search("everything is fine|nothing is wrong", said))
    wrong = [line for line in said.splitlines() if line.startswith("wrong")]
    return bool(wrong) and all("even without oclcache" in line for line in wrong)
