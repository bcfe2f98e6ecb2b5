"""Medians, their spread and ratios, and how they are printed: tables in Markdown, as the README has them."""

import statistics
import sys


def median(values):
    return statistics.median(values)


def say(text):
    print(text, file=sys.stderr, flush=True)


def unit_of(seconds):
    """
    >>> unit_of(1.5), unit_of(0.0031), unit_of(0.00031)
    ((1, 's'), (1000.0, 'ms'), (1000000.0, 'us'))
    """
    return (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 0.001 else (1e6, "us")


def digits(number):
    """Three of them.

    >>> digits(0.0123), digits(1.234), digits(12.34), digits(123.4)
    ('0.01', '1.23', '12.3', '123')
    """
    return f"{number:.2f}" if number < 10 else f"{number:.1f}" if number < 100 else f"{number:.0f}"


def seconds(values):
    """The median and the spread, in a unit that suits; none of nothing.

    >>> seconds([0.0013, 0.0012, 0.0015]), seconds([])
    ('1.30 ms (1.20 to 1.50)', '')
    """
    if not values:
        return ""
    factor, unit = unit_of(median(values))
    least, middle, most = (digits(factor * value) for value in (min(values), median(values), max(values)))
    return f"{middle} {unit} ({least} to {most})" if len(values) > 1 else f"{middle} {unit}"


def ratio(one, other):
    """The ratio of two medians, or None.

    >>> ratio([2, 3, 9], [6, 6]), ratio([], [1])
    (0.5, None)
    """
    return median(one) / median(other) if one and other else None


def times(number):
    """
    >>> times(1.0194), times(14.2), times(None)
    ('1.019', '14.2', '')
    """
    return "" if number is None else f"{number:.3f}" if number < 2 else digits(number)


def against(one, other):
    """The ratio of two medians, with the spread of the ratios of what was measured in turn.

    >>> against([1.0, 1.02, 1.1], [1.0, 1.0, 1.0]), against([1.0], [2.0]), against([], [1.0])
    ('1.020 (1.000 to 1.100)', '0.500', '')
    """
    if len(one) != len(other) or len(one) < 2:
        return times(ratio(one, other))
    each = sorted(a / b for a, b in zip(one, other))
    return f"{times(ratio(one, other))} ({times(each[0])} to {times(each[-1])})"


def markdown(head, rows):
    """A table whose first column stands to the left and whose others to the right; columns that are empty are left out, and so is
    a table without rows.

    >>> print(markdown(["", "a", "b"], [["one", "1 s", ""], ["two", "", ""]]))
    |     |   a |
    | --- | --: |
    | one | 1 s |
    | two |     |
    >>> markdown(["", "a"], [])
    ''
    """
    if not rows:
        return ""
    columns = [number for number in range(len(head)) if number == 0 or any(row[number] for row in rows)]
    rows = [[row[number] for number in columns] for row in [head, *rows]]
    widths = [max(3, *(len(row[number]) for row in rows)) for number in range(len(columns))]
    line = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    cells = lambda row: [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [cells(rows[0]), line, *map(cells, rows[1:])])
