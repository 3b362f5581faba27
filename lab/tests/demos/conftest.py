"""The browser of the tests of reports."""

from tests.report.conftest import browser  # noqa: F401
