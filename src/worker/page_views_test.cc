// What arrives over TCP through a view is, bit for bit, what the receiver would have made of the
// sender's own bytes.
#include "worker/page_views.h"

#include <cmath>
#include <cstring>
#include <future>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kv/transfer/tcp_transport.h"
#include "ops/cpu/dispatch.h"

namespace tandem::worker {
namespace {

using ops::KvDtype;

constexpr int32_t kModelLayers = 6;  // in two groups
constexpr size_t kPages = 5;

ops::PageLayout layout_of(KvDtype dtype) {
  return {
      .dtype = dtype, .layers = 3, .kv_heads = 3, .head_dim = 24, .block_tokens = 16, .groups = 2};
}

const ops::cpu::Kernels& kernels() { return ops::cpu::kernels_for(ops::cpu::machine_isa()); }

ops::KvScales scales() {
  ops::KvScales out;
  out.kv_heads = 3;
  for (int32_t i = 0; i < kModelLayers * 3; ++i) {
    out.k.push_back(0.01F * static_cast<float>(i + 1));
    out.v.push_back(0.3F / static_cast<float>(i + 1));
  }
  return out;
}

// Pages of values of all sizes in `dtype`'s form.
std::vector<std::byte> pages_of(KvDtype dtype) {
  const ops::PageLayout wide = layout_of(KvDtype::kF32);
  const ops::PageLayout layout = layout_of(dtype);
  std::mt19937 random(7);
  std::vector<float> values(wide.layer_bytes() / sizeof(float));
  std::vector<std::byte> out(layout.page_bytes() * kPages);
  for (size_t at = 0; at < out.size(); at += layout.layer_bytes()) {
    for (float& value : values)
      value = std::ldexp(std::normal_distribution<float>()(random), static_cast<int>(random() % 9));
    const auto slot = static_cast<int32_t>(at / layout.layer_bytes() % 3);
    convert_page_layer(kernels(), scales(), slot, wide,
                       reinterpret_cast<const std::byte*>(values.data()), layout, out.data() + at);
  }
  return out;
}

class PageViewsOverTcp : public ::testing::TestWithParam<std::pair<KvDtype, KvDtype>> {
 protected:
  PageViewsOverTcp() : memory_(pages_of(GetParam().first)) {
    sender_ = kv::make_tcp_transport({});
    EXPECT_TRUE(sender_->serve_views(
        std::make_shared<PageViews>(kernels(), from_, scales(), kModelLayers)));
    const auto exposed = sender_->expose(memory_, -1);
    EXPECT_TRUE(exposed);
    const kv::PeerKey key{"test-peer-000000", std::string(32, 'k')};
    sender_->admit(key);
    receiver_ = kv::make_tcp_transport({});
    std::promise<Result<std::shared_ptr<kv::Remote>>> connected;
    receiver_->connect(*exposed, key, "127.0.0.1", std::chrono::seconds(5),
                       [&](auto result) { connected.set_value(std::move(result)); });
    remote_ = std::move(*connected.get_future().get());
  }

  kv::TransferStatus read(const std::vector<kv::Read>& reads) {
    std::promise<kv::TransferStatus> ended;
    const auto posted = remote_->post(reads, std::chrono::seconds(10),
                                      [&](kv::TransferStatus status) { ended.set_value(status); });
    return posted == kv::TransferStatus::kOk ? ended.get_future().get() : posted;
  }

  const ops::PageLayout from_ = layout_of(GetParam().first);
  const ops::PageLayout to_ = layout_of(GetParam().second);
  std::vector<std::byte> memory_;
  std::unique_ptr<kv::Transport> sender_, receiver_;
  std::shared_ptr<kv::Remote> remote_;
};

INSTANTIATE_TEST_SUITE_P(Dtypes, PageViewsOverTcp,
                         ::testing::Values(std::pair{KvDtype::kBF16, KvDtype::kFp8Static},
                                           std::pair{KvDtype::kBF16, KvDtype::kFp8Inline},
                                           std::pair{KvDtype::kBF16, KvDtype::kInt8Inline},
                                           std::pair{KvDtype::kF32, KvDtype::kBF16},
                                           std::pair{KvDtype::kF32, KvDtype::kFp8Static}));

TEST_P(PageViewsOverTcp, LayersArriveAsTheReceiverWouldHaveConvertedThem) {
  std::vector<std::byte> arrived(to_.page_bytes() * kPages), expected(arrived.size());
  std::vector<kv::Read> reads;
  uint64_t total = 0;
  for (size_t page = 0; page < kPages; ++page) {
    for (int32_t layer = 0; layer < kModelLayers; layer += 2) {  // group 0
      const auto slot = static_cast<size_t>(layer) / 2;
      const size_t source = page * from_.page_bytes() + slot * from_.layer_bytes();
      const size_t target = page * to_.page_bytes() + slot * to_.layer_bytes();
      reads.push_back({source, arrived.data() + target, to_.layer_bytes(),
                       PageViews::number(to_.dtype, static_cast<uint32_t>(layer), kModelLayers)});
      total += reads.back().bytes;
      convert_page_layer(kernels(), scales(), layer, from_, memory_.data() + source, to_,
                         expected.data() + target);
    }
  }
  ASSERT_EQ(read(reads), kv::TransferStatus::kOk);
  EXPECT_EQ(arrived, expected);
  EXPECT_EQ(total, to_.page_bytes() * kPages);
}

TEST_P(PageViewsOverTcp, WhatIsNoViewOrNoWholeLayerIsRefused) {
  std::vector<std::byte> arrived(from_.page_bytes());
  const auto good = PageViews::number(to_.dtype, 1, kModelLayers);
  const auto tried = [&](uint64_t offset, uint64_t bytes, uint16_t view) {
    return read({{offset, arrived.data(), bytes, view}});
  };
  EXPECT_EQ(tried(0, to_.layer_bytes(), good), kv::TransferStatus::kOk);
  EXPECT_EQ(tried(0, to_.layer_bytes() - 8, good), kv::TransferStatus::kInvalid);
  EXPECT_EQ(tried(4, to_.layer_bytes(), good), kv::TransferStatus::kInvalid);
  EXPECT_EQ(tried(memory_.size() - to_.layer_bytes(), to_.layer_bytes(), good),
            kv::TransferStatus::kInvalid)
      << "the piece itself would end outside";
  const auto same = PageViews::number(from_.dtype, 1, kModelLayers);
  EXPECT_EQ(tried(0, from_.layer_bytes(), same), kv::TransferStatus::kInvalid);
  EXPECT_EQ(tried(0, to_.layer_bytes(), 1 + 6 * kModelLayers), kv::TransferStatus::kInvalid);
  EXPECT_EQ(tried(0, to_.layer_bytes(), UINT16_MAX), kv::TransferStatus::kInvalid);
  EXPECT_EQ(tried(0, to_.layer_bytes(), good), kv::TransferStatus::kOk) << "the stream goes on";
}

TEST(PageViews, ANumberNamesOneFormOfOneLayer) {
  EXPECT_EQ(PageViews::number(KvDtype::kF32, 0, 30), 1);
  EXPECT_EQ(PageViews::number(KvDtype::kInt8Inline, 29, 30), 6 * 30);
  EXPECT_EQ(PageViews::number(KvDtype::kBF16, 30, 30), 0);
  EXPECT_EQ(PageViews::number(KvDtype::kInt8Inline, 1, 30000), 0) << "too large for the wire";
  EXPECT_TRUE(PageViews(kernels(), layout_of(KvDtype::kBF16), {}, 30).complete());
  EXPECT_FALSE(PageViews(kernels(), layout_of(KvDtype::kBF16), {}, 30000).complete());
  const ops::PageLayout small{.layers = 1, .kv_heads = 1, .head_dim = 1, .block_tokens = 2};
  EXPECT_FALSE(PageViews(kernels(), small, {}, 1).complete());
}

}  // namespace
}  // namespace tandem::worker
