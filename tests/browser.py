"""A headless browser (Chromium, by Qt WebEngine) that opens a page, evaluates JavaScript in it and reports what happened.

`visit` runs this file in a separate process, because a browser needs the main thread and an allocator that no sanitizer replaces.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = "PySide6-WebEngine"
SECONDS = 120  # the time limit of a visit
REPLACED = ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS", "PYTHONMALLOC")


class Visit(NamedTuple):
    """The result of a visit: values of the steps, console messages of any level, and requested addresses except data: URLs."""

    answers: list[Any]
    console: list[str]
    requests: list[str]


def why_not() -> str | None:
    """Returns the reason why there is no browser, or None if there is one."""
    try:
        metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return f"{PACKAGE}, which brings the browser, is not installed"
    return None


def visit(page: Path, steps: Sequence[str | dict[str, str]], *, width: int = 1600, height: int = 3000, dark: bool = False) -> Visit:
    """Opens the page and performs the steps.

    A string is a JavaScript expression with a JSON value, {"key": "Return"} presses that key, and {"until": expression} waits until
    the expression is true.
    """
    home = page.parent / "home"
    home.mkdir(exist_ok=True)
    flags = "--disable-dev-shm-usage" + (" --blink-settings=preferredColorScheme=0" if dark else "")
    environment = {name: value for name, value in os.environ.items() if name not in REPLACED} | {
        "QT_QPA_PLATFORM": "offscreen",
        "QTWEBENGINE_DISABLE_SANDBOX": "1",  # Containers and root cannot use the sandbox, and only our own pages are opened.
        "QTWEBENGINE_CHROMIUM_FLAGS": flags,
        **dict.fromkeys(("HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(home)),
    }
    job = json.dumps({"page": str(page), "steps": list(steps), "size": [width, height]})
    ran = subprocess.run([sys.executable, __file__], input=job, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 0, f"the browser failed ({ran.returncode}):\n{ran.stderr[-3000:]}"
    return Visit(**json.loads(ran.stdout.splitlines()[-1]))


def _browse(job: dict[str, Any]) -> None:
    from PySide6.QtCore import Qt, QTimer, QUrl
    from PySide6.QtTest import QTest
    from PySide6.QtWebEngineCore import QWebEnginePage, QWebEngineUrlRequestInterceptor
    from PySide6.QtWebEngineWidgets import QWebEngineView
    from PySide6.QtWidgets import QApplication

    app, seen = QApplication([]), Visit([], [], [])

    class Page(QWebEnginePage):
        def javaScriptConsoleMessage(self, level: Any, message: str, line: int, source: str) -> None:
            seen.console.append(f"{level.name}, line {line}: {message}")

    class Requests(QWebEngineUrlRequestInterceptor):
        def interceptRequest(self, info: Any) -> None:
            if info.requestUrl().scheme() != "data":
                seen.requests.append(info.requestUrl().toString())

    view, requests = QWebEngineView(), Requests()
    page = Page(view)
    page.setUrlRequestInterceptor(requests)
    view.setPage(page)
    view.resize(*job["size"])
    steps = iter(job["steps"])

    def step() -> None:
        todo = next(steps, None)
        if todo is None:
            app.quit()
        elif isinstance(todo, str):
            page.runJavaScript(f"JSON.stringify({todo}) ?? 'null'", answered)
        elif "key" in todo:
            window: Any = view.focusProxy()
            QTest.keyClick(window, getattr(Qt.Key, f"Key_{todo['key']}"))
            step()
        else:
            wait(todo["until"])

    def wait(expression: str) -> None:
        again = lambda: QTimer.singleShot(10, lambda: wait(expression))
        page.runJavaScript(f"Boolean({expression})", lambda true: step() if true else again())

    def answered(text: Any) -> None:
        seen.answers.append(json.loads(text) if text else None)
        step()

    page.loadFinished.connect(step)
    view.load(QUrl.fromLocalFile(job["page"]))
    view.show()
    app.exec()
    print(json.dumps(seen._asdict()), flush=True)
    os._exit(0)  # A normal exit destroys Qt's objects in an order that Qt warns about.


if __name__ == "__main__":
    _browse(json.load(sys.stdin))
