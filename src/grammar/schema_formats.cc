// String formats as patterns. Where a grammar of an RFC allows more than is ever wanted (comments
// in addresses, years of any length) the usual part of it is generated: every text made is of the
// format.
#include "grammar/schema_compiler.h"

namespace tandem::grammar {
namespace {

struct Format {
  std::string_view name;
  const char* pattern;
};

#define TANDEM_DATE                                                                                \
  "(?:(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]["  \
  "0-9]|30)|02-(?:0["                                                                              \
  "1-9]|1[0-9]|2[0-8])))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26]" \
  ")00)-02-29)"
// Without leap seconds, which are added below.
#define TANDEM_TIME                                                          \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:[Zz]|[+-]" \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define TANDEM_OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define TANDEM_IPV4 TANDEM_OCTET "(?:\\." TANDEM_OCTET "){3}"
#define TANDEM_H16 "[0-9A-Fa-f]{1,4}"
#define TANDEM_LS32 "(?:" TANDEM_H16 ":" TANDEM_H16 "|" TANDEM_IPV4 ")"
#define TANDEM_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define TANDEM_PCT "%[0-9A-Fa-f]{2}"
#define TANDEM_PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|" TANDEM_PCT ")"
#define TANDEM_AUTHORITY                                                       \
  "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|" TANDEM_PCT ")*@)?(?:\\[(?:" TANDEM_IPV6 \
  ")\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|" TANDEM_PCT ")*)(?::[0-9]*)?"
#define TANDEM_IPV6                                                                              \
  "(?:" TANDEM_H16 ":){6}" TANDEM_LS32 "|::(?:" TANDEM_H16 ":){5}" TANDEM_LS32 "|(?:" TANDEM_H16 \
  ")?::(?:" TANDEM_H16 ":){4}" TANDEM_LS32 "|(?:(?:" TANDEM_H16 ":){0,1}" TANDEM_H16             \
  ")?::(?:" TANDEM_H16 ":){3}" TANDEM_LS32 "|(?:(?:" TANDEM_H16 ":){0,2}" TANDEM_H16             \
  ")?::(?:" TANDEM_H16 ":){2}" TANDEM_LS32 "|(?:(?:" TANDEM_H16 ":){0,3}" TANDEM_H16             \
  ")?::" TANDEM_H16 ":" TANDEM_LS32 "|(?:(?:" TANDEM_H16 ":){0,4}" TANDEM_H16 ")?::" TANDEM_LS32 \
  "|(?:(?:" TANDEM_H16 ":){0,5}" TANDEM_H16 ")?::" TANDEM_H16 "|(?:(?:" TANDEM_H16               \
  ":){0,6}" TANDEM_H16 ")?::"
#define TANDEM_HIER_TAIL "(?:/" TANDEM_PCHAR "*)*"
#define TANDEM_URI_END "(?:\\?(?:" TANDEM_PCHAR "|[/?])*)?(?:#(?:" TANDEM_PCHAR "|[/?])*)?"
#define TANDEM_ROOTED "/(?:" TANDEM_PCHAR "+" TANDEM_HIER_TAIL ")?"
#define TANDEM_ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"

constexpr Format kFormats[] = {
    {"date", "^" TANDEM_DATE "$"},
    {"duration",
     "^P(?:[0-9]{1,9}W|(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|["
     "0-9]{1,9}D)(?:T(?:[0-9]{1,"
     "9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?|T(?:[0-9]{1,9}"
     "H(?:[0-9]{1,9}M(?:[0-9]{1,"
     "9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))$"},
    {"email", "^(?:" TANDEM_ATOM "(?:\\." TANDEM_ATOM
              ")*|\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\")@(?:" TANDEM_LABEL "(?:\\." TANDEM_LABEL
              ")*|\\[" TANDEM_IPV4 "\\]|\\[IPv6:(?:" TANDEM_IPV6 ")\\])$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"ipv4", "^" TANDEM_IPV4 "$"},
    {"ipv6", "^(?:" TANDEM_IPV6 ")$"},
    {"hostname", "^" TANDEM_LABEL "(?:\\." TANDEM_LABEL ")*$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]*:(?://" TANDEM_AUTHORITY TANDEM_HIER_TAIL "|" TANDEM_ROOTED
            "|(?:" TANDEM_PCHAR "+" TANDEM_HIER_TAIL ")?)" TANDEM_URI_END "$"},
    {"uri-reference",
     "^(?:[A-Za-z][A-Za-z0-9+.-]*:(?://" TANDEM_AUTHORITY TANDEM_HIER_TAIL "|" TANDEM_ROOTED
     "|(?:" TANDEM_PCHAR "+" TANDEM_HIER_TAIL ")?)|(?://" TANDEM_AUTHORITY TANDEM_HIER_TAIL
     "|" TANDEM_ROOTED "|(?:(?:[A-Za-z0-9._~!$&'()*+,;=@-]|" TANDEM_PCT ")+" TANDEM_HIER_TAIL
     ")?))" TANDEM_URI_END "$"},
    {"json-pointer", "^(?:/(?:[^~/]|~[01])*)*$"},
    {"relative-json-pointer", "^(?:0|[1-9][0-9]{0,8})(?:#|(?:/(?:[^~/]|~[01])*)*)$"},
};

}  // namespace

namespace {

std::string two_digits(int value) {
  return std::string{static_cast<char>('0' + value / 10), static_cast<char>('0' + value % 10)};
}

// A leap second ends a UTC day: which local time that is follows from the offset, of whole or half
// hours.
std::string time_pattern() {
  std::string out = "(?:" TANDEM_TIME "|23:59:60(?:\\.[0-9]{1,9})?[Zz]";
  constexpr int kDay = 24 * 60;
  for (int offset = 0; offset < kDay; offset += 30) {
    for (const int sign : {1, -1}) {
      const int local = (2 * kDay - 1 + sign * offset) % kDay;
      out += "|" + two_digits(local / 60) + ":" + two_digits(local % 60) + ":60(?:\\.[0-9]{1,9})?" +
             (sign > 0 ? "\\+" : "-") + two_digits(offset / 60) + ":" + two_digits(offset % 60);
    }
  }
  return out + ")";
}

}  // namespace

const char* format_pattern(std::string_view name) {
  static const std::string kTime = "^" + time_pattern() + "$";
  static const std::string kDateTime = "^" TANDEM_DATE "[Tt]" + time_pattern() + "$";
  if (name == "time") return kTime.c_str();
  if (name == "date-time") return kDateTime.c_str();
  for (const Format& format : kFormats) {
    if (format.name == name) return format.pattern;
  }
  return nullptr;
}

}  // namespace tandem::grammar
