"""Pages that are written from the code, or list what is in it, are as new as the code."""

import runpy
from pathlib import Path

import dare_objectives as do

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((DOCS / "objectives").glob("*.md"))
COMPAT = "_dare_compat"


def test_the_paper_index_is_fresh():
    wanted = runpy.run_path(str(DOCS / "paper_index.py"))["render"]()
    found = (DOCS / "paper_index.md").read_text(encoding="utf-8")
    assert found == wanted, "docs/paper_index.md is older than a docstring: run `python docs/paper_index.py`"


def test_every_objective_has_a_page_and_every_page_an_objective():
    titles = {page.stem: page.read_text(encoding="utf-8").partition("\n")[0] for page in PAGES if page.stem != "README"}
    missing = [
        name for name in do.names() if not name.endswith(COMPAT) and f"`{name}`" not in " ".join(titles.values())
    ]
    assert not missing, f"no page in docs/objectives has {missing} in its title"
    assert [stem for stem in titles if stem not in do.names()] == []


def test_pages_have_their_parts_and_stand_in_the_overview():
    overview = (DOCS / "objectives" / "README.md").read_text(encoding="utf-8")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if page.stem != "README":
            assert all(part in text for part in ("```text", "## When", "## Cost", "## Related")), page.name
            assert f"]({page.name})" in overview, f"docs/objectives/README.md has no link to {page.name}"


def test_every_preset_is_on_a_page():
    text = " ".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in do.names() if name.endswith(COMPAT) and f"`{name}`" not in text] == []


def test_links_between_pages_lead_somewhere():
    for page in [*PAGES, *DOCS.glob("*.md")]:
        for part in page.read_text(encoding="utf-8").split("](")[1:]:
            target = part.partition(")")[0].partition("#")[0]
            if target and "://" not in target and not target.startswith("arXiv"):
                assert (page.parent / target).exists(), f"{page.name}: no {target}"


def test_the_package_readme_lists_every_objective():
    readme = (DOCS.parent / "packages" / "dare-objectives" / "README.md").read_text(encoding="utf-8")
    assert [name for name in do.names() if not name.endswith(COMPAT) and f"`{name}`" not in readme] == []
