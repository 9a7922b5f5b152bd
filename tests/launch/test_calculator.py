"""Constant arithmetic of bc, awk and python -c, with the output of the real programs."""

from __future__ import annotations

import pytest

from trinity_compat.launch import calculator


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("scale=2; 3/4", ".75\n"),
        ("8*2+1", "17\n"),
        ("7/2", "3\n"),
        ("scale=3\n-1/3", "-.333\n"),
        ("1.50*2", "3.00\n"),
        ("(1+2)*3", "9\n"),
        ("1/0", None),
        ("x=3", None),
    ],
)
def test_bc(text, printed):
    assert calculator.bc(text) == printed


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("BEGIN {print 3*2}", "6\n"),
        ("BEGIN{print 1/3}", "0.333333\n"),
        ('BEGIN {printf "%.2f", 3/4}', "0.75"),
        ("BEGIN {print 2^(1+2)}", "8\n"),
        ("{print $1}", None),
        ("BEGIN {print x}", None),
    ],
)
def test_awk(text, printed):
    assert calculator.awk(text) == printed


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("print(1)", "1\n"),
        ("print(int(8 * 0.5))", "4\n"),
        ("print(1e-6 * 2)", "2e-06\n"),
        ("print(7 // 2, 3)", None),
        ("print(2**99999999)", None),
        ("import os; print(1)", None),
        ("print(open('x'))", None),
        ("print(max(3, 4) / 2)", "2.0\n"),
        ("print(1/0)", None),
    ],
)
def test_python(text, printed):
    assert calculator.python(text) == printed
