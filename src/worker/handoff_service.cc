#include "worker/handoff_service.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "observe/log.h"
#include "ops/cpu/dispatch.h"
#include "worker/page_views.h"

namespace tandem::worker {

using kv::PeerId;
using protocol::HandoffFrame;

namespace {

std::vector<ops::LayerPlace> layer_places(const std::vector<model::PageGroup>& groups) {
  size_t layers = 0;
  for (const auto& group : groups) layers += group.layers.size();
  std::vector<ops::LayerPlace> places(layers);
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t slot = 0; slot < groups[group].layers.size(); ++slot) {
      places.at(static_cast<size_t>(groups[group].layers[slot])) = {
          .group = static_cast<int32_t>(group), .slot = static_cast<int32_t>(slot)};
    }
  }
  return places;
}

kv::HandoffShape shape_of(const ops::PageLayout& layout,
                          const std::vector<model::PageGroup>& groups) {
  kv::HandoffShape shape;
  shape.block_tokens = layout.block_tokens;
  shape.page_bytes = layout.page_bytes();
  shape.windows.clear();
  for (const auto& group : groups) shape.windows.push_back(group.window);
  for (const auto& place : layer_places(groups)) shape.layer_groups.push_back(place.group);
  return shape;
}

}  // namespace

void describe_groups(const std::vector<model::PageGroup>& groups, protocol::HelloFrame& hello) {
  const auto places = layer_places(groups);
  hello.layers = static_cast<uint32_t>(places.size());
  hello.windows.clear();
  for (const auto& group : groups) hello.windows.push_back(group.window);
  hello.layer_places.clear();
  for (const auto& place : places) {
    hello.layer_places.push_back(place.group);
    hello.layer_places.push_back(place.slot);
  }
}

HandoffService::HandoffService(engine::Engine& engine, const device::SharedArena& arena,
                               HandoffServiceOptions options, observe::Metrics& metrics)
    : engine_(engine),
      arena_(arena),
      options_(std::move(options)),
      kernels_(ops::cpu::kernels_for(ops::cpu::machine_isa())),
      places_(layer_places(engine.page_groups())),
      shape_(shape_of(engine.layout(), engine.page_groups())),
      digests_(engine::digest_shape(engine.layout(), engine.page_groups()), engine.integrity(),
               options_.faults),
      sent_bytes_(
          metrics.counter("tandem_kv_sent_bytes_total", "KV bytes handed to decode workers.")),
      received_bytes_(metrics.counter("tandem_kv_received_bytes_total",
                                      "KV bytes taken over from prefill workers.")),
      sent_(metrics.counter("tandem_handoffs_sent_total", "Handoffs completed as prefill.")),
      received_(metrics.counter("tandem_handoffs_received_total", "Handoffs completed as decode.")),
      failed_(metrics.counter("tandem_handoffs_failed_total",
                              "Handoffs that ended with an error, on this side.")),
      fenced_(metrics.counter("tandem_handoff_peers_fenced_total",
                              "Peers cut off because they did not acknowledge an abort.")),
      open_(metrics.gauge("tandem_handoffs_open", "Handoffs in progress or draining.")),
      commit_delay_(metrics.histogram(
          "tandem_handoff_after_prefill_seconds",
          "From the end of a prefill to the decode worker's acknowledgement of its KV.",
          {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10})) {}

Result<std::unique_ptr<HandoffService>> HandoffService::create(engine::Engine& engine,
                                                               const device::SharedArena& arena,
                                                               HandoffServiceOptions options,
                                                               observe::Metrics& metrics) {
  std::unique_ptr<HandoffService> service(
      new HandoffService(engine, arena, std::move(options), metrics));
  TANDEM_CHECK(service->open());
  service->reactor_.spawn(service->tick_loop());
  service->thread_ = std::thread([raw = service.get()] { raw->reactor_.run(); });
  return service;
}

Status HandoffService::open() {
  std::optional<kv::PeerAddress> listen;
  if (!options_.listen.empty()) {
    TANDEM_TRY(parsed, kv::parse_peer_address(options_.listen));
    listen = parsed;
  }
  if (!options_.tls.empty()) {
    TANDEM_TRY(tls, kv::TlsContext::load(options_.tls));
    tls_ = std::move(tls);
    options_.peer.tls = tls_.get();
  }
  auto views = std::make_shared<PageViews>(kernels_, engine_.layout(), engine_.model().kv_scales(),
                                           options_.peer.hello.layers);
  if (views->complete()) options_.transports.views = std::move(views);
  // The sender's digests are of its own form: to be compared, its bytes must come so.
  options_.peer.hello.converted = !digests_.on();
  TANDEM_TRY(transports, kv::make_transports(options_.transports, listen ? &*listen : nullptr,
                                             tls_.get(), arena_));
  transports_ = std::move(transports);
  options_.peer.transports = transports_.offered;
  fetcher_ = std::make_unique<kv::PageFetcher>(reactor_, pool_, options_.fetch);
  fetcher_->on_peer_failed = [this](PeerId peer) {
    if (const auto at = peers_.find(peer); at != peers_.end()) at->second.connection->close();
  };
  for (const auto& transport : transports_.owned)
    TANDEM_CHECK(transport->register_local(fetcher_->memory()));
  if (!listen) return {};
  auto listener = kv::PeerListener::listen(
      reactor_, *listen, options_.peer, arena_.shape(),
      [this](const std::shared_ptr<kv::PeerConnection>& peer) { adopt(next_peer_++, peer, ""); });
  if (!listener) return tl::unexpected(listener.error());
  listener_ = std::move(*listener);
  if (listener_->port() != 0) listen->port = listener_->port();
  if (!options_.advertised_host.empty()) listen->host = options_.advertised_host;
  address_ = listen->text();
  return {};
}

HandoffService::~HandoffService() { stop(); }

void HandoffService::stop() {
  if (!thread_.joinable()) return;
  reactor_.stop();
  thread_.join();
  // What the transports still read ends here: nothing writes into this worker's pages afterwards.
  for (const auto& [id, peer] : peers_) {
    if (peer.connection->remote()) peer.connection->remote()->disconnect();
  }
  fetcher_->finish_closing();
  pool_.stop();
  for (const auto& transport : transports_.owned) transport->finish_connecting();
}

kv::OfferEstimate HandoffService::estimate() const {
  return {.prefill_tokens_per_second = engine_.stats().prefill_tokens_per_second,
          .link_bytes_per_second = link_rate_};
}

Status HandoffService::adopt(PeerId id, const std::shared_ptr<kv::PeerConnection>& connection,
                             std::string address) {
  const auto admission =
      registry_.on_hello(id, connection->peer().instance, connection->peer().epoch);
  for (const PeerId old : admission.fence) {
    fenced_.add();
    observe::log_warning("worker {} was restarted: its old connection is closed",
                         connection->peer().instance);
    if (const auto at = peers_.find(old); at != peers_.end()) at->second.connection->close();
  }
  const auto refuse = [&](Error error) -> Status {
    connection->start([](const HandoffFrame& /*frame*/) {}, [] {});
    connection->close();
    return tl::unexpected(std::move(error));
  };
  if (!admission.accepted)
    return refuse(
        {502, "handoff_refused", "The prefill worker was restarted; this is its earlier start."});
  auto importer = PageImporter::make(kernels_, connection->peer(), options_.peer.hello,
                                     engine_.layout(), engine_.model().kv_scales());
  if (!importer) {
    observe::log_warning("a handoff peer was refused: {}", importer.error().message);
    return refuse(std::move(importer).error());
  }
  auto shape = std::make_shared<kv::DigestShape>(
      engine::digest_shape((*importer)->arriving(), engine_.page_groups()));
  peers_.insert_or_assign(id, Peer{connection, std::move(address), *importer, std::move(shape)});
  if (connection->remote()) {
    fetcher_->open_peer(
        id, {connection->remote(), connection->transport().fence(), connection->arena()});
  }
  connection->start([this, id](HandoffFrame frame) { on_frame(id, std::move(frame)); },
                    [this, id] { on_peer_closed(id); });
  return {};
}

uint64_t HandoffService::travelling_page_bytes(PeerId peer) const {
  const auto at = peers_.find(peer);
  ops::PageLayout layout = engine_.layout();
  if (at != peers_.end() && at->second.connection->peer().converted)
    layout.dtype = static_cast<ops::KvDtype>(at->second.connection->peer().kv_dtype);
  return layout.page_bytes();
}

void HandoffService::send_to(PeerId peer, const HandoffFrame& frame) {
  if (const auto at = peers_.find(peer); at != peers_.end()) at->second.connection->send(frame);
}

void HandoffService::on_peer_closed(PeerId peer) {
  peers_.erase(peer);
  registry_.on_closed(peer);
  fetcher_->close_peer(peer);
  std::vector<std::string> sends;
  sends.reserve(sending_.size());
  for (const auto& [id, sending] : sending_) sends.push_back(id);
  for (const auto& id : sends) {
    if (const auto at = sending_.find(id); at != sending_.end())
      run_send(id, at->second.handoff.on_peer_lost(peer, now()));
  }
  std::vector<uint64_t> receives;
  for (const auto& [key, receiving] : receiving_) {
    if (receiving.peer == peer) receives.push_back(key);
  }
  for (const uint64_t key : receives) {
    if (const auto at = receiving_.find(key); at != receiving_.end())
      run_receive(key, at->second.handoff.on_peer_lost());
  }
}

void HandoffService::on_frame(PeerId peer, HandoffFrame frame) {
  if (const auto* open = std::get_if<protocol::OpenFrame>(&frame)) {
    on_open(peer, *open);
  } else if (!on_sender_frame(peer, frame)) {
    on_receiver_frame(peer, frame);
  }
}

std::span<std::byte> HandoffService::part_of(const kv::PageTag& tag, uint32_t layer) const {
  std::byte* page = arena_.pages() + static_cast<size_t>(tag.page) * arena_.shape().page_stride;
  const ops::PageLayout& layout = engine_.layout();
  return {page + layout.k_offset(places_[layer].slot, 0), layout.layer_bytes()};
}

boost::asio::awaitable<void> HandoffService::tick_loop() {
  while (true) {
    co_await reactor_.sleep(std::chrono::milliseconds(50));
    const TimePoint time = now();
    std::vector<std::string> sends;
    sends.reserve(sending_.size());
    for (const auto& [id, sending] : sending_) sends.push_back(id);
    for (const auto& id : sends) {
      if (const auto at = sending_.find(id); at != sending_.end())
        run_send(id, at->second.handoff.on_time(time));
    }
    std::vector<uint64_t> receives;
    receives.reserve(receiving_.size());
    for (const auto& [key, receiving] : receiving_) receives.push_back(key);
    for (const uint64_t key : receives) {
      if (const auto at = receiving_.find(key); at != receiving_.end())
        run_receive(key, at->second.handoff.on_time(time));
    }
    for (auto at = early_.begin(); at != early_.end();) {
      if (time < at->second.until) {
        ++at;
        continue;
      }
      send_to(at->second.peer,
              protocol::AbortFrame{{at->first, at->second.attempt, 0},
                                   504,
                                   "handoff_timeout",
                                   "No prefill leg with this handoff id arrived."});
      at = early_.erase(at);
    }
  }
}

}  // namespace tandem::worker
