"""The kit: its page lists it, steps and workloads need all of it, and importing it is cheap."""

import argparse
import re
import subprocess
import sys

import pytest
from conftest import ROOT
from house import PLUGINS, modules, room_of, used_of

from featuremill.contract import HEAVY
from featuremill.kit.tables import add_options
from featuremill.steps.transfer import Transfer

PAGE = (ROOT / "docs" / "kit.md").read_text("utf-8")
MODULES = sorted(name for name in modules() if name.startswith("kit."))


def names_of(module):
    return set(__import__(f"featuremill.{module}", fromlist=["__all__"]).__all__)


def listed():
    """Return the names on the page, by module."""
    found, names = {}, []
    for line in PAGE.splitlines():
        if matched := re.fullmatch(r"## `featuremill\.(kit\.\w+)`", line):
            names = found.setdefault(matched[1], [])
        elif line.startswith(("* ", "  ")):
            names += re.findall(r"`(\w+)`", line.partition(":")[0])
    return {module: sorted(names) for module, names in found.items()}


def test_the_page_lists_each_name_once():
    assert listed() == {module: sorted(names_of(module)) for module in MODULES}


def test_steps_workloads_and_outputs_need_each_name():
    known = modules()
    used = {
        (home, what)
        for name, text in known.items()
        if room_of(name) in (*PLUGINS, "outputs")
        for home, what in used_of(text, known)
    }
    assert {(module, name) for module in MODULES for name in names_of(module)} - used == set()


def test_options_that_are_keys_of_a_section_have_its_descriptions_as_help():
    parser = argparse.ArgumentParser()
    add_options(parser, Transfer, "column", "k")
    texts = {action.dest: action.help for action in parser._actions}
    assert texts["column"] == "The table's column of labels."
    assert texts["k"] == "The number of nearest labelled records that vote. Default: 5."


@pytest.mark.parametrize("module", ["kit", *MODULES])
def test_importing_it_costs_nothing(module):
    heavy = {*HEAVY, "altair"}
    code = f"import sys, featuremill.{module}; print({heavy!r} & sys.modules.keys())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"
