// Runs a grid on one OS thread: every CUDA thread is a fibre with a stack of its own, which runs until it has to wait
// (at a barrier, a warp operation, an atomic load in a loop) and hands over to the next. Blocks run one after another,
// or, for a cooperative launch, all at once. Next door: what waits for a warp or a block (warps.cpp), what the watched
// build's hooks see (watching.cpp), what threads know of each other (known.cpp), and how a fault is told (faults.cpp).
#include "state.h"

#include <setjmp.h>
#include <sys/mman.h>

#include <link.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt {

const Launch* launch;
uint64_t argument_room[64];  // in this library, where accesses are not watched
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
uint64_t tls_size, now, dropped_events, steps;
uint64_t counts[SIMT_COUNTED];
bool stopped;
volatile sig_atomic_t interrupted;

namespace {

Fibre* returned;  // the last one that ran: lanes hand over to each other
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

}  // namespace

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
}

void hand_over() {
  Fibre* f = self;
  uint64_t canary;
  memcpy(&canary, f->stack, 8);
  if (canary != CANARY) {
    report(STACK_OVERFLOW, "", f->linear);
    stopped = true;
  }
#ifndef ROOFLAB_UCONTEXT
  // Straight to the next lane that can run, as run_all would choose it.
  const uint32_t later = f->block->warps[f->warp].ready() & ~((2u << f->lane) - 1);
  if (later && !f->spun && !stopped && !interrupted) {
    Fibre* next = f - f->lane + __builtin_ctz(later);
    if (!next->spun) {
      self = next;
      threadIdx = next->index;
      simt_switch(&f->sp, next->sp);
      return;
    }
  }
#endif
  returned = f;
#ifdef ROOFLAB_UCONTEXT
  swapcontext(&f->context, &home);
#else
  simt_switch(&f->sp, home);
#endif
}

void stop() {
  stopped = true;
  hand_over();
  abort();
}

void fibre_main() {
  launch->entry(argument_list);
  self->state = ENDED;
  Warp& warp = self->block->warps[self->warp];
  warp.gone |= 1u << self->lane;
  ++self->block->ended;
  // Lanes that have ended are not waited for, so others may now be complete.
  for (uint32_t lane = 0; warp.waiting >> lane; ++lane) {
    if (warp.waiting >> lane & 1) try_warp(*(self - self->lane + lane));
    if (lane == 31) break;
  }
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
  f.waits_at = 0, f.waits_for = nullptr, f.again = false;
  f.file = "", f.line = 0;
  if (launch->watched) memset(f.lane_time, 0, sizeof f.lane_time);
  f.known.clear();
  f.copies.clear(), f.group = 0;
  memcpy(stack, &CANARY, 8);
  memset(stack + STACK - FRESH, 0xff, FRESH);  // as shared memory, below: an unwritten variable is NaN, or -1
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
  block.known.clear();
  block.warps.assign((threads + 31) / 32, Warp{});
  if (threads % 32) block.warps.back().gone = ~0u << threads % 32;
  block.shared = Shadow();
  for (uint32_t t = 0; t < threads; ++t) start(fibres[first + t], &block, t, stacks + STRIDE * (first + t));
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

// Whether a loop would read again what it read before: while others get on, its thread need not be run for that.
bool waits_in_vain(Fibre& f) {
  if (!f.spun || !f.again) return false;
  enter(f.block);  // whose shared memory it may be
  return memcmp(f.waits_for, f.found, size_t(f.wait_size)) == 0;
}

// Run all fibres to their end, or until none can run.
void run_all(uint32_t count) {
  for (int idle = 0;;) {
    bool progress = false, spinning = false, alive = false;
    for (uint32_t warp = 0; warp < count;) {
      const uint32_t end = warp + 32 - fibres[warp].linear % 32;
      uint32_t limit = end;
      const uint32_t block_end = fibres[warp].block->first + threads;
      if (limit > block_end) limit = block_end;
      const Warp& lanes = fibres[warp].block->warps[fibres[warp].warp];
      for (bool moved = lanes.ready() || lanes.asking; moved;) {  // a warp runs as far as it gets by itself
        moved = false;
        for (uint32_t k = warp; k < limit && lanes.ready() >> (k - warp); ++k) {
          Fibre& f = fibres[k];
          if (f.state != READY || (f.spun && moved)) continue;
          if (!idle && waits_in_vain(f)) {
            spinning = true;
            continue;
          }
          f.spun = 0;
          run_fibre(f);
          if (stopped || interrupted) return;
          if (returned->spun) spinning = true;
          if (returned != &f || !f.spun) moved = progress = true;
          k = uint32_t(returned - fibres.data());
        }
        if (!moved && lanes.asking && release_active(warp, limit)) moved = progress = true;
      }
      alive |= ~lanes.gone != 0;
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

// --- the launch ------------------------------------------------------------------------------------------------------

sigjmp_buf rescue;
bool too_deep;  // the signal came from below the stacks
pthread_t launching;
constexpr int SIGNALS = 6, LATE_SIGNAL = SIGVTALRM;
struct sigaction old_actions[SIGNALS];
const int signals[SIGNALS] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGINT, LATE_SIGNAL};

// Where the launching thread was when a signal came, as a return address; 0 on a processor that we can't ask.
uint64_t interrupted_at(void* context) {
  const mcontext_t& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return uint64_t(machine.gregs[REG_RIP]) + 1;
#elif defined(__aarch64__)
  return uint64_t(machine.pc) + 1;
#else
  return (void)machine, 0;
#endif
}

void on_signal(int signal, siginfo_t* info, void* context) {
  if (!pthread_equal(pthread_self(), launching)) {  // not ours: back to the handler before ours
    for (int k = 0; k < SIGNALS; ++k)
      if (signals[k] == signal) sigaction(signal, &old_actions[k], nullptr);
    if (signal == SIGINT) raise(signal);
    return;
  }
  // An interrupt waits for a moment when nothing is half done; a second one does not.
  if (signal == SIGINT && !interrupted) {
    interrupted = 1;
    return;
  }
  if (signal == LATE_SIGNAL) {
    // Only the kernel's own code can be left where it is; the runtime's is left for the next signal to end.
    const uint64_t pc = interrupted_at(context);
    if (!self || (pc && (images.empty() || pc - images[0].start > images[0].end - images[0].start))) return;
    report_endless(pc, launch->seconds, "seconds of this machine's processor");
    siglongjmp(rescue, signal);
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

// Ask for a signal once this thread has computed for so long, and again and again after that; false if there is none.
bool start_clock(uint64_t seconds, timer_t* clock) {
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID, event.sigev_signo = LATE_SIGNAL;
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
  event.sigev_notify_thread_id = pid_t(syscall(SYS_gettid));
  if (timer_create(CLOCK_THREAD_CPUTIME_ID, &event, clock)) return false;
  itimerspec when{};
  when.it_value.tv_sec = time_t(seconds), when.it_interval.tv_nsec = 10'000'000;
  return timer_settime(*clock, 0, &when, nullptr) == 0;
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

}  // namespace simt

using namespace simt;

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
  shadows.clear(), shadows.resize(launch->buffer_count);
  blocks.clear();
  interrupted = 0;
  self = nullptr, entered = nullptr, stopped = false, now = 0, dropped_events = 0, steps = 0;
  memset(counts, 0, sizeof counts);
  tls = nullptr, tls_size = 0;
  dl_iterate_phdr(find_image, nullptr);
  if (launch->variable_count && !tls) return -1;
  if (stack_room < count * STRIDE) {
    if (stacks) munmap(stacks - STACK_GUARD, STACK_GUARD + stack_room);
    stack_room = count * STRIDE;
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
  for (int k = 0; k < SIGNALS; ++k) sigaction(signals[k], &action, &old_actions[k]);
  timer_t clock;
  const bool limited = start_clock(launch->seconds, &clock);
  int signal = sigsetjmp(rescue, 1);
  if (!signal)
    run_grid();
  else if (signal == LATE_SIGNAL)
    signal = 0;  // the fault is there
  else if (signal != SIGINT)
    report(too_deep ? STACK_OVERFLOW : CRASH, "", self ? self->linear : 0);
  if (limited) timer_delete(clock);
  for (int k = 0; k < SIGNALS; ++k) sigaction(signals[k], &old_actions[k], nullptr);
  sigaltstack(&old_stack, nullptr);
  self = nullptr;
  return interrupted ? SIGINT : signal;
}

const Fault* simt_faults(uint64_t* count) { return *count = faults.size(), faults.data(); }
const Event* simt_events(uint64_t* count, uint64_t* dropped) {
  *dropped = dropped_events;
  return *count = events.size(), events.data();
}
const uint64_t* simt_counts(void) { return counts; }
uint64_t simt_image(void) { return images.empty() ? 0 : images[0].start; }

void simt_count(int what) { ++counts[what]; }

void simt_yield(void) {
  self->spun = 1, self->again = false, self->waits_at = uint64_t(__builtin_return_address(0));
  hand_over();
}

void simt_trap(const char* file, int line) {
  Fault& fault = report(TRAP, "", self->linear);
  fault.file = file, fault.line = line;
  stop();
}
}
