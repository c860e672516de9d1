"""The page in a real Chromium: it renders, sorts, filters, opens and prints, and asks nobody for anything."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
from pathlib import Path

import pytest
from reported import Reported, opened

from pytest_studyminimal.protocol.records import Usage
from pytest_studyminimal.reports.document import document
from pytest_studyminimal.reports.page.assembly import as_html

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HOSTILE = json.loads((Path(__file__).parent / "hostile_words.json").read_text())
NAMES = [
    f"{task}:{arm}:{number}"
    for task in ("one", "two", "three")
    for number in (1, 2, 3)
    for arm in ("plain", "docs")
]
QUIET = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


@pytest.fixture(scope="module")
def browser():
    """One headless Chromium; without it a contributor skips, the gate installs it."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (*QUIET, "--window-size=1280,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with contextlib.closing(
        Chromium(webdriver.Chrome(options, webdriver.ChromeService(driver)))
    ) as one:
        yield one


class Chromium:
    """A browser that notes what a page says and asks for."""

    def __init__(self, driver):
        self.driver = driver

    def close(self):
        self.driver.quit()

    def open(self, path, *, width=1280, dark=False):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900,
                  deviceScaleFactor=1, mobile=width < 500)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.requests()
        self.said()
        self.driver.get(path.as_uri())

    def send(self, command, **arguments):
        return self.driver.execute_cdp_cmd(command, arguments)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def said(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self):
        sent = [json.loads(entry["message"]) for entry in self.driver.get_log("performance")]
        return [
            one["message"]["params"]["request"]["url"]
            for one in sent
            if one["message"]["method"] == "Network.requestWillBeSent"
        ]

    def find(self, selector):
        return self.driver.find_elements("css selector", selector)

    def column(self, table, number):
        return self.run(
            "return [...document.querySelectorAll(`#${arguments[0]} tbody`)].filter(one => !one.hidden)"
            ".map(one => one.rows[0].cells[arguments[1]].innerText)",
            table,
            number,
        )


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A private page of a rehearsal, hostile in every word, with a failed attempt and blocked ones."""
    folder = tmp_path_factory.mktemp("page")
    with opened(folder) as ledger:
        run = Reported(ledger, NAMES, rehearsal=True, phase="full", title=HOSTILE[0])
        for number, name in enumerate(NAMES[:14]):
            word = HOSTILE[number % len(HOSTILE)]
            run.observe(
                name,
                "0.01",
                status="completed" if number < 13 else "failed",
                reason=None if number < 13 else HOSTILE[2],
                problems=(word,),
                tool_calls_by_name={word: 1, "repo_read": 2},
                usage=Usage(input_tokens=(number * 5 % 14) * 500, output_tokens=100),
            )
        answers = {name: HOSTILE[number % len(HOSTILE)] for number, name in enumerate(NAMES)}
        text = as_html(document(run.view), answers)
    (folder / "page.html").write_text(text, encoding="utf-8")
    return folder / "page.html"


def test_it_renders_with_hostile_words_as_words_and_no_request_leaves(browser, page):
    browser.open(page)

    assert browser.driver.title == f"PRIVATE: Rehearsal: {HOSTILE[0]}"
    assert browser.requests() == [page.as_uri()]
    assert browser.said() == []
    assert len(browser.find("script")) == 1
    assert len(browser.find("img, iframe, a, object, form")) == 0
    assert browser.find("h1")[0].text == HOSTILE[0]
    assert len(browser.find("svg.drawing")) > 12
    for drawing in browser.find("svg.drawing"):
        assert drawing.size["height"] > 50
    text = browser.run("return document.body.textContent")
    for word in HOSTILE:
        assert word.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029") in text


def test_the_policy_forbids_a_script_and_a_request_that_get_in_all_the_same(browser, page):
    browser.open(page)
    browser.run(
        "const one = document.createElement('script'); one.textContent = 'document.title = 1';"
        "document.body.append(one);"
        "const two = new Image(); two.src = 'http://127.0.0.1:9/x'; document.body.append(two);"
    )

    assert browser.driver.title.endswith(HOSTILE[0])
    assert len([line for line in browser.said() if "Content Security Policy" in line]) == 2


def test_a_column_sorts_as_numbers_with_the_unknown_last_both_ways(browser, page):
    browser.open(page)
    head = browser.find("#attempts thead th")[4]
    heads = browser.run(
        "return [...document.querySelectorAll('#attempts th')].map(one => one.innerText)"
    )
    assert heads[4].startswith("input")
    button = head.find_element("css selector", "button")
    button.send_keys("\n")
    rising = browser.column("attempts", 4)
    assert head.get_attribute("aria-sort") == "ascending"
    button.send_keys("\n")
    falling = browser.column("attempts", 4)

    assert head.get_attribute("aria-sort") == "descending"
    numbers = [int(cell.replace(",", "")) for cell in rising[:14]]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 6500
    assert rising[14:] == falling[14:] == ["–"] * 4
    assert falling[:14] == rising[13::-1]


def test_rows_are_filtered_by_words_and_counted(browser, page):
    browser.open(page)
    section = browser.run("return document.querySelector('#attempts').closest('section')")
    box = section.find_element("css selector", "input[type=search]")
    box.send_keys("docs blocked")

    assert browser.column("attempts", 1) == ["blocked"] * 2
    assert section.find_element("css selector", "output").text == "2 of 18 rows"


def test_a_row_opens_to_its_facts_and_closes_by_the_keyboard(browser, page):
    browser.open(page)
    (button, *_) = browser.find("#attempts tbody button")
    facts = browser.find("#attempts .facts")[0]
    assert not facts.is_displayed()
    button.send_keys("\n")

    assert facts.is_displayed()
    assert button.get_attribute("aria-expanded") == "true"
    assert "tool calls by name" in facts.text
    assert HOSTILE[0] in facts.text
    button.send_keys("\n")
    assert not facts.is_displayed()


def test_without_scripts_everything_is_there_to_read(browser, page):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        assert all(one.is_displayed() for one in browser.find("#attempts .facts"))
        assert len(browser.find("#attempts tbody")) == 18
        assert not browser.find("button")
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)


def test_a_phone_scrolls_down_only(browser, page):
    browser.open(page, width=360)

    assert browser.run("return document.documentElement.scrollWidth") == 360
    assert browser.run("return document.body.scrollWidth") <= 360


def test_light_and_dark_differ_and_both_can_be_read(browser, page):
    seen = {}
    for dark in (False, True):
        browser.open(page, dark=dark)
        seen[dark] = browser.run(
            "const style = one => getComputedStyle(document.querySelector(one));"
            "return [style('html').backgroundColor, style('body').color, style('.drawing text').fill]"
        )

    for paper, *inks in (seen[False], seen[True]):
        assert all(contrast(paper, ink) > 4.5 for ink in inks)
    assert not set(seen[False]) & set(seen[True])


def contrast(*colours):
    lights = []
    for colour in colours:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        line = [part / 12.92 if part <= 0.04 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        lights.append(0.2126 * line[0] + 0.7152 * line[1] + 0.0722 * line[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_it_prints_with_its_mark_and_no_row_left_out(browser, page):
    browser.open(page)
    browser.find("section.table input[type=search]")[0].send_keys("no such row")
    printed = base64.b64decode(browser.send("Page.printToPDF", printBackground=True)["data"])
    browser.send("Emulation.setEmulatedMedia", media="print")

    assert printed.startswith(b"%PDF-")
    pages = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert pages >= 3
    assert (
        browser.run("return getComputedStyle(document.querySelector('.watermark')).position")
        == "fixed"
    )
    mark = browser.find(".watermark")[0]
    assert mark.text == "PRIVATE · REHEARSAL, NOT EVIDENCE"
    assert mark.is_displayed()
    assert all(one.is_displayed() for one in browser.find("#attempts tbody, #attempts .facts"))
    assert not any(one.is_displayed() for one in browser.find(".tools"))
