"""Drawings of mechanisms, each computed from what the code does: recorded CPU runs, launch rules, sources,
recorded profiles.

    diagram.launch(N, sms)            # in a notebook a drawing shows itself
    diagram.coalescing().svg()        # its text, to stand alone

A drawing with several frames is a still image of all of them in a notebook; the course's pages add a slider.
"""

from rooflab.view.diagram.asked_first import asked_first
from rooflab.view.diagram.barriers import barriers_met
from rooflab.view.diagram.block_at_work import divided_weights, slots_over_time
from rooflab.view.diagram.budgets import budget
from rooflab.view.diagram.built_on import Node, rung_tree
from rooflab.view.diagram.by_block import blocks
from rooflab.view.diagram.caches import caches
from rooflab.view.diagram.checks import check_of_drafts
from rooflab.view.diagram.choices import choice
from rooflab.view.diagram.clocks import clocks
from rooflab.view.diagram.columns import holders, partial_scores
from rooflab.view.diagram.context import split_context, words_of_a_row
from rooflab.view.diagram.copies import keys_and_values, ring_of_a_warp, tiles_along_k
from rooflab.view.diagram.counters import where_counted
from rooflab.view.diagram.crossings import crossings, handed_on, in_a_row, shots
from rooflab.view.diagram.exchange import block_sum
from rooflab.view.diagram.full_and_empty import ring
from rooflab.view.diagram.gates import Instrument, gate_steps, passed_on
from rooflab.view.diagram.graphs import capture, two_clocks
from rooflab.view.diagram.handovers import launches_of_a_layer, launches_over_time
from rooflab.view.diagram.host_and_gpu import host_and_gpu
from rooflab.view.diagram.in_flight import Held, bytes_held
from rooflab.view.diagram.in_turns import in_turns
from rooflab.view.diagram.issue import issue_slots
from rooflab.view.diagram.key_loads import key_loads
from rooflab.view.diagram.launches import dealt, launch, sms_at_work, split_k
from rooflab.view.diagram.layers import layer, ways
from rooflab.view.diagram.mailbox import two_slots
from rooflab.view.diagram.memory import banks, coalescing, q8_layouts, row_loads
from rooflab.view.diagram.mmq_blocks import divided_along_k, warpgroups_take_turns
from rooflab.view.diagram.mmq_tiles import fragments_of_a_warp, order_of_tiles, weights_read
from rooflab.view.diagram.model import one_token
from rooflab.view.diagram.nan_leak import nan_leak
from rooflab.view.diagram.number_lines import Line, number_lines
from rooflab.view.diagram.operators import launches_fused
from rooflab.view.diagram.over_time import loads_in_flight, of_lab, pipeline
from rooflab.view.diagram.paired import paired_over_time
from rooflab.view.diagram.passes import passes
from rooflab.view.diagram.phase_costs import beside_bytes, phase_costs
from rooflab.view.diagram.pools import captured_address
from rooflab.view.diagram.reading import warps_on_weights, weights_of_a_lane, x_beside_weights
from rooflab.view.diagram.requests import Width, lanes_in_sectors, warp_requests
from rooflab.view.diagram.roles import warp_roles
from rooflab.view.diagram.roofs import path_of_bytes
from rooflab.view.diagram.rounding import two_orders
from rooflab.view.diagram.rule import layer_by_rule
from rooflab.view.diagram.shared_places import places
from rooflab.view.diagram.shared_weights import bytes_and_flops, weights_shared
from rooflab.view.diagram.sharing import readings, slots, tokens_share_a_tile
from rooflab.view.diagram.split import split_layer
from rooflab.view.diagram.staying import four_changes, shared_copies, who_copies
from rooflab.view.diagram.steps import half_layers
from rooflab.view.diagram.strips import column_strip, pieces_of_rows, rows_and_columns
from rooflab.view.diagram.svg import Canvas, Drawing
from rooflab.view.diagram.swizzle import swizzled
from rooflab.view.diagram.terms import Terms, terms_of_time
from rooflab.view.diagram.tiled_weights import tile_order
from rooflab.view.diagram.tiles import (
    accumulators,
    attention_tiles,
    fragments,
    matrices_loaded,
    online_softmax,
    scores_of_a_row,
)
from rooflab.view.diagram.tiles_in_turns import tiles_in_turns, tiles_while_staying
from rooflab.view.diagram.two_warps import half_apart
from rooflab.view.diagram.verdicts import Found, Judged, Tried, tried, verdicts
from rooflab.view.diagram.ways_to_multiply import ways_to_multiply
from rooflab.view.diagram.weight_block import weight_block
from rooflab.view.diagram.wide_stores import lanes_store
from rooflab.view.diagram.words import byte_to_half, dp4a, nibbles, to_half

__all__ = [
    "Canvas",
    "Drawing",
    "Found",
    "Held",
    "Instrument",
    "Judged",
    "Tried",
    "Line",
    "Node",
    "Terms",
    "Width",
    "accumulators",
    "asked_first",
    "attention_tiles",
    "banks",
    "barriers_met",
    "beside_bytes",
    "block_sum",
    "blocks",
    "budget",
    "byte_to_half",
    "bytes_held",
    "caches",
    "capture",
    "captured_address",
    "check_of_drafts",
    "choice",
    "clocks",
    "coalescing",
    "column_strip",
    "crossings",
    "dealt",
    "divided_along_k",
    "divided_weights",
    "dp4a",
    "four_changes",
    "fragments",
    "fragments_of_a_warp",
    "gate_steps",
    "half_apart",
    "half_layers",
    "handed_on",
    "holders",
    "host_and_gpu",
    "in_a_row",
    "in_turns",
    "issue_slots",
    "key_loads",
    "keys_and_values",
    "lanes_in_sectors",
    "lanes_store",
    "launch",
    "launches_fused",
    "launches_of_a_layer",
    "launches_over_time",
    "layer",
    "layer_by_rule",
    "loads_in_flight",
    "matrices_loaded",
    "nan_leak",
    "nibbles",
    "number_lines",
    "of_lab",
    "one_token",
    "online_softmax",
    "order_of_tiles",
    "partial_scores",
    "passed_on",
    "paired_over_time",
    "passes",
    "phase_costs",
    "path_of_bytes",
    "pieces_of_rows",
    "pipeline",
    "places",
    "q8_layouts",
    "readings",
    "ring",
    "ring_of_a_warp",
    "row_loads",
    "rows_and_columns",
    "rung_tree",
    "scores_of_a_row",
    "shared_copies",
    "shots",
    "slots",
    "slots_over_time",
    "sms_at_work",
    "split_context",
    "split_k",
    "split_layer",
    "swizzled",
    "terms_of_time",
    "tile_order",
    "tiles_along_k",
    "tiles_in_turns",
    "tiles_while_staying",
    "to_half",
    "tokens_share_a_tile",
    "tried",
    "two_clocks",
    "two_orders",
    "two_slots",
    "verdicts",
    "warp_requests",
    "warp_roles",
    "warpgroups_take_turns",
    "warps_on_weights",
    "ways",
    "ways_to_multiply",
    "weight_block",
    "weights_of_a_lane",
    "weights_read",
    "weights_shared",
    "bytes_and_flops",
    "where_counted",
    "who_copies",
    "words_of_a_row",
    "x_beside_weights",
]
