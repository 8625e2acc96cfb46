// Runs a grid on one OS thread: every CUDA thread is a fibre with a stack of its own, which runs until it has to wait
// (at a barrier, a warp operation, an atomic load in a loop) and hands over to the next. Blocks run one after another,
// or, for a cooperative launch, all at once. In the watched build the kernel also calls the hooks of thread sanitizer
// (at the end of this file), by which every load and store is checked and noted down.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <link.h>
#include <pthread.h>

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "matrices.h"

#if !defined(__x86_64__) && !defined(ROOFLAB_UCONTEXT)
#define ROOFLAB_UCONTEXT
#endif
#ifdef ROOFLAB_UCONTEXT
#include <ucontext.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

// --- what Python sees (mirrored field by field in run.py) ------------------------------------------------------------

enum FaultKind {
  OUT_OF_BOUNDS, MISALIGNED, RACE, UNINITIALISED, DIVERGENT_BARRIER, DIVERGENT_WARP, INACTIVE_LANE, ENDLESS_WAIT, CRASH,
  TRAP, STACK_OVERFLOW, UNFINISHED_COPY, WRONG_MEMORY
};
// How memory is accessed. LATE: by a copy that is only started; NOTED: noted down before.
enum { READ = 0, WRITE = 1, SOFT = 2, ATOMIC = 4, UNALIGNED = 8, LATE = 16, NOTED = 32 };
enum { SHARED = -1, NOWHERE = -2 };                                 // regions that are no buffer

struct Buffer {
  uint64_t start, end;              // the array
  uint64_t guard_start, guard_end;  // with the guard zones around it
};
struct Variable {  // one shared variable: place in the thread-local block
  uint64_t offset, size;
  uint64_t guard;  // place of the byte by which the host's compiler remembers that it is made, or ~0
};
struct Fault {
  int32_t kind, region, size, how, other_how, line;
  int64_t offset;
  uint64_t pc, other_pc, count;
  uint32_t block[3], other_block[3], thread, other_thread, threads[8], thread_count;
  const char* file;
  char text[400];
};
struct Event {
  uint64_t address, pc;  // the address as an offset into its region
  uint32_t block, thread;
  int32_t region;
  uint16_t size, how;
};
struct Launch {
  void (*entry)(void**);
  const uint64_t* arguments;  // each in 8 bytes
  uint32_t grid[3], block[3];
  uint32_t cooperative, watched;
  uint64_t traced;  // accesses to note down at most
  const Buffer* buffers;
  const Variable* variables;
  uint32_t buffer_count, variable_count, argument_count;
};

// --- state -----------------------------------------------------------------------------------------------------------

namespace {

enum State { READY, AT_BARRIER, AT_WARP, ENDED };
constexpr size_t STACK = 64 << 10;
constexpr uint64_t CANARY = 0x5ca1ab1e0ddba11u;
constexpr int IDLE_ROUNDS = 2000;
constexpr size_t STACK_GUARD = 1 << 20;  // below the first stack: nobody may go there

typedef std::unordered_map<uint32_t, uint64_t> Times;
struct Known {  // up to when accesses of other blocks and threads are known to have happened
  Times blocks, threads;
  void merge(const Known& other) {
    for (auto& [who, time] : other.blocks) blocks[who] = blocks[who] > time ? blocks[who] : time;
    for (auto& [who, time] : other.threads) threads[who] = threads[who] > time ? threads[who] : time;
  }
};
struct Mark {  // an access: thread + 1, 0 for none
  uint32_t who = 0, how = 0;
  uint64_t pc = 0, time = 0;
};
struct Cell {
  Mark write, read, other_read;  // the last of each; other_read is by another warp than read
  Mark late;                     // the copy that will write here once it is waited for
};
struct Shadow {
  std::vector<Cell> cells;
  int shift = 2;  // 4 bytes a cell, until an access is smaller
};

struct Copy {  // started, and not done
  char* to;
  const char* from;
  int size, take;
  uint32_t group;
  uint64_t pc;
  bool sound;  // nothing was wrong with it when it was started
};

struct Block;
struct Fibre {
#ifdef ROOFLAB_UCONTEXT
  ucontext_t context;
#else
  void* sp;
#endif
  char* stack;
  Block* block;
  uint3 index;
  uint32_t linear, lane, warp, state, spun;
  int operation, argument, width, predicate, result, line;
  unsigned mask;
  const char* file;
  uint64_t waits_at;  // where the loop is that waits
  uint64_t value[2];
  uint64_t lane_time[32];
  Known known;
  std::vector<Copy> copies;
  uint32_t group;  // that copies are put into now
};
struct Block {
  uint32_t linear, first;  // first fibre
  uint3 index;
  uint32_t arrived, ended;
  int accumulated;
  uint64_t barrier_time;
  Known known;
  Shadow shared;
  std::vector<char> saved;  // shared memory while another block of a cooperative launch runs
};
struct Image {
  uint64_t start, end;
};

const Launch* launch;
uint64_t argument_room[64];  // in this library, where accesses are nobody's business
void* argument_list[64];
std::vector<Fibre> fibres;
std::vector<Block> blocks;
Fibre* self;
Block* entered;
uint32_t threads;
char* stacks;
size_t stack_room;
std::vector<Fault> faults;
std::unordered_map<std::string, size_t> fault_index;
std::vector<Event> events;
std::vector<Shadow> shadows;
std::unordered_map<uint64_t, Known> published;
std::vector<Image> images;
char* tls;
uint64_t tls_size, now, dropped_events;
bool stopped;
volatile sig_atomic_t interrupted;

#ifdef ROOFLAB_UCONTEXT
ucontext_t home;
#else
void* home;
extern "C" void simt_switch(void** from, void* to);
__asm__(R"(
.text
.globl simt_switch
.hidden simt_switch
.type simt_switch,@function
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch, .-simt_switch
)");
#endif

// --- faults ----------------------------------------------------------------------------------------------------------

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

void hand_over();

// End the launch here and now: the fibres are left where they stand.
[[noreturn]] void stop() {
  stopped = true;
  hand_over();
  abort();
}

// "0-31, 40" from the threads of `block` for which `wanted` holds.
template <typename F>
std::string list(const Block& block, F wanted) {
  std::string text;
  for (uint32_t t = 0, groups = 0; t < threads; ++t) {
    if (!wanted(fibres[block.first + t])) continue;
    uint32_t last = t;
    while (last + 1 < threads && wanted(fibres[block.first + last + 1])) ++last;
    if (++groups > 4) return text + ", ...";
    text += (text.empty() ? "" : ", ") + std::to_string(t) + (last > t ? "-" + std::to_string(last) : "");
    t = last;
  }
  return text;
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

// Nobody can go on: say who waits where, and who never came.
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
      text += " wait in a loop for a value that nobody writes";
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

// --- fibres ----------------------------------------------------------------------------------------------------------

void swap_shared(Block* block, bool out) {
  size_t used = 0;
  for (uint32_t v = 0; v < launch->variable_count; ++v) used += launch->variables[v].size;
  block->saved.resize(used);
  char* at = block->saved.data();
  for (uint32_t v = 0; v < launch->variable_count; ++v) {
    char* variable = tls + launch->variables[v].offset;
    memcpy(out ? at : variable, out ? variable : at, launch->variables[v].size);
    at += launch->variables[v].size;
  }
}

void enter(Block* block) {
  if (entered == block) return;
  if (launch->cooperative) {
    if (entered) swap_shared(entered, true);
    swap_shared(block, false);
  }
  entered = block;
  blockIdx = block->index;
}

void run_fibre(Fibre& f) {
  enter(f.block);
  self = &f;
  threadIdx = f.index;
#ifdef ROOFLAB_UCONTEXT
  swapcontext(&home, &f.context);
#else
  simt_switch(&home, f.sp);
#endif
  self = nullptr;
  uint64_t canary;
  memcpy(&canary, f.stack, 8);
  if (canary != CANARY) {
    report(STACK_OVERFLOW, "", f.linear);
    stopped = true;
  }
}

void hand_over() {
  Fibre* f = self;
#ifdef ROOFLAB_UCONTEXT
  swapcontext(&f->context, &home);
#else
  simt_switch(&f->sp, home);
#endif
}

void try_warp(Fibre& f);

void fibre_main() {
  launch->entry(argument_list);
  self->state = ENDED;
  ++self->block->ended;
  // Lanes that have ended are not waited for, so others may now be complete.
  Fibre* warp = &fibres[self->block->first + self->warp * 32];
  for (uint32_t lane = 0; lane < 32 && self->warp * 32 + lane < threads; ++lane)
    if (warp[lane].state == AT_WARP) try_warp(warp[lane]);
  hand_over();
  abort();
}

void start(Fibre& f, Block* block, uint32_t linear, char* stack) {
  f.stack = stack;
  f.block = block;
  f.linear = linear;
  f.index = uint3{linear % launch->block[0], linear / launch->block[0] % launch->block[1],
                  linear / launch->block[0] / launch->block[1]};
  f.lane = linear % 32, f.warp = linear / 32;
  f.state = READY, f.spun = 0;
  f.file = "", f.line = 0;
  memset(f.lane_time, 0, sizeof f.lane_time);
  f.known.blocks.clear(), f.known.threads.clear();
  f.copies.clear(), f.group = 0;
  memcpy(stack, &CANARY, 8);
#ifdef ROOFLAB_UCONTEXT
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = stack, f.context.uc_stack.ss_size = STACK, f.context.uc_link = nullptr;
  makecontext(&f.context, fibre_main, 0);
#else
  void** top = reinterpret_cast<void**>(stack + STACK);
  *--top = nullptr;  // where fibre_main would return to, if it did; the stack is aligned as after a call
  *--top = reinterpret_cast<void*>(fibre_main);
  for (int k = 0; k < 6; ++k) *--top = nullptr;
  f.sp = top;
#endif
}

void prepare(Block& block, uint32_t linear, uint32_t first) {
  block.linear = linear;
  block.first = first;
  block.index = uint3{linear % launch->grid[0], linear / launch->grid[0] % launch->grid[1],
                      linear / launch->grid[0] / launch->grid[1]};
  block.arrived = block.ended = 0;
  block.barrier_time = 0;
  block.known.blocks.clear(), block.known.threads.clear();
  block.shared.cells.clear();
  block.shared.shift = 2;
  for (uint32_t t = 0; t < threads; ++t) start(fibres[first + t], &block, t, stacks + STACK * (first + t));
  // A GPU's shared memory holds whatever was there; ours holds NaN (and -1).
  if (launch->cooperative) {
    size_t used = 0;
    for (uint32_t v = 0; v < launch->variable_count; ++v) used += launch->variables[v].size;
    block.saved.assign(used, char(0xff));
  } else {
    for (uint32_t v = 0; v < launch->variable_count; ++v)
      memset(tls + launch->variables[v].offset, 0xff, launch->variables[v].size);
  }
  entered = nullptr;
}

// __activemask: the lanes that got to the same place by the time the warp can't go on without them.
bool release_active(uint32_t from, uint32_t to) {
  for (uint32_t k = from; k < to; ++k) {
    const Fibre& first = fibres[k];
    if (first.state != AT_WARP || first.operation != SIMT_ACTIVE) continue;
    unsigned mask = 0;
    for (uint32_t l = k; l < to; ++l) mask |= unsigned(same_place(fibres[l], first)) << fibres[l].lane;
    for (uint32_t l = to; l-- > k;)
      if (same_place(fibres[l], first)) fibres[l].value[0] = mask, fibres[l].state = READY;
    return true;
  }
  return false;
}

// Run all fibres to their end, or until nobody can go on.
void run_all(uint32_t count) {
  for (int idle = 0;;) {
    bool progress = false, spinning = false, alive = false;
    for (uint32_t warp = 0; warp < count;) {
      const uint32_t end = warp + 32 - fibres[warp].linear % 32;
      uint32_t limit = end;
      const uint32_t block_end = fibres[warp].block->first + threads;
      if (limit > block_end) limit = block_end;
      for (bool moved = true; moved;) {  // a warp goes on as far as it gets by itself
        moved = false;
        for (uint32_t k = warp; k < limit; ++k) {
          Fibre& f = fibres[k];
          if (f.state != READY || (f.spun && moved)) continue;
          f.spun = 0;
          run_fibre(f);
          if (stopped || interrupted) return;
          if (f.spun)
            spinning = true;
          else
            moved = progress = true;
        }
        if (!moved && release_active(warp, limit)) moved = progress = true;
      }
      for (uint32_t k = warp; k < limit; ++k) alive |= fibres[k].state != ENDED;
      warp = limit;
    }
    if (!alive) return;
    idle = progress ? 0 : idle + 1;
    if (!progress && (!spinning || idle > IDLE_ROUNDS)) {
      report_deadlock();
      stopped = true;
      return;
    }
  }
}

// --- warps -----------------------------------------------------------------------------------------------------------

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
  if (f.operation == SIMT_PRODUCT)
    multiply(reinterpret_cast<const Product* const*>(operands), f.argument);
  else
    hand_out(reinterpret_cast<const Rows* const*>(operands), f.argument);
}

// Complete the operation that `f` waits for, if all it names have come.
void try_warp(Fibre& f) {
  Fibre* lanes[32] = {};
  unsigned present = 0;
  const uint32_t first = f.block->first + f.warp * 32;
  if (f.operation == SIMT_ACTIVE) return;  // waits for nobody in particular
  for (uint32_t k = 0; k < 32 && f.warp * 32 + k < threads; ++k) {
    Fibre& other = fibres[first + k];
    lanes[k] = &other;
    if (!(f.mask >> k & 1) || other.state == ENDED) continue;
    if (other.state != AT_WARP || other.operation != f.operation || other.mask != f.mask) return;
    if (f.operation >= SIMT_PRODUCT && other.argument != f.argument) return;
    present |= 1u << k;
  }
  const int operation = f.operation;
  if (operation == SIMT_SYNC) {
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
}

// --- watching --------------------------------------------------------------------------------------------------------

bool before(const Mark& mark) {  // has that access happened before this thread's next one, for all it knows?
  const uint32_t block = (mark.who - 1) / threads, thread = (mark.who - 1) % threads;
  const Block& own = *self->block;
  if (block == own.linear) {
    if (thread == self->linear || mark.time < own.barrier_time) return true;
    if (thread / 32 == self->warp && mark.time <= self->lane_time[thread % 32]) return true;
  }
  const Known* const all[] = {&self->known, &own.known};
  for (const Known* known : all) {
    auto whole = known->blocks.find(block);
    if (whole != known->blocks.end() && mark.time < whole->second) return true;
    auto one = known->threads.find(mark.who - 1);
    if (one != known->threads.end() && mark.time <= one->second) return true;
  }
  return false;
}

void report_race(const Mark& mark, int region, int64_t offset, int size, int how, uint64_t pc) {
  const std::string key = std::to_string(pc) + " " + std::to_string(mark.pc) + " " + std::to_string(region);
  Fault& fault = report(RACE, key, self->linear);
  if (fault.count > 1) return;
  fault.region = region, fault.offset = offset, fault.size = size, fault.how = how, fault.pc = pc;
  fault.other_pc = mark.pc, fault.other_how = int(mark.how), fault.other_thread = (mark.who - 1) % threads;
  const uint32_t block = (mark.who - 1) / threads;
  fault.other_block[0] = block % gridDim.x, fault.other_block[1] = block / gridDim.x % gridDim.y;
  fault.other_block[2] = block / gridDim.x / gridDim.y;
}

void report_unfinished(const Mark& copy, int region, int64_t offset, int size, int how, uint64_t pc) {
  const std::string key = std::to_string(pc) + " " + std::to_string(copy.pc);
  Fault& fault = report(UNFINISHED_COPY, key, self->linear);
  if (fault.count > 1) return;
  fault.region = region, fault.offset = offset, fault.size = size, fault.how = how, fault.pc = pc;
  fault.other_pc = copy.pc, fault.other_how = int(copy.how), fault.other_thread = (copy.who - 1) % threads;
}

void check_race(Shadow& shadow, uint64_t room, int region, uint64_t offset, int size, int how, uint64_t pc) {
  if (shadow.cells.empty()) shadow.cells.resize((room >> shadow.shift) + 1);
  if (shadow.shift && (size < 4 || offset % 4)) {  // bytes from now on
    std::vector<Cell> fine(room + 4);
    for (size_t k = 0; k < room; ++k) fine[k] = shadow.cells[k >> 2];
    shadow.cells.swap(fine);
    shadow.shift = 0;
  }
  const Mark mine{self->block->linear * threads + self->linear + 1, uint32_t(how), pc, now};
  bool told = false;
  for (uint64_t k = offset >> shadow.shift; k <= (offset + size - 1) >> shadow.shift; ++k) {
    Cell& cell = shadow.cells[k];
    if (cell.late.who && !told) {
      report_unfinished(cell.late, region, int64_t(k << shadow.shift), size, how, pc);
      told = true;
    }
    const Mark* marks[] = {&cell.write, &cell.read, &cell.other_read};
    for (int m = 0; m < (how & WRITE ? 3 : 1); ++m)
      if (!told && marks[m]->who && !(marks[m]->how & how & SOFT) && !before(*marks[m])) {
        report_race(*marks[m], region, int64_t(k << shadow.shift), size, how, pc);
        told = true;
      }
    if (region == SHARED && (!(how & WRITE) || how & ATOMIC) && !cell.write.who && !told) {
      Fault& fault = report(UNINITIALISED, std::to_string(pc), self->linear);
      if (fault.count == 1)
        fault.region = region, fault.offset = int64_t(k << shadow.shift), fault.size = size, fault.how = how, fault.pc = pc;
      told = true;
    }
    if (how & LATE)
      cell.late = mine;
    else if (how & WRITE)
      cell.write = mine;
    else {
      if (cell.read.who && (cell.read.who - 1) / 32 != (mine.who - 1) / 32) cell.other_read = cell.read;
      cell.read = mine;
    }
  }
}

bool in_images(uint64_t address) {
  for (const Image& image : images)
    if (address >= image.start && address < image.end) return true;
  return false;
}

// Check an access and note it down; false if it went where it must not.
bool access(uint64_t address, int size, int how, uint64_t pc) {
  if (!self || !launch->watched || address - uint64_t(stacks) < stack_room || !size) return true;
  if (interrupted) stop();
  int region = NOWHERE;
  uint64_t start = 0, end = 0, base = 0;
  const uint64_t in_tls = address - uint64_t(tls);
  if (in_tls < tls_size) {
    region = SHARED, base = uint64_t(tls);
    for (uint32_t v = 0; v < launch->variable_count && size == 1; ++v)
      if (launch->variables[v].guard == in_tls) return true;
    for (uint32_t v = 0; v < launch->variable_count; ++v) {  // the variable it starts in, or the last one before it
      const Variable& variable = launch->variables[v];
      if (variable.offset <= in_tls && base + variable.offset >= start)
        start = base + variable.offset, end = start + variable.size;
    }
  } else {
    for (uint32_t b = 0; b < launch->buffer_count; ++b) {
      const Buffer& buffer = launch->buffers[b];
      if (address < buffer.guard_start || address >= buffer.guard_end) continue;
      region = int(b), base = start = buffer.start, end = buffer.end;
      break;
    }
    if (region == NOWHERE && in_images(address)) return true;
  }
  if (region == NOWHERE || address < start || address + size > end) {
    Fault& fault = report(OUT_OF_BOUNDS, std::to_string(pc) + " " + std::to_string(region), self->linear);
    if (fault.count == 1)
      fault.region = region, fault.offset = int64_t(address - base), fault.size = size, fault.how = how, fault.pc = pc;
    // Guard zones take a stray access; beyond them the process itself would be at risk.
    const bool safe = region == SHARED ? in_tls + size <= tls_size
                                       : region != NOWHERE && address + size <= launch->buffers[region].guard_end;
    if (!safe) stop();
    return false;
  }
  ++now;
  const uint64_t offset = address - base;
  if (!(how & UNALIGNED) && address % uint64_t(size)) {
    Fault& fault = report(MISALIGNED, std::to_string(pc), self->linear);
    if (fault.count == 1)
      fault.region = region, fault.offset = int64_t(offset), fault.size = size, fault.how = how, fault.pc = pc;
    stop();  // as on a GPU; the host's own wide loads would fail too
  }
  if (region == SHARED)
    check_race(self->block->shared, tls_size, region, offset, size, how, pc);
  else
    check_race(shadows[region], end - start, region, offset, size, how, pc);
  if (!launch->traced || how & NOTED) return true;
  if (events.size() >= launch->traced) {
    ++dropped_events;
    stop();
  }
  events.push_back(Event{offset, pc, self->block->linear, self->linear, region, uint16_t(size), uint16_t(how)});
  return true;
}

bool in_shared(const void* address) { return uint64_t(address) - uint64_t(tls) < tls_size; }

// What an instruction asks of an address whatever it is told: the memory it lies in, and its alignment. Ends the
// launch if it is otherwise; the watched build looks further in `access`.
void require(const void* address, int size, int how, bool shared, const char* what, uint64_t pc) {
  const bool right = in_shared(address) == shared && uint64_t(address) - uint64_t(stacks) >= stack_room;
  if (right && uint64_t(address) % uint64_t(size) == 0) return;
  Fault& fault = report(right ? MISALIGNED : WRONG_MEMORY, std::to_string(pc), self->linear);
  fault.size = size, fault.how = how, fault.pc = pc, fault.offset = int64_t(address);
  if (in_shared(address)) fault.region = SHARED, fault.offset -= int64_t(tls);
  for (uint32_t b = 0; b < launch->buffer_count; ++b) {
    const Buffer& buffer = launch->buffers[b];
    if (uint64_t(address) >= buffer.guard_start && uint64_t(address) < buffer.guard_end)
      fault.region = int(b), fault.offset = int64_t(uint64_t(address) - buffer.start);
  }
  snprintf(fault.text, sizeof fault.text, "%s", what);
  stop();
}

void finish(const Copy& copy) {
  if (launch->watched && copy.sound) {
    if (copy.take) access(uint64_t(copy.from), copy.size, READ | NOTED, copy.pc);
    ++now;
    Shadow& shadow = self->block->shared;
    const uint64_t offset = uint64_t(copy.to) - uint64_t(tls);
    for (uint64_t k = offset >> shadow.shift; k <= (offset + copy.size - 1) >> shadow.shift; ++k) {
      shadow.cells[k].write = shadow.cells[k].late;
      shadow.cells[k].write.time = now;
      shadow.cells[k].late = Mark();
    }
  }
  if (copy.take)
    memcpy(copy.to, copy.from, copy.size);
  else
    memset(copy.to, 0, copy.size);
}

// An atomic access acquires what was released through its address, and a write releases what this thread knows.
void synchronise(uint64_t address, bool releases) {
  auto found = published.find(address);
  if (found != published.end()) self->known.merge(found->second);
  if (!releases) return;
  Known& out = published[address];
  const Block& own = *self->block;
  out.merge(self->known);
  out.merge(own.known);
  Known mine;
  if (own.barrier_time) mine.blocks[own.linear] = own.barrier_time;
  const uint32_t first = own.linear * threads;
  for (uint32_t l = 0; l < 32; ++l)
    if (self->lane_time[l]) mine.threads[first + self->warp * 32 + l] = self->lane_time[l];
  mine.threads[first + self->linear] = now;
  out.merge(mine);
}

// --- the launch ------------------------------------------------------------------------------------------------------

sigjmp_buf rescue;
bool too_deep;  // the signal came from below the stacks
pthread_t launching;
struct sigaction old_actions[5];
const int signals[5] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGINT};

void on_signal(int signal, siginfo_t* info, void*) {
  if (!pthread_equal(pthread_self(), launching)) {  // not ours: back to whoever handled it before
    for (int k = 0; k < 5; ++k)
      if (signals[k] == signal) sigaction(signal, &old_actions[k], nullptr);
    if (signal == SIGINT) raise(signal);
    return;
  }
  // An interrupt waits for a moment when nothing is half done; a second one does not.
  if (signal == SIGINT && !interrupted) {
    interrupted = 1;
    return;
  }
  const char* touched = static_cast<char*>(info->si_addr);
  too_deep = signal == SIGSEGV && touched >= stacks - STACK_GUARD && touched < stacks;
  siglongjmp(rescue, signal);
}

int find_image(dl_phdr_info* info, size_t, void*) {
  uint64_t low = ~uint64_t(0), high = 0;
  const ElfW(Phdr)* thread_local_part = nullptr;
  for (int k = 0; k < info->dlpi_phnum; ++k) {
    const ElfW(Phdr)& part = info->dlpi_phdr[k];
    if (part.p_type == PT_TLS) thread_local_part = &part;
    if (part.p_type != PT_LOAD) continue;
    const uint64_t start = info->dlpi_addr + part.p_vaddr;
    if (start < low) low = start;
    if (start + part.p_memsz > high) high = start + part.p_memsz;
  }
  const uint64_t entry = reinterpret_cast<uint64_t>(launch->entry), ours = reinterpret_cast<uint64_t>(&threadIdx);
  if (entry >= low && entry < high) {
    images.insert(images.begin(), {low, high});  // the kernel's own comes first
    if (thread_local_part) {
      tls = static_cast<char*>(info->dlpi_tls_data);
      tls_size = thread_local_part->p_memsz;
    }
  } else if (ours >= low && ours < high) {
    images.push_back({low, high});
  }
  return 0;
}

void run_grid() {
  const uint32_t total = launch->grid[0] * launch->grid[1] * launch->grid[2];
  if (launch->cooperative) {
    blocks.resize(total);
    for (uint32_t b = 0; b < total; ++b) prepare(blocks[b], b, b * threads);
    run_all(total * threads);
    return;
  }
  blocks.resize(1);
  for (uint32_t b = 0; b < total && !stopped && !interrupted; ++b) {
    prepare(blocks[0], b, 0);
    run_all(threads);
  }
}

}  // namespace

extern "C" {

// 0: done (look at the faults); a negative number: the launch could not be set up; else the signal that ended it.
int simt_launch(const Launch* description) {
  launch = description;
  threads = launch->block[0] * launch->block[1] * launch->block[2];
  const uint64_t total = uint64_t(launch->grid[0]) * launch->grid[1] * launch->grid[2];
  const uint64_t count = launch->cooperative ? total * threads : threads;
  blockDim = dim3(launch->block[0], launch->block[1], launch->block[2]);
  gridDim = dim3(launch->grid[0], launch->grid[1], launch->grid[2]);
  if (launch->argument_count > 64) return -3;
  for (uint32_t k = 0; k < launch->argument_count; ++k)
    argument_room[k] = launch->arguments[k], argument_list[k] = &argument_room[k];
  faults.clear(), fault_index.clear(), events.clear(), published.clear(), images.clear();
  shadows.assign(launch->buffer_count, Shadow());
  blocks.clear();
  interrupted = 0;
  self = nullptr, entered = nullptr, stopped = false, now = 0, dropped_events = 0, tls = nullptr, tls_size = 0;
  dl_iterate_phdr(find_image, nullptr);
  if (launch->variable_count && !tls) return -1;
  if (stack_room < count * STACK) {
    if (stacks) munmap(stacks - STACK_GUARD, STACK_GUARD + stack_room);
    stack_room = count * STACK;
    void* room = mmap(nullptr, STACK_GUARD + stack_room, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    stacks = room == MAP_FAILED ? nullptr : static_cast<char*>(room) + STACK_GUARD;
    if (!stacks) return stack_room = 0, -2;
    mprotect(room, STACK_GUARD, PROT_NONE);
  }
  fibres.clear();
  fibres.resize(count);

  static char signal_stack[64 << 10];
  stack_t alternative{}, old_stack{};
  alternative.ss_sp = signal_stack, alternative.ss_size = sizeof signal_stack;
  sigaltstack(&alternative, &old_stack);
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  launching = pthread_self();
  for (int k = 0; k < 5; ++k) sigaction(signals[k], &action, &old_actions[k]);
  const int signal = sigsetjmp(rescue, 1);
  if (!signal)
    run_grid();
  else if (signal != SIGINT)
    report(too_deep ? STACK_OVERFLOW : CRASH, "", self ? self->linear : 0);
  for (int k = 0; k < 5; ++k) sigaction(signals[k], &old_actions[k], nullptr);
  sigaltstack(&old_stack, nullptr);
  self = nullptr;
  return interrupted ? SIGINT : signal;
}

const Fault* simt_faults(uint64_t* count) { return *count = faults.size(), faults.data(); }
const Event* simt_events(uint64_t* count, uint64_t* dropped) {
  *dropped = dropped_events;
  return *count = events.size(), events.data();
}
uint64_t simt_image(void) { return images.empty() ? 0 : images[0].start; }

// --- what kernels call -----------------------------------------------------------------------------------------------

int simt_barrier(int kind, int predicate, const char* file, int line) {
  Fibre& f = *self;
  Block& block = *f.block;
  f.state = AT_BARRIER;
  f.operation = kind, f.file = file, f.line = line, f.predicate = predicate;
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
    if (!other.known.blocks.empty() || !other.known.threads.empty()) {
      known.merge(other.known);
      other.known = Known();
    }
  }
  block.known.merge(known);
  block.barrier_time = ++now;
  for (uint32_t t = 0; t < threads; ++t) fibres[block.first + t].state = READY, fibres[block.first + t].result = result;
  hand_over();  // so that threads go on in their order
  return result;
}

int simt_warp(int operation, unsigned mask, void* value, int size, int argument, int width, const char* file, int line) {
  Fibre& f = *self;
  f.operation = operation, f.mask = mask, f.argument = argument, f.width = width, f.file = file, f.line = line;
  f.result = 0;
  f.value[0] = f.value[1] = 0;
  if (size) memcpy(f.value, value, size);
  f.state = AT_WARP;
  if (!(mask >> f.lane & 1)) {
    Fault& fault = report(DIVERGENT_WARP, "mask", f.linear);
    fault.file = file, fault.line = line;
    snprintf(fault.text, sizeof fault.text, "lane %u calls %s with mask 0x%08x, which does not name it", f.lane,
             name_of(f), mask);
    stop();
  }
  try_warp(f);
  if (f.state == AT_WARP) hand_over();
  if (size) memcpy(value, f.value, size);
  return f.result;
}


void simt_yield(void) {
  self->spun = 1, self->waits_at = uint64_t(__builtin_return_address(0));
  hand_over();
}

void simt_atomic_read(void* to, const void* from, int size, int wait) {
  if (launch->watched) {
    access(uint64_t(from), size, (wait ? READ : WRITE) | SOFT | ATOMIC, uint64_t(__builtin_return_address(0)));
    synchronise(uint64_t(from), !wait);
  }
  if (wait) {
    self->spun = 1, self->waits_at = uint64_t(__builtin_return_address(0));
    hand_over();
  }
  memcpy(to, from, size);
  if (wait && launch->watched) synchronise(uint64_t(from), false);
}

void simt_atomic_write(void* to, const void* from, int size) { memcpy(to, from, size); }

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

void simt_copy_async(void* to, const void* from, int size, int take) {
  const uint64_t pc = uint64_t(__builtin_return_address(0));
  require(to, size, WRITE, true, "cp.async writes shared memory alone", pc);
  bool sound = true;
  if (take) {
    require(from, size, READ, false, "cp.async reads global memory alone", pc);
    sound = access(uint64_t(from), size, READ, pc);
  }
  sound &= access(uint64_t(to), size, WRITE | LATE, pc);
  self->copies.push_back(Copy{static_cast<char*>(to), static_cast<const char*>(from), size, take, self->group, pc, sound});
}

void simt_copy_commit(void) { ++self->group; }

void simt_copy_wait(int pending) {
  std::vector<Copy>& copies = self->copies;
  size_t done = 0;
  while (done < copies.size() && copies[done].group + uint32_t(pending) < self->group) finish(copies[done++]);
  copies.erase(copies.begin(), copies.begin() + std::ptrdiff_t(done));
}

void simt_trap(const char* file, int line) {
  Fault& fault = report(TRAP, "", self->linear);
  fault.file = file, fault.line = line;
  stop();
}

// --- the hooks of thread sanitizer: the kernel's loads and stores ----------------------------------------------------

#define HERE uint64_t(__builtin_return_address(0))
#define HOOKS(N)                                                                                  \
  void __tsan_read##N(void* p) { access(uint64_t(p), N, READ, HERE); }                            \
  void __tsan_write##N(void* p) { access(uint64_t(p), N, WRITE, HERE); }                          \
  void __tsan_unaligned_read##N(void* p) { access(uint64_t(p), N, READ | UNALIGNED, HERE); }      \
  void __tsan_unaligned_write##N(void* p) { access(uint64_t(p), N, WRITE | UNALIGNED, HERE); }    \
  void __tsan_volatile_read##N(void* p) { access(uint64_t(p), N, READ | SOFT, HERE); }            \
  void __tsan_volatile_write##N(void* p) { access(uint64_t(p), N, WRITE | SOFT, HERE); }          \
  void __tsan_unaligned_volatile_read##N(void* p) { access(uint64_t(p), N, READ | SOFT, HERE); }  \
  void __tsan_unaligned_volatile_write##N(void* p) { access(uint64_t(p), N, WRITE | SOFT, HERE); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_read_range(void* p, uint64_t size) { access(uint64_t(p), int(size), READ | UNALIGNED, HERE); }
void __tsan_write_range(void* p, uint64_t size) { access(uint64_t(p), int(size), WRITE | UNALIGNED, HERE); }
void* __tsan_memcpy(void* to, const void* from, uint64_t size) {
  access(uint64_t(from), int(size), READ | UNALIGNED, HERE);
  access(uint64_t(to), int(size), WRITE | UNALIGNED, HERE);
  return memcpy(to, from, size);
}
void* __tsan_memmove(void* to, const void* from, uint64_t size) {
  access(uint64_t(from), int(size), READ | UNALIGNED, HERE);
  access(uint64_t(to), int(size), WRITE | UNALIGNED, HERE);
  return memmove(to, from, size);
}
void* __tsan_memset(void* to, int value, uint64_t size) {
  access(uint64_t(to), int(size), WRITE | UNALIGNED, HERE);
  return memset(to, value, size);
}
void __tsan_init(void) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void) {}
void __tsan_vptr_read(void*) {}
void __tsan_vptr_update(void*, void*) {}
}
