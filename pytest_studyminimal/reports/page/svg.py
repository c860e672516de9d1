"""A drawing as a part of the page: colours are the page's own, and nothing in it is a style or a link."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

_ARMS = 8
ROLES = (
    *("ink", "soft", "grid", "paper", "good", "half", "bad", "none", "other"),
    *(f"arm{number}" for number in range(_ARMS)),
)
_HREF = "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d{2,}(?:e-?\d+)?")
_FONT = re.compile(r"([\d.]+)px")
_KEPT = {
    *("fill-opacity", "fill-rule", "opacity", "stroke-dasharray", "stroke-dashoffset"),
    *("stroke-linecap", "stroke-linejoin", "stroke-opacity", "stroke-width", "text-anchor"),
}


def colour(role: str) -> str:
    """Return the colour that stands for a role of ROLES in a drawing, until the page has its say."""
    return f"#0000{ROLES.index(role) + 1:02x}"


def arm_role(number: int) -> str:
    """Return the role of an arm by its place; from the ninth on they repeat."""
    return f"arm{number % _ARMS}"


def embedded(drawing: str, label: str) -> str:
    """Return matplotlib's SVG as an element of a page.

    Colours become classes, styles presentation attributes, which a policy without inline styles
    allows; numbers keep two decimals; identifiers that nothing refers to are dropped.
    """
    root = ET.fromstring(drawing)  # noqa: S314 - as above
    for parent in list(root.iter()):
        for child in list(parent):
            if _name(child) in {"metadata", "style"}:
                parent.remove(child)
    for element in root.iter():
        _plain(element)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": label,
        "class": "drawing",
    }
    root.tail = None
    return re.sub(r">\s+<", "><", ET.tostring(root, encoding="unicode"))


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _plain(element: ET.Element) -> None:
    element.tag = _name(element)
    attributes = dict(element.attrib)
    style = attributes.pop("style", "")
    if _HREF in attributes:
        attributes["href"] = attributes.pop(_HREF)
    if element.tag in {"g", "text"}:
        attributes.pop("id", None)
    for name in ("d", "x", "y", "transform", "points", "width", "height"):
        if name in attributes:
            attributes[name] = _NUMBER.sub(_shorter, attributes[name])
    if "d" in attributes:
        attributes["d"] = " ".join(attributes["d"].split())
    attributes |= _attributes(style)
    element.attrib.clear()
    element.attrib.update(attributes)


def _shorter(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def _attributes(style: str) -> dict[str, str]:
    found: dict[str, str] = {}
    classes = []
    for part in style.split(";"):
        name, _, value = (piece.strip() for piece in part.partition(":"))
        if name in {"fill", "stroke"} and value.startswith("#"):
            classes.append(f"{name[0]}-{ROLES[int(value[-2:], 16) - 1]}")
        elif name in {"fill", "stroke"} or name in _KEPT:
            found[name] = value
        elif name in {"font", "font-size"} and (size := _FONT.search(value)):
            found["font-size"] = size[1]
    return found | ({"class": " ".join(classes)} if classes else {})
