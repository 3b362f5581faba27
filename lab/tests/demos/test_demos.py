"""Demonstrations in Chromium: their numbers are those of the operators, and points can be dragged."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from clearhead.errors import InputError
from clearhead.numerics.coding_rate import coding_rate, rate_reduction
from clearhead.operators import kernel_pca, kernel_pca_attention, softmax_attention
from clearhead.theories.max_margin import attention_svm
from clearhead_lab.demos.page import DEMOS, render_demo

DOUBLE = {"rtol": 1e-9, "atol": 1e-12}
"""Two ways of computing in double precision, through eigenvectors and logarithms of well-conditioned matrices."""


@pytest.fixture
def opened(browser, tmp_path: Path):
    """Open a demonstration. At the end there must be no error, no warning and no request but for the page."""

    def open_demo(name: str, *, width: int = 1200, scheme: str = "light") -> Any:
        path = tmp_path / f"{name}.html"
        path.write_text(render_demo(name), encoding="utf-8")
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get_log("performance")
        browser.get(path.as_uri())
        return browser

    yield open_demo
    assert browser.get_log("browser") == []
    sent = [entry["message"] for entry in browser.get_log("performance") if "requestWillBeSent" in entry["message"]]
    assert all("file:///" in message or "data:," in message for message in sent)


def drag(page: Any, name: str, x: int, y: int) -> None:
    """Drag an element by x and y pixels."""
    ActionChains(page, duration=20).drag_and_drop_by_offset(page.find_element(By.ID, name), x, y).perform()


def shown(page: Any, name: str) -> str:
    return page.find_element(By.ID, name).text


def check_kernel_pca(page: Any) -> dict[str, Any]:
    state = page.execute_script("return demo.state")
    found = page.execute_script("return demo.compute(demo.state)")
    keys = torch.tensor(state["keys"], dtype=torch.float64)
    ours = kernel_pca(keys, axes=3, scale=state["scale"])
    energies = ours.energy * ours.log_scale.exp()
    np.testing.assert_allclose(found["energies"][:3], energies[:3], **DOUBLE)
    queries = torch.tensor([[0.3, -0.8], [1.1, 0.2]], dtype=torch.float64)
    projected = kernel_pca_attention(queries, keys, axes=3, scale=state["scale"])
    for d in range(3):
        script = "return arguments[0].map((q) => demo.attend(q, demo.state.keys, demo.state.scale, arguments[1]))"
        attended = np.array(page.execute_script(script, queries.tolist(), found["values"][d]))
        sign = np.sign(attended[0] * float(projected[0, d]))
        np.testing.assert_allclose(sign * attended, projected[:, d], rtol=1e-6, atol=1e-9)
    return state


@pytest.mark.browser
def test_kernel_pca_is_that_of_the_operators_before_and_after_a_drag(opened) -> None:
    page = opened("kernel-pca")
    before = check_kernel_pca(page)
    share = shown(page, "share")
    drag(page, "key-3", -90, 70)
    after = check_kernel_pca(page)
    assert before["keys"][3] != after["keys"][3]
    assert before["keys"][:3] == after["keys"][:3]
    assert shown(page, "share") != share
    assert float(shown(page, "difference")) < 1e-12
    page.find_element(By.ID, "axis").send_keys(Keys.ARROW_RIGHT)
    assert page.execute_script("return demo.state.axis") == 1
    assert len(page.find_elements(By.CSS_SELECTOR, ".bar.chosen")) == 1
    page.find_element(By.ID, "key-3").send_keys(Keys.ARROW_LEFT)
    assert page.execute_script("return demo.state.keys[3][0]") < after["keys"][3][0]
    page.find_element(By.TAG_NAME, "button").click()
    assert page.execute_script("return demo.state.keys") == before["keys"]


def check_max_margin(page: Any) -> dict[str, Any]:
    tokens = np.array(page.execute_script("return demo.state.tokens"))
    machine = page.execute_script("return demo.supportVectorMachine(demo.state.tokens)")
    head = np.array(page.execute_script("return demo.HEAD"))
    selected = (tokens @ head).argmax(axis=1)
    assert machine["selected"] == selected.tolist()
    ours = attention_svm(torch.from_numpy(tokens), None, torch.from_numpy(selected))
    assert ours.margin.low * (1 - 1e-6) <= machine["margin"] <= ours.margin.high * (1 + 1e-6)
    np.testing.assert_allclose(machine["p"], ours.W.flatten(), rtol=1e-5)
    return machine


@pytest.mark.browser
def test_the_support_vector_machine_is_the_solvers_and_descent_turns_to_it(opened) -> None:
    page = opened("max-margin")
    machine = check_max_margin(page)
    path = np.array(page.execute_script("return demo.path"))
    tokens, head, rate = (page.execute_script(f"return demo.{x}") for x in ("state.tokens", "HEAD", "RATE"))
    x, v = torch.tensor(tokens, dtype=torch.float64), torch.tensor(head, dtype=torch.float64)
    p = torch.zeros(2, dtype=torch.float64)
    for step in range(20):
        p.requires_grad_(True)
        out = softmax_attention(p.expand(3, 1, 2), x, x, scale=1.0)[:, 0]
        [gradient] = torch.autograd.grad(torch.nn.functional.softplus(-out @ v).mean(), p)
        p = (p - rate * gradient / gradient.norm()).detach()
        np.testing.assert_allclose(path[step + 1], p, **DOUBLE)
    direction = np.array(machine["p"])
    cosines = path[1:] @ direction / np.linalg.norm(path[1:], axis=1) / np.linalg.norm(direction)
    assert cosines[0] < 0.5
    assert cosines[-1] > 0.999
    slider = page.find_element(By.ID, "step")
    radius = float(page.find_element(By.ID, "token-0-1").get_attribute("r"))
    slider.send_keys(Keys.END)
    assert page.execute_script("return demo.state.step") == 2000
    assert float(shown(page, "cosine")) > 0.999
    assert float(page.find_element(By.ID, "token-0-1").get_attribute("r")) > radius  # the selected token grows
    drag(page, "token-2-3", 40, 60)
    check_max_margin(page)


@pytest.mark.browser
def test_an_impossible_selection_is_named(opened) -> None:
    page = opened("max-margin")
    assert shown(page, "cosine") == "-"
    page.execute_script("demo.state.tokens[0] = [[1, -1], [1, -1], [0, 0], [0, 1]]; demo.render()")
    assert shown(page, "cosine") == "no direction selects these tokens"


def check_coding_rate(page: Any) -> float:
    state = page.execute_script("return demo.state")
    found = page.execute_script("return demo.compute(demo.state)")
    z, labels = torch.tensor(state["points"], dtype=torch.float64), torch.tensor(state["labels"])
    assert found["all"] == pytest.approx(float(coding_rate(z, eps=state["eps"])), rel=1e-9)
    for label in (0, 1):
        expected = float(coding_rate(z[labels == label], eps=state["eps"]))
        assert found["rates"][label] == pytest.approx(expected, rel=1e-9)
    reduction = rate_reduction(z, labels=labels, eps=state["eps"])
    assert found["reduction"] == pytest.approx(float(reduction.value), rel=1e-8)
    return float(found["reduction"])


@pytest.mark.browser
def test_the_rate_is_that_of_the_operators_and_the_area_of_the_ellipse(opened) -> None:
    page = opened("coding-rate")
    before = check_coding_rate(page)
    drag(page, "point-4", 60, 80)
    assert check_coding_rate(page) != before
    page.find_element(By.ID, "eps").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    check_coding_rate(page)
    whole = page.find_element(By.CSS_SELECTOR, ".shape.whole")
    area = float(whole.get_attribute("rx")) * float(whole.get_attribute("ry"))
    ball = float(page.find_element(By.CSS_SELECTOR, ".ball").get_attribute("r")) ** 2
    rate = page.execute_script("return demo.compute(demo.state).all")
    assert area / ball == pytest.approx(np.exp(rate), rel=1e-6)
    compress = page.find_elements(By.TAG_NAME, "button")[0]
    within = page.execute_script("return demo.compute(demo.state).within")
    compress.click()
    assert page.execute_script("return demo.compute(demo.state).within") < within
    check_coding_rate(page)


def check_symmetry(page: Any) -> dict[str, float]:
    state, fixed = page.execute_script("return demo.state"), page.execute_script("return demo.constants")
    found = page.execute_script("return demo.compute(demo.state)")
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in fixed.items()}
    x = tensors["TOKENS"][state["order"]] + (tensors["CODES"] if state["codes"] else 0)
    k, v = x @ tensors["KEY"], x @ tensors["VALUE"]
    attention = softmax_attention(x @ tensors["QUERY"], k, v, scale=0.5**0.5)
    learned = softmax_attention(tensors["LEARNED"][None], k, v, scale=0.5**0.5)[0]
    kernel = tensors["KERNEL"].permute(2, 1, 0)  # out, in, offset
    convolved = torch.nn.functional.conv1d(x.T[None], kernel, padding=1)[0].T
    for name, expected in (("attention", attention), ("learned", learned), ("convolved", convolved)):
        np.testing.assert_allclose(found[name], expected, **DOUBLE)
    errors: dict[str, float] = found["errors"]
    return errors


@pytest.mark.browser
def test_attention_is_equivariant_a_learned_query_invariant_and_a_convolution_neither(opened) -> None:
    page = opened("symmetry")
    assert max(check_symmetry(page).values()) == 0
    drag(page, "token-0", 345, 0)
    assert page.execute_script("return demo.state.order") == [1, 2, 3, 0, 4]
    errors = check_symmetry(page)
    assert max(errors["attention"], errors["learned"]) < 1e-12
    assert errors["convolved"] > 0.1
    assert float(shown(page, "error-convolved")) > 0.1
    page.find_element(By.ID, "token-4").send_keys(Keys.ARROW_LEFT)
    assert page.execute_script("return demo.state.order") == [1, 2, 3, 4, 0]
    page.find_elements(By.TAG_NAME, "button")[1].click()
    errors = check_symmetry(page)
    assert min(errors.values()) > 0.01  # position codes break both symmetries
    page.find_elements(By.TAG_NAME, "button")[2].click()
    assert max(check_symmetry(page).values()) == 0


@pytest.mark.browser
@pytest.mark.parametrize("name", DEMOS)
def test_pages_fit_a_phone_and_the_dark(opened, name: str) -> None:
    page = opened(name, width=390, scheme="dark")
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390
    background = page.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    assert sum(map(int, re.findall(r"\d+", background)[:3])) < 150


@pytest.mark.parametrize("name", DEMOS)
def test_a_page_is_one_file_without_addresses(name: str) -> None:
    text = render_demo(name)
    assert "default-src &#39;none&#39;" in text
    addresses = re.findall(r"https?://[^\s\"'<]+", text)
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(fetch|XMLHttpRequest|import|eval|innerHTML)\b", text)
    assert re.search(r" style=", text) is None
    assert len(text) < 40_000


def test_an_unknown_name_lists_the_demonstrations() -> None:
    with pytest.raises(InputError, match="there is no demonstration 'magic'; there are kernel-pca, max-margin"):
        render_demo("magic")
