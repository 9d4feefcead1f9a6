"""Texts for the editor tests. Each has a place where the embedded model has an answer."""

from __future__ import annotations

import ast

SHOP = """\
class Cart:
    def __init__(self):
        self.items = []

    def add(self, item):


cart = Cart()
cart.add("tea")
print(cart.items)
"""
# After the colon of `def add`, where a body begins. The text is ASCII, so characters and bytes are the same.
INSIDE = (4, len("    def add(self, item):"))

# The shop as it is, with other line ends, with other indentation, and with characters of two UTF-16 units and three bytes.
SHOPS = {
    "plain": SHOP,
    "crlf": SHOP.replace("\n", "\r\n"),
    "tabs": SHOP.replace("    ", "\t"),
    "wide": SHOP.replace("def add(self, item):", "def add(self, item='😀日本語'):"),
}

# Three bodies to fill, each similar to another one in the text.
BODIES = """\
class Item:
    def __init__(self, name, price, stock):
        self.name = name
        self.price = price
        self.stock = stock

    def get_name(self):
        return self.name

    def get_price(self):
        ...

    def get_stock(self):
        ...

    def set_name(self, name):
        self.name = name

    def set_price(self, price):
        ...


item = Item("tea", 3, 10)
item.set_price(4)
print(item.get_name(), item.get_price(), item.get_stock())
"""
# The line of the first of them, counted from 0.
BODY = 10

# A body of several lines, similar to another one in the text.
FILES = """\
import json


def read_settings(path):
    \"\"\"Return the settings in a file.\"\"\"
    try:
        with open(path) as file:
            return json.load(file)
    except OSError:
        return {}


def read_history(path):
    \"\"\"Return the history in a file.\"\"\"
    ...


print(read_settings("a"), read_history("b"))
"""
# The line of the body, counted from 0.
LONG_BODY = 14


def check_saved(saved: str, kind: str, new: str) -> None:
    """Check that a file has such a shop with a new line in `add`, which begins so, and that nothing else of it has changed."""
    eol, indent = "\r\n" if kind == "crlf" else "\n", "\t\t" if kind == "tabs" else "        "
    lines = SHOPS[kind].split(eol)
    head, tail = eol.join(lines[: INSIDE[0] + 1]), eol.join(lines[INSIDE[0] + 1 :])
    assert saved.startswith(f"{head}{eol}{indent}{new}")
    assert saved.endswith(tail)
    if kind == "crlf":
        assert saved.count("\n") == saved.count("\r\n") == saved.count("\r")
    ast.parse(saved)


def inserted(before: str, after: str) -> str:
    """Return the text that was inserted between two versions."""
    start = next((idx for idx, (one, two) in enumerate(zip(before, after, strict=False)) if one != two), len(before))
    n_new = len(after) - len(before)
    while start > 0 and after[start + n_new :] != before[start:]:
        start -= 1
    return after[start : start + n_new]


def paced() -> tuple[str, list[str]]:
    """Return a text, and the about three hundred keys that type it: characters, "Enter", and mistakes with "Backspace"."""
    lines = ["def mean(numbers):", "    total = sum(numbers)", "    return total / len(numbers)", "", "print(mean([1, 2, 3]))"]
    typed_text, keys = "", list[str]()
    for n in range(3):
        for line in lines:
            text = line.replace("mean", f"mean{n}")
            for idx, character in enumerate(text):
                if idx % 7 == 5:
                    keys += ["x", "Backspace"]
                keys.append(character)
            keys.append("Enter")
            typed_text += text + "\n"
    return typed_text, keys
