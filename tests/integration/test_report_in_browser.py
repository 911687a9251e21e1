"""A page of a run full of hostile text, in a real browser without a screen."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image
from report_pages import hostile_run

from gpu_forecasters_plugin.ledger import Ledger, LedgerReader
from gpu_forecasters_plugin.report import gather, render, run_page

_BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(_BROWSER is None, reason="no Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    hostile_run(Ledger(folder / "ledger.sqlite3"))
    reader = LedgerReader(folder / "ledger.sqlite3")
    reader.follow_run(1)
    path = folder / "report.html"
    path.write_text(render(run_page(gather(reader))), encoding="utf-8")
    return path


def browse(page: Path, *options: str, dark: bool = False) -> subprocess.CompletedProcess[str]:
    """Open a page; its document is on the output, what its console says among the errors."""
    assert _BROWSER is not None
    command = [
        _BROWSER,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--no-first-run",
        "--enable-logging=stderr",
        f"--user-data-dir={page.parent / 'profile'}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        *options,
        page.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def console(said: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in said.stderr.splitlines() if "CONSOLE" in line]


def requested(log: Path) -> list[str]:
    """Every address of the network that a page has asked for; what the browser itself asks has no origin."""
    events = log.read_text(errors="replace").splitlines()  # one a line
    own = (
        event for event in events if '"initiator":"' in event and '"initiator":"not an origin"' not in event
    )
    return re.findall(r'"url":"((?:https?|wss?|ftp):[^"]*)"', "\n".join(own))


def without_policy(page: Path, name: str, inserted: str) -> Path:
    """A copy of the page that may do anything, with something more in it."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    copy = page.with_name(name)
    copy.write_text(text.replace("</main>", f"{inserted}</main>"), encoding="utf-8")
    return copy


def test_nothing_runs_nothing_is_asked_of_the_network_and_the_console_stays_empty(page: Path) -> None:
    log = page.with_name("net.json")
    said = browse(page, "--dump-dom", f"--log-net-log={log}")
    assert console(said) == [] and "<title>Run run</title>" in said.stdout
    assert page.name in log.read_text() and requested(log) == []
    block = re.search(r'id="report-data">(.*?)</script>', said.stdout, re.S)
    assert block is not None and json.loads(block.group(1))["kind"] == "run"


_INTRUDER = '<img src="http://127.0.0.1:9/x.png"><script>document.title = "owned"</script>'


def test_what_got_into_the_page_nevertheless_would_neither_run_nor_load(page: Path) -> None:
    kept = page.with_name("kept.html")
    kept.write_text(
        page.read_text(encoding="utf-8").replace("</main>", f"{_INTRUDER}</main>"), encoding="utf-8"
    )
    log = page.with_name("kept.json")
    said = browse(kept, "--dump-dom", f"--log-net-log={log}")
    assert "<title>Run run</title>" in said.stdout and requested(log) == []
    assert len(console(said)) == 2 and all("Content Security Policy" in line for line in console(said))
    log = page.with_name("open.json")
    said = browse(without_policy(page, "open.html", _INTRUDER), "--dump-dom", f"--log-net-log={log}")
    assert "<title>owned</title>" in said.stdout and requested(log) == ["http://127.0.0.1:9/x.png"]


def test_on_a_phone_nothing_but_tables_and_code_is_wider_than_the_screen(page: Path) -> None:
    script = "<script>onload = () => parent.postMessage(document.documentElement.scrollWidth, '*')</script>"
    asking = without_policy(page, "asking.html", script)
    phone = page.with_name("phone.html")  # a window of its own would not get as narrow
    phone.write_text(
        "<script>onmessage = (event) => { document.title = `${event.data} wide` }</script>"
        f'<iframe src="{asking.name}" width="390" height="844" style="border: 0"></iframe>'
    )
    said = browse(phone, "--dump-dom", "--virtual-time-budget=5000")
    assert "<title>390 wide</title>" in said.stdout


def test_the_page_is_light_or_dark_as_the_reader_wishes_and_prints(page: Path) -> None:
    corners = []
    for dark in (False, True):
        image = page.with_name(f"dark-{dark}.png")
        browse(page, f"--screenshot={image}", "--window-size=390,844", dark=dark)
        with Image.open(image) as picture:
            assert picture.size == (390, 844)
            corners.append(picture.convert("RGB").getpixel((2, 2)))
    assert corners == [(255, 255, 255), (0x15, 0x17, 0x1B)]
    printed = page.with_name("report.pdf")
    browse(page, f"--print-to-pdf={printed}")
    assert printed.read_bytes().startswith(b"%PDF") and printed.stat().st_size > 20_000
