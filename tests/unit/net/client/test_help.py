"""`help` of everything that users can import: each method and property has a docstring, and each argument stands in it."""

import inspect
import pydoc
import re
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest

import barnabas
import barnabas.sync
import barnabas.testing
from barnabas.net.client.admin.acls import AclAdmin
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.arguments import explained

MODULES = (barnabas, barnabas.sync, barnabas.testing)
PUBLIC = [(module, name) for module in MODULES for name in module.__all__]
ADMIN = barnabas.sync.Admin


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """The methods that a class adds to what Python's own types have."""
    for name in dir(kind):
        owners = [base for base in kind.__mro__ if name in vars(base)]
        if not name.startswith("_") and owners and owners[0].__module__.startswith("barnabas"):
            yield name, vars(owners[0])[name]


def undocumented(name: str, member: Any) -> Iterator[str]:
    function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
    text = inspect.getdoc(function) or ""
    if isinstance(function, property | FunctionType) and not text:
        yield name
    elif isinstance(function, FunctionType):
        code = inspect.unwrap(function).__code__
        count = code.co_argcount + code.co_kwonlyargcount
        starred = (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)
        arguments = code.co_varnames[: count + sum(bool(code.co_flags & flag) for flag in starred)]
        yield from (
            f"{name}({item})"
            for item in arguments
            if item not in ("self", "cls") and not re.search(rf"\b{item}\b", text)
        )


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=lambda item: getattr(item, "__name__", item))
def test_all_arguments_are_explained(module: ModuleType, name: str) -> None:
    found = getattr(module, name)
    if not inspect.isclass(found):
        assert list(undocumented(name, found)) == []
    elif not issubclass(found, BaseException):
        assert inspect.getdoc(found)
        assert [gap for one, member in methods(found) for gap in undocumented(one, member)] == []


@pytest.mark.parametrize("name", ["Producer", "Consumer", "Admin", "ShareConsumer"])
def test_blocking_clients_are_explained_as_the_others(name: str) -> None:
    blocking, other = getattr(barnabas.sync, name), getattr(barnabas, name)
    assert inspect.signature(blocking).parameters.keys() == inspect.signature(other).parameters.keys()
    assert blocking.__init__.__doc__ == other.__init__.__doc__
    assert "request_timeout_ms" in pydoc.plain(pydoc.render_doc(blocking))


def test_a_blocking_admin_shows_its_methods() -> None:
    hidden = {name for name in dir(Admin) if not name.startswith("_")} - set(dir(ADMIN)) - {"start", "client"}
    assert hidden == set()
    assert inspect.getdoc(ADMIN.create_topic) == inspect.getdoc(Admin.create_topic)


@pytest.mark.parametrize("module", MODULES)
def test_completion_offers_what_is_public(module: ModuleType) -> None:
    others = {"errors", "sync", "testing"} if module is barnabas else set()
    assert set(dir(module)) == {*module.__all__, *others}
    assert all(hasattr(module, name) for name in module.__all__)


def test_arguments_that_a_docstring_names_are_left_to_it() -> None:
    class Twin:
        def seek(self, partition: int) -> None:
            """To this partition."""

    @explained(like=Twin, partition="its number", offset="where")
    class Kind:
        def seek(self, partition: int, *, offset: int, **strange: object) -> None: ...

    assert inspect.getdoc(Kind.seek) == "To this partition.\n\nArguments:\n    offset: where"
    assert inspect.getdoc(AclAdmin.find)
