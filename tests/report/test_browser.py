"""The report as Chromium shows it."""

import json
import os
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from clearhead.findings import Verdict
from clearhead.report import render_html
from clearhead.report.wording import number
from tests.report.made_records import KERNEL_PCA, record_of

pytestmark = pytest.mark.browser

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        if os.environ.get("CI"):
            pytest.fail("no Chromium on this machine, and CI must have one")
        pytest.skip("no Chromium on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()


@pytest.fixture
def show(browser, tmp_path):
    def open_report(record, *, width=1280, height=900, scheme="light"):
        path = tmp_path / "report.html"
        path.write_text(render_html(record), encoding="utf-8")
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get_log("performance")
        browser.get(path.as_uri())
        return path.as_uri()

    yield open_report
    assert browser.get_log("browser") == []


def cells_in(browser):
    return browser.find_elements(By.CSS_SELECTOR, ".head")


def cell_at(browser, finding):
    return browser.find_element(By.CSS_SELECTOR, f".head[data-layer='{finding.layer}'][data-head='{finding.head}']")


def box(browser, name):
    return browser.find_element(By.ID, name)


def until(browser, condition):
    WebDriverWait(browser, 5).until(lambda _: condition())


def numbers_of(finding):
    texts = [finding.value, finding.interval.low, finding.interval.high, finding.chance.value, finding.claim.exact]
    texts += [finding.chance.range.low, finding.chance.range.high, finding.agreement, finding.p_value]
    return [*map(number, texts), str(finding.inputs), str(finding.verdict)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_head_is_a_visible_cell(browser, show, record, scheme, width):
    show(record, scheme=scheme, width=width)
    cells = cells_in(browser)
    assert len(cells) == len(record.findings) == 72
    fills = {}
    for cell in cells:
        assert cell.is_displayed()
        assert cell.rect["width"] > 10
        assert cell.rect["height"] > 10
        if agreement := cell.get_attribute("data-agreement"):
            fills[round(float(agreement), 2)] = cell.value_of_css_property("fill")
    assert len(fills) > 20
    assert len(set(fills.values())) == len(fills)


def test_the_number_in_a_cell_can_be_read(browser, show, record):
    for scheme in ("light", "dark"):
        show(record, scheme=scheme)
        for finding in record.findings:
            if finding.verdict is Verdict.NOT_APPLICABLE:
                continue
            cell = cell_at(browser, finding)
            inks = [c.value_of_css_property("fill") for c in (cell.find_element(By.CSS_SELECTOR, ".number"), cell)]
            low, high = sorted(map(luminance, inks))
            assert (high + 0.05) / (low + 0.05) > 4.5


def luminance(colour):
    channels = [int(c) / 255 for c in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_pointing_at_a_head_shows_its_numbers(browser, show, record):
    show(record)
    tip = box(browser, "tip")
    assert not tip.is_displayed()
    finding = record.findings[16]
    ActionChains(browser).move_to_element(cell_at(browser, finding)).perform()
    until(browser, tip.is_displayed)
    assert f"Layer {finding.layer}, head {finding.head}" in tip.text
    for text in numbers_of(finding):
        assert text in tip.text
    ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h1")).perform()
    until(browser, lambda: not tip.is_displayed())


def test_the_keyboard_reaches_every_head(browser, show, record):
    show(record)
    tip = box(browser, "tip")
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.get_attribute("data-index") == "0"
    browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    finding = record.findings[13]
    assert tip.is_displayed()
    for text in numbers_of(finding):
        assert text in tip.text
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert box(browser, "drawer").is_displayed()
    assert "Layer 1, head 1" in box(browser, "drawer").text
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not box(browser, "drawer").is_displayed()
    assert browser.switch_to.active_element.get_attribute("data-index") == "13"


def test_a_click_opens_everything_behind_a_head(browser, show, record):
    show(record)
    drawer = box(browser, "drawer")
    assert not drawer.is_displayed()
    finding = record.findings[16]
    cell_at(browser, finding).click()
    assert drawer.is_displayed()
    for text in (*numbers_of(finding)[:-1], finding.claim.statement, finding.claim.formula, finding.claim.citation):
        assert text in drawer.text
    assert "Benjamini and Hochberg" in drawer.text
    assert str(finding.verdict) in drawer.text.lower()
    marks = {m.get_attribute("data-part"): m for m in drawer.find_elements(By.CSS_SELECTOR, "[data-part]")}
    at = [float(marks[p].get_attribute(a)) for p, a in (("chance", "x1"), ("value", "cx"), ("exact", "x1"))]
    share = (at[1] - at[0]) / (at[2] - at[0])
    assert abs(share - finding.agreement) < 0.01
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not drawer.is_displayed()
    assert not box(browser, "tip").is_displayed()


def test_a_head_that_was_skipped_says_why(browser, show, record):
    show(record)
    finding = next(f for f in record.findings if f.verdict is Verdict.NOT_APPLICABLE)
    cell_at(browser, finding).click()
    drawer = box(browser, "drawer")
    assert "keys are all equal" in drawer.text
    assert "Nothing could be measured" in drawer.text
    assert "NaN" not in drawer.get_attribute("innerHTML").replace("nan", "NaN").split("<dl>")[1]
    drawer.find_element(By.CSS_SELECTOR, ".close").click()
    assert not drawer.is_displayed()


def test_the_switch_shows_one_claim_at_a_time(browser, show, two_claims):
    show(two_claims)
    assert sum(cell.is_displayed() for cell in cells_in(browser)) == len(two_claims.findings) / 2
    browser.find_elements(By.CSS_SELECTOR, ".switch button")[1].click()
    shown = [cell for cell in cells_in(browser) if cell.is_displayed()]
    claims = {two_claims.findings[int(cell.get_attribute("data-index"))].claim.theory for cell in shown}
    assert claims == {"max margin"}
    shown[4].click()
    assert "margin ratio" in box(browser, "drawer").text


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_never_scrolls_sideways(browser, show, two_claims, width):
    show(two_claims, width=width, height=844)
    for details in browser.find_elements(By.TAG_NAME, "details"):
        browser.execute_script("arguments[0].open = true", details)
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) == 0
    cells_in(browser)[0].click()
    assert browser.execute_script(overflow) == 0
    right = box(browser, "drawer").rect
    assert right["x"] >= 0
    assert right["x"] + right["width"] <= width


def test_nothing_but_the_file_is_asked_for(browser, show, record):
    address = show(record)
    cells_in(browser)[5].click()
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [address]
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_hostile_names_stay_inert(browser, show):
    hostile = """<script>document.title = "owned"</script>"><img src=x onerror="document.title='owned'">"""
    show(record_of([3, 2], KERNEL_PCA, model=hostile, name=hostile + "{}"))
    cells_in(browser)[1].click()
    assert browser.find_element(By.TAG_NAME, "h1").text == hostile
    assert hostile in box(browser, "drawer").text
    assert browser.title != "owned"
    assert browser.find_elements(By.TAG_NAME, "img") == []


def test_the_policy_stops_scripts_that_are_not_the_page_s_own(browser, tmp_path, record):
    page = render_html(record).replace("</body>", "<script>document.title = 'owned'</script></body>")
    (tmp_path / "tampered.html").write_text(page, encoding="utf-8")
    browser.get((tmp_path / "tampered.html").as_uri())
    assert browser.title != "owned"
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))


def test_without_scripts_the_map_still_stands(browser, show, two_claims):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(two_claims)
        assert all(cell.is_displayed() for cell in cells_in(browser))
        assert len(cells_in(browser)) == len(two_claims.findings)
        assert not browser.find_element(By.CSS_SELECTOR, ".switch").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
