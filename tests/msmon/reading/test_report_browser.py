"""The page in headless Chromium, opened from disk, used as a person would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msmon.reading import write_diff_page, write_report

from .files import write_rank
from .test_report_page import EVIL

NAN = (255, 31, 162)
Browser = Callable[..., Any]


class Page:
    """What a person can do and see."""

    def __init__(self, driver: Any, path: Path) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        self.driver = driver
        self.wait = WebDriverWait(driver, 30)
        driver.get(path.as_uri())
        self.until("return document.body.dataset.ready === 'yes' || !document.getElementById('fatal').hidden")
        assert not self.script("return !document.getElementById('fatal').hidden"), self.text("#fatal")

    def script(self, code: str, *arguments: object) -> Any:
        return self.driver.execute_script(code, *arguments)

    def until(self, code: str, *arguments: object) -> Any:
        return self.wait.until(lambda _: self.script(code, *arguments))

    def text(self, selector: str) -> str:
        return self.script("return document.querySelector(arguments[0]).innerText", selector)

    def choose(self, select: str, value: str) -> None:
        self.script(
            "const s = document.querySelector(arguments[0]); s.value = arguments[1];"
            "s.dispatchEvent(new Event('change'))",
            select,
            value,
        )

    def search(self, text: str) -> None:
        box = self.driver.find_element("css selector", "#search")
        box.clear()
        if text:
            box.send_keys(text)
        else:
            self.script("document.querySelector('#search').dispatchEvent(new Event('input'))")

    def place(self, row: int, step: int, steps: int) -> tuple[float, float]:
        """Where in the heat map's canvas a cell is, counted in the rows that are shown (first a layer's row)."""
        width = self.script("return document.querySelector('#rows canvas').clientWidth")
        return 215 + (step + 0.5) * (width - 215) / steps, 18 + 16 * row + 13 if row >= 0 else 13

    def pixel(self, row: int, step: int, steps: int) -> tuple[int, ...]:
        x, y = self.place(row, step, steps)
        context = "document.querySelector('#rows canvas').getContext('2d')"
        return tuple(
            self.script(f"return [...{context}.getImageData(arguments[0], arguments[1], 1, 1).data]", x, y)[:3]
        )

    def mouse(self, row: int, step: int, steps: int, *, click: bool = True, shift: bool = False) -> None:
        from selenium.webdriver import ActionChains, Keys

        canvas = self.driver.find_element("css selector", "#rows canvas")
        # A click outside the window is none; the heat map comes into sight first.
        self.script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas)
        x, y = self.place(row, step, steps)
        size = canvas.size
        actions = ActionChains(self.driver)
        actions.move_to_element_with_offset(canvas, round(x - size["width"] / 2), round(y - size["height"] / 2))
        if shift:
            actions.key_down(Keys.SHIFT)
        if click:
            actions.click()
        if shift:
            actions.key_up(Keys.SHIFT)
        actions.perform()

    def charts(self) -> list[str]:
        return self.script("return [...document.querySelectorAll('.chart')].map((one) => one.dataset.stat)")

    def lines(self) -> list[str]:
        return self.script("return [...document.querySelectorAll('#lines .line')].map((one) => one.innerText)")

    def chips(self) -> list[str]:
        return self.script("return [...document.querySelectorAll('#chosen .chip')].map((one) => one.firstChild.data)")

    def errors(self) -> list[str]:
        # Reading pixels back, which only this test does, draws a hint about speed.
        messages = [entry["message"] for entry in self.driver.get_log("browser")]
        return [message for message in messages if "willReadFrequently" not in message]


def test_a_run_with_a_fault(trained: Callable[[str], Path], tmp_path: Path, browser: Browser) -> None:
    write_report(trained("nan"), tmp_path / "r.html")
    page = Page(browser(1440, 900), tmp_path / "r.html")
    assert "First: step 5, weights, rank 1: blocks.2.mlp.fc.weight" in page.text("#panel-anomalies")

    # A click on a row of the table of anomalies leads to its curves, at its step.
    page.script("document.querySelectorAll('#panel-anomaly-table tr.link')[1].click()")
    page.until("return document.querySelectorAll('.chart').length === 6")
    assert page.script("return document.querySelector('#type').value") == "actv"
    assert page.chips() == ["blocks.2.mlp.fc.output"]
    assert page.charts() == ["norm", "min", "max", "mean", "zeros", "nans"]
    assert page.lines() == ["rank 0", "rank 1"]

    # The heat map: NaN from step 5 on in the colour of NaN, nothing before, and nothing at all on rank 0.
    page.search("blocks.2.mlp.fc.output")
    page.until("return document.querySelector('#map-note').innerText.startsWith('1 of 96')")
    assert page.pixel(0, 6, 8) == NAN
    assert page.pixel(0, 4, 8) != NAN
    page.choose("#view", "0")
    page.until("return document.querySelector('#map-note').innerText.includes('rank 0')")
    assert page.pixel(0, 6, 8) != NAN
    page.choose("#view", "1")
    page.until("return document.querySelector('#map-note').innerText.includes('rank 1')")
    assert page.pixel(0, 6, 8) == NAN
    page.choose("#view", "-1")
    page.until("return document.querySelector('#map-note').innerText.includes('worst of all ranks')")

    # Hovering names the tensor, the value, the step and the rank that is the worst.
    page.mouse(0, 6, 8, click=False)
    page.until(
        "return !document.querySelector('#tip').hidden && document.querySelector('#tip').innerText.includes('rank 1')"
    )
    tip = page.text("#tip")
    assert "blocks.2.mlp.fc.output" in tip
    assert "norm NaN at step 6" in tip
    assert "anomaly" in tip
    assert not page.errors()


def test_curves_of_several_tensors_before_and_after_reduction(
    trained: Callable[[str], Path], tmp_path: Path, browser: Browser
) -> None:
    write_report(trained("nan"), tmp_path / "r.html")
    page = Page(browser(1280, 800, dark=True), tmp_path / "r.html")
    assert page.script("return document.documentElement.dataset.theme") == "dark"
    page.choose("#type", "grad_reduced")
    page.until("return document.querySelector('#map-note').innerText.startsWith('53 tensors')")
    page.search("blocks.1.norm1")
    page.mouse(0, 2, 8)
    page.until("return document.querySelectorAll('.chart').length === 6")
    assert page.chips() == ["blocks.1.norm1.weight"]
    assert page.lines() == [f"{kind} · rank {rank}" for kind in ("grad_unreduced", "grad_reduced") for rank in (0, 1)]
    page.mouse(1, 2, 8, shift=True)
    page.until("return document.querySelectorAll('#chosen .chip').length === 2")
    assert page.chips() == ["blocks.1.norm1.weight", "blocks.1.norm1.bias"]
    assert len(page.lines()) == 8
    # The weights themselves can be drawn along.
    page.script("document.querySelector('#types input[value=param_origin]').click()")
    page.until("return document.querySelectorAll('#lines .line').length === 12")
    # A line can be hidden, and everything cleared.
    page.script("document.querySelector('#lines .line').click()")
    page.until("return document.querySelectorAll('#lines .line.off').length === 1")
    page.script("document.querySelector('#clear').click()")
    page.until("return document.querySelectorAll('.chart').length === 0")
    # Another colouring, and all statistics, draw without complaint.
    for stat in ("nans", "zeros", "mean"):
        page.choose("#stat", stat)
        for mode in ("change", "value"):
            page.choose("#mode", mode)
    page.search("(")
    assert page.script("return document.querySelector('#search').classList.contains('bad')")
    assert not page.errors()


def test_names_that_look_like_markup_are_text(tmp_path: Path, browser: Browser) -> None:
    rows = {"actv": [(s, f"{evil}.output", 0, 1.0 + s) for s in range(3) for evil in EVIL]}
    missing = [{"data_type": "actv", "name": EVIL[0], "reason": EVIL[1]}]
    coverage = {"expected": {"actv": 9}, "seen": {"actv": 5}, "missing": missing}
    write_rank(tmp_path / "run", rows, coverage=coverage)
    write_report(tmp_path / "run", tmp_path / "r.html")
    page = Page(browser(1280, 800), tmp_path / "r.html")
    assert EVIL[0] in page.text("#panel-coverage")
    page.search("<script>")
    page.mouse(-1, 1, 3)
    page.until("return document.querySelectorAll('.chart').length === 1")
    assert page.chips() == [f"{EVIL[0]}.output"]
    assert page.script("return document.images.length") == 0
    assert not page.errors()


def test_a_thinned_page_says_what_it_does_not_hold(tmp_path: Path, browser: Browser) -> None:
    run = tmp_path / "run"
    random = np.random.default_rng(0)
    for rank in range(4):
        noise = np.exp(random.standard_normal((100, 240)))
        rows = [(s, f"layers.{i // 6}.p{i % 6}.weight", noise[s, i]) for s in range(100) for i in range(240)]
        write_rank(run, {"grad_reduced": rows}, rank=rank, steps_per_file=100)
    written = write_report(run, tmp_path / "r.html", limit=230_000)
    assert any("every line (rank) is kept for" in sentence for sentence in written.thinned)
    page = Page(browser(1366, 768), tmp_path / "r.html")
    assert "values have three digits" in page.text("#fit")
    page.choose("#view", "2")
    page.until("return document.querySelector('#map-note').innerText.includes('Single ranks are kept for')")
    page.choose("#view", "-1")
    left_out = page.script("return document.querySelector('#map-note').innerText")
    assert "240 tensors" in left_out
    page.script("document.querySelector('#expand').click()")
    page.search("layers")
    for row in range(6):
        page.mouse(row, 3, 40)
        page.until("return document.querySelectorAll('.chart').length === 1")
        if "msmon report RUN --tensors" in page.text("#curves-note"):
            break
    else:
        pytest.fail("every tensor of the first layer is kept in detail")
    assert page.lines() == []
    assert not page.errors()


def test_a_comparison(trained: Callable[[str], Path], tmp_path: Path, browser: Browser) -> None:
    write_diff_page(trained("plain"), trained("bf16"), tmp_path / "d.html", rtol=1e-5)
    page = Page(browser(1440, 900), tmp_path / "d.html")
    assert "Step 4: blocks.1.attention.qkv.output" in page.text("#panel-first-difference")
    page.script("document.querySelector('#panel-first-table tr.link').click()")
    page.until("return document.querySelectorAll('.chart').length === 6")
    assert page.chips() == ["blocks.1.attention.qkv.output"]
    assert page.lines() == ["A", "B"]
    page.search("blocks.1.attention.qkv.output")
    page.mouse(0, 4, 12, click=False)
    page.until("return document.querySelector('#tip').innerText.includes('times the tolerance at step 4')")
    equal, different = page.pixel(0, 2, 12), page.pixel(0, 6, 12)
    assert equal != different
    assert not page.errors()


def test_the_demo(tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows the fault that the demo injects: the first anomaly, and its cell in the heat map."""
    from msmon.demo.tiny_gpt import Fault, train, write_config

    monkeypatch.delenv("MONITOR_OUTPUT_DIR", raising=False)
    directory = tmp_path / "demo"
    fault = Fault(step=2)
    train(write_config(directory), steps=3, fault=fault, on_step=lambda step, loss: None)
    write_report(directory, tmp_path / "r.html")
    page = Page(browser(1920, 1080), tmp_path / "r.html")
    assert f"First: step 2, weights, rank 0: {fault.layer}.weight" in page.text("#panel-anomalies")
    page.script("document.querySelector('#panel-anomaly-table tr.link').click()")
    page.until("return document.querySelectorAll('.chart').length === 4")
    assert page.chips() == [f"{fault.layer}.weight"]
    page.search(f"{fault.layer}.weight")
    before, after = page.pixel(0, 1, 3), page.pixel(0, 2, 3)
    assert before != after
    page.mouse(0, 2, 3, click=False)
    page.until("return document.querySelector('#tip').innerText.includes('at step 2')")
    assert not page.errors()
