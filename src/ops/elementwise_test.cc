#include <cmath>

#include "ops/cpu/scalar.h"
#include "ops/operators.h"
#include "ops/ops_test_support.h"

namespace tandem::ops {
namespace {

TEST(RmsNorm, MatchesDoublePrecisionAtEveryLength) {
  for (const cpu::Kernels* kernels : machine_kernels()) {
    for (const int32_t columns : {1, 7, 16, 17, 40, 576, 1000}) {
      const auto x = random_values(columns, 1, 3.0F);
      const auto weight = random_values(columns, 2);
      std::vector<float> out(columns);
      kernels->rms_norm(x.data(), weight.data(), columns, 1e-5F, out.data());
      double squares = 0;
      for (const float value : x) squares += static_cast<double>(value) * value;
      const double scale = 1 / std::sqrt(squares / columns + 1e-5);
      for (int32_t i = 0; i < columns; ++i) {
        EXPECT_NEAR(out[i], x[i] * scale * weight[i], 2e-6 * (1 + std::abs(out[i])))
            << kernels->name << " " << columns;
      }
    }
  }
}

TEST(SiluMul, MatchesDoublePrecisionFromMinusToPlusInfinity) {
  std::vector<float> gate = random_values(333, 3, 8.0F);
  gate[0] = -200;
  gate[1] = 200;
  gate[2] = 0;
  gate[3] = -87.5F;
  const auto up = random_values(gate.size(), 4);
  for (const cpu::Kernels* kernels : machine_kernels()) {
    for (const int32_t columns : {1, 15, 16, 31, 333}) {
      std::vector<float> out(columns);
      kernels->silu_mul(gate.data(), up.data(), columns, out.data());
      for (int32_t i = 0; i < columns; ++i) {
        const double expected = gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i];
        EXPECT_NEAR(out[i], expected, 1e-6 * (1 + std::abs(expected)))
            << kernels->name << " " << gate[i];
      }
    }
  }
}

TEST(Exp, IsAccurateAndExactlyZeroFarBelow) {
  EXPECT_EQ(cpu::exp_scalar(0), 1.0F);
  EXPECT_EQ(cpu::exp_scalar(-INFINITY), 0.0F);
  EXPECT_EQ(cpu::exp_scalar(-100), 0.0F);
  EXPECT_TRUE(std::isnan(cpu::exp_scalar(NAN)));
  for (float x = -87; x < 80; x += 0.0137F) {
    EXPECT_NEAR(cpu::exp_scalar(x) / std::exp(static_cast<double>(x)), 1, 4e-7) << x;
  }
}

TEST(Rope, RotatesAdjacentPairsAndLeavesTheRest) {
  for (const cpu::Kernels* kernels : machine_kernels()) {
    for (const int32_t head_dim : {2, 24, 64, 80}) {
      for (const int32_t pairs : {1, head_dim / 2, head_dim / 4}) {
        if (pairs < 1) continue;
        const int32_t heads = 3;
        const auto before = random_values(static_cast<size_t>(heads) * head_dim, 5);
        std::vector<float> angles(pairs);
        std::vector<float> cos_sin;
        for (int32_t i = 0; i < pairs; ++i) {
          angles[i] = 0.37F * static_cast<float>(i + 1);
          cos_sin.push_back(std::cos(angles[i]));
          cos_sin.push_back(std::sin(angles[i]));
        }
        auto x = before;
        kernels->rope(x.data(), heads, head_dim, pairs, cos_sin.data());
        for (int32_t head = 0; head < heads; ++head) {
          const float* a = before.data() + static_cast<size_t>(head) * head_dim;
          const float* b = x.data() + static_cast<size_t>(head) * head_dim;
          for (int32_t i = 0; i < head_dim / 2; ++i) {
            const double c = i < pairs ? std::cos(static_cast<double>(angles[i])) : 1;
            const double s = i < pairs ? std::sin(static_cast<double>(angles[i])) : 0;
            EXPECT_NEAR(b[2 * i], a[2 * i] * c - a[2 * i + 1] * s, 1e-6) << kernels->name;
            EXPECT_NEAR(b[2 * i + 1], a[2 * i] * s + a[2 * i + 1] * c, 1e-6) << kernels->name;
          }
        }
      }
    }
  }
}

TEST(Rope, RotatesHalvesAgainstEachOther) {
  for (const cpu::Kernels* kernels : machine_kernels()) {
    for (const int32_t head_dim : {2, 24, 64, 80}) {
      for (const int32_t pairs : {head_dim / 2, (head_dim + 2) / 4}) {
        const int32_t heads = 3;
        const auto before = random_values(static_cast<size_t>(heads) * head_dim, 5);
        std::vector<float> cos_sin(2 * static_cast<size_t>(pairs));
        for (int32_t i = 0; i < pairs; ++i) {
          cos_sin[i] = std::cos(0.37F * static_cast<float>(i + 1));
          cos_sin[pairs + i] = std::sin(0.37F * static_cast<float>(i + 1));
        }
        auto x = before;
        kernels->rope_halves(x.data(), heads, head_dim, pairs, cos_sin.data());
        for (int32_t at = 0; at < heads * head_dim; at += head_dim) {
          for (int32_t i = 0; i < head_dim; ++i) {
            double expected = before[at + i];
            if (i < 2 * pairs) {
              const int32_t pair = i % pairs;
              const double a = before[at + pair];
              const double b = before[at + pairs + pair];
              const double c = cos_sin[pair];
              const double s = cos_sin[pairs + pair];
              expected = i < pairs ? a * c - b * s : b * c + a * s;
            }
            EXPECT_NEAR(x[at + i], expected, 1e-6) << kernels->name;
          }
        }
      }
    }
  }
}

TEST(GeluMul, MatchesDoublePrecisionFromMinusToPlusInfinity) {
  std::vector<float> gate = random_values(333, 3, 4.0F);
  gate[0] = -200;
  gate[1] = 200;
  gate[2] = 0;
  gate[3] = -8.5F;
  const auto up = random_values(gate.size(), 4);
  for (const cpu::Kernels* kernels : machine_kernels()) {
    for (const int32_t columns : {1, 15, 16, 31, 333}) {
      std::vector<float> out(columns);
      kernels->gelu_mul(gate.data(), up.data(), columns, out.data());
      for (int32_t i = 0; i < columns; ++i) {
        const double x = gate[i];
        const double u = 0.7978845608028654 * (x + 0.044715 * x * x * x);
        const double expected = 0.5 * x * (1 + std::tanh(u)) * up[i];
        EXPECT_NEAR(out[i], expected, 1e-6 * (1 + std::abs(expected)))
            << kernels->name << " " << gate[i];
      }
    }
  }
}

TEST(SoftCap, MatchesDoublePrecisionAndStaysBelowTheCap) {
  std::vector<float> x = random_values(333, 6, 60.0F);
  x[0] = 1e9F;
  x[1] = -1e9F;
  x[2] = 0;
  x[3] = 0.01F;
  for (const cpu::Kernels* kernels : machine_kernels()) {
    for (const int32_t columns : {1, 15, 16, 333}) {
      std::vector<float> out(x.begin(), x.begin() + columns);
      kernels->soft_cap(30.0F, columns, out.data());
      for (int32_t i = 0; i < columns; ++i) {
        EXPECT_NEAR(out[i], 30 * std::tanh(static_cast<double>(x[i]) / 30), 6e-6)
            << kernels->name << " " << x[i];
        EXPECT_LE(std::abs(out[i]), 30.0F);
      }
    }
  }
}

TEST(ScaleAndAddScaled, AreExactForPowersOfTwoAndTouchOnlyTheirColumns) {
  for (const cpu::Kernels* kernels : machine_kernels()) {
    for (const int32_t columns : {1, 15, 16, 33}) {
      const auto x = random_values(40, 7);
      const auto before = random_values(40, 8);
      auto scaled = before;
      kernels->scale(4.0F, columns, scaled.data());
      auto sum = before;
      kernels->add_scaled(x.data(), 0.5F, columns, sum.data());
      for (int32_t i = 0; i < 40; ++i) {
        EXPECT_EQ(scaled[i], i < columns ? 4 * before[i] : before[i]) << kernels->name;
        EXPECT_EQ(sum[i], i < columns ? before[i] + x[i] / 2 : before[i]) << kernels->name;
      }
    }
  }
}

TEST(Dispatch, ForcesALowerLevelAndNamesWhatTheMachineLacks) {
  EXPECT_EQ((*cpu::select_kernels("scalar"))->isa, cpu::Isa::kScalar);
  EXPECT_EQ((*cpu::select_kernels(""))->isa, cpu::machine_isa());
  const auto unknown = cpu::select_kernels("sse9");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, "unsupported_isa");
  for (const cpu::Isa isa : kCpuLevels) {
    constexpr const char* kNames[] = {"scalar", "avx2", "avx512", "amx"};
    const auto forced = cpu::select_kernels(kNames[static_cast<size_t>(isa)]);
    ASSERT_EQ(forced.has_value(), isa <= cpu::machine_isa());
    if (forced) {
      EXPECT_EQ((*forced)->isa, isa);
    } else {
      EXPECT_EQ(forced.error().code, "unsupported_isa");
    }
  }
}

}  // namespace
}  // namespace tandem::ops
