"""A model's class and all that it needs of this package, as one file that needs torch and transformers alone.

With it beside saved weights, named in the `auto_map` of their config.json, they load where this package is not:
`AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True)`. What is defined in it stands there word for
word as in the package.
"""

from __future__ import annotations

import ast
import dataclasses
import graphlib
import importlib.util
import inspect
import json
import sys
from pathlib import Path

from transformers import PreTrainedModel

from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.files import json_text

FILE = "modeling_threeml.py"

Import = tuple[str, str]
"""Module, and name in it; "": the module itself."""


@dataclasses.dataclass(eq=False)
class _Statement:
    """A definition at the top of a module, or a call that stands there by itself.

    Attributes:
        names: what it defines.
        uses: all names in it, local ones too.
        attributes: `a.b` in it, as ("a", "b").
    """

    text: str
    names: tuple[str, ...]
    uses: frozenset[str]
    attributes: frozenset[tuple[str, str]]


def _statement(node: ast.stmt, text: str, *names: str) -> _Statement:
    parts = list(ast.walk(node))
    uses = {part.id for part in parts if isinstance(part, ast.Name)}
    of_names = (part for part in parts if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name))
    attributes = {(part.value.id, part.attr) for part in of_names}  # type: ignore[attr-defined]
    return _Statement(text, names, frozenset(uses), frozenset(attributes))


class _Source:
    """The statements at the top of a module: definitions and imports by name, and calls that stand by themselves.

    Such calls are taken if they are of other libraries, as `AttentionInterface.register(...)` is.
    """

    def __init__(self, name: str) -> None:
        try:
            text = inspect.getsource(sys.modules[name])
        except (OSError, TypeError):
            raise ParameterError(f"the source of {name} cannot be read: define the model in a file") from None
        self.definitions: dict[str, _Statement] = {}
        self.calls: list[tuple[str, _Statement]] = []
        """With the name that the call begins with."""
        self.imports: dict[str, Import] = {}
        self._package = sys.modules[name].__package__
        lines, end = text.splitlines(), 0
        for node in ast.parse(text).body:
            assert node.end_lineno is not None
            self._take(node, "\n".join(lines[end : node.end_lineno]).strip("\n"))  # with the comments above it
            end = node.end_lineno

    def _take(self, node: ast.stmt, text: str) -> None:
        match node:
            case ast.Import():
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    self.imports[bound] = (alias.name if alias.asname else bound, "")
            case ast.ImportFrom():
                origin = node.module or ""
                if node.level:
                    origin = importlib.util.resolve_name("." * node.level + origin, self._package)
                self.imports |= {alias.asname or alias.name: (origin, alias.name) for alias in node.names}
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                self.definitions[name] = _statement(node, text, name)
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
                self.definitions |= dict.fromkeys(names, _statement(node, text, *names))
            case ast.Expr(value=ast.Constant()) if self.definitions:  # what the definition above it means
                next(reversed(self.definitions.values())).text += f"\n{text}"
            case ast.Expr(value=ast.Call(func=called)):
                self.calls.append((ast.unparse(called).partition(".")[0], _statement(node, text)))


class _Joined:
    """What a model needs: statements of its package and of this one, and imports of others."""

    def __init__(self, model: type) -> None:
        self.model = model
        self.packages = {__name__.partition(".")[0], model.__module__.partition(".")[0]}
        self.sources: dict[str, _Source] = {}
        self.taken: set[_Statement] = set()
        self.imports: dict[str, Import] = {}
        self.used_whole: dict[str, tuple[str, set[str]]] = {}
        """Module of ours that is imported as a whole -> its full name, and what is used of it."""
        todo = [(model.__module__, model.__name__)]
        while todo:
            todo += self._take(*todo.pop())

    def _take(self, module: str, name: str) -> list[tuple[str, str]]:
        """Take what a module calls so; what it needs in its turn."""
        source = self.sources[module] if module in self.sources else self.sources.setdefault(module, _Source(module))
        if name in source.imports:
            return self._imported(name, *source.imports[name])
        if name not in source.definitions:  # a local name, or Python's own
            return []
        more: list[tuple[str, str]] = []
        theirs = {n for n, (origin, _) in source.imports.items() if not self._is_ours(origin)}
        calls = (call for begin, call in source.calls if begin in theirs and name in call.uses)
        for statement in (source.definitions[name], *calls):
            if statement not in self.taken:
                self.taken.add(statement)
                more += [(module, used) for used in statement.uses]
                for whole, attribute in statement.attributes:
                    full = ".".join(source.imports.get(whole, ()))
                    if self._is_ours(full) and full in sys.modules:
                        self.used_whole.setdefault(whole, (full, set()))[1].add(attribute)
                        more.append((full, attribute))
        return more

    def _imported(self, name: str, origin: str, original: str) -> list[tuple[str, str]]:
        if self._is_ours(origin):
            if f"{origin}.{original}" in sys.modules:
                return []  # a whole module, of which only what is used is taken
            if original != name:
                raise ParameterError(
                    f"{original} of {origin} is imported as {name or 'a whole'}: import it by its name"
                )
            return [(origin, name)]
        if self.imports.setdefault(name, (origin, original)) != (origin, original):
            raise self._twice(name)
        return []

    def _is_ours(self, module: str) -> bool:
        return module.partition(".")[0] in self.packages

    def _twice(self, name: str) -> ParameterError:
        return ParameterError(f"{name} is the name of two things that {self.model.__name__} needs: rename one")

    def text(self) -> str:
        """Modules behind those that they import, the statements of each in their order."""
        imported = {name: {origin for origin, _ in source.imports.values()} for name, source in self.sources.items()}
        graph = {name: sorted(imported[name] & {*self.sources}) for name in sorted(self.sources)}
        defined, parts = {*self.imports, *self.used_whole}, [*self._head()]
        for module in graphlib.TopologicalSorter(graph).static_order():
            source = self.sources[module]
            calls = (call for _, call in source.calls)
            ours = [s for s in dict.fromkeys([*source.definitions.values(), *calls]) if s in self.taken]
            for name in (name for statement in ours for name in statement.names):
                if name in defined:
                    raise self._twice(name)
                defined.add(name)
            parts += [f"# {module.replace('.', '/')}.py", *(statement.text for statement in ours)] if ours else []
            for whole, (full, names) in self.used_whole.items():
                if full == module:
                    parts.append(f"{whole} = types.SimpleNamespace({', '.join(f'{n}={n}' for n in sorted(names))})")
        return "\n\n\n".join(parts) + "\n"

    def _head(self) -> list[str]:
        about = inspect.getdoc(sys.modules[self.model.__module__]) or self.model.__name__
        found = {**self.imports, **({"types": ("types", "")} if self.used_whole else {})}
        plain = [
            f"import {origin}" + f" as {bound}" * (bound != origin)
            for bound, (origin, name) in found.items()
            if not name
        ]
        named: dict[str, list[str]] = {}
        for bound, (origin, name) in found.items():
            if name:
                named.setdefault(origin, []).append(name + f" as {bound}" * (bound != name))
        of = [f"from {origin} import {', '.join(sorted(names))}" for origin, names in named.items()]
        own = "Generated from the sources of threeml-study (MIT), which it does not need."
        return [
            f'r"""{about}\n\n{own}\n"""\n\nfrom __future__ import annotations\n\n'
            + "\n".join(sorted(plain) + sorted(of))
        ]


def portable_source(model: type[PreTrainedModel]) -> str:
    """The file for a model's class: every definition that it needs of this package and of its own.

    Raises:
        ParameterError: a source that cannot be read, two things of one name, or ours imported under another name.
    """
    return _Joined(model).text()


def carry_source(folder: Path, model: type[PreTrainedModel]) -> None:
    """Put the file for this class beside saved weights of it, and name it in their config.json.

    Raises:
        ParameterError: see `portable_source`; nothing is written then.
    """
    source, path = portable_source(model), folder / "config.json"
    classes = {"AutoConfig": model.config_class, "AutoModelForMaskedLM": model}
    names = {auto: f"{FILE.removesuffix('.py')}.{of.__name__}" for auto, of in classes.items() if of is not None}
    about = json.loads(path.read_text(encoding="utf-8")) | {"auto_map": names}
    (folder / FILE).write_text(source, encoding="utf-8")
    path.write_text(json_text(about, indent=2) + "\n", encoding="utf-8")
