// Lark's common terminals, each as a rule named T of our own.
#include <algorithm>

#include "grammar/expression.h"

namespace tandem::grammar {
namespace {

struct Common {
  std::string_view name;
  std::string_view rule;
};
constexpr Common kCommon[] = {
    {"DIGIT", "T: /[0-9]/"},
    {"HEXDIGIT", "T: /[0-9a-fA-F]/"},
    {"INT", "T: /[0-9]+/"},
    {"SIGNED_INT", "T: /[+-]?[0-9]+/"},
    {"DECIMAL", "T: /[0-9]+\\.[0-9]*|\\.[0-9]+/"},
    {"FLOAT", "T: /[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?/"},
    {"SIGNED_FLOAT",
     "T: /[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)/"},
    {"NUMBER", "T: /([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?/"},
    {"SIGNED_NUMBER", "T: /[+-]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?/"},
    {"ESCAPED_STRING", "T: /\"([^\"\\\\\\n]|\\\\[^\\n])*\"/"},
    {"LCASE_LETTER", "T: /[a-z]/"},
    {"UCASE_LETTER", "T: /[A-Z]/"},
    {"LETTER", "T: /[a-zA-Z]/"},
    {"WORD", "T: /[a-zA-Z]+/"},
    {"CNAME", "T: /[a-zA-Z_][a-zA-Z0-9_]*/"},
    {"WS_INLINE", "T: /[ \\t]+/"},
    {"WS", "T: /[ \\t\\f\\r\\n]+/"},
    {"CR", "T: /\\r/"},
    {"LF", "T: /\\n/"},
    {"NEWLINE", "T: /(\\r?\\n)+/"},
};

}  // namespace

std::string_view common_terminal(std::string_view name) {
  const auto* const known = std::ranges::find(kCommon, name, &Common::name);
  return known == std::end(kCommon) ? std::string_view() : known->rule;
}

}  // namespace tandem::grammar
