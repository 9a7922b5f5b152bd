"""Edits of a YAML file at the places of its keys: comments, order and layout of the rest stay.

PyYAML's marks tell where each key and value stands. Only block mappings are edited; a key within ``{…}`` can
be given another name or value in its place, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from trinity_compat.common.errors import UserError
from trinity_compat.rewrite.bash_text import NotEditable
from trinity_compat.verl_config.yaml_files import compose_yaml

_STEP = 2  # blanks by which a new section is indented


@dataclass(frozen=True, slots=True)
class YamlLeaf:
    """A key without keys below it: its place, and the nodes of its name and value."""

    key: str
    name: yaml.ScalarNode
    value: yaml.Node
    flow: bool  # within {…}

    @property
    def line(self) -> int:
        """Return the line of the key, counted from 1."""
        return int(self.name.start_mark.line) + 1


@dataclass
class _Section:
    """A mapping of the file: its column, and its entries by name."""

    key: str
    node: yaml.MappingNode
    name: yaml.ScalarNode | None
    left: int  # entries that stay


_New = dict[str, "str | _New"]  # name → its lines at column 0, or a section


@dataclass
class YamlText:
    """A file's text with its keys, and the edits on it."""

    text: str
    leaves: dict[str, YamlLeaf] = field(default_factory=dict)
    _sections: dict[str, _Section] = field(default_factory=dict)
    _edits: list[tuple[int, int, str]] = field(default_factory=list)
    _new: dict[str, _New] = field(default_factory=dict)  # section → what comes into it
    _gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        root = compose_yaml(self.text)
        if not isinstance(root, yaml.MappingNode):
            raise UserError("a configuration is a mapping of keys to values")
        self._walk(root, None, "")

    def _walk(self, node: yaml.MappingNode, name: yaml.ScalarNode | None, key: str) -> None:
        self._sections[key] = _Section(key, node, name, len(node.value))
        for inner, value in node.value:
            if not isinstance(inner, yaml.ScalarNode) or "." in inner.value or inner.value == "<<":
                continue
            path = f"{key}.{inner.value}" if key else inner.value
            if isinstance(value, yaml.MappingNode) and value.value:
                if value.start_mark.index > inner.start_mark.index:  # no alias of a mapping above
                    self._walk(value, inner, path)
            else:
                self.leaves[path] = YamlLeaf(path, inner, value, bool(node.flow_style))

    # Edits.

    def rename(self, leaf: YamlLeaf, name: str) -> None:
        """Give a key another name in its section."""
        self._edits.append((leaf.name.start_mark.index, leaf.name.end_mark.index, name))

    def set_value(self, leaf: YamlLeaf, value: object) -> None:
        """Write another value in a value's place."""
        start, end = leaf.value.start_mark.index, leaf.value.end_mark.index
        if leaf.line != leaf.value.start_mark.line + 1 or "\n" in self.text[start:end]:
            raise NotEditable("its value takes several lines")
        blank = " " if start == end else ""
        self._edits.append((start, end, blank + dumped(value)))

    def remove(self, leaf: YamlLeaf, *, moved: bool = False) -> None:
        """Take a key out, with its line; a section that it leaves empty goes, too.

        The comment above goes with a key that is ``moved``.
        """
        start, end = self._extent(leaf)
        if moved:
            start = self._comment_above(leaf, start)
        self._edits.append((start, end, ""))
        self._gone.add(leaf.key)
        above = leaf.key.rpartition(".")[0]
        self._sections[above].left -= 1

    def lines_of(self, leaf: YamlLeaf, name: str) -> str:
        """Return a key's lines under another name, with the comment above, at column 0."""
        start, end = self._extent(leaf)
        column = leaf.name.start_mark.column
        above = self.text[self._comment_above(leaf, start) : start]
        own = " " * column + name + self.text[leaf.name.end_mark.index : end]
        lines = (above + own).splitlines(keepends=True)
        return "".join(line[min(column, len(line) - len(line.lstrip(" "))) :] for line in lines)

    def insert(self, key: str, lines: str) -> None:
        """Put the lines of ``key``, which have its last name, into its section."""
        parts = key.split(".")
        if key in self.leaves and key not in self._gone:
            raise NotEditable(f"{key} is set already (line {self.leaves[key].line})")
        depth = next(d for d in range(len(parts) - 1, -1, -1) if ".".join(parts[:d]) in self._sections)
        section = ".".join(parts[:depth])
        if self._sections[section].node.flow_style:
            raise NotEditable(f"{section} is written in braces")
        beside = ".".join(parts[: depth + 1])
        if beside in self.leaves and beside not in self._gone:
            raise NotEditable(f"{beside} has a value (line {self.leaves[beside].line})")
        new = self._new.setdefault(section, {})
        for name in parts[depth:-1]:
            below = new.setdefault(name, {})
            assert isinstance(below, dict)
            new = below
        new[parts[-1]] = lines

    def result(self) -> str:
        """Return the text with all edits."""
        edits = list(self._edits)
        for key in sorted(self._sections, key=_depth, reverse=True):
            section = self._sections[key]
            if key and section.left == 0 and key not in self._new and section.name is not None:
                start, end = self._line_start(section.name), self._end_of(section.node)
                edits = [edit for edit in edits if not start <= edit[0] <= edit[1] <= end]
                edits.append((start, end, ""))
                above = self._sections.get(key.rpartition(".")[0])
                if above is not None:
                    above.left -= 1
        for key in sorted(
            self._new, key=_depth, reverse=True
        ):  # at one place the inner section's comes first
            new, section = self._new[key], self._sections[key]
            at = self._end_of(section.node)
            column = section.node.start_mark.column
            lines = "".join(_indented(new, column))
            if at and not self.text[:at].endswith("\n"):
                lines = "\n" + lines.removesuffix("\n")
            edits.append((at, at, lines))
        out, at = [], 0
        for start, end, new_text in sorted(edits, key=lambda edit: (edit[0], edit[1])):
            if start < at:
                raise NotEditable("two changes meet in one place")
            out += [self.text[at:start], new_text]
            at = end
        return "".join([*out, self.text[at:]])

    def _extent(self, leaf: YamlLeaf) -> tuple[int, int]:
        """The whole lines of a key and its value."""
        if leaf.flow:
            raise NotEditable("it is written in braces")
        return self._line_start(leaf.name), self._end_of(leaf.value, leaf.name)

    def _comment_above(self, leaf: YamlLeaf, start: int) -> int:
        """Return where the comment above a key's line begins: the lines with a # in its column."""
        mark = " " * leaf.name.start_mark.column + "#"
        while start:
            before = self.text.rfind("\n", 0, start - 1) + 1
            if not self.text.startswith(mark, before):
                break
            start = before
        return start

    def _line_start(self, name: yaml.ScalarNode) -> int:
        start = name.start_mark.index - name.start_mark.column
        if self.text[start : name.start_mark.index].strip(" "):
            raise NotEditable("it does not begin its line")
        return int(start)

    def _end_of(self, node: yaml.Node, name: yaml.ScalarNode | None = None) -> int:
        """The end of the line on which a node ends."""
        last = max((inner.end_mark.index for inner in _ends(node)), default=node.end_mark.index)
        if name is not None:
            last = max(last, name.end_mark.index)
        if self.text[last - 1 : last] == "\n":  # a block of text
            return int(last)
        end = self.text.find("\n", last)
        return len(self.text) if end < 0 else end + 1


def _depth(key: str) -> int:
    return key.count(".") + bool(key)


def dumped(value: object) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _ends(node: yaml.Node) -> Iterator[yaml.Node]:
    """The nodes without block nodes below, whose marks end where their text does."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        for item in node.value:
            for part in item if isinstance(item, tuple) else (item,):
                yield from _ends(part)
    else:
        yield node


def _indented(new: Mapping[str, str | _New], column: int) -> Iterator[str]:
    for name, lines in new.items():
        if isinstance(lines, dict):
            yield f"{' ' * column}{name}:\n"
            yield from _indented(lines, column + _STEP)
        else:
            whole = lines if lines.endswith("\n") else lines + "\n"
            for line in whole.splitlines(keepends=True):
                yield " " * column + line if line.strip() else line
