"""The rows of `make test-cpus` and what is made of pytest's results."""

from itertools import combinations, product
from pathlib import Path

from tests.cpus import CELLS, FACTORS, available, outcomes

ALL = ["default", "avx2", "avx512"]
VARIANTS = ["generic", "avx2", "avx512"]


def test_every_level_and_every_pair_of_loops_mkl_and_kernel_has_a_row() -> None:
    levels = [dict.fromkeys(column) for column in zip(*CELLS, strict=True)]
    assert [len(column) for column in levels] == [3, 5, 3, 3, 2]
    for a, b in combinations((0, 2, 3), 2):
        assert {(cell[a], cell[b]) for cell in CELLS} == set(product(levels[a], levels[b]))


def test_a_level_that_the_processor_lacks_is_left_out() -> None:
    names = list(FACTORS)
    for cell in CELLS:
        assert available(cell, loops=ALL, kernels=VARIANTS) == dict(zip(names, cell, strict=True))
        old = available(cell, loops=["default"], kernels=["generic"])
        assert old.get("OPENBLAS_CORETYPE", "Prescott") in ("Prescott", "Nehalem")
        assert old.get("MKL_CBWR", "COMPATIBLE") == "COMPATIBLE"
        assert old.get("CLEARHEAD_KERNEL", "generic") == "generic"
        assert "CLEARHEAD_TEST_THREADS" in old


def test_failures_and_errors_are_red(tmp_path: Path) -> None:
    case = '<testcase classname="a" name="{}">{}</testcase>'
    inner = {"ok": "", "bad": "<failure/>", "broken": "<error/>", "left": "<skipped/>"}
    results = tmp_path / "results.xml"
    results.write_text(f"<testsuites>{''.join(case.format(*item) for item in inner.items())}</testsuites>")
    counts, failed = outcomes(results)
    assert counts == {"passed": 1, "failed": 2, "skipped": 1}
    assert failed == ["a::bad", "a::broken"]
