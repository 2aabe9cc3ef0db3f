"""Makes a test of every block of code in README and docs; tests/pages.py says how it runs."""

from __future__ import annotations

from tests.pages import sybil

pytest_collect_file = sybil().pytest()
