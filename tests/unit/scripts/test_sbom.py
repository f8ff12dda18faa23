"""The bill of materials names all that Barnabas needs, once, and is the same each time."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(ROOT / "scripts/sbom.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def bill(*extras: str) -> dict[str, Any]:
    ran = run(*extras)
    assert ran.returncode == 0, ran.stderr
    made: dict[str, Any] = json.loads(ran.stdout)
    return made


def test_it_names_what_is_needed_directly_and_by_others() -> None:
    made = bill()
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["component"]["purl"].startswith("pkg:pypi/barnabas@")
    versions = {one["name"].lower(): one["version"] for one in made["components"]}
    assert versions["msgspec"] == version("msgspec") and versions["yarl"] == version("yarl"), "yarl is of aiohttp"
    assert "pytest" not in versions and "cryptography" not in versions, "extras are not installed by default"
    assert all(one["licenses"] for one in made["components"] if one["name"] in ("msgspec", "aiohttp", "pysyncobj"))


def test_its_references_are_unique_and_lead_to_components() -> None:
    made = bill("security", "oauth")
    references = [one["bom-ref"] for one in (made["metadata"]["component"], *made["components"])]
    assert len(references) == len(set(references))
    assert {one["ref"] for one in made["dependencies"]} == set(references)
    assert {name for one in made["dependencies"] for name in one["dependsOn"]} <= set(references)
    assert any("cryptography" in name for name in references) and any("joserfc" in name for name in references)


def test_it_is_the_same_each_time() -> None:
    assert bill() == bill() and bill()["serialNumber"] != bill("security")["serialNumber"]


def test_an_unknown_extra_is_refused() -> None:
    ran = run("nothing")
    assert ran.returncode == 2 and "the extras are" in ran.stderr
