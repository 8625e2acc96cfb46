// What the parts of the runtime share: the launch at hand, its fibres and blocks, what was seen so far.
#pragma once
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "simt/runtime.h"

#if !defined(__x86_64__) && !defined(ROOFLAB_UCONTEXT)
#define ROOFLAB_UCONTEXT
#endif
#ifdef ROOFLAB_UCONTEXT
#include <ucontext.h>
#endif

namespace simt {

// --- what Python sees (mirrored field by field in abi.py) ------------------------------------------------------------

enum FaultKind {
  OUT_OF_BOUNDS, MISALIGNED, RACE, UNINITIALISED, DIVERGENT_BARRIER, DIVERGENT_WARP, INACTIVE_LANE, ENDLESS_WAIT, CRASH,
  TRAP, STACK_OVERFLOW, UNFINISHED_COPY, WRONG_MEMORY, ENDLESS_LOOP
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
  uint64_t traced;   // accesses to note down at most
  uint64_t steps;    // the most straight pieces of code that a watched launch may run
  uint64_t seconds;  // the most that a launch may compute for
  const Buffer* buffers;
  const Variable* variables;
  uint32_t buffer_count, variable_count, argument_count;
};

// --- the launch at hand ----------------------------------------------------------------------------------------------


enum State { READY, AT_BARRIER, AT_WARP, ENDED };
constexpr size_t STACK = 64 << 10, FRESH = 4 << 10;  // a fibre's, and how much of it a block's start wipes
// From one stack to the next: by whole powers of two, a block's stacks would be in each other's place in every cache.
constexpr size_t STRIDE = STACK + 13 * 64;
constexpr uint64_t CANARY = 0x5ca1ab1e0ddba11u;
constexpr int IDLE_ROUNDS = 2000;
constexpr size_t STACK_GUARD = 1 << 20;  // below the first stack: never accessed

struct Block;
struct Fibre;
// Up to when accesses of other blocks and threads are known to have happened (known.cpp). Many fibres know the same, so
// they share one copy, which nothing changes.
class Known {
 public:
  bool empty() const { return !all; }
  void clear() { all.reset(); }
  uint64_t of_block(uint32_t block) const;    // the time of its last barrier known of; 0 where nothing is known
  uint64_t of_thread(uint32_t thread) const;  // 0 too where its block's time says as much
  void merge(const Known& other);
  // Add what thread `by` knows of itself and its neighbours: all that it releases at `time`, which no other release has.
  void release(const Block& own, const Fibre& by, uint64_t time);

  struct Lanes;
  struct Warps;
  struct All;

 private:
  std::shared_ptr<const All> all;
};
struct Mark {  // an access: thread + 1, 0 for none
  uint32_t who = 0, how = 0;
  uint64_t pc = 0, time = 0;
  bool marked() const { return who; }
};
// One T for each cell of a region, all zero at first; memory is taken where a cell is touched.
template <typename T>
class Sparse {
 public:
  explicit operator bool() const { return cells != nullptr; }
  void make(size_t count) { cells.reset(static_cast<T*>(calloc(count, sizeof(T)))); }
  void clear() { cells.reset(); }
  T& operator[](size_t k) const { return cells.get()[k]; }

 private:
  struct Free {
    void operator()(T* all) const { free(all); }
  };
  std::unique_ptr<T, Free> cells;
};
struct Reads {
  Mark last, other;  // other is by another warp than last
  bool marked() const { return last.who; }
};
struct Writes {
  Mark last, plain;  // plain is neither atomic nor volatile
  bool marked() const { return last.who; }
};
struct Shadow {  // what a region's cells were last accessed by
  Sparse<Reads> reads;
  Sparse<Writes> writes;
  Sparse<Mark> late;  // the copy that will write here once it is waited for
  int shift = 2;      // 4 bytes a cell, until an access is smaller
};

struct Copy {  // started, and not done
  char* to;
  const char* from;
  int size, take;
  uint32_t group;
  uint64_t pc;
  bool sound;  // nothing was wrong with it when it was started
};

struct alignas(64) Fibre {  // what every turn looks at comes first
#ifdef ROOFLAB_UCONTEXT
  ucontext_t context;
#else
  void* sp;
#endif
  char* stack;
  Block* block;
  uint32_t state, spun, lane, warp;
  uint3 index;
  int operation;
  unsigned mask;
  int argument;
  uint64_t value[2];
  int width, predicate, result, line;
  uint32_t linear;
  const char* file;
  uint64_t waits_at;  // where the loop is that waits
  const void* waits_for;  // the value that it waits for, what it found there last, and whether that was in the same loop
  char found[16];
  int wait_size;
  bool again;
  uint64_t lane_time[32];
  Known known;
  std::vector<Copy> copies;
  uint32_t group;  // that copies are put into now
};
struct Warp {  // masks of its lanes: at an operation of the warp, at __activemask, at a barrier; ended, or never there
  uint32_t waiting, asking, held, gone;
  uint32_t ready() const { return ~(waiting | held | gone); }
};
struct Block {
  uint32_t linear, first;  // first fibre
  uint3 index;
  uint32_t arrived, ended;
  int accumulated;
  uint64_t barrier_time;
  Known known;
  std::vector<Warp> warps;
  Shadow shared;
  std::vector<char> saved;  // shared memory while another block of a cooperative launch runs
};
struct Image {
  uint64_t start, end;
};

extern const Launch* launch;
extern uint64_t argument_room[64];  // in this library, where accesses are not watched
extern void* argument_list[64];
extern std::vector<Fibre> fibres;
extern std::vector<Block> blocks;
extern Fibre* self;
extern Block* entered;
extern uint32_t threads;
extern char* stacks;
extern size_t stack_room;
extern std::vector<Fault> faults;
extern std::unordered_map<std::string, size_t> fault_index;
extern std::vector<Event> events;
extern std::vector<Shadow> shadows;
extern std::unordered_map<uint64_t, Known> published;
extern std::vector<Image> images;
extern char* tls;
extern uint64_t tls_size, now, dropped_events, steps;
extern uint64_t counts[SIMT_COUNTED];  // executed: products by warps, the others by threads
extern bool stopped;
extern volatile sig_atomic_t interrupted;

// --- fibres (runtime.cpp) --------------------------------------------------------------------------------------------

void hand_over();          // let others run until there is reason to come back
[[noreturn]] void stop();  // end the launch here and now: the fibres are left where they stand

// --- faults (faults.cpp) ---------------------------------------------------------------------------------------------

// The fault of this kind at the place that `key` names: a new one, or the one that is repeated (count > 1).
Fault& report(int kind, const std::string& key, uint32_t thread);
void report_deadlock();  // no fibre can run: say which waits where, and which never came
void report_endless(uint64_t pc, uint64_t limit, const char* of);  // the limit is passed here
bool same_place(const Fibre& a, const Fibre& b);
const char* name_of(const Fibre& f);  // of what it waits at
const char* base_name(const char* path);

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

// --- warps (warps.cpp) -----------------------------------------------------------------------------------------------

void try_warp(Fibre& f);  // complete the operation that `f` waits for, if all it names have come
bool release_active(uint32_t from, uint32_t to);  // of these fibres, those that wait at __activemask

// --- watching (watching.cpp) -----------------------------------------------------------------------------------------

bool access(uint64_t address, int size, int how, uint64_t pc);  // check it and note it down; false if it is a stray
void require(const void* address, int size, int how, bool shared, const char* what, uint64_t pc);

}  // namespace simt
