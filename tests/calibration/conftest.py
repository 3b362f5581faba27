from tests.report.conftest import record

__all__ = ["record"]
