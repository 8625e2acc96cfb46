// What waits for a block or a warp: barriers, shuffles, votes, matches, reductions, matrices.
#include "matrices.h"
#include "state.h"

#include <algorithm>

namespace simt {
namespace {

// Lane that a shuffle reads, or -1 for its own value; the rules of PTX's shfl.sync.
int source_lane(const Fibre& f) {
  const int lane = int(f.lane), width = f.width, segment = lane & ~(width - 1);
  const int last = segment + width - 1;
  switch (f.operation) {
    case SIMT_SHFL: return segment | (f.argument & (width - 1));
    case SIMT_SHFL_UP: return lane - (f.argument & 31) >= segment ? lane - (f.argument & 31) : -1;
    case SIMT_SHFL_DOWN: return lane + (f.argument & 31) <= last ? lane + (f.argument & 31) : -1;
    default: return (lane ^ (f.argument & 31)) <= last ? lane ^ (f.argument & 31) : -1;
  }
}

void reduce(Fibre** lanes, unsigned present, int operation) {
  bool first = true;
  uint32_t total = 0;
  for (int k = 0; k < 32; ++k) {
    if (!(present >> k & 1)) continue;
    uint32_t v;
    memcpy(&v, lanes[k]->value, 4);
    if (first) total = v;
    else switch (operation) {
      case SIMT_ADD: total += v; break;
      case SIMT_MIN_S: total = int32_t(v) < int32_t(total) ? v : total; break;
      case SIMT_MAX_S: total = int32_t(v) > int32_t(total) ? v : total; break;
      case SIMT_MIN_U: total = v < total ? v : total; break;
      case SIMT_MAX_U: total = v > total ? v : total; break;
      case SIMT_AND: total &= v; break;
      case SIMT_OR: total |= v; break;
      default: total ^= v;
    }
    first = false;
  }
  for (int k = 0; k < 32; ++k)
    if (present >> k & 1) memcpy(lanes[k]->value, &total, 4);
}

void shuffle(Fibre** lanes, unsigned present) {
  uint64_t given[32][2];
  for (int k = 0; k < 32; ++k)
    if (present >> k & 1) memcpy(given[k], lanes[k]->value, 16);
  for (int k = 0; k < 32; ++k) {
    if (!(present >> k & 1)) continue;
    Fibre& f = *lanes[k];
    const int source = source_lane(f);
    if (source < 0) continue;
    if (present >> source & 1) {
      memcpy(f.value, given[source], 16);
      continue;
    }
    memset(f.value, 0xff, 16);  // undefined on the GPU
    Fault& fault = report(INACTIVE_LANE, std::string(f.file) + std::to_string(f.line), f.linear);
    if (fault.count > 1) continue;
    fault.file = f.file, fault.line = f.line;
    snprintf(fault.text, sizeof fault.text, "%s by lane %d reads lane %d, which %s", name_of(f), k, source,
             !(f.mask >> source & 1) ? "its mask does not name"
             : lanes[source]         ? "has ended"
                                     : "the block does not have");
  }
}

// An instruction of the whole warp with matrices: there is no such thing as a part of it.
void matrices(const Fibre& f, Fibre** lanes, unsigned present) {
  for (int k = 0; k < 32; ++k) {
    if (present >> k & 1) continue;
    Fault& fault = report(INACTIVE_LANE, std::string(f.file) + std::to_string(f.line), f.linear);
    fault.file = f.file, fault.line = f.line;
    snprintf(fault.text, sizeof fault.text, "%s needs all 32 lanes of the warp, but lane %d %s", name_of(f), k,
             lanes[k] ? "has ended" : "is none that the block has");
    stop();
  }
  const void* operands[32];
  for (int k = 0; k < 32; ++k) operands[k] = reinterpret_cast<const void*>(lanes[k]->value[0]);
  if (f.operation == SIMT_PRODUCT) {
    ++counts[f.argument];
    multiply(reinterpret_cast<const Product* const*>(operands), f.argument);
  } else {
    hand_out(reinterpret_cast<const Rows* const*>(operands), f.argument);
  }
}

}  // namespace

void try_warp(Fibre& f) {
  if (f.operation == SIMT_ACTIVE) return;  // waits for no lane in particular
  Warp& warp = f.block->warps[f.warp];
  if (f.mask & ~(warp.waiting | warp.gone)) return;
  Fibre* lanes[32] = {};
  unsigned present = 0;
  const uint32_t first = f.block->first + f.warp * 32;
  for (uint32_t k = 0; k < 32 && f.warp * 32 + k < threads; ++k) {
    Fibre& other = fibres[first + k];
    lanes[k] = &other;
    if (!(f.mask >> k & 1) || other.state == ENDED) continue;
    if (other.state != AT_WARP || other.operation != f.operation || other.mask != f.mask) return;
    if (f.operation >= SIMT_PRODUCT && other.argument != f.argument) return;
    present |= 1u << k;
  }
  const int operation = f.operation;
  if (operation == SIMT_SYNC && !launch->watched) {  // then nobody asks what threads know of each other
  } else if (operation == SIMT_SYNC) {
    uint64_t merged[32] = {};
    Known known;
    ++now;
    for (int k = 0; k < 32; ++k) {
      if (!(present >> k & 1)) continue;
      for (int l = 0; l < 32; ++l)
        if (lanes[k]->lane_time[l] > merged[l]) merged[l] = lanes[k]->lane_time[l];
      merged[k] = now;
      known.merge(lanes[k]->known);
    }
    for (int k = 0; k < 32; ++k)
      if (present >> k & 1) memcpy(lanes[k]->lane_time, merged, sizeof merged), lanes[k]->known = known;
  } else if (operation <= SIMT_SHFL_XOR) {
    shuffle(lanes, present);
  } else if (operation <= SIMT_BALLOT) {
    unsigned ballot = 0;
    for (int k = 0; k < 32; ++k)
      if (present >> k & 1) ballot |= unsigned(uint32_t(lanes[k]->value[0]) != 0) << k;
    const uint32_t result = operation == SIMT_BALLOT ? ballot
                            : operation == SIMT_ALL  ? ballot == present
                                                     : ballot != 0;
    for (int k = 0; k < 32; ++k)
      if (present >> k & 1) lanes[k]->value[0] = result;
  } else if (operation == SIMT_MATCH_ANY || operation == SIMT_MATCH_ALL) {
    uint64_t given[32];
    for (int k = 0; k < 32; ++k) given[k] = present >> k & 1 ? lanes[k]->value[0] : 0;
    for (int k = 0; k < 32; ++k) {
      if (!(present >> k & 1)) continue;
      unsigned same = 0;
      for (int l = 0; l < 32; ++l) same |= unsigned((present >> l & 1) && given[l] == given[k]) << l;
      lanes[k]->result = same == present;
      lanes[k]->value[0] = operation == SIMT_MATCH_ANY || same == present ? same : 0;
    }
  } else if (operation < SIMT_ACTIVE) {
    reduce(lanes, present, operation);
  } else {
    matrices(f, lanes, present);
  }
  for (int k = 0; k < 32; ++k)
    if (present >> k & 1) lanes[k]->state = READY;
  warp.waiting &= ~present;
}

// __activemask: the lanes that got to the same place by the time the warp can't run without them.
bool release_active(uint32_t from, uint32_t to) {
  for (uint32_t k = from; k < to; ++k) {
    const Fibre& first = fibres[k];
    if (first.state != AT_WARP || first.operation != SIMT_ACTIVE) continue;
    unsigned mask = 0;
    for (uint32_t l = k; l < to; ++l) mask |= unsigned(same_place(fibres[l], first)) << fibres[l].lane;
    for (uint32_t l = to; l-- > k;)
      if (same_place(fibres[l], first)) fibres[l].value[0] = mask, fibres[l].state = READY;
    Warp& warp = first.block->warps[first.warp];
    warp.waiting &= ~mask, warp.asking &= ~mask;
    return true;
  }
  return false;
}

}  // namespace simt

using namespace simt;

extern "C" {

int simt_barrier(int kind, int predicate, const char* file, int line) {
  Fibre& f = *self;
  Block& block = *f.block;
  f.state = AT_BARRIER;
  f.operation = kind, f.file = file, f.line = line, f.predicate = predicate;
  block.warps[f.warp].held |= 1u << f.lane;
  if (++block.arrived < threads) {
    hand_over();
    return f.result;
  }
  block.arrived = 0;
  int result = kind == SIMT_BARRIER_AND;
  Known known;
  for (uint32_t t = 0; t < threads; ++t) {
    Fibre& other = fibres[block.first + t];
    if (!same_place(other, f)) {
      Fault& fault = report(DIVERGENT_BARRIER, std::string(file) + std::to_string(line), f.linear);
      if (fault.count == 1) {
        fault.file = file, fault.line = line;
        const std::string here = list(block, [&](const Fibre& g) { return same_place(g, f); });
        snprintf(fault.text, sizeof fault.text, "threads %s wait here while thread %u waits at %s (%s:%d)", here.c_str(),
                 other.linear, name_of(other), base_name(other.file), other.line);
      }
      break;
    }
  }
  for (uint32_t t = 0; t < threads; ++t) {
    Fibre& other = fibres[block.first + t];
    if (kind == SIMT_BARRIER_AND) result &= other.predicate != 0;
    if (kind == SIMT_BARRIER_OR) result |= other.predicate != 0;
    if (kind == SIMT_BARRIER_COUNT) result += other.predicate != 0;
    known.merge(other.known);
    other.known.clear();
  }
  block.known.merge(known);
  block.barrier_time = ++now;
  for (uint32_t t = 0; t < threads; ++t) fibres[block.first + t].state = READY, fibres[block.first + t].result = result;
  for (Warp& warp : block.warps) warp.held = 0;
  hand_over();  // so that threads run in their order
  return result;
}

int simt_warp(int operation, unsigned mask, void* value, int size, int argument, int width, const char* file, int line) {
  Fibre& f = *self;
  f.operation = operation, f.mask = mask, f.argument = argument, f.width = width, f.file = file, f.line = line;
  f.result = 0;
  f.value[0] = f.value[1] = 0;
  if (size == 4) memcpy(f.value, value, 4);
  else if (size) memcpy(f.value, value, size);
  f.state = AT_WARP;
  Warp& warp = f.block->warps[f.warp];
  warp.waiting |= 1u << f.lane;
  if (operation == SIMT_ACTIVE) warp.asking |= 1u << f.lane;
  if (!(mask >> f.lane & 1)) {
    Fault& fault = report(DIVERGENT_WARP, "mask", f.linear);
    fault.file = file, fault.line = line;
    snprintf(fault.text, sizeof fault.text, "lane %u calls %s with mask 0x%08x, which does not name it", f.lane,
             name_of(f), mask);
    stop();
  }
  try_warp(f);
  if (f.state == AT_WARP) hand_over();
  if (size == 4) memcpy(value, f.value, 4);
  else if (size) memcpy(value, f.value, size);
  return f.result;
}

void simt_product(int kind, void* d, const unsigned* a, const unsigned* b, const char* file, int line) {
  const Product mine{d, a, b};
  const Product* place = &mine;
  simt_warp(SIMT_PRODUCT, 0xffffffffu, &place, sizeof place, kind, 32, file, line);
}

void simt_load_matrix(int count, unsigned* registers, const void* row, const char* file, int line) {
  const uint64_t pc = uint64_t(__builtin_return_address(0));
  if (int(self->lane) < 8 * abs(count)) {
    require(row, 16, READ, true, "ldmatrix reads shared memory alone", pc);
    access(uint64_t(row), 16, READ, pc);
  }
  const Rows mine{registers, row};
  const Rows* place = &mine;
  simt_warp(SIMT_LOAD_MATRIX, 0xffffffffu, &place, sizeof place, count, 32, file, line);
}
}
