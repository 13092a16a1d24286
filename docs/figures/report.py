"""Take the picture of a report that the documentation shows, with the browser that the machine has.

tsallis train recipes/tiny/translation.yaml && tsallis analyze runs/tiny-translation -o report.html
python docs/figures/report.py report.html docs/figures/report.png
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

SIZE = {"width": 1240, "height": 820}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main(page: str, picture: str, view: str = "sentence/3/0/cross/1/3") -> None:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise SystemExit("there is no chromium on the PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
        tab.goto(f"{Path(page).resolve().as_uri()}#{view}")
        tab.wait_for_selector(".thumb")
        tab.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
