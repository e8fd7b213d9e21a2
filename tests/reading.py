"""Where documents are typed: checkouts, empty folders beside the wheel, and what a reader has."""

import contextlib
import gzip
import os
import re
import shlex
import shutil
import sys
import zipfile

import h5py
import numpy as np
import pytest
from conftest import ROOT
from documents import type_page
from hatchling.build import build_wheel
from programs import ran
from test_house import files

LINES_OF_MY_FA = 190
"""Of the demo: whole records, as README's `head` has them."""
LINES_WITH_VIRUSES = (207, 286)
"""More of them, as a head needs three organisms of each class."""
FOLD = """\
#!/bin/sh
echo "$CUDA_VISIBLE_DEVICES" > "$2"
"""


class House:
    """What stands around the pages: checkouts, the wheel, and what a reader has already."""

    def __init__(self, folder):
        self.folder = folder
        home, wheels, self.site = folder / "home", folder / "wheels", folder / "site"
        home.mkdir()
        path = os.pathsep.join([f"{sys.prefix}/bin", os.defpath])
        self.environment = {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8"}
        self.environment["OMP_WAIT_POLICY"] = os.environ["OMP_WAIT_POLICY"]  # conftest says why
        with contextlib.chdir(ROOT):
            name = build_wheel(str(wheels))
        zipfile.ZipFile(wheels / name).extractall(self.site)

    def type(self, page, gpu_node=None):
        """Type `page`, beginning in a fresh checkout."""
        folder = self.folder / "pages" / re.sub(r"\W", "-", page.name)
        record, empty = folder / "record", folder / "empty"
        record.mkdir(parents=True)
        checkout = self.checkout(folder / "checkout")
        places = {
            "a checkout": f"cd {checkout}; export PYTHONPATH={checkout / 'src'}",
            "an empty folder": f"mkdir -p {empty}; cd {empty}; export PYTHONPATH={self.site}",
        }
        givens = {thing: self.give(thing, gpu_node) for thing in page.given()}
        type_page(page, places, givens, record, self.environment, timeout=280)

    def checkout(self, folder):
        """Make a checkout as `make run` leaves it, but for what that computes."""
        for path in files():
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
        (folder / ".venv").symlink_to(sys.prefix)
        return folder

    def give(self, thing, gpu_node):
        """Return the bash that gives a thing: it copies what is made here once."""
        if thing == "gpus":
            of = {n: v for n, v in gpu_node(4).environment.items() if os.environ.get(n) != v}
            return "; ".join(f"export {name}={shlex.quote(value)}" for name, value in of.items())
        folder = self.folder / "given" / re.sub(r"\W", "_", thing)
        if not folder.exists():
            folder.mkdir(parents=True)
            getattr(self, f"make_{folder.name}")(folder)
        site = "prefix/lib/python{}.{}/site-packages".format(*sys.version_info)
        more = {
            "site-packages": "export PIP_NO_BUILD_ISOLATION=0 PIP_NO_DEPS=1 PIP_PREFIX=$PWD/prefix "
            f"PYTHONPATH=$PWD:$PWD/{site}:$PYTHONPATH",
            "fold": "PATH=$PWD:$PATH",
        }
        return f"cp -a {folder}/. .; {more.get(thing, '')}"

    def run(self, folder, *words):
        """Let a program of .venv work in `folder`."""
        done = ran(*words, cwd=folder, env=self.environment, timeout=280)
        assert done.returncode == 0, done.stdout + done.stderr

    def make_my_fa(self, folder):
        (folder / "my.fa").write_text(demo(0, LINES_OF_MY_FA))

    def make_new_fasta(self, folder):
        (folder / "new.fasta").write_text(demo(LINES_OF_MY_FA, LINES_OF_MY_FA + 17))

    def make_my_yaml(self, folder):
        self.make_my_fa(folder)
        self.run(folder, "featuremill", "init", "my.fa")

    def make_results_my(self, folder):
        self.make_my_yaml(folder)
        self.run(folder, "featuremill", "run", "my.yaml")

    def make_results_demo(self, folder):
        """The demo's run of a few of its proteins, which stand in place of all of them."""
        checkout = self.checkout(self.folder / "demo")
        text = demo(0, LINES_OF_MY_FA) + demo(*LINES_WITH_VIRUSES)
        (checkout / "config" / "demo.fasta").write_text(text)
        self.run(checkout, "snakemake", "--cores", "all")
        for name in ("config", "results", "weights", ".snakemake"):
            (checkout / name).rename(folder / name)

    def make_families_tsv(self, folder):
        heads = re.findall(r"^>(\S+) (\S+)", demo(0, LINES_OF_MY_FA), re.MULTILINE)
        lines = ["id\tfamily", *("\t".join(head) for head in heads)]
        (folder / "families.tsv").write_text("\n".join(lines) + "\n")

    def make_per_protein_h5(self, folder):
        """Write what UniProt publishes: float16, a dataset for each protein, by its accession."""
        accessions = re.findall(r"^>\w\w\|(\w+)\|", demo(0, LINES_OF_MY_FA), re.MULTILINE)
        with h5py.File(folder / "per-protein.h5", "w") as file:
            for number, accession in enumerate(accessions):
                file[accession] = np.full(1024, number, np.float16)

    def make_parts(self, folder):
        (folder / "parts").mkdir()
        for number, (begin, end) in enumerate([(0, 190), (190, 207)]):
            name = folder / "parts" / f"uniparc.part_{number:03}.fasta.gz"
            name.write_bytes(gzip.compress(demo(begin, end).encode()))

    def make_sequences(self, folder):
        shutil.copytree(ROOT / "examples" / "lease" / "sequences", folder / "sequences")

    def make_fold(self, folder):
        (folder / "fold").write_text(FOLD)
        (folder / "fold").chmod(0o755)

    def make_train_py(self, folder):
        (folder / "train.py").write_text("import os\nprint(os.environ.get('RANK'))\n")

    def make_site_packages(self, folder):
        """Nothing stands there yet."""


def demo(begin, end):
    """Return lines of the demo's proteins."""
    lines = (ROOT / "config" / "demo.fasta").read_text().splitlines(keepends=True)
    assert lines[begin].startswith(">") and lines[end].startswith(">")
    return "".join(lines[begin:end])


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    return House(tmp_path_factory.mktemp("documents"))
