"""A real browser without a window, led over a pipe: open a page, act on it, ask what it shows.

Source: Chrome DevTools Protocol, https://chromedevtools.github.io/devtools-protocol/
"""

import json
import os
import select
import shutil
import subprocess
import sys
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATH = next(filter(None, map(shutil.which, NAMES)), None)
MISSING = f"no browser is installed: none of {', '.join(NAMES)}"
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-quic", "--no-first-run", "--disable-sync", "--disable-component-update"),
    *("--disable-background-networking", "--remote-debugging-pipe", "--window-size=1200,800"),
)
# The browser reads orders from descriptor 3 and answers on 4.
START = (
    "import fcntl, os, sys; a, b = (fcntl.fcntl(int(x), fcntl.F_DUPFD, 10) for x in sys.argv[1:3]);"
    "os.dup2(a, 3); os.dup2(b, 4); os.execv(sys.argv[3], sys.argv[3:])"
)
LIMIT = 60.0  # s, for one answer
KEYS = {"Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40}


class Browser:
    """One browser with one page; `complaints` has what the page said on the console."""

    def __init__(self, profile):
        (read, self.orders), (self.answers, write) = os.pipe(), os.pipe()
        command = [sys.executable, "-c", START, str(read), str(write), PATH, *OPTIONS]
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}"],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self.rest, self.count, self.session, self.complaints = b"", 0, None, []
        target = self.order("Target.createTarget", url="about:blank")["targetId"]
        attached = self.order("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            self.order(f"{domain}.enable")

    def close(self):
        """End the browser, and wait until it has ended."""
        self.session = None
        try:
            self.order("Browser.close")
            self.process.wait(LIMIT)
        finally:
            self.process.kill()  # nothing where it has ended
            self.process.wait(LIMIT)
        os.close(self.orders)
        os.close(self.answers)

    def order(self, method, **params):
        """Send one order and return its result."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.orders, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.count:
            kind = answer["method"]
            if kind in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                self.complaints.append(answer["params"])
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _next(self):
        deadline = time.monotonic() + LIMIT
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.answers], [], [], deadline - time.monotonic())
            assert ready, "the browser does not answer"
            got = os.read(self.answers, 2**20)
            assert got, "the browser has ended"
            self.rest += got
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def open(self, path, fragment=""):
        """Open a page afresh and wait until it has drawn."""
        self.order("Page.navigate", url="about:blank")
        self.order("Page.navigate", url=f"{path.as_uri()}{fragment}")
        deadline = time.monotonic() + LIMIT
        while not self.ask("document.documentElement?.dataset.spans"):
            assert time.monotonic() < deadline, f"nothing was drawn: {self.complaints}"
            time.sleep(0.02)
        self.settle()

    def ask(self, expression):
        """Evaluate an expression in the page, waiting where it is a promise."""
        result = self.order(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def settle(self):
        """Wait until what was asked for has been drawn."""
        frame = "new Promise((done) => requestAnimationFrame(done))"
        self.ask(f"{frame}.then(() => {frame}).then(() => {frame})")

    def mouse(self, kind, x, y, **params):
        """Move, press, release or turn the wheel of the mouse."""
        self.order("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **params)
        self.settle()

    def click(self, x, y):
        """Press and release the left button."""
        self.mouse("Moved", x, y)
        for kind in ("Pressed", "Released"):
            self.mouse(kind, x, y, button="left", buttons=1, clickCount=1)

    def press(self, *keys):
        """Press and release keys, one after another."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {"windowsVirtualKeyCode": KEYS[key]}
            for kind in ("keyDown", "keyUp"):
                extra = text if kind == "keyDown" or len(key) > 1 else {}
                self.order("Input.dispatchKeyEvent", type=kind, key=key, **extra)
        self.settle()

    def text(self, name):
        """Return the lines that can be read in the element of that id, cells parted by tabs."""
        found = self.ask(f"document.getElementById({json.dumps(name)}).innerText")
        return "\n".join(line for line in found.split("\n") if line.strip())

    @property
    def drawn(self):
        """What the page says it has drawn."""
        return {k: float(v) for k, v in self.ask("({...document.documentElement.dataset})").items()}
