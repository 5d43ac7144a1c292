"""What the documents show is what happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(document, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "document",
    [document for document in DOCUMENTS if blocks(document, "python")],
    ids=lambda document: document.name,
)
def test_the_examples_run(document):
    """All of a document's examples, one after another in one program."""
    code = "\n".join(blocks(document, "python"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


def same_everywhere(text):
    """The lines without times, and without the size of hash tables, whose seed is drawn per cache."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in lines if line and not line.startswith(("us per request", "peak metadata"))]


def test_the_replay_in_the_readme_is_what_it_prints():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- replay -->\n```\n(.*?)```", readme, re.DOTALL).group(1)
    recipe = re.search(r"^replay: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    commands = [line.strip().split()[1:] for line in recipe.group(1).splitlines()]
    printed = "".join(
        subprocess.check_output([sys.executable, "-m", "cpkv", *arguments], text=True) for arguments in commands
    )
    assert same_everywhere(shown) == same_everywhere(printed)


def test_the_life_of_a_backup_is_drawn_as_it_is_built():
    document = (ROOT / "docs/backup-lifecycle.md").read_text(encoding="utf-8")
    machine = (ROOT / "rust/cpkv-core/src/operations/machine.rs").read_text(encoding="utf-8")
    header = [line.removeprefix("//!").strip() for line in machine.splitlines() if line.startswith("//!")]
    # The drawing, and what goes along several of its arrows at once: the machine is held to both by a test of its own.
    drawing = re.search(r"<!-- machine -->\n```\n(.*?)```", document, re.DOTALL).group(1)
    start = header.index("```text") + 1
    assert [line.strip() for line in drawing.splitlines()] == header[start : header.index("```", start)]
    tables = [[line for line in lines if line.startswith("|")] for lines in (header, document.splitlines())]
    of_source, of_document = tables
    first = of_document.index(of_source[0])
    assert of_document[first : first + len(of_source)] == of_source
    (phases,) = re.findall(r"pub enum Phase \{(.*?)\n\}", machine, re.DOTALL)
    for phase in re.findall(r"^    (\w+)", phases, re.MULTILINE):
        assert f"| `{phase}` |" in document, phase
    (reasons,) = re.findall(r"pub const ALL: \[.*?\] = \[(.*?)\];", machine, re.DOTALL)
    for reason in re.findall(r'"(\w+)"', reasons):
        assert f"`{reason}`" in document, reason


def test_links_between_documents_lead_somewhere():
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def anchors_of(document):
    """What headings are called in links: lower case, no punctuation, `-` for each space."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_into_documents_lead_to_headings():
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\(([\w/.-]+\.md|)#([^)]+)\)", document.read_text(encoding="utf-8")):
            there = document.parent / target if target else document
            assert anchor in anchors_of(there), f"{document.name}: {target}#{anchor}"


def test_the_places_where_an_engine_calls_cpkv_are_where_the_document_says():
    document = ROOT / "docs/engine-authors.md"
    links = re.findall(r"\]\(\.\./(python/cpkv/engine/\w+\.py)#L(\d+)\)", document.read_text(encoding="utf-8"))
    marks = [
        (str(file.relative_to(ROOT)), str(number))
        for file in sorted((ROOT / "python/cpkv/engine").glob("*.py"))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if line.strip().startswith("# cpkv: ")
    ]
    assert len(marks) > 10
    assert sorted(links) == sorted(marks)
