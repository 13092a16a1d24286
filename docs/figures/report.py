"""Take the screenshots of reports for the documentation, with an installed Chromium.

tsallis analyze runs/learned runs/softmax --importance 100 --searched 100 -o report.html
python docs/figures/report.py report.html docs/figures/reading-heads.png overview '.maps:has-text("density of")'
python docs/figures/report.py report.html docs/figures/reading-card.png head/0/encoder/1/0 main
python docs/figures/report.py report.html docs/figures/reading-sentence.png sentence/0/0/cross/1/2 svg.matrix
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image, ImageChops
from playwright.sync_api import sync_playwright

SIZE = {"width": 1280, "height": 820}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
COLOURS = 64  # in a picture: enough for text and shades of two hues, with a third of the bytes


def main(page: str, picture: str, view: str, part: str | None = None) -> None:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise SystemExit("there is no chromium on the PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
        tab.goto(f"{Path(page).resolve().as_uri()}#{view}")
        tab.add_style_tag(content=".save, .pager, .crumbs { display: none !important; }")
        tab.wait_for_selector("main svg")
        tab.wait_for_timeout(500)  # wait until weights are decompressed
        taken = [element.screenshot() for element in tab.locator(part).all()] if part else [tab.screenshot()]
        browser.close()
    parts = [Image.open(io.BytesIO(data)).convert("RGB") for data in taken]
    image = Image.new(
        "RGB", (sum(element.width for element in parts), max(element.height for element in parts)), "white"
    )
    offset = 0
    for element in parts:
        image.paste(element, (offset, 0))
        offset += element.width
    empty = Image.new("RGB", image.size, "white")
    right, bottom = (ImageChops.difference(image, empty).getbbox() or (0, 0, *image.size))[2:]
    image.crop((0, 0, right, bottom)).quantize(COLOURS).save(picture, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
