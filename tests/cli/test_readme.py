"""The examples of README and documents run as they are printed."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
ENGINE = README.parent / "docs" / "engine.md"


@pytest.mark.parametrize("page", [README, ENGINE], ids=lambda page: page.stem)
def test_when_a_page_shows_python_then_it_runs(page: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(page), "exec"), {"__name__": page.stem})


@pytest.mark.parametrize("target", ["demo", "test"])
def test_when_the_readme_names_a_make_target_then_the_makefile_has_it(target: str) -> None:
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    assert f"make {target}" in README.read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)
