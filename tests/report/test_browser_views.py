"""A reader clicks through the report: theories, heads, inputs, table, address, phone and paper."""

import dataclasses
import json

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from clearhead.audit.findings import Verdict
from clearhead.report.page_data import visible_text
from clearhead.report.wording import number
from tests.report.synthetic import KERNEL_PCA, MAX_MARGIN, record_of, with_inputs

pytestmark = pytest.mark.browser

CAT, DOG = ("[CLS]", "the", "cat", "sat", "[SEP]"), ("[CLS]", "a", "dog", "[SEP]")


@pytest.fixture(scope="module")
def shown():
    return with_inputs(record_of([4, 8, 4], KERNEL_PCA, MAX_MARGIN), CAT, DOG)


def one(browser, selector):
    return browser.find_element(By.CSS_SELECTOR, selector)


def texts(browser, selector):
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((element) => element.textContent)", selector
    )


def choose(browser, selector, text):
    Select(one(browser, selector)).select_by_visible_text(text)


def open_head(browser, layer, head):
    one(browser, f".map:not([hidden]) .head[data-layer='{layer}'][data-head='{head}']").click()


def test_a_head_shows_its_attention_on_a_chosen_input(browser, show, shown):
    show(shown)
    open_head(browser, 1, 2)
    assert texts(browser, "#drawer .token") == list(CAT)
    assert "first 5 of 10 tokens" in one(browser, ".limits").text
    choose(browser, "#drawer .input", "2: text of input 2")
    assert texts(browser, "#drawer .token") == list(DOG)
    browser.find_elements(By.CSS_SELECTOR, "#drawer .token")[1].click()
    weights = shown.shown[1].layers[1].weights[2, 1]
    (best,) = [DOG[i] for i in [int(weights.argmax())]]
    assert one(browser, ".reads").text.startswith(
        f"a attends to {best} {round(100 * (int(weights.max()) / 255) ** 2)}%"
    )
    shades = browser.execute_script(
        "return [...document.querySelectorAll('#drawer .token')].map((t) => getComputedStyle(t).backgroundColor)"
    )
    alphas = [float(shade.split(",")[3].rstrip(")")) if shade.startswith("rgba") else 1.0 for shade in shades]
    assert alphas == pytest.approx([w / 255 for w in weights], abs=0.01)
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert one(browser, ".reads").text.startswith("dog attends to")
    painted = browser.execute_script(
        "const c = document.querySelector('.matrix'), g = c.getContext('2d');"
        "return [c.width / 4, g.getImageData(c.width / 8, c.width / 8, 1, 1).data[3]]"
    )
    assert painted[0] == int(painted[0])
    assert painted[1] == pytest.approx(int(shown.shown[1].layers[1].weights[2, 0, 0]), abs=2)


def test_a_head_shows_picture_curve_extremes_formula_source_and_rule(browser, show, shown):
    show(shown)
    open_head(browser, 2, 3)
    drawer = one(browser, "#drawer")
    assert len(drawer.find_elements(By.CSS_SELECTOR, ".picture .whole")) == 7
    assert "Filled is captured." in drawer.text
    (here,) = drawer.find_elements(By.CSS_SELECTOR, ".curve .here")
    right = here.find_element(By.XPATH, "..").get_attribute("data-right")
    assert float(here.get_attribute("x1")) == float(right), "the last layer"
    rows = texts(browser, "#drawer .extremes tbody tr")
    assert [row[0] for row in rows] == ["8", "7", "6", "3", "2", "1"]
    assert rows[0] == "87.30text of input 8"
    assert one(browser, "#drawer .null").is_displayed()
    for text in (KERNEL_PCA.formula, KERNEL_PCA.citation, "Benjamini and Hochberg", "control that decides"):
        assert text in drawer.text
    choose(browser, ".switch select", "max margin: margin ratio")
    open_head(browser, 2, 3)
    assert not one(browser, "#drawer .picture").is_displayed()


def test_the_table_sorts_and_filters_and_opens_heads(browser, show, shown):
    show(shown)
    findings = [f for f in shown.findings if f.claim == KERNEL_PCA]
    for column, cells in (("value", "td:nth-child(4)"), ("agreement", "td:nth-child(10)")):
        for down in (False, True):
            one(browser, f".heads-table [data-column={column}]").click()
            shown_texts = texts(browser, f".heads-table {cells}")
            values = [float(text) for text in shown_texts if text != "-"]
            assert values == sorted(values, reverse=down)
            assert shown_texts[-1] == "-", "heads without a value come last"
    assert min(values) < 0
    partly = [f for f in findings if f.verdict is Verdict.PARTLY_SUPPORTED]
    choose(browser, ".heads-table .filter", f"partly supported ({len(partly)})")
    assert len(texts(browser, ".heads-table tbody tr")) == len(partly)
    choose(browser, ".heads-table .layer", "1")
    rows = browser.find_elements(By.CSS_SELECTOR, ".heads-table tbody tr")
    assert len(rows) == sum(f.layer == 1 for f in partly)
    rows[0].find_element(By.TAG_NAME, "button").click()
    assert one(browser, "#drawer h2").text.startswith("Layer 1, head ")
    largest = max((f for f in partly if f.layer == 1), key=lambda f: f.value)
    assert number(largest.value) in one(browser, "#drawer").text


def test_the_address_keeps_the_view(browser, show, shown):
    address = show(shown)
    choose(browser, ".switch select", "max margin: margin ratio")
    one(browser, ".heads-table [data-column=agreement]").click()
    open_head(browser, 2, 1)
    choose(browser, "#drawer .input", "2: text of input 2")
    kept = browser.current_url
    assert kept.startswith(f"{address}#claim=max+margin%2C+margin+ratio&head=2.1&input=2")
    browser.get("about:blank")
    browser.get(kept)
    assert one(browser, "#drawer h2").text == "Layer 2, head 1"
    assert texts(browser, "#drawer .token") == list(DOG)
    assert Select(one(browser, ".switch select")).first_selected_option.text == "max margin: margin ratio"
    assert one(browser, "th[aria-sort=ascending]").text.startswith("Agreement")
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    assert "head=" not in browser.current_url
    browser.get(f"{address}#claim=nonsense&head=99.99&input=<b>&sort=-nothing&verdict=x")
    assert not one(browser, "#drawer").is_displayed()


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_five_verdicts_are_on_the_first_screen(browser, show, shown, width, height):
    theories = [dataclasses.replace(KERNEL_PCA, theory=f"theory {i}") for i in range(5)]
    show(with_inputs(record_of([4, 4], *theories), CAT), width=width, height=height)
    bottoms = browser.execute_script(
        "return [...document.querySelectorAll('.claim .headline')].map((e) => e.getBoundingClientRect().bottom)"
    )
    assert len(bottoms) == 5
    assert max(bottoms) <= height
    assert all(shape.is_displayed() for shape in browser.find_elements(By.CSS_SELECTOR, ".small svg"))
    if width > 700:
        assert texts(browser, ".claim .meaning p")[0] == "The theory says What theory 0 says."


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1024, "light"), (1440, "dark")])
def test_pages_and_drawers_fit_every_width(browser, show, shown, width, scheme):
    show(shown, width=width, height=844, scheme=scheme)
    open_head(browser, 0, 1)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    box = one(browser, "#drawer").rect
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert (
        browser.execute_script("const d = document.getElementById('drawer'); return d.scrollWidth - d.clientWidth") <= 0
    )


@pytest.mark.parametrize("width", [703, 725], ids=["A4", "letter"])
def test_paper_has_all_maps_and_every_column(browser, show, shown, width):
    """The widths are those of the paper within margins of 12 mm, at 96 pixels per inch."""
    show(shown, width=width)
    features = [{"name": "prefers-color-scheme", "value": "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    try:
        browser.execute_script("dispatchEvent(new Event('beforeprint'))")
        assert [m.is_displayed() for m in browser.find_elements(By.CSS_SELECTOR, ".map")] == [True, True]
        assert [m.text for m in browser.find_elements(By.CSS_SELECTOR, ".map h3")] == [
            "kernel PCA: captured variance", "max margin: margin ratio",
        ]  # fmt: skip
        tables = browser.execute_script(
            "return [...document.querySelectorAll('.findings table, .one-row-each')].map((table) => "
            "[table.checkVisibility(), table.getBoundingClientRect().right, table.querySelectorAll('th').length])"
        )
        assert [columns for *_, columns in tables] == [8, 15, 15]
        assert all(visible and right <= width for visible, right, _ in tables)
        assert not one(browser, ".heads-table").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})


def test_cells_of_every_table_are_cells(browser, show, disputed):
    show(disputed)
    displays = browser.execute_script(
        "return [...new Set([...document.querySelectorAll('table td')].map((td) => getComputedStyle(td).display))]"
    )
    assert displays == ["table-cell"]


def test_a_thousand_heads_stay_legible(browser, show):
    for width, least in ((1440, 20), (390, 8)):
        show(record_of([32] * 32, KERNEL_PCA), width=width)
        sizes = browser.execute_script(
            "return [...document.querySelectorAll('.head')].map((c) => c.getBoundingClientRect().width)"
        )
        assert len(sizes) == 1024
        assert min(sizes) >= least
        labels = texts(browser, ".heads .label")
        assert labels[:5] == ["layer", "0", "8", "16", "24"]
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width


HOSTILE = (
    "</script><script>document.title='owned'</script>", "<img src=x onerror=\"document.title='owned'\">",
    "<svg/onload=document.title='owned'>", "javascript:document.title='owned'", "&lt;b&gt;", "{{ 7 * 7 }}", "<!--",
    "]]>", "\u202eevil\u202c", "\u2066\u2069\u200f", "\x00nul", "\x1b[2J", "\u2028\u2029", "\ud800", "a\udfffb",
    "\ufeff", "'\"`", "<style>*{display:none}</style>", "<base href=http://evil.invalid>", "العربية", "e\u0301",
    "\t", " ",
)  # fmt: skip


def test_five_hundred_hostile_tokens_are_shown_as_text(browser, show):
    tokens = (*(f"{HOSTILE[i % len(HOSTILE)]}{i}" for i in range(499)), "x" * 1_000_000)
    made = with_inputs(record_of([1], KERNEL_PCA), tokens[:250], tokens[250:])
    made = dataclasses.replace(
        made, texts=tuple(f"{token} {i}" for i, token in enumerate(HOSTILE)), inputs=len(HOSTILE)
    )
    show(made)
    before = browser.execute_script("return document.querySelectorAll('script, img, style, base').length")
    open_head(browser, 0, 0)
    seen = texts(browser, "#drawer .token")
    Select(one(browser, "#drawer .input")).select_by_value("2")
    seen += texts(browser, "#drawer .token")
    assert seen == [visible_text(token).encode("utf-8", "replace").decode() for token in tokens]
    assert not any(set(text) & set("\u202e\u2066\x00\x1b\ud800") for text in seen)
    assert browser.title == "all-MiniLM-L6-v2 - Clearhead audit"
    assert browser.execute_script("return document.querySelectorAll('script, img, style, base').length") == before
    isolated = browser.execute_script(
        "const isolated = (b) => getComputedStyle(b).unicodeBidi === 'isolate';"
        "return [...document.querySelectorAll('.token bdi')].every(isolated)"
    )
    assert isolated
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requested = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in requested if not url.startswith(("data:", "file:"))] == []
