// What a thread knows to have happened, for the race detector: a vector clock, as a tree of blocks, their warps and their
// lanes. A release makes anew what leads to its own lane and shares the rest, and where two trees share a part, or one has
// heard of the release that made the other's, nothing below it is looked at.
#include "state.h"

#include <algorithm>

namespace simt {

// The release that made a part of a tree: a thread that has acquired it has acquired the whole part. Time 0 for what was put
// together from several.
struct Origin {
  uint32_t by = 0;
  uint64_t time = 0;
};
struct Known::Lanes {
  Origin origin;  // by lane
  uint64_t latest = 0;
  uint64_t time[32] = {};
};
struct Known::Warps {
  Origin origin;         // by thread of the block
  uint64_t barrier = 0;  // all that the block did before is known
  std::vector<std::shared_ptr<const Lanes>> warps;
};
struct Known::All {
  Origin origin;  // by thread of the grid
  std::vector<std::pair<uint32_t, std::shared_ptr<const Warps>>> blocks;  // sorted
};

namespace {

typedef std::shared_ptr<const Known::Lanes> LanesPointer;
typedef std::shared_ptr<const Known::Warps> WarpsPointer;

const Known::Warps* find(const Known::All& all, uint32_t block) {
  const auto at = std::lower_bound(all.blocks.begin(), all.blocks.end(), block,
                                   [](const auto& each, uint32_t id) { return each.first < id; });
  return at != all.blocks.end() && at->first == block ? at->second.get() : nullptr;
}

uint64_t time_of(const Known::Warps& one, uint32_t thread) {
  const Known::Lanes* lanes = one.warps[thread / 32].get();
  return lanes ? lanes->time[thread % 32] : 0;
}

bool heard(const Known::Warps& one, const Origin& release) {
  return one.barrier > release.time || time_of(one, release.by) >= release.time;
}

// Does the first know all that the second does? Of lanes, what lies before `barrier` is known anyway.
bool covers(const LanesPointer& one, const LanesPointer& other, uint64_t barrier) {
  if (one == other || !other || other->latest < barrier) return true;
  if (!one) return false;
  if (other->origin.time) return one->time[other->origin.by] >= other->origin.time;
  for (int lane = 0; lane < 32; ++lane)
    if (one->time[lane] < other->time[lane] && other->time[lane] >= barrier) return false;
  return true;
}

bool covers(const WarpsPointer& one, const WarpsPointer& other) {
  if (one == other) return true;
  if (other->origin.time) return heard(*one, other->origin);
  if (one->barrier < other->barrier) return false;
  for (size_t k = 0; k < other->warps.size(); ++k)
    if (!covers(one->warps[k], other->warps[k], one->barrier)) return false;
  return true;
}

bool covers(const Known::All& one, const Known::All& other) {
  if (other.origin.time) {
    const Known::Warps* block = find(one, other.origin.by / threads);
    return block && heard(*block, {other.origin.by % threads, other.origin.time});
  }
  auto at = one.blocks.begin();
  for (const auto& [block, warps] : other.blocks) {
    while (at != one.blocks.end() && at->first < block) ++at;
    if (at == one.blocks.end() || at->first != block || !covers(at->second, warps)) return false;
  }
  return true;
}

// What either knows.
LanesPointer both(const LanesPointer& one, const LanesPointer& other, uint64_t barrier) {
  if (covers(one, other, barrier)) return one && one->latest >= barrier ? one : nullptr;
  if (covers(other, one, barrier)) return other;
  auto made = std::make_shared<Known::Lanes>();
  made->latest = std::max(one->latest, other->latest);
  for (int lane = 0; lane < 32; ++lane) made->time[lane] = std::max(one->time[lane], other->time[lane]);
  return made;
}

WarpsPointer both(const WarpsPointer& one, const WarpsPointer& other) {
  if (covers(one, other)) return one;
  if (covers(other, one)) return other;
  auto made = std::make_shared<Known::Warps>();
  made->barrier = std::max(one->barrier, other->barrier);
  made->warps.reserve(one->warps.size());
  for (size_t k = 0; k < one->warps.size(); ++k) made->warps.push_back(both(one->warps[k], other->warps[k], made->barrier));
  return made;
}

}  // namespace

uint64_t Known::of_block(uint32_t block) const {
  const Warps* found = all ? find(*all, block) : nullptr;
  return found ? found->barrier : 0;
}

uint64_t Known::of_thread(uint32_t thread) const {
  const Warps* found = all ? find(*all, thread / threads) : nullptr;
  return found ? time_of(*found, thread % threads) : 0;
}

void Known::merge(const Known& other) {
  if (!other.all || other.all == all) return;
  if (!all || covers(*other.all, *all)) {
    all = other.all;
    return;
  }
  if (covers(*all, *other.all)) return;
  auto made = std::make_shared<All>();
  made->blocks.reserve(all->blocks.size() + other.all->blocks.size());
  auto one = all->blocks.begin(), end = all->blocks.end();
  for (const auto& each : other.all->blocks) {
    while (one != end && one->first < each.first) made->blocks.push_back(*one++);
    if (one == end || one->first != each.first)
      made->blocks.push_back(each);
    else
      made->blocks.emplace_back(each.first, both(one++->second, each.second));
  }
  made->blocks.insert(made->blocks.end(), one, end);
  all = made;
}

void Known::release(const Block& own, const Fibre& by, uint64_t time) {
  const Warps* known = all ? find(*all, own.linear) : nullptr;
  auto warps = std::make_shared<Warps>();
  warps->barrier = std::max(own.barrier_time, known ? known->barrier : 0);
  if (known) warps->warps = known->warps;
  warps->warps.resize((threads + 31) / 32);
  for (LanesPointer& each : warps->warps)
    if (each && each->latest < warps->barrier) each.reset();

  LanesPointer& place = warps->warps[by.warp];
  auto lanes = place ? std::make_shared<Lanes>(*place) : std::make_shared<Lanes>();
  for (int lane = 0; lane < 32; ++lane) lanes->time[lane] = std::max(lanes->time[lane], by.lane_time[lane]);
  lanes->time[by.lane] = lanes->latest = time;
  lanes->origin = {by.lane, time};
  place = lanes;
  warps->origin = {by.linear, time};

  auto made = all ? std::make_shared<All>(*all) : std::make_shared<All>();
  made->origin = {own.linear * threads + by.linear, time};
  const auto at = std::lower_bound(made->blocks.begin(), made->blocks.end(), own.linear,
                                   [](const auto& each, uint32_t id) { return each.first < id; });
  if (known)
    at->second = warps;
  else
    made->blocks.emplace(at, own.linear, warps);
  all = made;
}

}  // namespace simt
