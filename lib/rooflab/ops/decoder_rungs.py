"""The ladder of decode_step, which rooflab.ops.decoder launches."""

from __future__ import annotations

from rooflab.ops import PORTABLE, Rung

_MACROS = {
    **{"FORMAT": 0, "HEAD_FORMAT": 0, "HEAD_DIM": 64},
    **{"HIDDEN": 256, "MLP": 512, "HEADS": 4, "KV_HEADS": 2},
    **{"WARPS": 4, "STAGES": 3, "SLOTS": 20, "TEAM": 1},
}

STEP: tuple[Rung, ...] = (
    Rung(
        "decode_step",
        "1_kernel_per_phase",
        "decode_step_kernel_per_phase",
        "a launch a phase, products with what stands between them",
        defines=_MACROS,
        dynamic_shared=59232,
    ),
    Rung(
        "decode_step",
        "2_pdl",
        "decode_step_pdl",
        "weights on their way before the phase before has ended",
        defines=_MACROS,
        dynamic_shared=59232,
    ),
    Rung(
        "decode_step",
        "3_persistent",
        "decode_step_persistent",
        "one launch, a barrier across the grid between phases",
        defines=_MACROS,
        dynamic_shared=59232,
    ),
    Rung(
        "decode_step",
        "4_tma",
        "decode_step_tma",
        "copies weights by TMA: one lane starts the copy of a whole chunk",
        defines=_MACROS,
        archs=("90a",),
        dynamic_shared=59328,
    ),
    Rung(
        "decode_step",
        "5_prefetch_at_barrier",
        "decode_step_prefetch_at_barrier",
        "3_persistent, with the last slots of a phase filled again at the barrier",
        defines={**_MACROS, "HELD_BACK": 1, "FIRST_HELD": 2},
        dynamic_shared=59232,
        changes="3_persistent",
    ),
    Rung(
        "decode_step",
        "6_producer_warps",
        "decode_step_producer_warps",
        "3_persistent, with weights copied by warps that do nothing else",
        defines={**_MACROS, "PRODUCERS": 4, "DEPTH": 12, "IDLE_DEPTH": 4},
        archs=PORTABLE[1:],
        dynamic_shared=59232,
        changes="3_persistent",
    ),
    Rung(
        "decode_step",
        "7_split_k",
        "decode_step_split_k",
        "two products divided along k, so that all blocks have work and need little of x",
        defines={
            **_MACROS,
            **{"OUT_SLABS": 2, "DOWN_SLABS": 2, "PRODUCERS": 4, "DEPTH": 12, "IDLE_DEPTH": 4},
            **{"HELD_BACK": 1, "FIRST_HELD": 2},
        },
        archs=PORTABLE[1:],
        dynamic_shared=59232,
    ),
    Rung(
        "decode_step",
        "8_tensor_attention",
        "decode_step_tensor_attention",
        "all heads of a group attend together, on the tensor cores",
        defines={
            **_MACROS,
            **{"OUT_SLABS": 2, "DOWN_SLABS": 2, "PRODUCERS": 4, "DEPTH": 12, "IDLE_DEPTH": 4},
            **{"HELD_BACK": 1, "FIRST_HELD": 2, "TENSOR_ATTENTION": 1},
        },
        archs=PORTABLE[1:],
        dynamic_shared=59232,
    ),
    Rung(
        "decode_step",
        "9_flags_in_data",
        "decode_step_flags_in_data",
        "7_split_k, with flags in what blocks hand on and no barrier between phases",
        defines={
            **_MACROS,
            **{"OUT_SLABS": 2, "DOWN_SLABS": 2, "PRODUCERS": 4, "DEPTH": 12, "IDLE_DEPTH": 4},
            **{"HELD_BACK": 1, "FIRST_HELD": 2, "FLAGS_IN_DATA": 1},
        },
        archs=PORTABLE[1:],
        dynamic_shared=59232,
        changes="7_split_k",
    ),
    Rung(
        "decode_step",
        "10_int4_bytes",
        "decode_step_int4_bytes",
        "9_flags_in_data, with codes of INT4 multiplied as bytes",
        defines={
            **_MACROS,
            **{"OUT_SLABS": 2, "DOWN_SLABS": 2, "PRODUCERS": 4, "DEPTH": 12, "IDLE_DEPTH": 4},
            **{"HELD_BACK": 1, "FIRST_HELD": 2, "FLAGS_IN_DATA": 1, "INT4_BYTES": 1},
        },
        archs=PORTABLE[1:],
        dynamic_shared=59232,
    ),
)
