"""Make the screenshots of `docs/reading-a-run.md`: python scripts/make_screenshots.py DEMO_RUN

DEMO_RUN is what `msmon demo --output DEMO_RUN` wrote. Needs chromium, chromedriver and selenium.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

from msmon.reading import write_report

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIZES = {"desktop": (1920, 1080), "laptop": (1366, 768)}


def start(profile: Path) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def shoot(driver: webdriver.Chrome, page: Path, size: str, scheme: str) -> None:
    width, height = SIZES[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.get(page.as_uri())
    wait = WebDriverWait(driver, 30)
    wait.until(lambda _: driver.execute_script("return document.body.dataset.ready === 'yes'"))
    if (size, scheme) == ("laptop", "light"):
        driver.save_screenshot(str(IMAGES / "report-top.png"))
    # The second anomaly is the first activation: the heat map opens at its cell.
    driver.execute_script("document.querySelectorAll('#panel-anomaly-table tr.link')[1].click()")
    wait.until(lambda _: driver.execute_script("return document.querySelectorAll('.chart').length > 3"))
    driver.execute_script("document.getElementById('explorer').scrollIntoView({behavior: 'instant'})")
    driver.execute_script("document.getElementById('tip').hidden = true")
    driver.save_screenshot(str(IMAGES / f"report-{size}-{scheme}.png"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_report(sys.argv[1], page)
        driver = start(Path(folder) / "profile")
        try:
            for size in SIZES:
                for scheme in ("light", "dark"):
                    shoot(driver, page, size, scheme)
        finally:
            driver.quit()


if __name__ == "__main__":
    main()
