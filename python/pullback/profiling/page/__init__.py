"""Makes the page that `prof.to_html(path)` writes: one file that shows a profile in any browser, without a network."""

from __future__ import annotations

import html
import json
import os
import re
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from ..record import record, write_text

if TYPE_CHECKING:
    from ..session import Profile

_SCRIPTS: Final = (
    "figures.js", "quantities.js", "elements.js", "summary.js", "table.js", "treemap.js", "time.js", "roofline.js", "page.js",
)


def to_html(prof: Profile, path: str | os.PathLike[str]) -> None:
    """Writes the page as UTF-8: `record(prof)`, and the style and scripts that show it."""
    write_text(path, page(record(prof)))


def page(data: dict[str, Any]) -> str:
    """Returns the page of a record. Names in the record (of lines, modules, kernels) may contain any characters."""
    parts = {
        "title": html.escape(f"pullback profile, {data['facts']['date']}"),
        "style": _text("page.css"),
        "record": _inside_script(data),
        "script": "\n".join([_text(name) for name in _SCRIPTS]),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _text("page.html"))


def _text(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8").strip()


def _inside_script(data: dict[str, Any]) -> str:
    """Returns the data as ASCII JSON in which <, > and & are escaped, so that it cannot end the enclosing script element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
