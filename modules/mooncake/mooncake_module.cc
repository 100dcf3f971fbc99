#include "module_interface.h"
#include "mooncake_engine.h"

extern "C" __attribute__((visibility("default"))) const tandem_transport_v1* tandem_transport() {
  static constexpr tandem_transport_v1 kModule =
      tandem::modules::make_interface<tandem_transport_engine, tandem_transport_peer>(
          "mooncake", TANDEM_FENCE_NONE);
  return &kModule;
}
