// The checks behind Decl::validate(), by file. Each adds one sentence per fault.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mstar/decl/decl.h"

namespace mstar::decl {

class Faults {
 public:
  void add(std::string fault) { list_.push_back(std::move(fault)); }
  // Empty and repeated names of one kind of thing.
  template <class List, class NameOf>
  void names(const std::string& kind, const List& list, NameOf&& name_of) {
    std::set<std::string> seen;
    for (const auto& each : list) {
      const std::string& name = name_of(each);
      if (name.empty())
        add(kind + " without a name");
      else if (!seen.insert(name).second)
        add(kind + " name '" + name + "' is taken twice");
    }
  }
  std::vector<std::string> list() && { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

// validate_parts.cc
void check_resources(const Decl& model, Faults& faults);
void check_components(const Decl& model, Faults& faults);
void check_weights(const Decl& model, Faults& faults);
// validate_walks.cc
// False when a walk or partition names something that is not of this model.
bool check_references(const Decl& model, Faults& faults);
void check_walks(const Decl& model, Faults& faults);

}  // namespace mstar::decl
