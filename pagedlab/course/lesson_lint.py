"""What a lesson should look like, as far as a program can tell. For people who edit lessons."""

import re

MAX_BYTES = 300_000
MAX_CODE_LINES = 25  # outside exercises; most cells should be about six
CELLS = (40, 100)
WORDS = (1_000, 2_500)


def problems(notebook, num_bytes: int) -> list[str]:
    """What has to be put right: size, headings, long code cells. One line each."""
    found = []
    if num_bytes > MAX_BYTES:
        found.append(f"{num_bytes:,} bytes, more than {MAX_BYTES:,}: draw smaller or fewer pictures")
    levels = headings(notebook)
    tops = [title for level, title, _ in levels if level == 1]
    if len(tops) != 1:
        found.append(f"{len(tops)} top headings ('# ...') where there should be one: {tops}")
    for (before, _, _), (level, title, cell_id) in zip(levels, levels[1:], strict=False):
        if level > before + 1:
            found.append(f"cell {cell_id}: heading '{title}' skips from level {before} to level {level}")
    for cell in notebook.cells:
        lines = len(cell.source.splitlines())
        if cell.cell_type == "code" and lines > MAX_CODE_LINES and "exercise" not in cell.metadata.get("tags", []):
            found.append(f"cell {cell.id}: {lines} lines of code, more than {MAX_CODE_LINES}: cut it in two")
    return found


def notes(notebook) -> list[str]:
    """What is worth a look: the number of cells and of words. One line each."""
    cells = len(notebook.cells)
    words = sum(len(cell.source.split()) for cell in notebook.cells if cell.cell_type == "markdown")
    found = []
    if not CELLS[0] <= cells <= CELLS[1]:
        found.append(f"{cells} cells; lessons have {CELLS[0]} to {CELLS[1]}")
    if not WORDS[0] <= words <= WORDS[1]:
        found.append(f"{words:,} words; lessons have {WORDS[0]:,} to {WORDS[1]:,}")
    return found


def headings(notebook) -> list[tuple[int, str, str]]:
    """(level, title, cell id) of every heading in the markdown cells, code fences left out."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        fenced = False
        for line in cell.source.splitlines():
            if line.lstrip().startswith("```"):
                fenced = not fenced
            heading = re.match(r"(#{1,6})\s+(.+)", line)
            if heading and not fenced:
                found.append((len(heading.group(1)), heading.group(2).strip(), cell.id))
    return found
