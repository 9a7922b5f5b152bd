"""Nodes of a YAML text, which keep the lines that a plain reading loses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trinity_compat.common.errors import Where
from trinity_compat.launch.bash.traced_text import Value, lines_of

if TYPE_CHECKING:
    from yaml import Node

NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"  # of the key ``<<``


def documents(text: str) -> list[Node]:
    """Return the documents of a text. Raises yaml.YAMLError."""
    import yaml  # only here: reading a shell script needs none of it

    from trinity_compat.common.bounded_yaml import BoundedLoader

    return [node for node in yaml.compose_all(text, Loader=BoundedLoader) if node is not None]


def mapping(node: Node | None) -> dict[str, Node]:
    """The values of a mapping by key, those of its ``<<`` among them; none for any other node."""
    import yaml

    if not isinstance(node, yaml.MappingNode):
        return {}
    merged: dict[str, Node] = {}
    for key, value in node.value:
        if key.tag == _MERGE:
            for source in reversed(elements(value) or [value]):  # the first of them counts
                merged |= mapping(source)
    return merged | {str(key.value): value for key, value in node.value if key.tag != _MERGE}


def elements(node: Node | None) -> list[Node]:
    """The elements of a list; none for any other node."""
    import yaml

    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def is_scalar(node: Node | None) -> bool:
    """Tell whether a node is a single value."""
    import yaml

    return isinstance(node, yaml.ScalarNode)


def plain_text(node: Node | None) -> str:
    """The text of a scalar, empty for any other node."""
    return str(node.value) if node is not None and is_scalar(node) else ""


def placed(node: Node, name: str) -> Value:
    """A scalar's text in the file ``name``, each line at its place."""
    block = getattr(node, "style", None) in ("|", ">")
    return lines_of(plain_text(node), Where(name, node.start_mark.line + (2 if block else 1)))
