import json
import os
import shutil

import pytest
from selenium import webdriver

from clearhead.audit.findings import Verdict
from clearhead.audit.record import AuditRecord
from clearhead.report import render_html
from tests.report.synthetic import DISPUTE, EIGENVALUE, KERNEL_PCA, LOSS, MAX_MARGIN, OVERLAP, record_of

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


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """One Chromium for all tests; no user data, no network."""
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
    """A function that opens the page of a record; afterwards the console must be empty, and only the page requested."""

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
    assert browser.get_log("browser") == [], "console errors and violations of the content security policy"
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requested = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    page = (tmp_path / "report.html").as_uri()
    assert [url for url in requested if not url.startswith((page, "data:", "about:"))] == []


@pytest.fixture(scope="session")
def record() -> AuditRecord:
    """6 layers x 12 heads, one claim."""
    made = record_of([12] * 6, KERNEL_PCA)
    seen = {finding.verdict for finding in made.findings}
    assert seen == set(Verdict) - {Verdict.TRUE_BY_CONSTRUCTION, Verdict.NOT_JUDGED}
    return made


@pytest.fixture(scope="session")
def two_claims() -> AuditRecord:
    """Layers of unequal width, two claims; the predicted value of the second lies below its controls."""
    return record_of([3, 13, 5, 11, 7], KERNEL_PCA, MAX_MARGIN)


@pytest.fixture(scope="session")
def disputed() -> AuditRecord:
    """Claims of every role, a second theory, and a dispute."""
    return record_of([5, 11, 3, 7], KERNEL_PCA, OVERLAP, LOSS, EIGENVALUE, MAX_MARGIN, disputes=(DISPUTE,))
