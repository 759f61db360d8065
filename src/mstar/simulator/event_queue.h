// What happens next in virtual time.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

namespace mstar::simulator {

// Events of one time come in the order in which they were added.
template <class What>
class EventQueue {
 public:
  struct Event {
    std::int64_t at_ns = 0;
    std::uint64_t number = 0;
    What what = {};
  };
  void add(std::int64_t at_ns, What what) { events_.push({at_ns, next_number_++, what}); }
  bool empty() const { return events_.empty(); }
  Event pop() {
    Event next = events_.top();
    events_.pop();
    return next;
  }

 private:
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.at_ns != b.at_ns ? a.at_ns > b.at_ns : a.number > b.number;
    }
  };
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  std::uint64_t next_number_ = 0;
};

}  // namespace mstar::simulator
