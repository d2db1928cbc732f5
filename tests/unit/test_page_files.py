"""Files of the page: those of others are unchanged, and the modules of the report fit into one script."""

from __future__ import annotations

import re
from hashlib import sha256

from orchestrator.watch.report_file import ASSETS, MODULES, VENDOR, report_script


def test_vendored_files_are_those_of_the_recorded_sums() -> None:
    recorded = dict(re.findall(r"^\| (\S+) \| `([0-9a-f]{64})` \|$", (VENDOR / "README.md").read_text(), re.MULTILINE))
    assert recorded == {
        file.name: sha256(file.read_bytes()).hexdigest() for file in VENDOR.iterdir() if file.name != "README.md"
    }


def test_modules_of_the_report_use_those_before_them_and_have_names_of_their_own() -> None:
    names: list[str] = []
    for place, module in enumerate(MODULES):
        text = (ASSETS / module).read_text()
        assert set(re.findall(r'^import .* from "\./(.*)";$', text, re.MULTILINE)) <= set(MODULES[:place]), module
        names += re.findall(r"^(?:export )?(?:const|let|function|class) (\w+)", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert not re.search(r"^(import|export)\b|</script|<!--", report_script(), re.MULTILINE)
