"""Options that are parsed: every way to write a size of memory, and what is none."""

from __future__ import annotations

import pytest
import typer

from ropetool.cli.options import parse_memory

SIZES = {
    "3GB": {"each": 3_000_000_000},
    "3gib": {"each": 3 << 30},
    "500MB": {"each": 500_000_000},
    "1.5 GiB": {"each": 3 << 29},
    "0=20GiB,1=20GiB,cpu=30GiB": {0: 20 << 30, 1: 20 << 30, "cpu": 30 << 30},
    "CPU=1TB": {"cpu": 10**12},
}


@pytest.mark.parametrize("text", SIZES)
def test_a_size_is_read(text):
    assert parse_memory(text) == SIZES[text]


@pytest.mark.parametrize(
    "text",
    ["", "3", "GB", "-3GB", "3GB,4GB", "3G", "gpu=3GB", "0=3GB,0=4GB", "0=", "0GB", "3GB,cpu=1GB", "1e3GB", "３GB"],
)
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(typer.BadParameter, match=r"3GB|twice|no memory"):
        parse_memory(text)
