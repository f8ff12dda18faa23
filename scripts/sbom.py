"""A software bill of materials (CycloneDX 1.6, JSON) of Barnabas and what it needs, as installed here: `scripts/sbom --help`.

The components are read from the metadata of installed packages (importlib.metadata), along the requirements of Barnabas and of
the extras that are named. The same environment gives the same document. It needs no network.
"""

import argparse
import json
import sys
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "barnabas"
NAMESPACE = uuid.UUID("5b1f7a0e-6d0c-4a53-9d5e-3c1e2f2b7c11")  # of serial numbers, which are made from the content
MAX_LICENSE_LENGTH = 200  # some packages put the whole text of their license there


class MissingPackageError(Exception):
    """A requirement is not installed here: the bill would be incomplete."""


def required(found: Distribution, extras: Iterable[str]) -> list[Requirement]:
    """Its requirements that count in this environment."""
    wanted = ["", *extras]
    return [
        requirement
        for requirement in map(Requirement, found.requires or ())
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in wanted)
    ]


def collected(extras: Sequence[str]) -> tuple[dict[str, Distribution], dict[str, list[str]]]:
    """Barnabas and all that it needs, by name, and what each of them needs. Raises MissingPackageError."""
    packages: dict[str, Distribution] = {}
    needs: dict[str, set[str]] = {}
    taken: dict[str, set[str]] = {}  # the extras of each package that were followed already
    waiting = deque([(PROJECT, set(extras), "the command line")])
    while waiting:  # ends: an extra of a package is followed once
        name, more, asked_by = waiting.popleft()
        if name in packages and more <= taken[name]:
            continue
        try:
            packages[name] = found = distribution(name)
        except PackageNotFoundError:
            raise MissingPackageError(f"{name} is not installed, and {asked_by} needs it: install it first") from None
        taken[name] = taken.get(name, set()) | more
        requirements = required(found, taken[name])
        needs[name] = {canonicalize_name(one.name) for one in requirements} - {name}
        waiting.extend((canonicalize_name(one.name), one.extras, name) for one in requirements)
    return packages, {name: sorted(names) for name, names in sorted(needs.items())}


def reference(found: Distribution) -> str:
    """A package URL: what vulnerability databases look up."""
    return f"pkg:pypi/{canonicalize_name(found.metadata['Name'])}@{found.version}"


def licenses(found: Distribution) -> list[dict[str, Any]]:
    expression = found.metadata.get("License-Expression")
    if expression:
        return [{"expression": expression}]
    classified = [
        text.rpartition(" :: ")[2]
        for text in found.metadata.get_all("Classifier") or ()
        if text.startswith("License :: ") and text != "License :: OSI Approved"
    ]
    named = found.metadata.get("License")
    if not classified and named and len(named) <= MAX_LICENSE_LENGTH and "\n" not in named:
        classified = [named]
    return [{"license": {"name": name}} for name in classified]


def component(found: Distribution, kind: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": kind,
        "bom-ref": reference(found),
        "name": found.metadata["Name"],
        "version": found.version,
        "purl": reference(found),
    }
    if summary := found.metadata.get("Summary"):
        made["description"] = summary
    if known := licenses(found):
        made["licenses"] = known
    return made


def document(extras: Sequence[str]) -> dict[str, Any]:
    """Raises MissingPackageError."""
    packages, needs = collected(extras)
    made: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(packages[PROJECT], "application")},
        "components": [component(packages[name], "library") for name in sorted(packages) if name != PROJECT],
        "dependencies": [
            {"ref": reference(packages[name]), "dependsOn": [reference(packages[one]) for one in names]}
            for name, names in needs.items()
        ],
    }
    content = json.dumps(made, sort_keys=True)
    return {**made, "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, content)}"}


def main(arguments: Sequence[str]) -> int:
    known = distribution(PROJECT).metadata.get_all("Provides-Extra") or []
    parser = argparse.ArgumentParser(prog="scripts/sbom", description="Print a CycloneDX bill of materials.")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"with these extras: {', '.join(known)}")
    extras = parser.parse_args(arguments).extras
    wrong = [extra for extra in extras if extra not in known]
    if wrong:
        parser.error(f"there is no extra {wrong[0]!r}; the extras are {', '.join(known)}")
    try:
        made = document(extras)
    except MissingPackageError as error:
        print(f"sbom: {error}", file=sys.stderr)
        return 1
    print(json.dumps(made, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
