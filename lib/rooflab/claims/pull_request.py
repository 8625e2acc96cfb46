"""What SharpInference's pull request 143 states (source D): Gemma 4 E4B in Q8_0 on an RTX 4070 Ti, from
matvecs to int8 tensor cores and tiled attention, and what its review suggested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rooflab import formats
from rooflab.analysis import time_breakdown
from rooflab.claims import NoEvidence, about, least, less, more
from rooflab.claims import attention as claims_attention
from rooflab.claims import q8_0 as claims_q8
from rooflab.claims.scorecard import Asked, Measure, Statement
from rooflab.claims.shelf import RTX_4070_TI, Shelf
from rooflab.errors import LaunchError, UsageError
from rooflab.ops import q8_0 as ops_q8
from rooflab.studies import attention as study_attention
from rooflab.studies import mmq as study_mmq

GPU = "an RTX 4070 Ti with Gemma 4 E4B"
PROMPT = 1848
_SHARE, _TIMES, _COUNT, _YES = "{:.0%}", "{:.2f}×", "{:,.0f}", "{:.0f}"
_KIND = {"seq": PROMPT, "heads": 8, "kv_heads": 2, "operator": "attention", "format": "fp16"}
_WINDOWED = {**_KIND, "head_dim": 256, "window": 512}
_WHOLE = {**_KIND, "head_dim": 512}


def _s(
    id: str,
    line: str,
    group: str,
    says: str,
    lesson: str,
    test: Asked | None = None,
    rescaled: Asked | None = None,
    needs: str = "",
) -> Statement:
    return Statement(f"D-{id}", "D", line, group, says, lesson, test, rescaled, needs)


def _gain(says: str, figure: float, measure: Measure, quantity: str) -> tuple[Asked, Asked]:
    """A speed-up as stated, within a fifth, and as an improvement at all."""
    return Asked(quantity, _TIMES, about(figure, 0.2), measure), Asked(quantity, _TIMES, more(1.02), measure)


def _published(study: str, operator: str, impl: str, column: str = "median_us") -> Measure:
    def value(shelf: Shelf) -> float:
        rows = shelf.published(RTX_4070_TI).read(study)
        rows = rows[(rows["operator"] == operator) & (rows["impl"] == impl) & rows[column].notna()]
        return float(rows[column].iloc[0])

    return value


# --- attention ----------------------------------------------------------------------------------------------


def _queries(count: int) -> Callable[[object], bool]:
    return lambda text: str(text or "") == f"queries={count}"


def _attend(impl: str, where: dict[str, Any], **more_: object) -> Measure:
    return lambda shelf: shelf.us("attention", impl=impl, **{**where, **more_})


def _ratio(slow: Measure, fast: Measure) -> Measure:
    return lambda shelf: slow(shelf) / fast(shelf)


_SCALAR, _HALF2 = _attend("1_scalar", _WINDOWED), _attend("3_half2", _WINDOWED)
_TILED_8 = _attend("2_tiled", _WINDOWED, options=_queries(8))
_TILED_16 = _attend("2_tiled", _WINDOWED, options=_queries(16))


_LENGTHS = [n for n in study_attention.PROMPTS if n >= 512]


def _prompt_share(column: str, seq: int, model: str = "gemma-4-e4b") -> Measure:
    def measure(shelf: Shelf) -> float:
        rows, lengths = shelf.rows("attention"), _LENGTHS
        try:
            found = claims_attention.prompts(
                rows, lengths, shelf.ceiling("dram_read"), shelf.ceiling("fp16_tensor")
            )
        except UsageError as missing:
            raise NoEvidence(str(missing)) from None
        found = found[(found["model"] == model) & (found["seq"] == seq)]
        if found.empty:
            raise NoEvidence(f"no attention of {model} at {seq} tokens")
        return float(found[column].iloc[0])

    return measure


def _again(shelf: Shelf) -> float:
    """How often the scalar kernel asks for each key and value of a window of 512."""
    case = study_attention._case("1_scalar", PROMPT, 256, (8, 2), window=512)
    unique = 2 * PROMPT * 2 * 256 * 2
    return study_attention.requested_bytes(case) / (unique * 4)  # 4 query heads share a key-value head


def _counted(impl: str, name: str) -> Measure:
    return lambda shelf: shelf.counter("attention", name, impl=impl)


def _off_peak(shelf: Shelf) -> float:
    """The FP32 peak over what the scalar kernel reaches."""
    rows = shelf.rows("attention", impl="1_scalar", **_WINDOWED)
    return shelf.ceiling("fp32") / float(rows["tflop_s"].max())


def _fastest(where: dict[str, Any]) -> Measure:
    return lambda shelf: float(shelf.best("attention", **where)["median_us"])


# --- products -----------------------------------------------------------------------------------------------

_SQUARE = {"n": 8192, "k": 8192, "cache": "cold"}


def _exact(shelf: Shelf) -> float:
    """The fastest exact rung at the source's prompt, in microseconds."""
    rows = shelf.rows("mmq", kind="own", batch=PROMPT, options=lambda text: not text, **_SQUARE)
    rows = rows[~rows["impl"].map(study_mmq.takes_halves)]
    if rows.empty:
        raise NoEvidence(f"no exact product of {PROMPT} tokens in study mmq")
    return float(rows["median_us"].min())


def _baseline(shelf: Shelf) -> float:
    return shelf.us("mmq", impl=study_mmq.BASELINE, batch=PROMPT, **_SQUARE)


def _prepared(impl: str, batch: int = 512) -> Measure:
    return lambda shelf: shelf.us(
        "mmq", impl=impl, batch=batch, options=lambda text: str(text) == "prepared=1", **_SQUARE
    )


def _mmq_counter(impl: str, name: str) -> Measure:
    return lambda shelf: shelf.counter("mmq", name, impl=impl, options="prepared=1")


def _exact_errors(shelf: Shelf) -> float:
    rows = shelf.rows("mmq", kind="own", options=lambda text: "exact=1" in str(text))
    return float((rows["error"] > 0).sum())


def _decode_q8(impl: str) -> Measure:
    n, k = claims_q8.DECODE
    return lambda shelf: shelf.us(
        "q8_0", operator="q8_0", impl=impl, n=n, k=k, batch=1, cache="cold", options=lambda text: not text
    )


def _suggested(number: str) -> Measure:
    """What a suggestion of the review gains: the time before over the time after."""
    pair = next(s for s in claims_q8.review() if s.number == number)

    def measure(shelf: Shelf) -> float:
        before, after = (
            shelf.rows(c.study, case=c.id)["median_us"].iloc[0] for c in (pair.before, pair.after)
        )
        return float(before / after)

    return measure


def _overflow(shelf: Shelf) -> float:
    """1 if a product of 2^31 activations is refused before anything is cast."""
    try:
        ops_q8.check_sizes(1, 32768, 65536, 32, "a product")
    except LaunchError:
        return 1.0
    return 0.0


def _chain(clock: str, how: str = "") -> Measure:
    return lambda shelf: shelf.us(
        "q8_0", operator="chain", clock=clock, options=lambda text: how in str(text)
    )


def _captured(shelf: Shelf) -> float:
    """1 if a capture that has to ask the driver for memory fails."""
    frame = shelf.table("q8_0", "gate")
    chosen = frame[frame["case"].str.contains("capture/") & frame["case"].str.contains("pooled=0")]
    if chosen.empty:
        raise NoEvidence("no capture without a pool in study q8_0")
    return float(str(chosen["refused"].iloc[0]) == "True")


# --- end to end ---------------------------------------------------------------------------------------------


def _prefill(format: str, seq: int, slowest: bool = False) -> Measure:
    """Tokens a second of the fastest (or the slowest) own way to take in a prompt."""

    def measure(shelf: Shelf) -> float:
        rows = shelf.rows("prefill", operator="prefill", kind="own", format=format, seq=seq, batch=1)
        rows = rows[rows["model"] == "qwen2.5-1.5b"]
        return float(rows["tok_s"].min() if slowest else rows["tok_s"].max())

    return measure


def _decode(shelf: Shelf) -> float:
    return float(
        shelf.best("decode", "tok_s", operator="decode", model="qwen2.5-1.5b", format="q8_0", batch=1)[
            "tok_s"
        ]
    )


def _llama(study: str) -> Measure:
    """llama.cpp's tokens a second for the same model and format on this GPU, as published."""

    def measure(shelf: Shelf) -> float:
        rows = shelf.published("h200-peers").read(study)
        rows = rows[
            (rows["impl"] == "llama.cpp") & (rows["format"] == "q8_0") & (rows["model"] == "qwen2.5-1.5b")
        ]
        if rows.empty or "H200" not in shelf.gpu:
            raise NoEvidence(f"llama.cpp's published {study} on {shelf.gpu or 'this GPU'}")
        return float(rows["tok_s"].max())

    return measure


def _class_share(name: str) -> Measure:
    def measure(shelf: Shelf) -> float:
        frame = time_breakdown.by_class(shelf.traced(1024, variant="graph"))
        return float(frame[frame["class"] == name]["pct"].sum()) / 100

    return measure


_FIGURES = (
    _s(
        "1",
        "32",
        "figure",
        "A prompt of 1K tokens goes from 109 to 2853 tokens a second, 26 times.",
        "08b_prefill#The ladder",
        None,
        Asked(
            "fastest own way over the slowest, 1848 tokens, Q8_0",
            _TIMES,
            more(1.02),
            lambda shelf: _prefill("q8_0", PROMPT)(shelf) / _prefill("q8_0", PROMPT, True)(shelf),
        ),
        GPU,
    ),
    _s(
        "2",
        "32",
        "figure",
        "llama.cpp takes a prompt in faster, 8000 tokens a second.",
        "08b_prefill#The ladder",
        Asked(
            "llama.cpp (published) over ours, Qwen2.5-1.5B, Q8_0",
            _TIMES,
            more(1),
            _ratio(_llama("prefill"), _prefill("q8_0", PROMPT)),
        ),
    ),
    _s(
        "3",
        "34",
        "figure",
        "Decoding goes from 49 to 59 tokens a second; llama.cpp has 78.",
        "08_decoder#The ladder",
        Asked(
            "llama.cpp (published) over ours, Qwen2.5-1.5B, Q8_0",
            _TIMES,
            more(1),
            _ratio(_llama("decode"), _decode),
        ),
    ),
    _s(
        "4",
        "29",
        "figure",
        "The branch closes the gap to llama.cpp on prompts.",
        "08b_prefill#The ladder",
        Asked(
            "its own figures, after over llama.cpp",
            _SHARE,
            about(1.0),
            _ratio(
                _published("prefill", "prefill", "after", "tok_s"),
                _published("prefill", "prefill", "llama.cpp", "tok_s"),
            ),
        ),
    ),
    _s(
        "5",
        "40, 147, 163",
        "finding",
        "At 1848 tokens attention is 67 % of a prompt's time.",
        "06d_decode#The whole prompt",
        Asked(
            "by its scalar kernel here, Gemma 4 E4B's layers",
            _SHARE,
            about(0.67, 0.15),
            _prompt_share("share_before", PROMPT),
        ),
    ),
    _s(
        "6",
        "40",
        "finding",
        "The share grows with the prompt: 30 % was a short prompt's.",
        "06d_decode#The whole prompt",
        Asked(
            f"by its scalar kernel here, share at {_LENGTHS[-1]} tokens over {_LENGTHS[0]}",
            _TIMES,
            more(1.5),
            _ratio(_prompt_share("share_before", _LENGTHS[-1]), _prompt_share("share_before", _LENGTHS[0])),
        ),
    ),
    _s(
        "7",
        "40, 180",
        "finding",
        "The scalar kernel is bound by memory, for it reads keys and values again.",
        "06_attention#When did it stop being memory-bound?",
        Asked("its DRAM, busy", "{:.1f}%", more(50), _counted("1_scalar", "dram_pct")),
    ),
    _s(
        "8",
        "40, 170",
        "finding",
        "It reads each key and value up to 512 times.",
        "06_attention#Prediction",
        Asked("times asked for, on average", "{:.0f}", about(512, 0.2), _again),
    ),
    _s(
        "9",
        "40, 180",
        "finding",
        "It stays 79 times below the compute peak.",
        "06_attention#When did it stop being memory-bound?",
        Asked("FP32 peak over achieved", "{:.0f}×", about(79, 0.3), _off_peak),
        Asked("FP32 peak over achieved", "{:.0f}×", more(10), _off_peak),
    ),
    _s(
        "10",
        "46, 155",
        "ladder",
        "Int8 MMQ beats dequantising and cuBLAS: 332 to 316 ms.",
        "05e_tokens#Crossovers",
        *_gain("", 332 / 316, _ratio(_baseline, _exact), "baseline over the fastest exact rung, 1848 tokens"),
    ),
    _s(
        "11",
        "46, 135",
        "ladder",
        "MMQ reads each weight once.",
        "05d_mmq#Bytes read again: predicted, then counted",
        Asked(
            "bytes from DRAM over bytes once, tuned rung, 512 tokens",
            _TIMES,
            about(1, 0.15),
            lambda shelf: _mmq_counter("5_tuned", "dram_read_bytes")(shelf) / (34 / 32 * 8192 * (8192 + 512)),
        ),
    ),
    _s(
        "12",
        "47",
        "ladder",
        "Tiled attention with half2: 929 to 245 ms, 3.8 times.",
        "06_attention#The gate, then the clock",
        *_gain("", 3.8, _ratio(_SCALAR, _HALF2), "scalar over half2"),
    ),
    _s(
        "13",
        "181",
        "ladder",
        "Eight queries a block: 929 to 411 ms, 2.26 times.",
        "06_attention#The gate, then the clock",
        *_gain("", 2.26, _ratio(_SCALAR, _TILED_8), "scalar over 8 queries"),
    ),
    _s(
        "14",
        "192-194",
        "ladder",
        "Sixteen queries: 411 to 382 ms, a diminishing return.",
        "06_attention#The gate, then the clock",
        *_gain("", 411 / 382, _ratio(_TILED_8, _TILED_16), "8 queries over 16"),
    ),
    _s(
        "15",
        "195",
        "ladder",
        "What is left is arithmetic, not reading keys and values.",
        "06_attention#When did it stop being memory-bound?",
        Asked("DRAM busy, 16 queries", "{:.0f}%", less(50), _counted("2_tiled", "dram_pct")),
    ),
    _s(
        "16",
        "199-211",
        "ladder",
        "Products of halves: 382 to 245 ms, 1.56 times.",
        "06_attention#The gate, then the clock",
        *_gain("", 1.56, _ratio(_TILED_16, _HALF2), "16 queries over half2"),
    ),
    _s(
        "17",
        "48, 215-223",
        "ladder",
        "One launch for all tokens' embeddings: 62 to 17 ms.",
        "05c_around#Looking a prompt up",
        *_gain(
            "",
            62 / 17,
            _ratio(
                lambda shelf: shelf.us("q8_0", operator="embed", impl="1_token", clock="wall"),
                lambda shelf: shelf.us("q8_0", operator="embed", impl="2_batched", clock="wall"),
            ),
            "called one by one over at once",
        ),
    ),
    _s(
        "18",
        "87-88",
        "ladder",
        "A side path by TF32 products: 106 to 6 ms.",
        "05c_around#A side path in FP32",
        *_gain(
            "",
            106 / 6,
            _ratio(
                lambda shelf: shelf.us("q8_0", operator="side", impl="torch.mv"),
                lambda shelf: shelf.us("q8_0", operator="side", impl="torch.matmul", format="tf32"),
            ),
            "matvecs over one TF32 product",
        ),
    ),
    _s(
        "19",
        "51, 97",
        "ladder",
        "dp4a on quantised activations is faster than decoding each weight to a float.",
        "05b_decode#The gate, then the clock",
        Asked(
            "float rung over dp4a", _TIMES, more(1.02), _ratio(_decode_q8("1_float"), _decode_q8("2_dp4a"))
        ),
    ),
    _s(
        "20",
        "109-111",
        "ladder",
        "Graphs gain 9 to 10 % of decoding.",
        "05c_around#Launches, and a graph of them",
        *_gain(
            "",
            1.095,
            _ratio(_chain("event", "bare=1"), _chain("graph")),
            "a chain launched bare over its graph",
        ),
    ),
    _s(
        "21",
        "101",
        "rule",
        "A capture forbids asking for memory, so buffers are made before.",
        "05c_around#The rule: nothing new inside a capture",
        Asked("1 if such a capture fails", _YES, least(1), _captured),
    ),
    _s(
        "22",
        "93-94",
        "finding",
        "Decoding is bound by matrices (71 %), not attention (6.4 %).",
        "02_attribution#Who was it?",
        Asked("weight products' share, graph, context 1024", _SHARE, about(0.71), _class_share("weight")),
        Asked("attention's share", _SHARE, less(0.1), _class_share("attention")),
    ),
    _s(
        "23",
        "143",
        "rule",
        "The int8 dot product is exact.",
        "05d_mmq#Who holds what",
        Asked("exact cases with an error", _COUNT, less(1), _exact_errors),
    ),
    _s(
        "24",
        "153",
        "rule",
        "cp.async cannot copy Q8_0 blocks: their quants lie at multiples of 2 bytes only.",
        "05d_mmq#The ladder",
        Asked(
            "bytes of a block, beyond multiples of 4",
            _YES,
            about(2, 0.0),
            lambda shelf: float(formats.Q8_0.itemsize % 4),
        ),
    ),
    _s(
        "25",
        "150-152",
        "ladder",
        "Loads kept in registers hide latency.",
        "05d_mmq#The gate, then the clock",
        Asked("rung 1 over rung 2", _TIMES, more(1.02), _ratio(_prepared("1_tile"), _prepared("2_prefetch"))),
    ),
    _s(
        "26",
        "154",
        "ladder",
        "A tile twice as wide reads the weights half as often.",
        "05d_mmq#Bytes read again: predicted, then counted",
        Asked(
            "bytes into SMs, rung 2 over rung 3",
            _TIMES,
            more(1.2),
            _ratio(_mmq_counter("2_prefetch", "sm_read_bytes"), _mmq_counter("3_wide", "sm_read_bytes")),
        ),
    ),
    _s(
        "27",
        "162",
        "finding",
        "The 16 ms that MMQ wins are 1 % of a prompt.",
        "07b_predicting#Prompts",
        Asked(
            "16 ms of 1848 tokens at 1389 a second",
            "{:.1%}",
            about(0.01, 0.25),
            lambda shelf: (
                0.016 / (PROMPT / _published("prefill", "prefill", "scalar_attention", "tok_s")(shelf))
            ),
        ),
    ),
    _s(
        "28",
        "67",
        "finding",
        "In the end matrices are 45 % and attention 36 % of a prompt.",
        "08b_prefill#Where the time goes",
        Asked(
            "its own 316 ms of 1848 tokens at 2920 a second",
            _SHARE,
            about(0.45, 0.05),
            lambda shelf: (
                _published("mmq", "matmul_total", "mmq")(shelf)
                / 1e6
                * _published("prefill", "prefill", "batched_embedding", "tok_s")(shelf)
                / PROMPT
            ),
        ),
    ),
    _s(
        "29",
        "69",
        "limit",
        "The rest needs tensor-core attention at a width of 512, which is limited by occupancy.",
        "06b_wide#Hopper's rungs",
        Asked(
            "half2 rung over the fastest at 512",
            _TIMES,
            more(1.5),
            _ratio(_attend("3_half2", _WHOLE), _fastest(_WHOLE)),
        ),
    ),
    _s(
        "30",
        "57",
        "rule",
        "The fast paths are not bit-exact, but keep the likeliest token.",
        "06c_trust#The word that a decoder says",
        Asked(
            "words changed though their logits lie apart",
            _COUNT,
            less(1),
            lambda shelf: float(shelf.answer("attention", "words", "changed though apart").sum()),
        ),
    ),
    _s(
        "31",
        "208-209",
        "rule",
        "Keys in FP16 stay within 5e-3 of the output's RMS.",
        "06c_trust#The source's test, and its allowances",
        Asked(
            "outputs beyond that, half2",
            _COUNT,
            less(1),
            lambda shelf: float(
                (lambda v: v[v.index.str.contains("3_half2")].sum())(
                    shelf.answer("attention", "tolerance", "beyond FP16 keys")
                )
            ),
        ),
    ),
    _s(
        "32",
        "161, 159",
        "rule",
        "Every path end to end: the likeliest token, and four of the top five.",
        "08c_engine#Every path",
        Asked(
            "least of the top five in common",
            _YES,
            least(4),
            lambda shelf: float(shelf.answer("decode", "agreement", "top 5").min()),
        ),
    ),
    _s(
        "33",
        "63",
        "claim",
        "120 tests of its CUDA suite were green.",
        "",
        needs="its test suite, its model file and its GPU",
    ),
    _s(
        "34",
        "77",
        "ladder",
        "Products once for all tokens instead of a matvec for each: 111 to 1575 tokens a second.",
        "05e_tokens#The sweep",
        *_gain(
            "",
            14.2,
            _ratio(
                lambda shelf: (
                    PROMPT
                    * shelf.us(
                        "q8_0", operator="q8_0", impl="4_planes", n=4096, k=14336, batch=1, cache="cold"
                    )
                    / (4096 * 14336)
                    * 8192
                    * 8192
                ),
                _baseline,
            ),
            "a matvec a token over dequantising and cuBLAS, 1848 tokens",
        ),
    ),
)

_REVIEW = (
    _s(
        "R1",
        "274, 306",
        "review",
        "Shifting and masking instead of dividing speeds a kernel up.",
        "05c_around#A review's suggestions",
        Asked("before over after", _TIMES, more(1.02), _suggested("1, 2")),
    ),
    _s(
        "R3",
        "332",
        "review",
        "One 16-bit load of the scale instead of two bytes: dp4a.",
        "05c_around#A review's suggestions",
        Asked("before over after", _TIMES, more(1.02), _suggested("3")),
    ),
    _s(
        "R4",
        "350",
        "review",
        "The same in MMQ's loader.",
        "05c_around#A review's suggestions",
        Asked("before over after", _TIMES, more(1.02), _suggested("4")),
    ),
    _s(
        "R5",
        "369",
        "review",
        "The same where weights are dequantised.",
        "05c_around#A review's suggestions",
        Asked("before over after", _TIMES, more(1.02), _suggested("5")),
    ),
    _s(
        "R6",
        "389",
        "review",
        "Sizes must be checked before they are cast.",
        "05c_around#The check before the cast",
        Asked("1 if 2^31 activations are refused", _YES, least(1), _overflow),
    ),
    _s(
        "R7",
        "412",
        "review",
        "A list of tokens need not be copied before it is uploaded.",
        "",
        needs="its C# host code",
    ),
)

STATEMENTS: tuple[Statement, ...] = (*_FIGURES, *_REVIEW)
