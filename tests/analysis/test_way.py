"""The decoder's ladder: every lesson stands on it, with the figures of the record."""

import re

import pytest
from rooflab import lab
from rooflab.analysis import way
from rooflab.book import home, lessons
from rooflab.records.store import Store

STEMS = [lesson.stem for lesson in lessons.all_lessons()]
NAMES = [stem.partition("_")[0] for stem in STEMS]
EARNED = {step.lesson.partition("_")[0] for step in way.STEPS}


@pytest.fixture(scope="module")
def store():
    return lab.open("replay", "h200").store


def test_steps_come_from_lessons_and_other_lessons_have_no_place(store):
    assert {step.lesson for step in way.STEPS} <= set(STEMS)
    assert not any(way.place(name, store) for name in set(NAMES) - EARNED)


def test_the_h200_climbed_every_step(store):
    climbed = way.ladder(store)
    assert list(climbed["number"]) == list(range(1, len(way.STEPS) + 1))
    rows = store.read("decode")
    last = rows[(rows["impl"] == way.STEPS[-1].impl) & (rows["format"] == "int4_g128") & (rows["batch"] == 1)]
    assert climbed["tok_s"].iloc[-1] in set(last["tok_s"])
    assert climbed["tok_s"].iloc[-1] > 20 * climbed["tok_s"].iloc[0]


@pytest.mark.parametrize("name", sorted(EARNED))
def test_a_lesson_says_where_it_stands(store, name):
    said = way.place(name, store)
    assert way.ends(way.ladder(store)) in said and said.endswith(".") and "nan" not in said
    numbers = re.search(r"is steps? ([\d, and]+) of", said)
    assert numbers
    for step in way.STEPS:
        if step.lesson.partition("_")[0] == name:
            assert step.says in said


def test_another_page_may_lead_to_a_lesson_s_step(store):
    own, led = way.place("06d", store), way.place("06d", store, "The softmax of 06")
    assert led == own.replace("This lesson", "The softmax of 06", 1) != own


def test_without_a_recording_it_names_the_step_and_no_figure(tmp_path):
    (tmp_path / "bare").mkdir()
    bare = Store(tmp_path, "bare")
    said = way.place("08", bare)
    assert not re.search(r"\d tok", said) and "steps 6, 7, 8, 9, 10 and 11 of 11" in said
    assert (
        way.same_weights(bare) is None
        and way.like_for_like(bare) == way.bars(bare, STEMS) == ""
        and home.the_way(bare, []) == ""
    )


def test_the_home_s_bars_lead_to_lessons_that_the_site_has(store):
    found = [lessons.opening(lesson.path) for lesson in lessons.all_lessons()]
    text = home.the_way(store, found)
    assert re.search(r"makes [\d.]+ times the tokens of `transformers\.\w+`, the fastest library", text)
    theirs, ours = way.same_weights(store)
    assert f"> {theirs['tok_s']:,.0f}<" in text and f"> {ours['tok_s']:,.0f}<" in text, "the grey bars"
    others = way.faster_elsewhere(store, theirs["tok_s"])
    assert len(others) and others["tok_s"].min() > theirs["tok_s"], "what was published is not kept back"
    assert all(f"> {rate:,.0f}<" in text for rate in others["tok_s"])
    assert (
        f"{ours['tok_s'] / others.set_index('format').loc['fp16', 'tok_s']:.2f} times the published" in text
    )
    assert text.startswith(f"## From {way.ends(way.ladder(store))}\n")
    assert set(re.findall(r'href="(\w+)\.html"', text)) == {step.lesson for step in way.STEPS}
    assert "href" not in home.the_way(store, [])
    widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", text)]
    assert max(widths) == 70 and len(widths) == len(way.STEPS) + 2 + len(others)
