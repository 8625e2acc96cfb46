"""rooflab.book.listings: the kernels that the site shows whole where a page links their sources."""

import re
from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from rooflab import paths
from rooflab.book import listings, normal
from rooflab.errors import UsageError
from rooflab.lab import Lab
from rooflab.ops import attention_tiles
from rooflab.studies import attention
from rooflab.studies import int4 as study
from rooflab.view import page

CELLS = {path.stem: normal.read(path).cells for path in sorted(paths.NOTEBOOKS.glob("*.ipynb"))}
LINKED = {stem: [rung.key for _, rung in listings.linked(cells)] for stem, cells in CELLS.items()}
KEYS = sorted({key for keys in LINKED.values() for key in keys})
MMQ = "[source](../kernels/mmq/{}.cu)"


rung = page.named


def displayed(cells: list[Any]) -> list[str]:
    """The Markdown that a page's cells display."""
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return ["".join(output.get("data", {}).get("text/markdown", "")) for output in outputs]


@pytest.mark.parametrize("stem", [stem for stem, keys in LINKED.items() if keys])
def test_a_notebook_has_each_linked_rung_in_brief_and_the_site_whole(stem: str) -> None:
    said, made = displayed(CELLS[stem]), listings.inserted(CELLS[stem])
    briefs = {key: page.brief(rung(key)) for key in LINKED[stem]}
    assert sorted(text for text in said if text.startswith("**[`")) == sorted(briefs.values())
    assert len(made) == len(CELLS[stem]), "each listing takes the place of what the notebook has"
    site = displayed(made)
    for key, brief in briefs.items():
        assert site.count(listings.listing(rung(key))) == 1 and brief not in site, key
        steps = page.notes_of(rung(key).operator)[rung(key).name]["pseudocode"].strip("\n").rstrip()
        assert "\n".join(site).count(f"```text\n{steps}\n```") == 1, key


def test_a_brief_has_the_pseudocode_and_of_each_note_its_line_and_whole_sentences() -> None:
    for key in KEYS:
        entry, text = page.notes_of(rung(key).operator)[rung(key).name], page.brief(rung(key))
        assert text.startswith(f"**[`{key}`](../kernels/{key}.cu)**: ") and text.count("```") == 2
        assert all(line.rstrip() in text for line in entry["pseudocode"].splitlines())
        numbered = re.findall(r"^\d+\. `.+?`: (.+)$", text, re.MULTILINE)
        assert len(numbered) == len(entry["notes"])
        for said in numbered:
            whole = next(note for note in map(str.strip, entry["notes"].values()) if note.startswith(said))
            assert said == whole or (said[-1] in ".?!" and len(said) >= page.NOTED), said
            assert said.count("**") % 2 == said.count("`") % 2 == 0, said


def test_a_rung_without_notes_is_refused_in_brief() -> None:
    with pytest.raises(UsageError, match="has nothing on 1_tile"):
        page.linked("mmq/1_tile")


@pytest.mark.parametrize("key", KEYS)
def test_a_rung_that_a_page_links_is_listed_with_pseudocode_and_notes(key: str) -> None:
    entry = page.notes_of(rung(key).operator).get(rung(key).name)
    assert entry is not None, f"kernels/{key.split('/')[0]}/notes.yaml has nothing on {key}"
    assert 3 <= len(entry["pseudocode"].strip().splitlines()) <= 18
    assert len(entry["notes"]) >= 2
    text = listings.listing(rung(key))
    assert text.count("```cuda") == 1 and "```text" in text and "①" in text
    for line in entry["pseudocode"].splitlines():
        assert line.rstrip() in text and len(line) <= 110


def test_every_entry_is_of_a_rung_that_a_page_links() -> None:
    files = paths.KERNELS.glob("*/notes.yaml")
    held = {f"{file.parent.name}/{name}" for file in files for name in page.notes_of(file.parent.name)}
    assert held == set(KEYS)


def test_a_listing_stands_once_at_the_end_of_the_section_that_links_it() -> None:
    shown = '<div class="rooflab-kernel">\n\n**`mmq/4_cp_async`**: x.'
    cells = [
        new_markdown_cell(f"## One\n\n{MMQ.format('2_prefetch')} and {MMQ.format('4_cp_async')}"),
        new_code_cell("x", outputs=[new_output("display_data", {"text/markdown": "no heading"})]),
        new_markdown_cell(f"```\n# a comment\n```\n{MMQ.format('3_wide')}"),
        new_markdown_cell("## Two"),
        new_code_cell("y", outputs=[new_output("display_data", {"text/markdown": shown})]),
        new_markdown_cell(MMQ.format("2_prefetch")),
    ]
    assert [(place, each.key) for place, each in listings.linked(cells)] == [
        (3, "mmq/2_prefetch"),
        (3, "mmq/3_wide"),
    ]
    made = listings.inserted(cells)
    assert [cell for cell in made if cell in cells] == cells
    first, second = ("".join(cell.outputs[0].data["text/markdown"]) for cell in made[3:5])
    assert "**`mmq/2_prefetch`**" in first and "Changes from 1_tile" in first
    assert "**`mmq/3_wide`**" in second and "Changes from 2_prefetch" in second
    assert all("remove-input" in cell.metadata["tags"] for cell in made[3:5])


def test_a_listing_takes_a_helper_from_the_header_that_its_name_says_and_fixes_macros() -> None:
    text = listings.listing(rung("decode_step/8_tensor_attention"))
    assert "// from common/decoder/attend_tensor.cuh" in text and "attend_lanes.cuh" not in text
    assert "*Built with* `TENSOR_ATTENTION` = 1." in text and "#if " not in text
    assert "Changes from" not in text, "its source differs from the rung before by a macro alone"


def test_a_listing_says_the_values_that_the_page_s_shape_takes() -> None:
    """As the launch rule has them, with the first chart's heads and prompt."""
    prompt = attention_tiles.Prompt(16384, 16384, 0, attention.HEADS, attention.KV_HEADS, True, None)
    group = attention.HEADS // attention.KV_HEADS
    for name, entry in page.notes_of("attention").items():
        if values := entry.get("values"):
            key, width = rung(f"attention/{name}"), values["HEAD_DIM"]
            tile = attention_tiles.tile_of(key, width, "90", group=group, prompt=prompt)
            launched = key.with_defaults(tile) | {"HEAD_DIM": width}
            assert values.items() <= launched.items(), name
            assert all(f"`{macro}` = {value}" in listings.listing(key) for macro, value in values.items())
    assert "`SLICES` = 4" in listings.listing(rung("attention/8_head_dim_slices"))


def test_rungs_for_many_tokens_are_listed_as_they_are_timed_for_most(h200: Lab) -> None:
    cases = sorted(study.for_tokens(h200.sized), key=lambda case: case.batch)
    timed = {case.impl: study.own_rung(case)[1] for case in cases}
    for name in ("9_shared_x", "10_wgmma", "11_tma"):
        values = page.notes_of("int4")[name]["values"]
        assert {**rung(f"int4/{name}").defines, **values} == timed[name], name
        text = listings.listing(rung(f"int4/{name}"))
        assert "`TOKENS` = 64" in text and "if constexpr" not in text.partition("```diff")[0]


def test_an_entry_with_another_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mmq").mkdir()
    (tmp_path / "mmq" / "notes.yaml").write_text("2_prefetch: {pseudocode: x, note: {a: b}}\n")
    monkeypatch.setattr(paths, "KERNELS", tmp_path)
    page.notes_of.cache_clear()
    with pytest.raises(UsageError, match="2_prefetch has note, pseudocode; it takes"):
        page.notes_of("mmq")
    page.notes_of.cache_clear()
