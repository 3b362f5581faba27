"""The report as Chromium shows it."""

import dataclasses
import json

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from clearhead.audit.findings import Verdict
from clearhead.audit.record import DepthCurve, DepthLine
from clearhead.numerics.moments import Interval
from clearhead.report import render_html
from clearhead.report.head_map import shade_of, square_text
from clearhead.report.wording import number
from clearhead.theories.theory import Direction, Role
from tests.report.synthetic import EIGENVALUE, KERNEL_PCA, LOSS, MAX_MARGIN, OVERLAP, record_of

pytestmark = pytest.mark.browser


def cells_in(browser):
    return browser.find_elements(By.CSS_SELECTOR, ".head")


LOOKS = """
return [...document.querySelectorAll(".head")].map((cell) => {
  const box = cell.getBoundingClientRect(), number = cell.querySelector(".number");
  return {
    place: [Number(cell.dataset.layer), Number(cell.dataset.head)], agreement: cell.dataset.agreement,
    displayed: cell.checkVisibility({checkOpacity: true, checkVisibilityCSS: true}),
    width: box.width, height: box.height, fill: getComputedStyle(cell).fill,
    ink: number && getComputedStyle(number).fill,
  };
});
"""


def looks_of_cells(browser):
    """Return the style of every cell in one call, because each call of the driver is slow."""
    return browser.execute_script(LOOKS)


def cell_at(browser, finding):
    return browser.find_element(By.CSS_SELECTOR, f".head[data-layer='{finding.layer}'][data-head='{finding.head}']")


def box(browser, name):
    return browser.find_element(By.ID, name)


def until(browser, condition):
    WebDriverWait(browser, 5).until(lambda _: condition())


def numbers_of(finding):
    texts = [
        finding.value,
        finding.interval.low,
        finding.interval.high,
        finding.closest_control.value,
        finding.predicted,
    ]
    texts += [finding.closest_control.range.low, finding.closest_control.range.high, finding.agreement, finding.p_value]
    return [*map(number, texts), str(finding.inputs), str(finding.verdict)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_every_head_is_a_visible_cell(browser, show, record, scheme, width):
    show(record, scheme=scheme, width=width)
    cells = looks_of_cells(browser)
    assert len(cells) == len(record.findings) == 72
    assert cells_in(browser)[0].is_displayed()
    fills = {}
    for cell, finding in zip(cells, record.findings, strict=True):
        assert cell["displayed"]
        assert cell["width"] > 10
        assert cell["height"] > 10
        fills.setdefault(shade_of(finding), set()).add(cell["fill"])
    assert len(fills) > 20
    assert all(len(colours) == 1 for colours in fills.values())
    assert len(set.union(*fills.values())) == len(fills)


def test_the_number_in_a_cell_can_be_read(browser, show, record):
    for scheme in ("light", "dark"):
        show(record, scheme=scheme)
        cells = {tuple(cell["place"]): cell for cell in looks_of_cells(browser)}
        for finding in record.findings:
            if finding.verdict is Verdict.NOT_APPLICABLE:
                continue
            cell = cells[finding.layer, finding.head]
            low, high = sorted(map(luminance, (cell["ink"], cell["fill"])))
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
    for _ in range(2):  # past the fold of the only theory
        browser.switch_to.active_element.send_keys(Keys.TAB)
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


def test_a_click_opens_the_details_of_a_head(browser, show, record):
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
    places = (("closest", "x1"), ("value", "cx"), ("predicted", "x1"))
    at = [float(marks[part].get_attribute(name).removesuffix("%")) for part, name in places]
    share = (at[1] - at[0]) / (at[2] - at[0])
    assert abs(share - finding.agreement) < 0.01
    assert len(drawer.find_elements(By.CSS_SELECTOR, "[data-part=control]")) == 2
    rows = [row.text for row in drawer.find_elements(By.CSS_SELECTOR, ".controls tbody tr")]
    for control, row in zip(finding.controls, rows, strict=True):
        numbers = (control.value, control.range.low, control.range.high, control.p_value)
        assert all(text in row for text in (control.name, *map(number, numbers), str(control.draws)))
    assert ["(closest)" in row for row in rows] == [False, True]
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not drawer.is_displayed()
    assert not box(browser, "tip").is_displayed()


def test_a_skipped_head_shows_the_reason(browser, show, record):
    show(record)
    finding = next(f for f in record.findings if f.verdict is Verdict.NOT_APPLICABLE)
    cell_at(browser, finding).click()
    drawer = box(browser, "drawer")
    assert "keys are all equal" in drawer.text
    assert "could not be measured" in drawer.text
    assert "NaN" not in drawer.get_attribute("innerHTML").replace("nan", "NaN").split("<dl>")[1]
    drawer.find_element(By.CSS_SELECTOR, ".close").click()
    assert not drawer.is_displayed()


def choose(browser, claim):
    """Choose a claim in the switch; primary claims are named with their theory."""
    options = Select(browser.find_element(By.CSS_SELECTOR, ".switch select"))
    (text,) = [o.text for o in options.options if o.text in (claim.statistic, f"{claim.theory}: {claim.statistic}")]
    options.select_by_visible_text(text)


def shown_cells(browser):
    return [cell for cell in cells_in(browser) if cell.is_displayed()]


def test_the_switch_shows_one_claim_at_a_time(browser, show, two_claims):
    show(two_claims)
    assert len(shown_cells(browser)) == len(two_claims.findings) / 2
    choose(browser, MAX_MARGIN)
    shown = shown_cells(browser)
    assert len(shown) == len(two_claims.findings) / 2
    shown[4].click()
    assert "margin ratio" in box(browser, "drawer").text


def test_the_scale_of_agreement_is_shown_where_there_is_one(browser, show, two_claims):
    directed = dataclasses.replace(MAX_MARGIN, predicted=None, direction=Direction.LOWER)
    findings = [dataclasses.replace(f, claim=directed) if f.claim == MAX_MARGIN else f for f in two_claims.findings]
    show(dataclasses.replace(two_claims, findings=tuple(findings)))
    scale = browser.find_element(By.CSS_SELECTOR, ".legend .colours")
    assert scale.is_displayed()
    choose(browser, directed)
    assert not scale.is_displayed()


def test_a_theory_on_other_heads_has_its_own_map(browser, show, two_claims):
    later = tuple(f for f in two_claims.findings if f.claim != MAX_MARGIN or f.layer > 1)
    show(dataclasses.replace(two_claims, findings=later))
    choose(browser, MAX_MARGIN)
    shown_cells(browser)[0].click()
    assert box(browser, "drawer").find_element(By.TAG_NAME, "h2").text == "Layer 2, head 0"


@pytest.mark.parametrize("claim", [OVERLAP, LOSS, EIGENVALUE, KERNEL_PCA], ids=lambda claim: claim.statistic)
def test_one_map_takes_the_colours_of_any_claim(browser, show, disputed, claim):
    show(disputed)
    before = [cell.value_of_css_property("fill") for cell in shown_cells(browser)]
    choose(browser, EIGENVALUE if claim is KERNEL_PCA else KERNEL_PCA)
    choose(browser, claim)
    findings = [f for f in disputed.findings if f.claim == claim]
    cells = shown_cells(browser)
    assert len(cells) == len(findings) == 26
    assert claim.statistic in browser.find_element(By.CSS_SELECTOR, ".chosen").text.lower()
    assert ([cell.value_of_css_property("fill") for cell in cells] == before) == (claim is KERNEL_PCA)
    for cell, finding in zip(cells, findings, strict=True):
        text = cell.find_element(By.CSS_SELECTOR, ".number").text
        assert text == ("" if finding.verdict is Verdict.NOT_APPLICABLE else square_text(finding))
        assert f"Layer {finding.layer}, head {finding.head}: {finding.verdict}." in cell.get_attribute("aria-label")
        assert cell.find_element(By.TAG_NAME, "use").get_attribute("href") == f"#mark-{finding.verdict.name.lower()}"
    cells[3].click()
    drawer = box(browser, "drawer").text
    for text in (number(findings[3].value), claim.statement, claim.note[:1].upper() + claim.note[1:]):
        assert text in drawer
    for other in {f.claim.statistic for f in disputed.findings if f.claim.theory == claim.theory}:
        assert other in drawer


def test_the_dispute_opens_with_a_click(browser, show, disputed):
    show(disputed)
    browser.find_element(By.CSS_SELECTOR, ".claim a").click()
    assert browser.current_url.endswith("#dispute-1")
    section = box(browser, "dispute-1")
    assert section.is_displayed()
    for text in (
        "Teo and Nguyen 2024",
        "Saritas and Yildiz 2025",
        "not measured in this audit",
        "What this model shows",
    ):
        assert text in section.text


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_never_scrolls_sideways(browser, show, disputed, width):
    show(disputed, width=width, height=844)
    for details in browser.find_elements(By.TAG_NAME, "details"):
        browser.execute_script("arguments[0].open = true", details)
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) == 0
    cells_in(browser)[0].click()
    assert browser.execute_script(overflow) == 0
    right = box(browser, "drawer").rect
    assert right["x"] >= 0
    assert right["x"] + right["width"] <= width


def test_nothing_but_the_file_is_requested(browser, show, record):
    address = show(record)
    cells_in(browser)[5].click()
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requested = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in requested if not url.startswith("data:")] == [address]
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_hostile_names_stay_inert(browser, show):
    hostile = """<script>document.title = "owned"</script>"><img src=x onerror="document.title='owned'">"""
    show(record_of([3, 2], KERNEL_PCA, model=hostile, name=hostile + "{}"))
    cells_in(browser)[1].click()
    assert browser.find_element(By.TAG_NAME, "h1").text == hostile
    assert hostile in box(browser, "drawer").text
    assert browser.title != "owned"
    assert browser.find_elements(By.TAG_NAME, "img") == []


def test_the_policy_blocks_other_scripts(browser, tmp_path, record):
    page = render_html(record).replace("</body>", "<script>document.title = 'owned'</script></body>")
    (tmp_path / "tampered.html").write_text(page, encoding="utf-8")
    browser.get((tmp_path / "tampered.html").as_uri())
    assert browser.title != "owned"
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))


def test_without_scripts_the_page_shows_the_primary_maps_and_every_claim(browser, show, disputed):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(disputed)
        assert all(cell.is_displayed() for cell in cells_in(browser))
        assert len(cells_in(browser)) == sum(f.claim.role is Role.PRIMARY for f in disputed.findings)
        assert box(browser, "dispute-1").is_displayed()
        assert all(not d.is_displayed() for d in browser.find_elements(By.CSS_SELECTOR, ".group"))
        details = browser.find_element(By.CSS_SELECTOR, ".all-claims")
        details.find_element(By.TAG_NAME, "summary").click()
        assert len([r for r in details.find_elements(By.CSS_SELECTOR, "tbody tr") if r.is_displayed()]) == 5
        assert not browser.find_element(By.CSS_SELECTOR, ".switch").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_curves_over_depth_are_drawn_and_fit(browser, show, record, width, scheme):
    line = DepthLine(name="this model", values=(3.0, 2.0, 1.0), intervals=(Interval(2.9, 3.1),) * 3)
    curve = DepthCurve(theory="theory", title="A rate", quantity="nats", layers=(0, 1, 2), lines=(line,))
    show(dataclasses.replace(record, curves=(curve,) * 3), width=width, scheme=scheme)
    charts = browser.execute_script(
        "return [...document.querySelectorAll('#depth svg.lines')].map((chart) => "
        "({line: chart.querySelector('path.line').getBoundingClientRect().width,"
        " colour: getComputedStyle(chart.querySelector('path.line')).stroke,"
        " right: chart.getBoundingClientRect().right, width: chart.getBoundingClientRect().width}));"
    )
    assert len(charts) == 3
    for chart in charts:
        assert chart["line"] > 200
        assert chart["colour"] != "none"
        assert chart["right"] <= width
        # In a narrower chart its labels of 12 pixels could not be read.
        assert chart["width"] > 0.75 * 360
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
