"""The runs that the tests of the report make, for those of the comparison."""

from tests.reports.conftest import make_run, make_trial

__all__ = ["make_run", "make_trial"]
