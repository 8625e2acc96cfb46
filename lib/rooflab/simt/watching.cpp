// What the kernel does with memory: bounds, alignment, races, unwritten memory, copies that are not done. In the
// watched build every load and store comes here by the hooks of thread sanitizer, at the end of this file.
#include "state.h"

namespace simt {
namespace {

bool before(const Mark& mark) {  // has that access happened before this thread's next one, for all it knows?
  const uint32_t block = (mark.who - 1) / threads, thread = (mark.who - 1) % threads;
  const Block& own = *self->block;
  if (block == own.linear) {
    if (thread == self->linear || mark.time < own.barrier_time) return true;
    if (thread / 32 == self->warp && mark.time <= self->lane_time[thread % 32]) return true;
  }
  const Known* const all[] = {&self->known, &own.known};
  for (const Known* known : all) {
    if (mark.time < known->of_block(block) || mark.time <= known->of_thread(mark.who - 1)) return true;
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

template <typename T>
void in_bytes(Sparse<T>& cells, uint64_t room) {
  if (!cells) return;
  Sparse<T> fine;
  fine.make(room + 4);
  for (size_t k = 0; k < room; ++k)
    if (cells[k >> 2].marked()) fine[k] = cells[k >> 2];
  cells = std::move(fine);
}

void check_race(Shadow& shadow, uint64_t room, int region, uint64_t offset, int size, int how, uint64_t pc) {
  if (shadow.shift && (size < 4 || offset % 4)) {  // bytes from now on
    in_bytes(shadow.reads, room), in_bytes(shadow.writes, room), in_bytes(shadow.late, room);
    shadow.shift = 0;
  }
  const size_t count = (room >> shadow.shift) + 4;
  if (how & LATE) {
    if (!shadow.late) shadow.late.make(count);
  } else if (how & WRITE) {
    if (!shadow.writes) shadow.writes.make(count);
  } else if (!shadow.reads) {
    shadow.reads.make(count);
  }
  const Mark mine{self->block->linear * threads + self->linear + 1, uint32_t(how), pc, now}, none;
  bool told = false;
  for (uint64_t k = offset >> shadow.shift; k <= (offset + size - 1) >> shadow.shift; ++k) {
    if (shadow.late && shadow.late[k].who && !told) {
      report_unfinished(shadow.late[k], region, int64_t(k << shadow.shift), size, how, pc);
      told = true;
    }
    const Mark &write = shadow.writes ? shadow.writes[k].last : none, &plain = shadow.writes ? shadow.writes[k].plain : none;
    const Mark* marks[] = {&write, shadow.reads ? &shadow.reads[k].last : &none, shadow.reads ? &shadow.reads[k].other : &none};
    for (int m = 0; m < (how & WRITE ? 3 : 1); ++m)
      if (!told && marks[m]->who && !(marks[m]->how & how & SOFT) && !before(*marks[m])) {
        report_race(*marks[m], region, int64_t(k << shadow.shift), size, how, pc);
        told = true;
      }
    // A plain write races with another thread's atomic though its own atomics came between: that one may come first.
    if (!told && how & ATOMIC && plain.who && !before(plain)) {
      report_race(plain, region, int64_t(k << shadow.shift), size, how, pc);
      told = true;
    }
    if (region == SHARED && (!(how & WRITE) || how & ATOMIC) && !write.who && !told) {
      Fault& fault = report(UNINITIALISED, std::to_string(pc), self->linear);
      if (fault.count == 1)
        fault.region = region, fault.offset = int64_t(k << shadow.shift), fault.size = size, fault.how = how, fault.pc = pc;
      told = true;
    }
    if (how & LATE)
      shadow.late[k] = mine;
    else if (how & WRITE) {
      shadow.writes[k].last = mine;
      if (!(how & SOFT)) shadow.writes[k].plain = mine;
    } else {
      Reads& reads = shadow.reads[k];
      if (reads.last.who && (reads.last.who - 1) / 32 != (mine.who - 1) / 32) reads.other = reads.last;
      reads.last = mine;
    }
  }
}

bool in_images(uint64_t address) {
  for (const Image& image : images)
    if (address >= image.start && address < image.end) return true;
  return false;
}

bool in_shared(const void* address) { return uint64_t(address) - uint64_t(tls) < tls_size; }

}  // namespace

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

namespace {

void finish(const Copy& copy) {
  if (launch->watched && copy.sound) {
    if (copy.take) access(uint64_t(copy.from), copy.size, READ | NOTED, copy.pc);
    ++now;
    Shadow& shadow = self->block->shared;
    const uint64_t offset = uint64_t(copy.to) - uint64_t(tls);
    if (!shadow.writes) shadow.writes.make((tls_size >> shadow.shift) + 4);
    for (uint64_t k = offset >> shadow.shift; k <= (offset + copy.size - 1) >> shadow.shift; ++k) {
      shadow.writes[k].last = shadow.late[k];
      shadow.writes[k].last.time = now;
      shadow.late[k] = Mark();
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
  const Block& own = *self->block;
  Known out = self->known;  // with all that was released there before
  out.merge(own.known);
  out.release(own, *self, ++now);  // no two releases have one time
  published[address] = out;
}

}  // namespace
}  // namespace simt

using namespace simt;

extern "C" {

void simt_atomic_read(void* to, const void* from, int size, int wait) {
  if (launch->watched) {
    access(uint64_t(from), size, (wait ? READ : WRITE) | SOFT | ATOMIC, uint64_t(__builtin_return_address(0)));
    synchronise(uint64_t(from), !wait);
  }
  if (wait) {
    const uint64_t place = uint64_t(__builtin_return_address(0));
    self->again = self->waits_at == place && self->waits_for == from;
    self->spun = 1, self->waits_at = place, self->waits_for = from, self->wait_size = size;
    hand_over();
    memcpy(self->found, from, size);
  }
  memcpy(to, from, size);
  if (wait && launch->watched) synchronise(uint64_t(from), false);
}

void simt_atomic_write(void* to, const void* from, int size) { memcpy(to, from, size); }

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
// The hook of the coverage sanitizer, at the start of every straight piece of code.
void __sanitizer_cov_trace_pc(void) {
  if (!self || ++steps <= launch->steps) return;
  report_endless(HERE, launch->steps, "steps of all its threads");
  stop();
}
void __tsan_init(void) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void) {}
void __tsan_vptr_read(void*) {}
void __tsan_vptr_update(void*, void*) {}
}
