"""Reads what pip-audit says of a lock file, as JSON: `pip-audit --format json ... | audit_packages.py requirements/image.txt`.

Exit code 1: a package has a known vulnerability. Where the data cannot be had (a mirror of PyPI without it, no network), it says
so and ends with 0: nothing is known then, in either direction.
"""

import json
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    vulnerable: tuple[str, ...]  # a line for each package
    audited: int
    skipped: int

    @property
    def text(self) -> str:
        if self.vulnerable:
            return "\n".join(self.vulnerable)
        if not self.audited:
            return "not audited: the data of vulnerabilities cannot be had here"
        left_out = f", {self.skipped} without data" if self.skipped else ""
        return f"no known vulnerabilities in {self.audited} packages{left_out}"


def report(output: str) -> Report:
    """Of the JSON, or of what is there instead if pip-audit could not ask."""
    try:
        found = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return Report(vulnerable=(), audited=0, skipped=0)
    vulnerable = []
    for item in found:
        known = ", ".join(
            f"{one['id']} (mended in {' or '.join(one['fix_versions']) or 'no version yet'})"
            for one in item.get("vulns", ())
        )
        if known:
            vulnerable.append(f"{item['name']} {item['version']}: {known}")
    skipped = sum("skip_reason" in item for item in found)
    return Report(vulnerable=tuple(vulnerable), audited=len(found) - skipped, skipped=skipped)


def main() -> int:
    found = report(sys.stdin.read())
    print(f"{' '.join(sys.argv[1:])}: {found.text}")
    return 1 if found.vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
