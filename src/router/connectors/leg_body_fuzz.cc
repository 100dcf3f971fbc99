// Any body a client may send, over every leg of every connector: what is built is JSON again, no
// member that the row does not name is touched, and facts do not depend on the edits.
#include <cstdint>
#include <cstdlib>

#include "router/connectors/leg_body.h"

namespace {

using namespace tandem::router;

void require(bool good) {
  if (!good) std::abort();
}

bool is_controlled(std::string_view key) {
  for (const std::string_view name : controlled_members()) {
    if (key == name) return true;
  }
  return false;
}

void check_leg(std::string_view body, const BodyFacts& facts, std::string_view leg) {
  const auto scan = tandem::scan_json(leg, {.max_members = 1 << 20});
  require(scan.has_value());
  size_t at = 0;
  for (const tandem::JsonMemberSpan& member : facts.scan.members()) {
    if (is_controlled(member.key)) continue;
    const std::string_view bytes =
        body.substr(member.key_begin, member.value_end - member.key_begin);
    at = leg.find(bytes, at);
    require(at != std::string_view::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const Api api = static_cast<Api>(data[0] % 7);
  const Connector& connector = connectors()[data[1] % connectors().size()];
  const auto body =
      std::make_shared<const std::string>(reinterpret_cast<const char*>(data + 2), size - 2);
  const auto facts = read_facts(api, *body);
  Harvest got;
  if (const auto answered = harvest(connector, api, *body)) got = *answered;
  (void)identity_of(got);
  if (!facts) return 0;
  (void)may_pair(connector, *facts);
  GlobalIds ids(1);
  uint64_t bits = 1;
  if (facts->n > 1000 || facts->batch > 1000) return 0;
  LegValues values = mint(
      connector, *facts, [&] { return bits = bits * 6364136223846793005U + 1; }, ids,
      std::chrono::milliseconds(5));
  values.request_id = "r\n";
  values.bootstrap_host = "::1";
  values.bootstrap_port = 1;
  values.identity = {"e", "h", "1", "1"};
  values.context_endpoint = "c";
  values.prefill_side = values.decode_side = SideAddress{.host = "::1"};
  values.tandem = "{}";
  values.ask_usage = true;
  got.params = "{\"a\":1}";
  got.prompt_token_ids = "[1]";
  for (const LegPart leg :
       {LegPart::kPrefill, LegPart::kDecode, LegPart::kAlone, LegPart::kRelease}) {
    const auto made = make_leg_body(connector, leg, body, *facts, values, &got);
    require(made.has_value());
    check_leg(*body, *facts, made->str());
  }
  return 0;
}
