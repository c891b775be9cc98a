"""Packages on the path as an installer would leave them, without installing anything."""

import shutil
import tomllib
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "paceline-bigram"


def put_example(folder):
    """Copy the example's modules into ``folder`` and write the metadata that its own pyproject.toml asks for."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        shutil.copytree(EXAMPLE / package, folder / Path(package).name, ignore=shutil.ignore_patterns("__pycache__"))
    facts = project["project"]
    put_metadata(folder, facts["name"], facts["version"], facts["entry-points"])


def put_metadata(folder, name, version, groups):
    """A dist-info with METADATA and entry_points.txt; ``groups`` maps a group to its entries."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    sections = (
        f"[{group}]\n" + "".join(f"{entry} = {value}\n" for entry, value in entries.items())
        for group, entries in groups.items()
    )
    (info / "entry_points.txt").write_text("\n".join(sections))
