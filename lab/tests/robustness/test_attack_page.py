"""An evaluation under attacks on a page, as text, in a terminal and in a notebook."""

import base64
import dataclasses
import html
import io
import json
import re

import pytest
import torch
from PIL import Image
from rich.console import Console
from selenium.webdriver.common.by import By

from clearhead.errors import InputError
from clearhead_lab.robustness.attack_chart import LEFT, WIDTH, attack_chart
from clearhead_lab.robustness.attack_page import png_bytes, render_attack
from clearhead_lab.robustness.attack_text import attack_html, attack_text, print_attack, print_differences
from clearhead_lab.robustness.attack_words import attack_headline, percent, trust_sentence
from clearhead_lab.robustness.record import Robustness
from clearhead_lab.robustness.results import (
    AttackResult,
    CorruptionComparison,
    Detection,
    Estimate,
    Example,
    SanityLine,
    budget_text,
)

IMAGES, FEWER = 40, 10
LABELS = tuple(i % 7 for i in range(IMAGES))
HOSTILE = "</title><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e&amp;"


def result(attack: str, title: str, eps: float, count: int, images: int = IMAGES, first: int = 0) -> AttackResult:
    """Return an attack that fools `count` images from the first on; the last four were misclassified before."""
    wrong = range(first, first + count)
    predicted = [(label + 1) % 7 if i in wrong else label for i, label in enumerate(LABELS)]
    predicted[IMAGES - 4 :] = [-1] * 4
    return AttackResult(attack=attack, title=title, eps=eps, predicted=tuple(predicted[:images]), largest_change=eps)


def example(*, side: int = 8, channels: int = 1, eps: float = 8 / 255, after: int = 5, seed: int = 0) -> Example:
    generator = torch.Generator().manual_seed(seed)
    image = torch.rand(channels, side, side, generator=generator) * 0.8 + 0.1
    change = eps * torch.randn(image.shape, generator=generator).sign()
    return Example(image=image, attacked=image + change, label=3, before=3, after=after)


SANITY = (
    SanityLine(name="budget 0 equals clean", status="PASS", text="every prediction is unchanged"),
    SanityLine(name="transfer", status="not run", text="no twin was given"),
    SanityLine(name="gradients are informative", status="FLAG", text="97.0% have a gradient of zero"),
    SanityLine(name="binarisation test", status="FLAG", text="PGD solves 3% of 16 problems"),
)


@pytest.fixture
def record() -> Robustness:
    small, large = 2 / 255, 8 / 255
    return Robustness(
        model="rpc-vit", data="digits", suite="fast", protocol="pixels", budgets=(small, large), labels=LABELS,
        clean=(*LABELS[: IMAGES - 4], *((label + 1) % 7 for label in LABELS[IMAGES - 4 :])),
        results=(
            result("fgsm", "FGSM", small, 3, first=20), result("pgd", "PGD-20", small, 5),
            result("spsa", "SPSA-20", small, 1, FEWER), result("fgsm", "FGSM", large, 11, first=20),
            result("pgd", "PGD-20", large, 17), result("spsa", "SPSA-20", large, 7, FEWER),
        ),
        sanity=SANITY,
        corruptions={"gaussian noise": (0.9, 0.8, 0.7, 0.6, 0.5), "fog": (0.8, 0.6, 0.4, 0.2, 0.1)},
        examples=(example(), example(after=3, seed=1), example(after=-1, seed=2)),
        example_attack="PGD-40 at 8/255",
        notes=("the forward pass runs an optimisation loop", "a & b <i>"),
        settings={"version": "0.1", "weights": "af" * 32, "seed": 7, "normalisation": "none",
                  "attacks": {"pgd": {"steps": 20}}},
    )  # fmt: skip


def printed(record: Robustness, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_attack(record, console)
    return console.file.getvalue()


def table_of(page: str) -> dict[str, list[list[str]]]:
    """Return the rows of the first table: the texts of each cell by the row's title."""
    rows = re.findall(r'<tr class="(?:clean|attack|worst)"><th scope="row">(.*?)</th>(.*?)</tr>', page)
    cells = {title: re.findall(r'<td class="figure">(.*?)</td>', row) for title, row in rows}
    return {
        t: [re.split(r"</?small>(?:<small>)?", c.removesuffix("</small>")) for c in row] for t, row in cells.items()
    }


def images_of(page: str) -> list[torch.Tensor]:
    """Return the pixels of every image, (c, y, x) from 0 to 255."""
    decoded = []
    for text in re.findall(r'<img src="data:image/png;base64,([^"]+)"', page):
        with Image.open(io.BytesIO(base64.b64decode(text))) as image:
            pixels = torch.tensor(list(image.tobytes())).view(image.height, image.width, len(image.getbands()))
            decoded.append(pixels.permute(2, 0, 1))
    return decoded


def rounded(pixels: torch.Tensor) -> torch.Tensor:
    return (pixels.double() * 255).round().long()


def test_page_text_and_terminal_have_the_numbers_of_the_record(record: Robustness) -> None:
    table, text = table_of(render_attack(record)), attack_text(record)
    wide, notebook = printed(record, 120), attack_html(record)
    assert list(table) == ["clean", "FGSM", "PGD-20", "SPSA-20", "worst"]
    for i, eps in enumerate(record.budgets):
        estimates = {
            "clean": record.clean_accuracy(), "worst": record.worst(eps),
            **{title: record.accuracy(name, eps) for name, title in record.attacks.items()},
        }  # fmt: skip
        [line] = [line for line in text.splitlines() if line.startswith(f"{budget_text(eps)}  ")]
        for title, estimate in estimates.items():
            value = f"{100 * estimate.value:.1f}%"
            interval = f"[{100 * estimate.interval.low:.1f}, {100 * estimate.interval.high:.1f}]"
            fewer = estimate.images < IMAGES
            name = f"{title} (n={estimate.images})" if fewer else title
            assert table[title][i] == [value, interval, *([f"{estimate.images} images"] if fewer else [])]
            assert f"{name} {value}" in line
            assert re.search(rf"^{re.escape(name)} .*{re.escape(value)} +{re.escape(interval)}", wide, re.MULTILINE)
            assert re.search(rf"<td>{re.escape(name)}</td>.*<td>{re.escape(f'{value} {interval}')}</td>", notebook)
        worst = estimates["worst"].interval
        assert line.endswith(f"[{100 * worst.low:.1f}, {100 * worst.high:.1f}]  (n={IMAGES})")


def test_accuracies_by_hand(record: Robustness) -> None:
    """The last four of 40 images are wrong without an attack: predictions of -1 count as wrong."""
    table = table_of(render_attack(record))
    assert [cell[0] for cell in table["clean"]] == ["90.0%", "90.0%"]
    assert [cell[0] for cell in table["PGD-20"]] == ["77.5%", "47.5%"]
    assert [cell[0] for cell in table["SPSA-20"]] == ["90.0%", "30.0%"]
    assert [cell[0] for cell in table["worst"]] == ["70.0%", "20.0%"]


def test_the_headline_states_the_answer_and_whether_to_trust_it(record: Robustness) -> None:
    answer = "Robust accuracy 20.0% at 8/255 (clean 90.0%, 40 images): worst over 3 attacks."
    doubt = "Do not trust it yet: 2 sanity lines are flagged."
    page = html.unescape(render_attack(record))
    assert f'<h1>{answer} <span class="doubt">{doubt}</span></h1>' in page
    assert attack_text(record).splitlines()[0] == f"{answer} {doubt}"
    assert f"<b>{answer}</b> {doubt}" in attack_html(record)
    one = dataclasses.replace(record, sanity=SANITY[:3])
    assert trust_sentence(one) == "Do not trust it yet: 1 sanity line is flagged."
    passed = dataclasses.replace(record, sanity=SANITY[:2])
    assert trust_sentence(passed) == "1 sanity check passes, none is flagged."
    assert '<p class="trust">1 sanity check passes, none is flagged.</p>' in render_attack(passed)
    assert trust_sentence(dataclasses.replace(record, sanity=SANITY[1:2])) == "Not checked: no sanity check was run."
    alone = dataclasses.replace(record, budgets=(8 / 255,), results=record.results[3:4])
    assert attack_headline(alone).endswith("(clean 90.0%, 40 images): one attack, FGSM.")
    paper = dataclasses.replace(record, protocol="paper")
    assert "at 8/255 in normalised inputs (clean" in attack_headline(paper)


def test_flagged_lines_come_first(record: Robustness) -> None:
    page = render_attack(record)
    badges = re.findall(r'<li class="(.*?)"><b class="badge">(.*?)</b><h3>(.*?)</h3><p>(.*?)</p>', page)
    assert badges == [
        ("flag", "FLAG", "Gradients are informative", "97.0% have a gradient of zero"),
        ("flag", "FLAG", "Binarisation test", "PGD solves 3% of 16 problems"),
        ("pass", "PASS", "Budget 0 equals clean", "Every prediction is unchanged"),
        ("not-run", "not run", "Transfer", "No twin was given"),
    ]
    assert "Sanity checks: 1 PASS, 2 FLAG, 1 not run" in page
    assert re.findall(r"<li><b>(.*?)</b>", attack_html(record)) == ["FLAG", "FLAG", "PASS", "not run"]
    text = attack_text(record)
    assert "sanity: 1 PASS, 2 FLAG, 1 not run\nFLAG gradients are informative: 97.0% have" in text
    assert "\nFLAG binarisation test: PGD solves 3% of 16 problems\nnot run: transfer\n" in text
    lines = [line[:7].rstrip() for line in printed(record, 120).splitlines() if line[:4] in ("FLAG", "PASS", "not ")]
    assert lines == ["FLAG", "FLAG", "PASS", "not run"]


def test_hostile_names_are_text(record: Robustness) -> None:
    hostile = dataclasses.replace(
        record,
        model=HOSTILE,
        data=HOSTILE,
        notes=(HOSTILE,),
        example_attack=HOSTILE,
        sanity=(SanityLine(name=HOSTILE, status="FLAG", text=HOSTILE),),
        corruptions={HOSTILE: (0.5,)},
        detection=Detection(data=HOSTILE, images=13, area=0.6, chance=0.2),
        corruption_comparison=CorruptionComparison(baseline=HOSTILE, mean=90.0, by_corruption={HOSTILE: 90.0}),
        results=tuple(dataclasses.replace(r, title=HOSTILE) for r in record.results if r.attack == "pgd"),
        settings={**record.settings, HOSTILE: HOSTILE, "normalisation": HOSTILE},
    )
    for text in (render_attack(hostile), attack_html(hostile)):
        assert "<script" not in text
        assert "<img src=x" not in text
        assert "&lt;script&gt;alert(1)" in text
    page = re.sub(r"<style>.*?</style>", "", render_attack(hostile), flags=re.DOTALL)
    for text in (page, attack_html(hostile), attack_text(hostile), printed(hostile, 80)):
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_the_page_runs_nothing_and_asks_for_nothing(record: Robustness) -> None:
    page = render_attack(record)
    policy = html.unescape(re.search(r'Content-Security-Policy" content="(.*?)"', page)[1])
    assert "script-src 'none'" in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"<script|<link(?! rel=\"icon\" href=\"data:,\")|https?:|style=|\son\w+=", page)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_has_the_pixels(channels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (channels, 11, 13), generator=generator)
    steps = (torch.arange(11 * 13).view(11, 13) % 256).expand(channels, 11, 13)
    for pixels in (noise, steps, torch.zeros(channels, 5, 1, dtype=torch.long)):
        with Image.open(io.BytesIO(png_bytes(pixels / 255))) as image:
            image.load()  # checks the checksums too
            assert image.mode == ("L" if channels == 1 else "RGB")
            assert image.size == (pixels.shape[2], pixels.shape[1])
            decoded = torch.tensor(list(image.tobytes())).view(*pixels.shape[1:], channels).permute(2, 0, 1)
        assert torch.equal(decoded, pixels)


def test_a_png_clips_and_has_one_or_three_channels() -> None:
    with Image.open(io.BytesIO(png_bytes(torch.tensor([[[-0.5, 0.0, 0.5, 1.0, 1.5]]])))) as image:
        assert list(image.tobytes()) == [0, 0, 128, 255, 255]
    with pytest.raises(InputError, match=r"1 or 3 channels; got \(2, 5, 7\)"):
        png_bytes(torch.zeros(2, 5, 7))


@pytest.mark.parametrize("channels", [1, 3])
def test_examples_are_the_original_the_change_and_the_attacked_image(record: Robustness, channels: int) -> None:
    shown = dataclasses.replace(record, examples=(example(channels=channels), example(channels=channels, after=3)))
    page = render_attack(shown)
    first = shown.examples[0]
    original, change, attacked, *_ = images_of(page)
    assert torch.equal(original, rounded(first.image))
    assert torch.equal(attacked, rounded(first.attacked))
    assert "change times 15 (grey is no change)" in page  # 15 x 8/255 is the last below one half
    expected = 127.5 + 15 * 255 * (first.attacked - first.image)
    assert float((change - expected).abs().max()) <= 0.51
    assert "Examples: PGD-40 at 8/255" in page
    assert 'class="examples tiny"' in page


def test_examples_have_their_classes(record: Robustness) -> None:
    page = render_attack(record)
    assert page.count("<p>label 3, predicted 3</p>") == 3
    found = re.findall(r'<figure class="(.*?)">.*?<p class="after">(.*?)</p>', page, re.DOTALL)
    assert found == [("fooled", "predicted 5"), ("", "predicted 3"), ("", "misclassified before the attack")]


def test_a_page_with_large_examples_stays_small(record: Robustness) -> None:
    noise = [torch.rand(3, 224, 224, generator=torch.Generator().manual_seed(i)) for i in range(6)]
    examples = tuple(
        Example(image=x, attacked=(x + 8 / 255 * (x - 0.5).sign()).clamp(0, 1), label=1, before=1, after=2)
        for x in noise
    )
    page = render_attack(dataclasses.replace(record, examples=examples))
    assert len(page.encode()) < 2_000_000
    count = len(images_of(page)) // 3
    assert 1 < count < 6
    assert f"{count} of 6 examples, to keep the page small." in page
    assert 'class="examples large"' in page
    huge = example(side=520, channels=3)
    page = render_attack(dataclasses.replace(record, examples=(huge,)))
    assert "Of every 3 pixels in each direction, one is shown." in page
    assert torch.equal(images_of(page)[0], rounded(huge.image[:, ::3, ::3]))


def test_images_of_other_channels_are_grey(record: Robustness) -> None:
    stacked = example(channels=2)
    original = images_of(render_attack(dataclasses.replace(record, examples=(stacked,))))[0]
    assert float((original - stacked.image.mean(dim=0, keepdim=True) * 255).abs().max()) <= 0.51


def test_parts_that_a_record_lacks(record: Robustness) -> None:
    bare = dataclasses.replace(
        record, protocol="paper", sanity=(), examples=(), example_attack="", corruptions={}, notes=(), settings={},
        budgets=(8 / 255,), results=record.results[3:], data="",
    )  # fmt: skip
    page = render_attack(bare)
    assert "Examples" not in page
    assert "<img" not in page
    assert "corruptions, mean" not in page
    assert "Accuracy under corruptions" not in page
    assert 'aria-label="Notes"' not in page
    assert "Sanity checks: not run" in page
    assert "No sanity check was run" in page
    assert '<p class="trust">Not checked: no sanity check was run.</p>' in page
    assert [len(row) for row in table_of(page).values()] == [1] * 5
    assert "sanity:" not in attack_text(bare)
    assert "sanity     not run" in printed(bare, 80)
    assert "<ul>" not in attack_html(bare)


def test_calibration_detection_and_corruption_error_are_everywhere(record: Robustness) -> None:
    measured = dataclasses.replace(
        record,
        calibration_error=0.0314,
        detection=Detection(data="noise", images=13, area=0.625, chance=0.25),
        corruption_comparison=CorruptionComparison(
            baseline="softmax-vit", mean=87.25, by_corruption={"gaussian noise": 70.5, "fog": 104.0}
        ),
    )
    page, notebook = html.unescape(render_attack(measured)), attack_html(measured)
    texts = (page, notebook, attack_text(measured), " ".join(printed(measured, 90).split()))
    for text in texts:
        assert re.search(r"alibration error 3\.1%: the mean gap between confidence and accuracy", text)
        assert "rea under precision-recall 62.5% for 13 images of noise as other classes" in text
        assert "random scores have 25.0%" in text
        assert "87.2% of the errors of softmax-vit, mean over 2 corruptions; below 100% there are fewer" in text
    assert re.search(r"fog</th>.*<b>42\.0%</b></td><td class=\"figure\">104\.0%</td>", page)
    assert [line.split()[0] for line in printed(measured, 200).splitlines() if line.split()[:1] in
            (["confidence"], ["detection"], ["mCE"])] == ["confidence", "detection", "mCE"]  # fmt: skip
    plain = render_attack(record)
    assert "Other measures" not in plain
    assert "of the baseline" not in plain
    reason = CorruptionComparison(baseline="softmax-vit", reason="the corruptions differ")
    without = dataclasses.replace(record, corruption_comparison=reason, corruptions={})
    for text in (html.unescape(render_attack(without)), attack_html(without), attack_text(without)):
        assert "one against softmax-vit: the corruptions differ" in text


def test_a_budget_of_zero_is_where_the_lines_begin(record: Robustness) -> None:
    results = tuple(dataclasses.replace(r, eps=0.0) for r in record.results[:3])
    zero = dataclasses.replace(record, budgets=(0.0,), results=results)
    chart = attack_chart(zero)
    assert "Robust accuracy 70.0% at 0 (" in render_attack(zero)
    assert [curve.points[0][0] for curve in chart.curves] == [LEFT] * 4
    assert all(len(curve.points) == 1 for curve in chart.curves)
    assert [tick.text for tick in chart.x_ticks] == ["0"]


def test_the_chart_has_the_accuracies(record: Robustness) -> None:
    chart = attack_chart(record)
    left, top, right, bottom = chart.plot

    def points(path: str) -> list[tuple[float, float]]:
        """Return budgets relative to the largest, and accuracies."""
        found = [tuple(map(float, p.split())) for p in path.strip("MZ").split(" L")]
        return [((x - left) / (right - left), (bottom - y) / (bottom - top)) for x, y in found]

    assert [curve.name for curve in chart.curves] == ["worst", "FGSM", "PGD-20", "SPSA-20"]
    expected = {
        "worst": [0.9, 0.7, 0.2], "FGSM": [0.9, 0.825, 0.625], "PGD-20": [0.9, 0.775, 0.475],
        "SPSA-20": [1.0, 0.9, 0.3],  # of the first 10 images
    }  # fmt: skip
    for curve in chart.curves:
        places, values = zip(*points(curve.path), strict=True)
        assert places == pytest.approx([0, 0.25, 1], abs=1e-3)
        assert values == pytest.approx(expected[curve.name], abs=1e-3)
        assert len(curve.points) == (3 if curve.name == "worst" else 2)
    intervals = [record.clean_accuracy().interval, *(record.worst(eps).interval for eps in record.budgets)]
    ends = [*(i.low for i in intervals), *(i.high for i in reversed(intervals))]
    assert [y for _, y in points(chart.band)] == pytest.approx(ends, abs=1e-3)
    assert len({(curve.style, curve.marker) for curve in chart.curves}) == 4
    assert chart.fewer == (("SPSA-20", FEWER),)
    assert "SPSA-20 was run on the first 10 images only" in render_attack(record)


def test_labels_of_the_axes(record: Robustness) -> None:
    chart = attack_chart(record)
    assert [tick.text for tick in chart.x_ticks] == ["0", "2", "8"]
    assert chart.x_title == "budget / 255"
    assert [tick.text for tick in chart.y_ticks] == ["0%", "20%", "40%", "60%", "80%", "100%"]
    budgets = (0.001, 0.002, 0.1, 0.3)
    results = tuple(result("fgsm", "FGSM", eps, 3) for eps in budgets)
    chart = attack_chart(dataclasses.replace(record, budgets=budgets, results=results))
    assert [tick.text for tick in chart.x_ticks] == ["0", "0.1", "0.3"]  # 0.001 and 0.002 would be on top of 0
    assert chart.x_title == "budget"
    assert all(LEFT <= tick.at <= WIDTH for tick in chart.x_ticks)
    wrong = dataclasses.replace(
        record, budgets=budgets[:1], clean=tuple((label + 1) % 7 for label in LABELS),
        results=(dataclasses.replace(results[0], predicted=(-1,) * IMAGES),),
    )  # fmt: skip
    chart = attack_chart(wrong)
    assert [tick.text for tick in chart.y_ticks] == ["0%", "5%", "10%", "15%", "20%", "25%"]
    assert [chart.y_ticks[i].at for i in (-1, 0)] == [chart.plot[1], chart.plot[3]]


def test_corruptions_have_a_table(record: Robustness) -> None:
    page = render_attack(record)
    row = "".join(f'<td class="figure">{value}</td>' for value in ("80.0%", "60.0%", "40.0%", "20.0%", "10.0%"))
    assert f'<tr><th scope="row">fog</th>{row}<td class="figure"><b>42.0%</b></td></tr>' in page
    assert 'corruptions, mean</th><td class="centre" colspan="2">56.0%</td>' in page
    assert "| corruptions 56.0% | worst" in attack_text(record)
    assert "56.0%, mean over 2 corruptions at 5 severities" in printed(record, 80)


def test_what_was_attacked_and_the_settings_are_on_the_page(record: Robustness) -> None:
    page = render_attack(record)
    facts = re.search(r'aria-label="What was attacked">(.*?)</ul>', page, re.DOTALL)[1]
    assert re.findall(r"<li>(.*?)</li>", facts) == [
        "model rpc-vit", "data digits", "40 images, 4 misclassified before any attack", "suite fast",
        "protocol pixels", "seed 7", "normalisation none",
    ]  # fmt: skip
    assert "The forward pass runs an optimisation loop" in page
    assert "A &amp; b &lt;i&gt;" in page
    for name, value in (
        ("version", "0.1"), ("weights", "af" * 32), ("attacks, pgd, steps", "20"),
        ("largest change by SPSA-20 at 8/255", "0.0314 = 8/255, 10 images"),
    ):  # fmt: skip
        assert f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' in page


def test_shares_never_round_to_none_or_all() -> None:
    assert [percent(v) for v in (0.0, 1.0, 0.1234, 0.9999, 0.0002, 0.99951)] == [
        "0.0%", "100.0%", "12.3%", "99.99%", "0.02%", "99.95%",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [44, 80, 120])
def test_every_line_fits_the_terminal(record: Robustness, width: int) -> None:
    text = printed(record, width)
    assert max(map(len, text.splitlines())) <= width
    assert "FLAG       gradients are" in text
    assert re.search(r"^worst +70\.0%.* 20\.0%", text, re.MULTILINE)
    assert ("[" in text) == (width > 44)
    assert "wider terminal" not in text


def test_a_narrow_terminal_keeps_the_largest_budgets(record: Robustness) -> None:
    budgets = tuple(eps / 255 for eps in (1, 2, 3, 4, 5, 6, 7, 8))
    results = tuple(result("fgsm", "FGSM", eps, 3 + i) for i, eps in enumerate(budgets))
    many = dataclasses.replace(record, budgets=budgets, results=results)
    text = printed(many, 44)
    assert max(map(len, text.splitlines())) <= 44
    assert re.search(r"^attack +4/255 +5/255 +6/255 +7/255 +8/255$", text, re.MULTILINE)
    assert "3 smaller budgets need a wider terminal" in text
    assert "wider terminal" not in printed(many, 200)


def test_the_text_is_short(record: Robustness) -> None:
    budgets = tuple((i + 1) / 255 for i in range(11))
    results = tuple(result("fgsm", "FGSM", eps, 3) for eps in budgets)
    lines = attack_text(dataclasses.replace(record, budgets=budgets, results=results)).splitlines()
    assert len(lines) <= 25
    assert lines[2].startswith(" 4/255  clean 90.0% | FGSM 82.5%")
    assert "3 smaller budgets: to_dict() has all" in lines
    assert lines[-1] == "note: a & b <i>"
    assert str(record) == attack_text(record)
    assert record._repr_html_() == attack_html(record)


@pytest.mark.parametrize("width", [44, 80])
def test_differences_from_another_model(record: Robustness, width: int) -> None:
    other = dataclasses.replace(record, clean=LABELS)
    console = Console(file=io.StringIO(), width=width)
    print_differences(record.differences(other), console, other="softmax")
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "minus that of softmax" in text.replace("\n           ", " ")
    first = record.differences(other)[0].estimate
    assert isinstance(first, Estimate)
    assert re.search(r"^clean +- +-10\.0", text, re.MULTILINE)
    assert re.search(r"^PGD-20 +8/255 +0\.0", text, re.MULTILINE)
    if width == 80:
        low, high = 100 * first.interval.low, 100 * first.interval.high
        assert f"{low:+.1f} to {high:+.1f}  yes" in text


@pytest.fixture
def show(browser, tmp_path):
    """A function that opens the page of a record; afterwards the console must be empty, and only the page requested."""
    path = tmp_path / "attack.html"

    def open_page(record, *, width=1440, scheme="light", media=""):
        path.write_text(render_attack(record), encoding="utf-8")
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get_log("performance")
        browser.get(path.as_uri())

    yield open_page
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    assert browser.get_log("browser") == [], "console errors and violations of the content security policy"
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requested = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in requested if not url.startswith((path.as_uri(), "data:", "about:"))] == []


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (768, "light"), (1440, "dark")])
def test_the_page_fits_its_window(browser, show, record, width, scheme):
    budgets = tuple(eps / 255 for eps in (1, 2, 4, 8, 16))
    results = tuple(result("fgsm", "FGSM", eps, 3 + i) for i, eps in enumerate(budgets))
    wide = dataclasses.replace(record, budgets=budgets, results=results, model="model" * 40, data=HOSTILE)
    show(wide, width=width, scheme=scheme)
    browser.execute_script("document.querySelector('details').open = true")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    colours = browser.execute_script(
        "return [getComputedStyle(document.documentElement).backgroundColor, "
        "getComputedStyle(document.querySelector('path.worst-line.line')).stroke]"
    )
    assert len(set(colours)) == 2
    assert colours[0] == ("rgb(250, 249, 246)" if scheme == "light" else "rgb(20, 22, 26)")


@pytest.mark.browser
def test_images_are_shown_enlarged(browser, show, record):
    show(record, width=390)
    looks = browser.execute_script(
        "return [...document.images].map((i) => [i.naturalWidth, i.getBoundingClientRect().width, "
        "getComputedStyle(i).imageRendering])"
    )
    assert len(looks) == 9
    for natural, width, rendering in looks:
        assert natural == 8
        assert width > 80
        assert rendering == "pixelated"


@pytest.mark.browser
def test_a_hostile_name_is_shown_as_text(browser, show, record):
    show(dataclasses.replace(record, model=HOSTILE))
    shown = browser.find_element(By.CSS_SELECTOR, ".audited").text
    assert "</title><script>alert(1)</script><img src=x onerror=alert(2)>?[31m?&amp;" in shown
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.find_elements(By.CSS_SELECTOR, "img[src=x]") == []


@pytest.mark.browser
def test_paper_has_the_settings_and_fits(browser, show, record):
    show(record, width=720, media="print")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 720
    assert browser.execute_script("return document.querySelector('.settings td').checkVisibility()")
