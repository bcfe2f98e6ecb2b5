"""The programs of ci/compat: real ones, as their makers built them, each with the smallest work that still compiles what it needs."""

import dataclasses
import os
import pathlib
import re
import shutil

import measure

COMPAT = measure.TOP / "target" / "compat"
PYTHON = COMPAT / "python" / "bin" / "python"
TESTS = COMPAT / "pyopencl-tests"

EXECUTING = POCL, INTEL, RUSTICL = "PoCL", "Intel CPU", "rusticl"
# Without a GPU it compiles and executes nothing, so only programs run on it that need no results.
INTEL_GPU = "Intel GPU"
ALL = (*EXECUTING, INTEL_GPU)


@dataclasses.dataclass(frozen=True)
class Client:
    """A program and what is known of it.

    name: what is typed; title: what people read; argv: from the driver to the command
    drivers: those that the bare program works on
    header: a file that its sources include, from the folder that $PREPARED names; one byte more in it must be a miss
    quick: whether ci/test runs it, too; long: whether it runs only when it is named
    plain: what leaves the times and the like out of its output, so that two runs can be compared
    tolerance: by what part the numbers that it prints may differ between runs
    statuses: how it may end, bare and through oclcache alike
    prepare: what is done once before its first run, given the bench and the folder that $PREPARED names
    """

    name: str
    title: str
    argv: callable
    drivers: tuple = (POCL, INTEL)
    header: str = None
    quick: bool = False
    long: bool = False
    plain: callable = staticmethod(lambda output: output)
    tolerance: float = 0
    statuses: tuple = (0,)
    prepare: callable = None


def without_times(output):
    """A tuner's or clpeak's output without what is measured, and without the blanks that its width changes.

    >>> without_times("|   OK     71 ms |      1.46 ms |   34.4 | results match |")
    '| OK # ms | # ms | # | results match |'
    >>> without_times("* Found best result 0.61 ms: 82.6 GB/s\\n* Best parameters: WGS=64\\nlatency : 40.75 us")
    '* Found best result # ms: # GB/s\\nlatency : # us'
    """
    output = re.sub(r"^\* Best parameters: .*\n", "", output, flags=re.MULTILINE)
    output = re.sub(r"-?\d+(?:\.\d+)? (us|ms|GB/s)\b", r"# \1", output)
    output = re.sub(r"(# ms \| +)-?\d+\.\d+ \|", r"\1# |", output)
    return re.sub(r" +", " ", output)


def without_luid(output):
    """clinfo's output without the bytes that Intel's GPU driver leaves as they are without a GPU.

    >>> without_luid("  Device LUID Valid  No\\n  Device LUID      b0a3-0ed2fd7f0000\\n")
    '  Device LUID Valid  No\\n  Device LUID #\\n'
    """
    return re.sub(r"(Device LUID) +[0-9a-f]+-[0-9a-f]+", r"\1 #", output)


def without_duration(output):
    """pytest's output without the seconds in its last line.

    >>> without_duration("t.py::test_a PASSED [ 50%]\\n===== 2 passed in 5.01s =====")
    't.py::test_a PASSED [ 50%]\\n 2 passed '
    """
    return re.sub(r"=+( .* )in \d+\.\d+s (?:\(\S+\) )?=+", r"\1", output)


def pyopencl_tests(*names):
    """pytest over files of PyOpenCL's tests. Test ids hold the device's name, and no address."""
    files = [str(TESTS / f"test_{name}.py") for name in names]
    options = ["-p", "no:cacheprovider", "-v", "--tb=no", "--no-header", "--disable-warnings", f"--rootdir={TESTS}"]
    return [str(PYTHON), "-B", "-W", "ignore", "-m", "pytest", *options, *files]


def ffmpeg(*filters):
    """One second of FFmpeg's own test picture through these filters; prints the MD5 of the frames."""
    device = ["-init_hw_device", "opencl=device:0.0", "-filter_hw_device", "device"]
    source = ["-f", "lavfi", "-i", "testsrc2=size=320x240:rate=5:duration=1"]
    chain = ",".join(["format=yuv420p", "hwupload", *filters, "hwdownload", "format=yuv420p"])
    return ["ffmpeg", "-hide_banner", "-loglevel", "error", *device, *source, "-vf", chain, "-f", "md5", "-"]


# Not among them: pad_opencl, which crashes on Intel's CPU runtime without oclcache (160 x 120 pixels, FFmpeg 5.1), and
# deshake_opencl, whose source that runtime's compiler rejects.
FILTERS = (
    "avgblur_opencl=sizeX=2",
    "boxblur_opencl=luma_radius=2",
    "convolution_opencl=0m='1 1 1 1 1 1 1 1 1':0rdiv=0.1111",
    "dilation_opencl",
    "erosion_opencl",
    "nlmeans_opencl",
    "prewitt_opencl",
    "roberts_opencl",
    "sobel_opencl",
    "transpose_opencl",
    "unsharp_opencl",
)


def python(interpreter, script, *arguments):
    return [str(interpreter), "-B", "-W", "ignore", str(measure.TOP / "tests" / script), *arguments]


def darktable(bench, folder):
    """A copy of darktable's data, and a configuration in which it uses CPU devices: it writes the line of the device at its first
    run, with the 8th field 1 (disabled) for devices that run on the CPU."""
    shutil.copytree("/usr/share/darktable", folder / "share")
    image, configuration = folder / "first.png", folder / "configuration"
    settings = ["--core", "--datadir", str(folder / "share"), "--configdir", str(configuration)]
    bench.run(["darktable-cli", DARKTABLE_IMAGE, str(image), *DARKTABLE_SIZE, *settings], cached=False)
    image.unlink()
    settings = configuration / "darktablerc"
    if not settings.exists():
        measure.stop("darktable-cli wrote no darktablerc")
    text, changed = re.subn(r"^(cldevice_v4_\w+=(?:\S+ ){7})1 ", r"\g<1>0 ", settings.read_text(), flags=re.MULTILINE)
    if changed != 1:
        measure.stop("darktable saw no OpenCL device, or wrote of it in another form than that of darktable 4.2")
    settings.write_text(text)


DARKTABLE_IMAGE = "/usr/share/darktable/style/image-1.jpg"
DARKTABLE_SIZE = ("--width", "100", "--height", "100")
# It compiles all its kernels at the start and keeps their binaries in --cachedir. The image is the result: the sum of each row's 16-bit
# values. Of the same program and binaries it makes two images, also bare, which differ by at most 2 of 65535 in a fifth of the values. How
# many events there are differs from run to run, also bare; that there are some shows that OpenCL was used.
DARKTABLE = f"""
cp -r "$PREPARED/configuration" configuration &&
darktable-cli {DARKTABLE_IMAGE} out.ppm {' '.join(DARKTABLE_SIZE)} --core --datadir "$PREPARED/share" --cachedir cache \\
    --configdir configuration -d opencl >log 2>&1 &&
grep -o 'opencl is AVAILABLE' log && grep -o ' out of [1-9][0-9]* events were successful' log | tr -d '0-9' &&
head -n 3 out.ppm && tail -n +4 out.ppm | od -An -v -tu2 --endian=big -w600 |
awk '{{ sum = 0; for (at = 1; at <= NF; at++) sum += $at; print sum }}'
"""


def hashcat(_, folder):
    """A copy of hashcat, which finds its kernels beside itself and keeps what it compiles there, too."""
    shutil.copy("/usr/bin/hashcat", folder)
    for name in "OpenCL", "tunings":
        shutil.copytree(f"/usr/share/hashcat/{name}", folder / name)
    shutil.copy("/usr/share/hashcat/hashcat.hcstat2", folder)
    (folder / "modules").symlink_to("/usr/share/hashcat/modules")


# The four digits of an MD5. On PoCL hashcat 6.2.6 refuses to run without --force.
HASHCAT = """
cd "$PREPARED" && rm -rf kernels &&
./hashcat -m 0 -a 3 -D 1 --backend-vector-width 1 --potfile-disable --force --quiet b52340b4de4566b804c9880aa0b4af5f '?d?d?d?d'
"""


CLIENTS = [
    Client("clinfo", "clinfo", lambda: ["clinfo"], drivers=ALL, quick=True, plain=without_luid),
    Client("clpeak", "clpeak, kernel latency", lambda: ["clpeak", "--kernel-latency"], quick=True, plain=without_times),
    Client("unsharp", "FFmpeg, one filter", lambda: ffmpeg("unsharp_opencl"), drivers=ALL, quick=True),
    Client("ffmpeg", f"FFmpeg, {len(FILTERS)} filters", lambda: ffmpeg(*FILTERS), drivers=(POCL, INTEL, INTEL_GPU)),
    Client(
        "pyopencl",
        "PyOpenCL, three kernels",
        lambda: python(os.environ["OCLCACHE_TEST_PYTHON"], "support/pyopencl_program.py"),
        drivers=EXECUTING,
        quick=True,
    ),
    Client(
        "pyopencl-tests",
        "PyOpenCL's tests of its wrapper",
        lambda: pyopencl_tests("wrapper", "arrays_in_structs", "enqueue_copy"),
        plain=without_duration,
    ),
    # Their sources include PyOpenCL's own files: the generators of random numbers, and for others the complex numbers.
    Client(
        "pyopencl-random",
        "PyOpenCL's tests of random numbers",
        lambda: pyopencl_tests("clrandom"),
        plain=without_duration,
    ),
    Client(
        "pyopencl-suite",
        "PyOpenCL's tests, all",
        lambda: pyopencl_tests("algorithm", "array", "arrays_in_structs", "clmath", "clrandom", "enqueue_copy", "wrapper"),
        long=True,
        # Two tests fail without oclcache: test_xdg_cache_home, which wants PyOpenCL's own cache, and on Intel's runtime test_bessel.
        statuses=(0, 1),
        plain=without_duration,
    ),
    Client("clblast", "CLBlast, tuner of xaxpy", lambda: ["clblast_tuner_xaxpy", "-precision", "32"], drivers=(POCL, INTEL, INTEL_GPU), plain=without_times),
    Client("openmm", "OpenMM, water box with PME", lambda: measure.water_box().argv, tolerance=measure.water_box().tolerance),
    Client("opencv", "OpenCV T-API, 73 operations", lambda: measure.tapi().argv),
    # The sums of its histogram differ in the seventh digit from run to run, also bare: atomic additions in any order.
    Client("pyfai", "pyFAI, all algorithms", lambda: python(PYTHON, "programs/azimuth.py"), drivers=(INTEL,), tolerance=1e-6),
    # Without csr: its source holds a median filter that PoCL 3.1 compiles for minutes. Bare it does so when the filter runs, and
    # here it never runs; through oclcache at the first run, when the binary is fetched.
    Client(
        "pyfai-lut",
        "pyFAI, LUT and histogram",
        lambda: python(PYTHON, "programs/azimuth.py", "lut", "histogram"),
        drivers=(POCL,),
        tolerance=1e-6,
    ),
    Client("hashcat", "hashcat -m 0", lambda: ["sh", "-c", HASHCAT], prepare=hashcat, header="OpenCL/inc_types.h"),
    # PoCL 3.1 rejects the quoted -I that darktable passes.
    Client(
        "darktable",
        "darktable-cli",
        lambda: ["sh", "-c", DARKTABLE],
        drivers=(INTEL,),
        prepare=darktable,
        header="share/kernels/common.h",
        tolerance=1e-4,
    ),
]


def icds():
    """The .icd file of each driver that is there."""
    variables = {
        POCL: "OCLCACHE_TEST_POCL",
        INTEL: "OCLCACHE_TEST_INTEL",
        RUSTICL: "OCLCACHE_TEST_RUSTICL",
        INTEL_GPU: "OCLCACHE_TEST_INTEL_GPU",
    }
    return {driver: pathlib.Path(os.environ[variable]) for driver, variable in variables.items() if os.environ.get(variable)}
