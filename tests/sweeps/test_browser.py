"""The report in a real browser."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from made import alpha_study, front_study, mechanisms_study
from nala_platform.sweeps.report import write_report
from optuna.study import Study

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LOOK = """<script>
addEventListener("error", event => console.error("broken: " + (event.message || event.target.outerHTML)), true);
addEventListener("load", () => {
  const images = [...document.images];
  const found = {
    images: images.length,
    loaded: images.filter(image => image.complete && image.naturalWidth >= 600 && image.clientWidth > 300).length,
    fetched: performance.getEntriesByType("resource").filter(entry => !entry.name.startsWith("data:")).length,
    wider: Math.max(0, document.documentElement.scrollWidth - innerWidth),
    bad: document.querySelectorAll("body > p:empty, h2:empty").length,
  };
  document.title = Object.entries(found).map(([key, value]) => key + "=" + value).join(" ");
});
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)")
@pytest.mark.parametrize(("make", "images"), [(alpha_study, 5), (mechanisms_study, 4), (front_study, 6)])
def test_a_browser_shows_the_report(make: Callable[[Path], Study], images: int, tmp_path: Path):
    write_report(make(tmp_path), tmp_path)
    page = tmp_path / "looked-at.html"
    page.write_text((tmp_path / "report.html").read_text().replace("<head>", f"<head>{LOOK}", 1))
    shown = browse(page, tmp_path)
    title = re.search("<title>(.*?)</title>", shown.stdout)
    assert title is not None and title[1] == f"images={images} loaded={images} fetched=0 wider=0 bad=0"
    assert "CONSOLE" not in shown.stderr


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)")
def test_the_look_would_see_what_is_broken(tmp_path: Path):
    page = tmp_path / "broken.html"
    page.write_text(
        f'<html><head><title></title>{LOOK}</head><body><img src="data:image/png;base64,AAAA"></body></html>'
    )
    shown = browse(page, tmp_path)
    assert "images=1 loaded=0" in shown.stdout
    assert "CONSOLE" in shown.stderr and "broken: " in shown.stderr


def browse(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Load ``page`` without a display; what the document is in the end, and what the console said."""
    assert CHROMIUM is not None
    words = ["--headless=new", "--disable-gpu", "--window-size=1200,900", "--enable-logging=stderr", "--dump-dom"]
    if os.getuid() == 0:
        words.append("--no-sandbox")  # Chromium refuses its sandbox to root
    words += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000", page.as_uri()]
    return subprocess.run([CHROMIUM, *words], capture_output=True, text=True, timeout=120, check=True)
