"""Real trainings, each made once, and a browser."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

# What was changed, in which layer and from which step on: a comparison has to find both.
CHANGED = {
    "gelu": ("other_gelu", 2, 5),
    "bf16": ("bf16", 1, 4),
    "learning-rate": ("learning_rate", 3, 6),
    "dropout": ("other_dropout", 2, 7),
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The output directory of a training, by name."""
    base = tmp_path_factory.mktemp("runs")
    made: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in made:
            made[name] = _train(base / name, name)
        return made[name]

    return run


def _train(directory: Path, name: str) -> Path:
    pytest.importorskip("torch")
    from . import training  # not above: this file is also read in the environment without torch

    if name in CHANGED:
        change, layer, step = CHANGED[name]
        return training.train(directory, change=getattr(training, change)(layer), at=step)
    if name.startswith("seed"):
        return training.train(directory, seed=int(name[4:]))
    if name == "wrapped":
        return training.train(directory, wrap=True)
    if name == "gradients-only":
        _, layer, step = CHANGED["bf16"]
        only = {"xy_distribution": False, "param_distribution": False, "mv_distribution": False}
        return training.train(directory, change=training.bf16(layer), at=step, **only)
    if name == "nan":
        # Two ranks, two micro-steps; the fault is on rank 1.
        for rank in (0, 1):
            change = training.not_a_number(2) if rank else None
            training.train(directory, change=change, at=5, rank=rank, micro_steps=2, steps=8)
        return directory
    assert name in ("plain", "again")
    return training.train(directory)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Callable[..., object]]:
    """Opens headless Chromium: `browser(width, height, dark=False)`. Skipped where it is not installed."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium, chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium, which drives the browser, is not installed")
    from selenium.webdriver.chrome.service import Service

    opened = []

    def start(width: int, height: int, *, dark: bool = False) -> object:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={tmp_path / f'chromium-{len(opened)}'}",
            f"--window-size={width},{height}",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        opened.append(driver)
        # The window is a little larger than what the page gets of it.
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        return driver

    yield start
    for driver in opened:
        driver.quit()
