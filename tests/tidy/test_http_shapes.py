"""Every operation of the HTTP API tells the shape of its answer in `/openapi.json`."""

from dataclasses import replace
from http import HTTPStatus

import pytest

from barnabas.net.admin.app import ROUTES
from barnabas.net.admin.frame.call import Route
from barnabas.net.admin.frame.openapi import JSON, document


def tells_its_shape(route: Route) -> bool:
    (operation,) = document([route])["paths"][route.path].values()
    contents = [told.get("content") for status, told in operation["responses"].items() if status != "default"]
    is_empty = route.status == HTTPStatus.NO_CONTENT
    return all(bool(content) is not is_empty for content in contents)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_an_operation_has_a_schema_of_its_answer_or_answers_without_a_body(route: Route) -> None:
    assert tells_its_shape(route), f"give {route.method} {route.path} an `answer` of shapes (net/admin/frame/shapes.py)"


def test_the_check_can_fail() -> None:
    described = next(route for route in ROUTES if route.answer and route.media == JSON)
    assert not tells_its_shape(replace(described, answer=()))
    empty = next(route for route in ROUTES if route.status == HTTPStatus.NO_CONTENT)
    assert not tells_its_shape(replace(empty, status=HTTPStatus.OK))
