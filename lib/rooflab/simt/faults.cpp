// How a fault is told: one entry for a place that goes wrong, however often, and the story of a deadlock.
#include "state.h"

namespace simt {

void place(uint32_t* out, const uint3& p) { out[0] = p.x, out[1] = p.y, out[2] = p.z; }

Fault& report(int kind, const std::string& key, uint32_t thread) {
  auto [found, fresh] = fault_index.try_emplace(std::to_string(kind) + " " + key, faults.size());
  if (!fresh) {
    Fault& fault = faults[found->second];
    ++fault.count;
    bool listed = false;
    for (uint32_t k = 0; k < fault.thread_count; ++k) listed |= fault.threads[k] == thread;
    if (!listed && fault.thread_count < 8) fault.threads[fault.thread_count++] = thread;
    return fault;
  }
  faults.emplace_back();
  Fault& fault = faults.back();
  memset(&fault, 0, sizeof fault);
  fault.kind = kind, fault.region = NOWHERE, fault.count = 1;
  fault.thread = fault.threads[0] = thread, fault.thread_count = 1;
  if (entered) place(fault.block, entered->index);
  return fault;
}

const char* name_of(const Fibre& f) {
  static const char* barriers[] = {"__syncthreads", "__syncthreads_and", "__syncthreads_or", "__syncthreads_count"};
  static const char* warps[] = {"__syncwarp", "__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync",
                                "__all_sync", "__any_sync", "__ballot_sync", "__match_any_sync", "__match_all_sync",
                                "__reduce_add_sync", "__reduce_min_sync", "__reduce_min_sync", "__reduce_max_sync",
                                "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync", "__reduce_xor_sync",
                                "__activemask", "mma.sync", "ldmatrix"};
  return f.state == AT_BARRIER ? barriers[f.operation] : warps[f.operation];
}

bool same_place(const Fibre& a, const Fibre& b) {
  return a.state == b.state && a.operation == b.operation && a.line == b.line && strcmp(a.file, b.file) == 0;
}

const char* base_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

void report_endless(uint64_t pc, uint64_t limit, const char* of) {
  Fault& fault = report(ENDLESS_LOOP, "", self->linear);
  fault.pc = pc;
  snprintf(fault.text, sizeof fault.text,
           "the launch was ended here after %llu %s: a loop has no end, or the shape is too large for the CPU",
           (unsigned long long)limit, of);
}

void report_deadlock() {
  for (Block& block : blocks) {
    const Fibre* first = nullptr;
    for (uint32_t t = 0; t < threads && !first; ++t)
      if (fibres[block.first + t].state != ENDED) first = &fibres[block.first + t];
    if (!first) continue;
    entered = &block;
    const bool spins = first->state == READY;
    std::string text = "threads " + list(block, [&](const Fibre& f) {
      return spins ? f.state == READY : f.state != READY && same_place(f, *first);
    });
    if (spins)
      text += " wait in a loop for a value that no thread writes";
    else {
      text += std::string(" wait at ") + name_of(*first);
      char mask[32];
      if (first->state == AT_WARP) {
        snprintf(mask, sizeof mask, " with mask 0x%08x", first->mask);
        text += mask;
      }
    }
    const std::string ended = list(block, [](const Fibre& f) { return f.state == ENDED; });
    if (!ended.empty()) text += "; threads " + ended + " have ended";
    std::vector<const Fibre*> told{first};
    for (uint32_t t = 0; t < threads; ++t) {
      const Fibre& other = fibres[block.first + t];
      bool known = other.state == ENDED || (other.state == READY && spins);
      for (const Fibre* seen : told) known |= other.state != READY && same_place(other, *seen);
      if (known || told.size() > 3) continue;
      if (other.state == READY) {
        text += "; threads " + list(block, [](const Fibre& f) { return f.state == READY; }) + " wait in a loop";
        break;
      }
      told.push_back(&other);
      text += "; threads " + list(block, [&](const Fibre& f) { return f.state != READY && same_place(f, other); }) +
              " wait at " + name_of(other) + " (" + base_name(other.file) + ":" + std::to_string(other.line) + ")";
    }
    const int kind = spins ? ENDLESS_WAIT : first->state == AT_BARRIER ? DIVERGENT_BARRIER : DIVERGENT_WARP;
    Fault& fault = report(kind, std::to_string(block.linear), first->linear);
    if (spins)
      fault.pc = first->waits_at;
    else
      fault.file = first->file, fault.line = first->line;
    snprintf(fault.text, sizeof fault.text, "%s", text.c_str());
    return;  // one block tells the story
  }
}

}  // namespace simt
