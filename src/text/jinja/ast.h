// The parsed template: one node type for expressions and statements; the comment of each kind says
// which fields it uses.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace tandem::text::jinja {

using NodePtr = std::unique_ptr<Node>;

struct Node {
  enum class Kind {
    // Expressions.
    kConstant,   // constant
    kName,       // name
    kList,       // children
    kTuple,      // children
    kDict,       // children: key, value, key, value, ...
    kAttribute,  // children[0] . name
    kItem,       // children[0] [ children[1] ]
    kSlice,      // children[0] [ 1 : 2 : 3 ], the last three may be null
    kCall,       // children[0] ( children[1..], keywords )
    kFilter,  // children[0] | name ( children[1..], keywords ); children[0] null: the block's body
    kTest,    // children[0] is name ( children[1..], keywords )
    kNot,
    kNegate,
    kPlus,    // children[0]
    kBinary,  // children[0] name children[1]
    kAnd,
    kOr,         // children[0], children[1]
    kCompare,    // children[0] names[0] children[1] names[1] children[2] ...
    kConcat,     // children
    kCondition,  // children: test, then, else (may be null)
    // Statements.
    kText,       // name
    kOutput,     // children[0]
    kIf,         // children: tests; bodies: one per test, then else if present
    kFor,        // names: targets; children: iterable, filter (may be null); bodies: body, else;
                 // recursive
    kSet,        // names: targets ("a" or "a.b"); children[0]
    kSetBlock,   // names[0]; children[0]: filters (may be null); bodies[0]
    kMacro,      // name, names: parameters; children: defaults of the last ones; bodies[0]
    kCallBlock,  // names, children[1..]: parameters and defaults; children[0]: the call; bodies[0]
    kFilterBlock,  // children[0]: filters; bodies[0]
    kWith,         // names, children; bodies[0]
    kGroup,        // bodies[0]: passes through (generation)
    kBreak,
    kContinue,
  };
  Kind kind;
  int line = 0;
  bool recursive = false;
  std::string name;
  Value constant;
  std::vector<NodePtr> children;
  std::vector<std::pair<std::string, NodePtr>> keywords;
  std::vector<std::string> names;
  std::vector<std::vector<NodePtr>> bodies;
};

}  // namespace tandem::text::jinja
