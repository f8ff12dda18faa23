"""Principals as text, and the names that certificates get by ssl.principal.mapping.rules."""

import pytest

from barnabas.log.settings.principal_rules import DEFAULT_RULES, PRINCIPAL_RULES, distinguished_name, name_of
from barnabas.log.vocabulary.errors import InvalidRequestError
from barnabas.log.vocabulary.principal import ANONYMOUS, MAX_NAME_LENGTH, Principal, parse_principal

# As the ssl module gives it: the order of the certificate.
SUBJECT = (
    (("countryName", "DE"),),
    (("organizationName", "Acme, Inc."),),
    (("organizationalUnitName", "Data"), ("userId", "7")),
    (("commonName", "Alice"),),
)
NAME = r"CN=Alice,OU=Data+UID=7,O=Acme\, Inc.,C=DE"


def test_a_principal_is_kafkas_text() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert parse_principal("User:CN=alice") == Principal(name="CN=alice")
    assert parse_principal("Robot:a:b") == Principal(kind="Robot", name="a:b")
    for text in ("alice", "User:", ":alice", "", "User:" + "a" * MAX_NAME_LENGTH):
        with pytest.raises(InvalidRequestError):
            parse_principal(text)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (SUBJECT, NAME),
        (((("commonName", "#7"),),), r"CN=\#7"),
        (((("commonName", " a "),),), r"CN=\ a\ "),
        (((("emailAddress", "a@b"),),), "1.2.840.113549.1.9.1=#1603614062"),
        (((("serialNumber", "5"),),), "serialNumber=5"),
        ((), ""),
    ],
)
def test_a_subject_is_written_as_java_writes_it(subject: tuple[tuple[tuple[str, str], ...], ...], name: str) -> None:
    assert distinguished_name(subject) == name


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", NAME),
        ("RULE:^CN=([^,]*),.*$/$1/", "Alice"),
        ("RULE:^CN=([^,]*),.*$/$1/L", "alice"),
        ("RULE:^CN=([^,]*),.*$/$1@acme/U , DEFAULT", "ALICE@ACME"),
        (r"RULE:^OU=.*$/x/,RULE:^CN=(\w+),OU=(\w+).*$/$2\/$1/,DEFAULT", "Data/Alice"),
        ("RULE:Alice/x/", None),  # the pattern must match all of it
        ("RULE:^CN=([^,]*),.*$//,DEFAULT", NAME),  # a name is not empty
    ],
)
def test_the_first_rule_that_matches_gives_the_name(rules: str, name: str | None) -> None:
    assert name_of(PRINCIPAL_RULES.read(rules), NAME) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "RULE:a/b",
        "RULE:(/b/",
        "RULE:a/$1/",
        "DEFAULTX",
        "DEFAULT;DEFAULT",
        "RULE:a/b/X",
        ",".join(["DEFAULT"] * 101),
    ],
)
def test_invalid_rules_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        PRINCIPAL_RULES.read(text)


def test_rules_are_shown_as_they_were_written() -> None:
    assert PRINCIPAL_RULES.show(PRINCIPAL_RULES.read("RULE:^CN=(.*)$/$1/L,DEFAULT")) == "RULE:^CN=(.*)$/$1/L,DEFAULT"
    assert PRINCIPAL_RULES.show(DEFAULT_RULES) == "DEFAULT"


def test_a_pattern_of_a_rule_takes_linear_time() -> None:
    assert name_of(PRINCIPAL_RULES.read("RULE:^(a+)+b$/x/"), "a" * 10_000) is None
