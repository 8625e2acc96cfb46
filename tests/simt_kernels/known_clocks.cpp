// Threads that wait for each other at random, once with the race detector's shared trees (lib/rooflab/simt/known.cpp) and
// once with a whole vector clock for each thread. Prints how often the two were asked whether an access has happened
// before, how often it had, and how often they differed.
#include <stdio.h>

#include <algorithm>
#include <map>
#include <random>

#include "state.h"

namespace simt {
uint32_t threads;
}
using namespace simt;
typedef std::vector<uint64_t> Clock;  // up to when each thread's accesses have happened

void learn(Clock& clock, const Clock& other) {
  for (size_t k = 0; k < clock.size(); ++k) clock[k] = std::max(clock[k], other[k]);
}

int main() {
  std::mt19937 random(1);
  long asked = 0, known_of = 0, different = 0;
  for (int round = 0; round < 100; ++round) {
    const uint32_t count = 1 + random() % 4;
    threads = 32 * (1 + random() % 3) - (random() % 2 ? random() % 20 : 0);
    std::vector<Block> blocks(count);
    std::vector<Fibre> fibres(count * threads);
    std::vector<Clock> clocks(fibres.size(), Clock(fibres.size())), accesses(fibres.size());
    std::map<int, std::pair<Known, Clock>> published;
    uint64_t now = 0;
    for (uint32_t t = 0; t < fibres.size(); ++t) {
      Fibre& f = fibres[t];
      f.block = &blocks[t / threads], f.block->linear = t / threads, f.block->first = t / threads * threads;
      f.block->barrier_time = 0, f.linear = t % threads, f.lane = f.linear % 32, f.warp = f.linear / 32;
      std::fill(f.lane_time, f.lane_time + 32, 0);
    }
    const int addresses = 1 + random() % 8, barriers = random() % 60, warp_barriers = random() % 30;
    for (int step = 0; step < 1500; ++step) {
      const uint32_t me = random() % fibres.size();
      Fibre& f = fibres[me];
      Block& block = *f.block;
      const int what = random() % 1000;
      if (what < barriers) {  // __syncthreads, as in warps.cpp
        Known all;
        Clock clock(fibres.size());
        block.barrier_time = ++now;
        for (uint32_t t = block.first; t < block.first + threads; ++t) {
          all.merge(fibres[t].known), fibres[t].known.clear();
          learn(clock, clocks[t]), clock[t] = now;
        }
        block.known.merge(all);
        for (uint32_t t = block.first; t < block.first + threads; ++t) clocks[t] = clock;
      } else if (what < barriers + warp_barriers) {  // __syncwarp of some lanes
        const uint32_t first = block.first + f.warp * 32, end = std::min(first + 32, block.first + threads);
        const unsigned mask = random() % 2 ? 0xffffffffu : unsigned(random());
        uint64_t lanes[32] = {};
        Known all;
        Clock clock(fibres.size());
        ++now;
        for (uint32_t t = first; t < end; ++t) {
          if (!(mask >> (t - first) & 1)) continue;
          for (int lane = 0; lane < 32; ++lane) lanes[lane] = std::max(lanes[lane], fibres[t].lane_time[lane]);
          lanes[t - first] = now;
          all.merge(fibres[t].known), learn(clock, clocks[t]), clock[t] = now;
        }
        for (uint32_t t = first; t < end; ++t)
          if (mask >> (t - first) & 1)
            memcpy(fibres[t].lane_time, lanes, sizeof lanes), fibres[t].known = all, clocks[t] = clock;
      } else if (what < 700) {  // an atomic access acquires, and may release
        const int address = random() % addresses;
        const auto found = published.find(address);
        if (found != published.end()) f.known.merge(found->second.first), learn(clocks[me], found->second.second);
        if (random() % 2) continue;
        Known out = f.known;
        out.merge(block.known);
        out.release(block, f, ++now);
        Clock clock = clocks[me];
        clock[me] = now;
        published[address] = {out, clock};
      } else {
        accesses[me].push_back(++now);
        for (int k = 0; k < 6; ++k) {  // has one of another thread's last accesses happened? As `before` in watching.cpp
          const uint32_t other = random() % fibres.size();
          if (other == me || accesses[other].empty()) continue;
          const uint64_t time = accesses[other].end()[-1 - int(random() % std::min<size_t>(3, accesses[other].size()))];
          const uint32_t theirs = other / threads, thread = other % threads;
          bool before = false;
          if (theirs == block.linear)
            before = time < block.barrier_time || (thread / 32 == f.warp && time <= f.lane_time[thread % 32]);
          for (const Known* known : {&f.known, &block.known})
            before |= time < known->of_block(theirs) || time <= known->of_thread(other);
          ++asked, known_of += before, different += before != (time <= clocks[me][other]);
        }
      }
    }
  }
  printf("%ld %ld %ld\n", asked, known_of, different);
}
