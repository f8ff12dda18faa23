"""Permissions as tests write them."""

import pytest

from barnabas.net.testing.permission_words import ALL_ALLOWED, Permission, read_permissions


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("write topic orders", "ALLOW User:a WRITE TOPIC orders"),
        ("READ GROUP bill*", "ALLOW User:a READ GROUP bill*"),
        ("ALL TOPIC *", "ALLOW User:a ALL TOPIC *"),
        ("CREATE CLUSTER", "ALLOW User:a CREATE CLUSTER kafka-cluster"),
        ("WRITE TRANSACTIONAL_ID pay", "ALLOW User:a WRITE TRANSACTIONAL_ID pay"),
    ],
)
def test_what_is_written_is_what_is_printed(words: str, printed: str) -> None:
    (acl,) = read_permissions("User:a", [words])
    assert str(acl) == printed
    assert read_permissions("User:a", [printed.split(" ", 2)[2]]) == [acl]


def test_a_prefix_and_all_names_are_told_apart() -> None:
    found = read_permissions("User:a", ["READ TOPIC a*", "READ TOPIC *", "READ TOPIC a"], Permission.DENY)
    assert [(acl.pattern.name, acl.name, acl.permission.name) for acl in found] == [
        ("PREFIXED", "a", "DENY"),
        ("LITERAL", "*", "DENY"),
        ("LITERAL", "a", "DENY"),
    ]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("", "write OPERATION KIND NAME"),
        ("READ orders", "write OPERATION KIND NAME"),
        ("READ TOPICS orders", "'TOPICS' is none of TOPIC, GROUP, .*; did you mean TOPIC"),
        ("ANY TOPIC orders", "'ANY' is none of ALL, READ"),
        ("READ CLUSTER other", "the only resource of the kind CLUSTER"),
    ],
)
def test_a_mistake_is_named_with_its_cure(words: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read_permissions("User:a", [words])


def test_everything_is_allowed_by_one_permission_of_each_kind() -> None:
    assert [str(acl) for acl in ALL_ALLOWED] == [
        "ALLOW User:* ALL TOPIC *",
        "ALLOW User:* ALL GROUP *",
        "ALLOW User:* ALL CLUSTER kafka-cluster",
        "ALLOW User:* ALL TRANSACTIONAL_ID *",
    ]
