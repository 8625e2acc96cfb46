"""What the decoder-throughput specification states (source C): an RTX 4090, an FP32 matrix of 4096 x 4096
stored [k, n], strided reads as the root cause, and a checklist of 109 points.

The hypotheses and the tests of its section E are lesson 03's claims (claims.coalescing), judged here by the
same objects. Items about its own repository (Rust, cargo, its builder) are read as the same question about
this one where that makes sense, and are not ours to test where it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rooflab import paths, shapes
from rooflab.claims import NoEvidence, about, coalescing, least, less, more, most
from rooflab.claims.coalescing import BEST, CARD, COALESCED, GEMVS, SIZE, STRIDED, moved, share_of_card
from rooflab.claims.scorecard import Asked, Measure, Statement
from rooflab.claims.shelf import RTX_4090, Shelf
from rooflab.ops import gemv
from rooflab.studies.gemv import first_request

GPU = "an RTX 4090"
RUST = "its repository: Rust, cargo, and a PTX builder of its own"
_SHARE, _TIMES, _US, _COUNT = "{:.0%}", "{:.2f}×", "{:.1f} µs", "{:,.0f}"
_YES = "{:.0f}"  # 1 for yes
_LINES = {"H1": 97, "H2": 105, "H3": 113, "H4": 121, "H5": 129, "E9": 421, "E10": 422, "E11": 423, "E12": 424}
_POINTS = {"E1": 3, "E2": 2, "E3": 2, "E4": 3, "E5": 3, "E6": 3, "E7": 2, "E8": 2}


def _s(
    id: str,
    line: str,
    group: str,
    says: str,
    lesson: str,
    test: Asked | None = None,
    rescaled: Asked | None = None,
    needs: str = "",
    points: int = 0,
) -> Statement:
    return Statement(f"C-{id}", "C", line, group, says, lesson, test, rescaled, needs, points)


def _published(shelf: Shelf, impl: str) -> float:
    """A published time in microseconds."""
    rows = shelf.published(RTX_4090).read("gemv").set_index("impl")
    return float(rows["median_us"][impl])


def _yes(question: Callable[[Shelf], bool]) -> Asked:
    return Asked("1 for yes", _YES, least(1), lambda shelf: float(question(shelf)))


def _run(column: str) -> Callable[[Shelf], object]:
    def value(shelf: Shelf) -> object:
        if not len(shelf.runs) or column not in shelf.runs:
            raise NoEvidence(f"no {column} in the recording's runs")
        found = shelf.runs[column].iloc[-1]
        if found is None or found != found or str(found) == "":
            raise NoEvidence(f"no {column} in the recording's runs")
        return found

    return value


def _number(column: str) -> Measure:
    def measure(shelf: Shelf) -> float:
        text = str(_run(column)(shelf)).split(".")
        return float(".".join(text[:2]))

    return measure


def _static(column: str) -> Measure:
    """A fact of the coalesced rung's report for the source's architecture."""

    def measure(shelf: Shelf) -> float:
        rows = shelf.static
        rows = rows[
            (rows["operator"] == "gemv") & (rows["impl"] == COALESCED) & (rows["options"] == "arch=sm_89")
        ]
        if rows.empty:
            raise NoEvidence("no report of gemv/2_coalesced for sm_89 in data/cpu/static.csv")
        return float(rows[column].iloc[0])

    return measure


def _sass(fact: str) -> Measure:
    def measure(shelf: Shelf) -> float:
        rows = shelf.sass
        mine = rows["case"].str.startswith(f"gemv/{COALESCED} ") & rows["case"].str.contains("arch=sm_89")
        if not mine.any():
            raise NoEvidence("no machine code of gemv/2_coalesced for sm_89 in data/cpu/static_sass.csv")
        return float(rows[mine][fact].iloc[0])

    return measure


def _suite(item: str, rung: str | None = COALESCED) -> Measure:
    """How far a rung's worst value of an item lies beyond its bound: 1 or less holds."""

    def measure(shelf: Shelf) -> float:
        rows = shelf.suite
        rows = rows[(rows["item"] == item) & ((rows["rung"] == rung) if rung else True)]
        if rows.empty:
            raise NoEvidence(f"no item {item} in data/cpu/suite.csv")
        held = rows["value"] <= rows["bound"]
        return float((~held).sum())

    return measure


def _item(item: str, rung: str | None = COALESCED) -> Asked:
    return Asked("rungs beyond its bound, on the CPU target", _COUNT, less(1), _suite(item, rung))


# --- figures ------------------------------------------------------------------------------------------------


def _faster(impl: str) -> Measure:
    return lambda shelf: shelf.coalescing.us(STRIDED) / shelf.coalescing.us(impl)


def _tokens(model: str, format: str) -> Measure:
    """The most tokens a second of an own decoder at batch 1."""
    return lambda shelf: float(
        shelf.best("decode", "tok_s", operator="decode", model=model, format=format, batch=1)["tok_s"]
    )


def _wide_tile(shelf: Shelf) -> float:
    """Whether a tile of 4096 floats gives right results beyond it: 1 if so, 0 if the run fails."""
    frame = shelf.table("faults", "sanitizer")
    chosen = frame[frame["case"].str.startswith("faults/fixed_tile n=5 k=4100 tool=watch")]
    if chosen.empty:
        raise NoEvidence("no fixed_tile at k = 4100 in study faults")
    return float(str(chosen["first_right"].iloc[0]) == "True")


def _transaction(shelf: Shelf) -> float:
    """Bytes that one request of a warp moves, coalesced."""
    return 32 * shelf.coalescing.counter("load_sectors_per_request", COALESCED)


def _stride(shelf: Shelf) -> float:
    rung = gemv.LADDERS["gemv"][0]
    offsets, _ = first_request(rung, SIZE, SIZE, rung.with_defaults({}))
    return float(offsets[1] - offsets[0])


def _upload_share(shelf: Shelf) -> float:
    """The strided kernel's share of a call that carries its matrix over first."""
    rows = shelf.rows("gemv", operator="upload", impl="pageable")
    return shelf.coalescing.us(STRIDED) / float(rows["median_us"].iloc[0])


_FIGURES = (
    _s(
        "F6",
        "6",
        "figure",
        "The target is 180 tokens a second, within 1.25 of Ollama on its card.",
        "03d_rows#Tokens a second",
        None,
        Asked(
            "Llama-3-8B shapes in FP16 here, tokens a second",
            _COUNT,
            more(180),
            _tokens("llama-3-8b", "fp16"),
        ),
        f"{GPU} and Ollama",
    ),
    _s(
        "F13",
        "13",
        "figure",
        "The problem touches 80 to 85 % of the workloads that people run.",
        "",
        needs="statistics of what people run; it names no source",
    ),
    _s(
        "F15",
        "15, 83-87",
        "root cause",
        "Slow decoding is caused by strided reads: coalescing them makes the product faster.",
        "03_coalescing#The gate, then the clock",
        Asked("coalesced over strided, 4096 × 4096", _TIMES, more(1.02), _faster(COALESCED)),
    ),
    _s(
        "F30",
        "30",
        "symptom",
        "It decodes 18.5 tokens a second, each of 192 products taking 4.41 ms.",
        "03c_claims#Five whys, and a sixth",
        Asked(
            "tokens a second that 192 × 4.41 ms leave",
            "{:.2f}",
            about(18.5),
            lambda shelf: 1e6 / GEMVS / _published(shelf, "strided"),
        ),
    ),
    _s(
        "F31",
        "31, 67, 71",
        "symptom",
        "The strided product takes 4.41 ms because of its kernel.",
        "03c_claims#Five whys, and a sixth",
        Asked("kernel's share of a call that uploads its matrix", _SHARE, more(0.5), _upload_share),
    ),
    _s(
        "F31b",
        "31",
        "target",
        "0.023 ms is a time that its card can reach.",
        "03c_claims#Prediction: what do the bars ask for?",
        Asked(
            "share of its card's bandwidth asked", _SHARE, most(1), lambda shelf: share_of_card(23, moved())
        ),
    ),
    _s(
        "F32",
        "32, 71",
        "symptom",
        "4.41 ms are 1.4 % of the memory's bandwidth.",
        "03c_claims#Five whys, and a sixth",
        Asked(
            "share of its card's bandwidth",
            "{:.1%}",
            about(0.014),
            lambda shelf: share_of_card(_published(shelf, "strided"), moved()),
        ),
    ),
    _s(
        "F32b",
        "32",
        "target",
        "95 % of the bandwidth and 0.023 ms are one target.",
        "03c_claims#Prediction: what do the bars ask for?",
        Asked(
            "µs at 95 % of its card's bandwidth",
            _US,
            about(23),
            lambda shelf: moved() / 0.95 / CARD.dram_gb_s / 1e3,
        ),
    ),
    _s(
        "F34",
        "34",
        "figure",
        "Falling back to the CPU gives 4.2 to 7.1 tokens a second.",
        "",
        needs="its CPU engine and TinyLlama",
    ),
    _s(
        "F69",
        "69",
        "why 1",
        "A token takes 192 products of one row.",
        "03d_rows#Tokens a second",
        Asked(
            "products of LLaMA-2-7B, head excluded",
            _COUNT,
            about(192, 0.0),
            lambda shelf: float(shapes.gemvs(shapes.get("llama-2-7b"))),
        ),
    ),
    _s(
        "F75",
        "75",
        "why 3",
        "Strided reads defeat coalescing: most of what is fetched is not used.",
        "03_coalescing#Predicted, then counted",
        Asked(
            "load efficiency, strided",
            _SHARE,
            less(0.5),
            lambda shelf: shelf.coalescing.counter("load_efficiency_pct", STRIDED) / 100,
        ),
    ),
    _s(
        "F79",
        "79, 158",
        "why 4",
        "A warp has a column, so its lanes read 16 KB apart.",
        "03c_claims#Five whys, and a sixth",
        Asked("bytes from lane to lane", _COUNT, about(16384, 0.0), _stride),
    ),
    _s(
        "F83",
        "83",
        "why 5",
        "The layout was chosen because it is simplest.",
        "03c_claims#Five whys, and a sixth",
        needs="its author's reasons",
    ),
    _s(
        "F87",
        "87",
        "root cause",
        "The mapping of threads to data costs a factor of 68 in bandwidth.",
        "03b_filling#The climb",
        Asked("best rung over strided", _TIMES, about(68, 0.25), _faster(BEST)),
        Asked("best rung over strided", _TIMES, more(1.5), _faster(BEST)),
    ),
    _s(
        "F179",
        "168-180",
        "design",
        "128 neighbouring threads make one transaction of 512 bytes.",
        "03_coalescing#Predicted, then counted",
        Asked("bytes a request of a warp moves", _COUNT, about(512, 0.0), _transaction),
    ),
    _s(
        "F187",
        "187",
        "design",
        "256 threads a block fill an SM well.",
        "03b_filling#The experiment",
        Asked(
            "occupancy of the coalesced kernel",
            _SHARE,
            more(0.5),
            lambda shelf: shelf.coalescing.counter("occupancy_pct", COALESCED) / 100,
        ),
    ),
    _s(
        "F189",
        "189, 243",
        "design",
        "16 KB of shared memory hold x for the models in scope.",
        "03e_mending#What the instruments say",
        Asked("right beyond k = 4096 (1 for yes)", _YES, least(1), _wide_tile),
    ),
    _s(
        "F190",
        "190",
        "design",
        "ceil(N / 256) blocks cover the outputs, and fill the GPU.",
        "03b_filling#The experiment",
        Asked(
            "blocks over SMs at n = 4096",
            "{:.2f}",
            least(1),
            lambda shelf: (
                gemv.blocks_of(gemv.LADDERS["gemv"][1], SIZE, {"THREADS": 256, "TILE": 4096})
                / float(_number("sms")(shelf))
            ),
        ),
    ),
    _s(
        "F191",
        "191",
        "design",
        "At most 64 registers a thread.",
        "03b_filling#What the profiler counted",
        Asked("registers for sm_89", _COUNT, most(64), _static("registers")),
    ),
    _s(
        "F143",
        "141-149",
        "principle",
        "Correctness is verified before performance.",
        "00_environment#No gate, no time",
        Asked(
            "own timed rows within their budget",
            _SHARE,
            least(1),
            lambda shelf: float(
                (lambda r: (r["error"] <= r["error_budget"]).mean())(
                    shelf.own_timed().dropna(subset=["error_budget"])
                )
            ),
        ),
    ),
    _s(
        "F147",
        "147",
        "principle",
        "Work is balanced over the SMs.",
        "03b_filling#The experiment",
        Asked(
            "speed over the coalesced kernel, once k is split",
            _TIMES,
            more(1.02),
            lambda shelf: shelf.coalescing.us(COALESCED) / shelf.coalescing.us("3_split_k"),
        ),
    ),
    _s(
        "F388",
        "385-388",
        "rollback",
        "A failing kernel can be reverted by a flag, down to cuBLAS.",
        "07_regimes#The dispatcher",
        Asked(
            "recorded baselines by cuBLAS",
            _COUNT,
            more(0),
            lambda shelf: float(len(shelf.rows("regimes", impl="cublas"))),
        ),
    ),
)


# --- hypotheses, tests and the checklist --------------------------------------------------------------------


_H3 = Asked(
    "Llama-3-8B shapes in FP16 here, tokens a second", _COUNT, more(200), _tokens("llama-3-8b", "fp16")
)


def _hypotheses() -> Iterator[Statement]:
    for claim in coalescing.HYPOTHESES:
        if not claim.restates:
            again = tuple(c for c in coalescing.HYPOTHESES if c.restates == claim.id)
            yield Statement(
                f"C-{claim.id}",
                "C",
                str(_LINES[claim.id]),
                "hypothesis",
                claim.says,
                "03c_claims#The hypotheses",
                points=1,
                claims=(claim, *again),
                test=_H3 if claim.id == "H3" else None,
            )


def _tests() -> Iterator[Statement]:
    for claim in coalescing.TESTS:
        again = tuple(c for c in coalescing.RESTATED_TESTS if c.restates == claim.id and not c.opposes)
        line = str(_LINES[claim.id]) if claim.id in _LINES else "344 (v1.2.0, 7 E)"
        yield Statement(
            f"C-{claim.id}",
            "C",
            line,
            "test",
            claim.says,
            "03c_claims#The tests",
            points=claim.points or _POINTS[claim.id],
            claims=(claim, *again),
        )


def _rung_text(words: str) -> Callable[[Shelf], bool]:
    text = gemv.LADDERS["gemv"][1].path.read_text
    return lambda shelf: all(word in text() for word in words.split(","))


_COALESCED_RUNG = gemv.LADDERS["gemv"][1]
_A, _B, _C, _D, _F, _G = (
    "332 (v1.2.0, 7 A)",
    "335 (v1.2.0, 7 B)",
    "338 (v1.2.0, 7 C)",
    "341 (v1.2.0, 7 D)",
    "347 (v1.2.0, 7 F)",
    "350 (v1.2.0, 7 G)",
)
_CELL_A, _CELL_B = "00_environment#The machine", "03b_filling#What the profiler counted"
_MINE = "09b_gate#Numbers on trial"

_CHECKLIST = (
    _s(
        "A1",
        _A,
        "environment",
        "The driver is 535 or newer.",
        _CELL_A,
        Asked("driver", "{:.0f}", least(535), _number("driver")),
        points=1,
    ),
    _s(
        "A2",
        _A,
        "environment",
        "An RTX 4090 is there.",
        _CELL_A,
        _yes(lambda shelf: "4090" in shelf.gpu),
        points=1,
    ),
    _s(
        "A3",
        _A,
        "environment",
        "CUDA is 12.0 or newer.",
        _CELL_A,
        Asked("CUDA", "{:.1f}", least(12), _number("cuda")),
        points=1,
    ),
    _s("A4", _A, "environment", "Rust is 1.75 or newer.", "", needs=RUST, points=1),
    _s("A5", _A, "environment", "Its GPU library is checked out beside.", "", needs=RUST, points=1),
    _s("A6", _A, "environment", "It builds in release mode.", "", needs=RUST, points=1),
    _s(
        "A7",
        _A,
        "environment",
        "20 GB of GPU memory are free.",
        _CELL_A,
        Asked(
            "GB of memory, nobody else on the GPU",
            "{:.0f}",
            least(20),
            lambda shelf: (
                float(str(_run("memory_bytes")(shelf)))
                / 1e9
                * (float(str(_run("other_processes")(shelf))) == 0)
            ),
        ),
        points=1,
    ),
    _s(
        "A8",
        _A,
        "environment",
        "No other process uses the GPU.",
        _CELL_A,
        Asked(
            "other processes",
            "{:.0f}",
            less(1),
            lambda shelf: float(shelf.runs["other_processes"].astype(float).max()),
        ),
        points=1,
    ),
    _s(
        "A9",
        _A,
        "environment",
        "The CPU's governor is set to performance.",
        "",
        needs="a host whose governor can be asked",
        points=1,
    ),
    _s(
        "A10",
        _A,
        "environment",
        "32 GB of host memory are available.",
        "",
        needs="a record of the host's memory",
        points=1,
    ),
    _s(
        "B1",
        _B,
        "kernel",
        "The coalesced kernel exists.",
        "03_coalescing#The gate, then the clock",
        _yes(lambda shelf: _COALESCED_RUNG.path.is_file()),
        points=1,
    ),
    _s(
        "B2",
        _B,
        "kernel",
        "It takes part in what all kernels share (its trait; here: the ladder).",
        "03b_filling#The climb",
        _yes(lambda shelf: _COALESCED_RUNG in gemv.LADDERS["gemv"]),
        points=1,
    ),
    _s(
        "B3",
        _B,
        "kernel",
        "It is exported: a caller can ask for it by name.",
        "03d_rows#Who runs what: dispatch",
        _yes(lambda shelf: gemv.rung_of(gemv.LADDERS["gemv"], COALESCED, COALESCED) is _COALESCED_RUNG),
        points=1,
    ),
    _s(
        "B4",
        _B,
        "kernel",
        "It compiles.",
        _CELL_B,
        Asked("bytes spilled for sm_89", "{:.0f}", less(1), _static("spill_bytes")),
        points=2,
    ),
    _s(
        "B5",
        _B,
        "kernel",
        "The compiled kernel carries its name.",
        _CELL_B,
        _yes(lambda shelf: "gemv_coalesced(" in _COALESCED_RUNG.path.read_text()),
        points=1,
    ),
    _s(
        "B6",
        _B,
        "kernel",
        "It uses shared memory.",
        _CELL_B,
        Asked("shared-memory instructions", "{:.0f}", more(0), _sass("shared_memory")),
        points=2,
    ),
    _s(
        "B7",
        _B,
        "kernel",
        "It has a barrier.",
        _CELL_B,
        Asked("barriers", "{:.0f}", more(0), _sass("barriers")),
        points=2,
    ),
    _s(
        "B8",
        _B,
        "kernel",
        "It is compiled for sm_89.",
        _CELL_B,
        Asked("registers for sm_89", "{:.0f}", more(0), _static("registers")),
        points=1,
    ),
    _s(
        "B9",
        _B,
        "kernel",
        "Its unit tests pass (here: D1 to D5 on the CPU target).",
        _MINE,
        Asked(
            "items beyond their bound",
            "{:.0f}",
            less(1),
            lambda shelf: sum(_suite(f"D{i}")(shelf) for i in range(1, 6)),
        ),
        points=2,
    ),
    _s(
        "B10",
        _B,
        "kernel",
        "Its property tests pass (here: 100 random products).",
        _MINE,
        _item("D10"),
        points=2,
    ),
    _s(
        "C1",
        _C,
        "integration",
        "The dispatcher knows the kernel.",
        "03d_rows#Who runs what: dispatch",
        _yes(lambda shelf: _COALESCED_RUNG in gemv.LADDERS["gemv"]),
        points=1,
    ),
    _s(
        "C2",
        _C,
        "integration",
        "A product of one row goes to a coalesced kernel.",
        "03d_rows#Who runs what: dispatch",
        Asked(
            "load efficiency of what is dispatched",
            _SHARE,
            more(0.9),
            lambda shelf: (
                shelf.coalescing.counter("load_efficiency_pct", gemv.default_rung("gemv", SIZE, SIZE, True))
                / 100
            ),
        ),
        points=2,
    ),
    _s(
        "C3",
        _C,
        "integration",
        "Compiled kernels are kept by k and n.",
        "03d_rows#Who runs what: dispatch",
        needs="a cache by sizes: here a kernel serves all sizes, and is kept by its source and macros",
        points=1,
    ),
    _s(
        "C4",
        _C,
        "integration",
        "It is launched with 256 threads.",
        _CELL_B,
        _yes(lambda shelf: _COALESCED_RUNG.defines["THREADS"] == 256),
        points=2,
    ),
    _s(
        "C5",
        _C,
        "integration",
        "Its shared memory is set.",
        _CELL_B,
        Asked("bytes of shared memory for sm_89", _COUNT, more(0), _static("shared_bytes")),
        points=2,
    ),
    _s(
        "C6",
        _C,
        "integration",
        "What calls it compiles.",
        _CELL_B,
        Asked("bytes spilled for sm_89", "{:.0f}", less(1), _static("spill_bytes")),
        points=2,
    ),
    _s(
        "C7",
        _C,
        "integration",
        "Its integration test passes (here: the gate, on the GPU).",
        "03_coalescing#The gate, then the clock",
        Asked(
            "error over budget, 4096 × 4096",
            "{:.2f}",
            most(1),
            lambda shelf: (lambda r: float(r["error"] / r["error_budget"]))(shelf.coalescing.row(COALESCED)),
        ),
        points=2,
    ),
    _s("C8", _C, "integration", "The build gives no warning.", "", needs=RUST, points=1),
    _s("C9", _C, "integration", "Clippy has no finding.", "", needs=RUST, points=2),
    *(
        Statement(
            f"C-D{i}",
            "C",
            _D,
            "correctness",
            says,
            _MINE,
            _item(f"D{i}"),
            _item("D6 possible") if i == 6 else None,
            points=2,
            best=_item(f"D{i}", gemv.LADDERS["gemv"][-1].name),
        )
        for i, says in enumerate(
            (
                "The identity gives x back.",
                "Zeros give zeros.",
                "Ones give the sum.",
                "4 × 8, by hand, is exact.",
                "64 × 64 is within 1e-5.",
                "4096 × 4096 is within 1e-4.",
                "Signs are right.",
                "Values of 1e6 to 1e7 do not overflow.",
                "Values of 1e-6 to 1e-5 do not vanish.",
                "100 random products match.",
            ),
            1,
        )
    ),
    _s(
        "F1",
        _F,
        "stability",
        "A thousand runs give the same output.",
        "09b_gate#The same again",
        Asked(
            "distinct results of 1000 generations on the GPU",
            "{:.0f}",
            most(1),
            lambda shelf: float(shelf.answer("decode", "repeated", "distinct").max()),
        ),
        Asked(
            "distinct results of 100 launches, CPU target, worst operator",
            "{:.0f}",
            most(1),
            lambda shelf: float(shelf.suite[shelf.suite["item"] == "F1"]["value"].max()),
        ),
        points=2,
    ),
    _s(
        "F2",
        _F,
        "stability",
        "Different inputs one after another leave nothing behind.",
        "09b_gate#The same again",
        Asked(
            "rungs that remember, CPU target",
            "{:.0f}",
            less(1),
            lambda shelf: _suite("F2", None)(shelf) + _suite("F2 back", None)(shelf),
        ),
        points=2,
    ),
    _s(
        "F3",
        _F,
        "stability",
        "10,000 calls: no crash, all right.",
        "09b_gate#The same again",
        Asked(
            "logits that are no numbers after 10,000 steps",
            "{:.0f}",
            less(1),
            lambda shelf: float(shelf.answer("decode", "long", "not numbers").max()),
        ),
        points=2,
    ),
    _s(
        "F4",
        _F,
        "stability",
        "10,000 calls leak no memory (under 100 MB).",
        "09b_gate#The same again",
        Asked(
            "bytes gone after 10,000 steps",
            _COUNT,
            less(100e6),
            lambda shelf: float(shelf.answer("decode", "long", "bytes gone").max()),
        ),
        points=2,
    ),
    _s(
        "F5",
        _F,
        "stability",
        "It recovers from an input that it refuses.",
        "09b_gate#The same again",
        Asked(
            "wrong inputs let in, or changed afterwards, CPU target", "{:.0f}", less(1), _suite("F5", None)
        ),
        points=2,
    ),
    _s(
        "G1",
        _G,
        "documentation",
        "The kernel is commented.",
        "03b_filling#The climb",
        _yes(_rung_text("Purpose,Shapes,Launch")),
        points=1,
    ),
    _s(
        "G2",
        _G,
        "documentation",
        "Its memory pattern is explained.",
        "03b_filling#The climb",
        _yes(_rung_text("sectors a request")),
        points=1,
    ),
    _s(
        "G3",
        _G,
        "documentation",
        "Its targets are stated.",
        "03c_claims#The tests",
        _yes(lambda shelf: len(coalescing.TESTS) > 0),
        points=1,
    ),
    _s(
        "G4",
        _G,
        "documentation",
        "There is a working example.",
        "03_coalescing#The gate, then the clock",
        _yes(lambda shelf: (paths.NOTEBOOKS / "03_coalescing.ipynb").is_file()),
        points=1,
    ),
    _s(
        "G5",
        _G,
        "documentation",
        "A changelog has an entry for it.",
        "",
        _yes(lambda shelf: (paths.ROOT / "CHANGELOG.md").is_file()),
        points=1,
    ),
)

_GAPS = (
    _s(
        "gap F1",
        "402",
        "gap",
        "The coalesced kernel is missing.",
        "03_coalescing#The gate, then the clock",
        Asked("1 for missing", _YES, least(1), lambda shelf: float(not _COALESCED_RUNG.path.is_file())),
    ),
    _s(
        "gap F2",
        "403",
        "gap",
        "The kernel in use still reads strided.",
        "03d_rows#Who runs what: dispatch",
        Asked(
            "load efficiency of what is dispatched",
            _SHARE,
            less(0.5),
            lambda shelf: (
                shelf.coalescing.counter("load_efficiency_pct", gemv.default_rung("gemv", SIZE, SIZE, True))
                / 100
            ),
        ),
    ),
    _s("gap F3", "404", "gap", "Its builder cannot name the start of shared memory.", "", needs=RUST),
    _s("gap F4", "405", "gap", "Its builder has no predicated load.", "", needs=RUST),
    _s(
        "gap F5",
        "406",
        "gap",
        "Products of one row are not dispatched apart.",
        "03d_rows#Who runs what: dispatch",
        Asked(
            "1 for not",
            _YES,
            least(1),
            lambda shelf: float(
                gemv.default_rung("gemv", SIZE, SIZE, True) not in [r.name for r in gemv.LADDERS["gemv"]]
            ),
        ),
    ),
    _s(
        "gap F6",
        "407",
        "gap",
        "There is no comparison with cuBLAS.",
        "03c_claims#The tests",
        Asked(
            "recorded products by cuBLAS",
            _COUNT,
            less(1),
            lambda shelf: float(len(shelf.rows("gemv", impl="torch.matmul"))),
        ),
    ),
)

STATEMENTS: tuple[Statement, ...] = (*_FIGURES, *_hypotheses(), *_tests(), *_CHECKLIST, *_GAPS)
