#!/usr/bin/env python3
"""Checks the arrows between the folders: which may include what.

A folder includes only itself and what the table below allows. The table is the design's; a new
arrow is a change of design.
"""

import pathlib
import re
import sys

ALLOWED = {
    "motley/base": [],
    "motley/graph": ["base"],
    "motley/data": ["base"],
    "motley/engine": ["graph", "data", "base"],
    "motley/optim": ["base"],
    "motley/plan": ["base"],
    "motley/telemetry": ["base"],
    "motley/energy": ["base"],
    "motley/tune": ["plan", "telemetry", "base"],
    "motley/sim": [
        "graph", "data", "engine", "optim", "plan", "telemetry", "energy", "run", "base",
    ],
    "motley/run": ["graph", "data", "engine", "optim", "plan", "telemetry", "energy", "base"],
    "motley/cluster": [
        "graph", "data", "engine", "optim", "plan", "telemetry", "energy", "run", "base",
    ],
    "apps/motley": [
        "graph", "data", "engine", "optim", "plan", "telemetry", "energy", "run",
        "cluster", "sim", "tune", "base",
    ],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]((?:motley|apps|tests)/[^">]+)[">]')


def folder_of(path: str) -> str:
    return "/".join(path.split("/")[:2])


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    errors = []
    for top in ("motley", "apps"):
        for folder in sorted(p for p in (root / top).iterdir() if p.is_dir()):
            if f"{top}/{folder.name}" not in ALLOWED:
                errors.append(f"{top}/{folder.name}: is not in the table of {__file__}")
    for home, may_use in ALLOWED.items():
        allowed = {home, *(f"motley/{name}" for name in may_use)}
        for file in sorted((root / home).rglob("*")):
            if file.suffix not in (".h", ".cc"):
                continue
            for number, line in enumerate(file.read_text().splitlines(), 1):
                match = INCLUDE.match(line)
                if match and folder_of(match.group(1)) not in allowed:
                    where = f"{file.relative_to(root)}:{number}"
                    errors.append(f"{where}: {home} must not include {match.group(1)}")
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
