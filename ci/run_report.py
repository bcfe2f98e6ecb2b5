"""Fills a cache, has a report written, and looks at it in a headless Chromium, at the widths of a phone and of a desk, light and
dark: the pictures go to target/report. Fails where the page is wider than the screen, where the browser has anything to
complain of, or where a parser finds what should not be there. Called by ci/report."""

import base64
import html.parser
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
BUILT = TOP / "target/debug"
OUT = TOP / "target/report"
SCREENS = {"phone": (360, 740, True), "tablet": (820, 1180, True), "desktop": (1280, 900, False)}
DEADLINE = 60  # seconds for any answer of the browser
SOURCE = "__kernel void f(__global uint *out) { out[get_global_id(0)] = N; }\n"
HOSTILE = [
    b"<script>document.title='pwned'<.script>",
    b"<img src=x onerror=alert(1)>",
    b"\"><style>*{display:none}<.style>",
    b"]]>--><!--<?x?>",
    b"two\nlines \x1b[31m \xff",
    "\u202ereversed\u202c and a-name-without-any-blank-that-goes-on-and-on-and-on".encode(),
]


def fill(place):
    """A year of counters, and some entries and misses of programs whose names are chosen to do harm."""
    for name, library in ("drivers", BUILT / "examples/libstub_driver.so"), ("oclcache", BUILT / "liboclcache.so"):
        (place / name).mkdir()
        (place / name / f"{name}.icd").write_text(f"{library}\n")
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OCL", "STUB_"))},
        "HOME": str(place),
        "OCL_ICD_VENDORS": str(place / "oclcache"),
        "OCLCACHE_VENDORS": str(place / "drivers"),
        "OCLCACHE_DIR": str(place / "cache"),
        "OCLCACHE_SYSTEM_DIRS": "none",
        "OCLCACHE_RECORD": "inline",
        "OCLCACHE_AUTOBAKE": "0",
        "STUB_BUILD_MS": "3",
    }
    (place / "kernel.cl").write_text(SOURCE)
    (place / "time.cl").write_text(SOURCE + "constant char t[] = __TIME__;\n")
    for index, name in enumerate([b"darktable", b"python3.13", *HOSTILE]):
        program = os.path.join(os.fsencode(place), name)
        shutil.copy(BUILT / "examples/client", program)
        for source, options in ("kernel.cl", "-DN=1"), ("kernel.cl", f"-DN={index} -DLONG={'x' * 60}"), ("time.cl", "-DN=1"):
            arguments = ["client", "run", "--source", place / source, "--kernel", "f", "--options", options]
            subprocess.run(arguments, executable=program, env=variables, check=True, stdout=subprocess.DEVNULL)
    command = [BUILT / "oclcache"]
    subprocess.run([*command, "stats"], env=variables, check=True, stdout=subprocess.DEVNULL)
    plant(place / "cache/v1/stats/total.json")
    subprocess.run([*command, "report", place / "report.html"], env=variables, check=True)
    told = subprocess.run([*command, "stats", "--json"], env=variables, check=True, capture_output=True)
    return place / "report.html", json.loads(told.stdout)


def plant(path):
    """Counters of a year, as if it had gone by."""
    total = json.loads(path.read_text())
    today = int(time.time()) // 86400
    some = random.Random(7)
    for age in range(1, 380):
        for program, driver, device, seconds in (
            ("darktable", "intel-gpu", "Intel(R) Arc(TM) A770 Graphics", 2.0),
            ("python3.13", "pocl", "cpu-sapphirerapids-Intel(R) Xeon(R) Processor @ 2.10GHz", 0.4),
            ("hashcat", "rusticl", "llvmpipe (LLVM 19.1.7, 256 bits)", 3.0),
        ):
            if some.random() < 0.5:
                continue
            hits, misses = some.randint(5, 120), some.randint(0, 30)
            counters = {
                "hits": hits,
                "misses": misses,
                "missed.absent": misses,
                "saved_ns": int(hits * seconds * 1e9),
                "compile_ns": int(misses * seconds * 1e9),
                "bypassed.not_from_source": some.randint(0, 3),
                "materialised": 1,
                "materialised.program_build_log": 1,
            }
            row = {"day": today - age, "program": program, "driver": driver, "device": device, "counters": counters}
            total["rows"].append(row)
    path.write_text(json.dumps(total))


class Checked(html.parser.HTMLParser):
    """What a parser of HTML finds: elements of these kinds only, and nothing that acts or fetches."""

    KNOWN = set(
        "html head meta title style body main header footer section div h1 h2 h3 p b i small bdi code br span data "
        "figure figcaption svg g path rect table thead tbody tr th td dl dt dd ul li details summary".split()
    )
    FORBIDDEN = {"src", "href", "style", "srcset", "action", "xlink:href"}

    def __init__(self):
        super().__init__()
        self.wrong = []
        self.values = {}

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        if tag not in self.KNOWN or any(name in self.FORBIDDEN or name.startswith("on") for name in names):
            self.wrong.append((tag, attributes))
        if tag == "data":
            self.values.setdefault(dict(attributes)["class"], int(dict(attributes)["value"]))


def check(page, told):
    parser = Checked()
    parser.feed(page.read_text())
    parser.close()
    assert not parser.wrong, parser.wrong
    for name in ("saved_ns", "hits", "misses", "bypassed", "failed", "bytes", "entries"):
        assert parser.values[name] == told[name], (name, parser.values[name], told[name])


class Browser:
    """A headless Chromium, spoken to by its own protocol through pipes: messages are JSON that end with a NUL."""

    def __init__(self, profile):
        to_browser, self.write = os.pipe()
        self.read, from_browser = os.pipe()
        flags = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
            "--disable-component-update --disable-sync --hide-scrollbars --remote-debugging-pipe"
        ).split()
        ours = (to_browser, from_browser)

        def as_it_wants():
            # It reads at 3 and writes at 4; ours may be those the other way round.
            kept = [os.dup(os.dup(number)) for number in ours]
            for number, place in zip(kept, (3, 4)):
                os.dup2(number, place)

        self.process = subprocess.Popen(
            ["chromium", *flags, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=as_it_wants,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in ours:
            os.close(number)
        os.set_blocking(self.read, False)
        self.buffer, self.last, self.events = b"", 0, []

    def message(self):
        until = time.monotonic() + DEADLINE
        while b"\0" not in self.buffer:
            assert time.monotonic() < until, "the browser does not answer"
            try:
                read = os.read(self.read, 1 << 20)
                assert read, "the browser has ended"
                self.buffer += read
            except BlockingIOError:
                time.sleep(0.01)
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, session=None, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write, data) :]
        while True:
            answer = self.message()
            if answer.get("id") == self.last:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method):
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.message())

    def close(self):
        os.close(self.write)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def look(browser, page, name, scheme):
    """One picture of the page; tells what is wrong."""
    width, height, mobile = SCREENS[name]
    target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
    session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    browser.events.clear()
    for domain in ("Page", "Runtime", "Log", "Network"):
        browser.ask(f"{domain}.enable", session)
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    browser.ask("Emulation.setDeviceMetricsOverride", session, **metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.ask("Emulation.setEmulatedMedia", session, features=features)
    browser.ask("Page.navigate", session, url=page.as_uri())
    browser.wait_for("Page.loadEventFired")

    def evaluate(expression):
        result = browser.ask("Runtime.evaluate", session, expression=expression, returnByValue=True)
        return result["result"]["value"]

    wrong = []
    widest = evaluate("document.documentElement.scrollWidth")
    if widest > width:
        wrong.append(f"{widest} pixels wide on a screen of {width}")
    title, color = evaluate("document.title"), evaluate("getComputedStyle(document.body).backgroundColor")
    if title != "oclcache: what was served":
        wrong.append(f"its title is {title!r}")
    if color in ("rgba(0, 0, 0, 0)", "rgb(255, 255, 255)"):
        wrong.append("its style is not applied")
    fetched = [
        event["params"]["request"]["url"]
        for event in browser.events
        if event.get("method") == "Network.requestWillBeSent"
    ]
    wrong += [f"it fetches {url}" for url in fetched if url != page.as_uri()]
    for event in browser.events:
        if event.get("method") in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            wrong.append(json.dumps(event["params"]))
    picture = browser.ask("Page.captureScreenshot", session, captureBeyondViewport=True)
    (OUT / f"{name}-{scheme}.png").write_bytes(base64.b64decode(picture["data"]))
    browser.ask("Target.closeTarget", targetId=target)
    return [f"{name}, {scheme}: {each}" for each in wrong], color


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="oclcache-report-") as place:
        place = pathlib.Path(place)
        written, told = fill(place)
        page = OUT / "report.html"
        shutil.copy(written, page)
        check(page, told)
        browser = Browser(place / "profile")
        try:
            wrong, colors = [], set()
            for name in SCREENS:
                for scheme in ("light", "dark"):
                    found, color = look(browser, page, name, scheme)
                    wrong += found
                    colors.add((scheme, color))
            if len(colors) != 2 or len({color for _, color in colors}) != 2:
                wrong.append(f"it is not dark in the dark: {colors}")
        finally:
            browser.close()
    for each in wrong:
        print(f"error: {each}", file=sys.stderr)
    print(f"The report and its pictures: {OUT}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
