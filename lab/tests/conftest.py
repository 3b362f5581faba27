"""The browser of the tests of reports, for pages of the laboratory."""

from tests.report.conftest import browser  # noqa: F401
