"""Make a release: `make release VERSION=0.1.0`, in a clean checkout.

Checks what names the version, builds wheel and sdist of both distributions twice with the same
bytes, installs them into a fresh environment, types what the README shows there, and writes an
SBOM, the licences of what was installed, and digests into dist/. It uploads nothing: a tag does,
by .github/workflows/release.yml.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
GPU_LOCAL = "packages/snakemake-executor-plugin-gpu-local"
PROJECTS = (".", GPU_LOCAL)
CYCLONEDX = "cyclonedx-bom==7.5.0"
TYPED = """
featuremill --version
featuremill init my.fa
featuremill run my.yaml
featuremill search results/my --query P35309
featuremill verify results/my
"""
"""What README types, in a folder with the demo's first proteins."""
UNNAMED = {"conda-inject": "MIT", r"snakemake-interface-[\w-]+": "MIT"}
"""Licences of packages whose metadata have none, as their repositories have them."""
LICENCES = """
from importlib.metadata import distributions
for d in sorted(distributions(), key=lambda d: d.name.lower()):
    m = d.metadata
    kinds = [c.rpartition(" :: ")[2] for c in m.get_all("Classifier") or () if c.startswith("Lic")]
    named = m["License-Expression"] or ", ".join(kinds) or (m["License"] or "").partition("\\n")[0]
    print(d.name, d.version, named or "?", sep="\\t")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version")
    parser.add_argument("--wheels-only", action="store_true", help="without a fresh environment")
    arguments = parser.parse_args()
    date = checked(arguments.version)
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        first, second = (built(Path(scratch) / name) for name in ("first", "second"))
        others = [
            path.name for path in first if digest(path) != digest(second[0].with_name(path.name))
        ]
        if others:
            sys.exit(f"{', '.join(others)}: a second build has other bytes")
        dist.mkdir()
        for path in first:
            shutil.copy(path, dist)
        if not arguments.wheels_only:
            typed(dist, Path(scratch), arguments.version)
    files = sorted(path for path in dist.iterdir())
    (dist / "SHA256SUMS").write_text("".join(f"{digest(path)}  {path.name}\n" for path in files))
    print(f"dist/ has featuremill {arguments.version} of {date}: {len(files)} files, built twice.")
    print(f"Next: git tag v{arguments.version}, and push the tag: release.yml publishes it.")


def checked(version: str) -> str:
    """Return the date of the release; leave where something names another version or date."""
    if text_of("git", "status", "--porcelain"):
        sys.exit("the checkout has changes; commit them first")
    projects = [tomllib.loads((ROOT / each / "pyproject.toml").read_text()) for each in PROJECTS]
    if projects[0]["project"]["version"] != version:
        sys.exit(f"pyproject.toml has version {projects[0]['project']['version']}")
    changes = (ROOT / "CHANGELOG.md").read_text()
    heading = re.search(rf"^## {re.escape(version)} - (\d{{4}}-\d\d-\d\d)$", changes, re.MULTILINE)
    if heading is None:
        sys.exit(
            f"CHANGELOG.md: give version {version} a heading such as: ## {version} - 2026-12-31"
        )
    date = heading[1]
    citation = re.search(
        r"^date-released: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE
    )
    crate = json.loads((ROOT / "ro-crate-metadata.json").read_text())["@graph"]
    (published,) = (each["datePublished"] for each in crate if each["@id"] == "./")
    for name, found in (
        ("CITATION.cff: date-released", citation and citation[1]),
        ("ro-crate-metadata.json: datePublished", published),
    ):
        if found != date:
            sys.exit(f"{name} is {found}, and CHANGELOG.md has {date}")
    return date


def built(folder: Path) -> list[Path]:
    """Build wheel and sdist of both distributions from what is committed; return the files."""
    source, files = folder / "source", folder / "dist"
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    moment = text_of("git", "log", "-1", "--format=%ct")
    for project in PROJECTS:
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-d", files],
            cwd=source / project,
            env={**os.environ, "SOURCE_DATE_EPOCH": moment},
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return sorted(files.iterdir())


def typed(dist: Path, scratch: Path, version: str) -> None:
    """Install the wheels into a fresh environment, type what README shows, and write down what was
    installed."""
    venv, work = scratch / "venv", scratch / "work"
    work.mkdir()
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    (wheel,) = dist.glob("featuremill-*.whl")
    (local,) = dist.glob("snakemake_executor*.whl")
    pip = [venv / "bin" / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, f"{wheel}[esm2]", local], check=True)
    lines = (ROOT / "config" / "demo.fasta").read_text().splitlines(keepends=True)
    (work / "my.fa").write_text("".join(lines[:190]))
    environment = {**os.environ, "PATH": f"{venv / 'bin'}:{os.environ['PATH']}"}
    for line in TYPED.strip().splitlines():
        print(f"$ {line}", flush=True)
        subprocess.run(shlex.split(line), cwd=work, env=environment, check=True)
    licences = text_of(venv / "bin" / "python", "-c", LICENCES)
    for name, licence in UNNAMED.items():
        licences = re.sub(rf"^({name}\t\S+\t)\?$", rf"\1{licence}", licences, flags=re.MULTILINE)
    (dist / f"featuremill-{version}-licences.tsv").write_text(
        f"name\tversion\tlicence\n{licences}\n"
    )
    if unknown := [line for line in licences.splitlines() if line.endswith("\t?")]:
        sys.exit(f"the licence of {unknown[0]!r} is unknown")
    tools = scratch / "tools"
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    subprocess.run([tools / "bin" / "python", "-m", "pip", "install", "-q", CYCLONEDX], check=True)
    sbom = dist / f"featuremill-{version}.cdx.json"
    subprocess.run(
        [
            *(tools / "bin" / "cyclonedx-py", "environment", "--output-reproducible"),
            *("--pyproject", ROOT / "pyproject.toml", "-o", sbom, venv / "bin" / "python"),
        ],
        check=True,
    )


def text_of(*command: str | Path) -> str:
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
