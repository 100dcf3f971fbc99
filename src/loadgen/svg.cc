#include "loadgen/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace tandem::loadgen {

namespace {

constexpr double kWidth = 560;
constexpr double kHeight = 260;
constexpr double kLeft = 62;
constexpr double kRight = 14;
constexpr double kTop = 14;
constexpr double kBottom = 42;
// Told apart by people who see colours differently too (Okabe and Ito).
constexpr std::array<const char*, 5> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00"};

template <typename... Args>
std::string format(const char* pattern, Args... args) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), pattern, args...);
  return text.data();
}

struct Axes {
  double x_most = 1;
  double y_most = 1;
  double x(double value) const { return kLeft + value / x_most * (kWidth - kLeft - kRight); }
  double y(double value) const {
    return kHeight - kBottom - value / y_most * (kHeight - kTop - kBottom);
  }
};

void append_axes(std::string& out, const Plot& plot, const Axes& axes) {
  for (const double tick : ticks_to(axes.y_most)) {
    out += format("<line class=\"g\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", kLeft,
                  kWidth - kRight, axes.y(tick), axes.y(tick));
    out += format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%g</text>", kLeft - 6,
                  axes.y(tick) + 4, tick);
  }
  for (const double tick : ticks_to(axes.x_most)) {
    out += format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>", axes.x(tick),
                  kHeight - kBottom + 16, tick);
  }
  out += format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", (kLeft + kWidth) / 2,
                kHeight - 8);
  out += escape_html(plot.x_label) + "</text>";
  out += format("<text transform=\"translate(14,%.1f) rotate(-90)\" text-anchor=\"middle\">",
                (kTop + kHeight - kBottom) / 2);
  out += escape_html(plot.y_label) + "</text>";
}

void append_line(std::string& out, const Line& line, bool steps, const Axes& axes,
                 const char* colour) {
  out += format("<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.8\" points=\"", colour);
  double previous = 0;
  bool first = true;
  for (const auto& [x, y] : line.points) {
    if (steps && !first) out += format("%.1f,%.1f ", axes.x(x), axes.y(previous));
    out += format("%.1f,%.1f ", axes.x(x), axes.y(y));
    previous = y;
    first = false;
  }
  out += "\"/>";
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::vector<double> ticks_to(double most) {
  if (!(most > 0) || !std::isfinite(most)) most = 1;
  const double rough = most / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power;
  for (const double factor : {2.0, 5.0, 10.0}) {
    if (step < rough * 0.999) step = factor * power;
  }
  std::vector<double> ticks;
  for (int i = 0; i <= 10; ++i) {
    ticks.push_back(i * step);
    if (ticks.back() >= most * 0.999) break;
  }
  return ticks;
}

std::string svg_plot(const Plot& plot) {
  Axes axes;
  double x_most = 0;
  double y_most = 0;
  for (const Line& line : plot.lines) {
    for (const auto& [x, y] : line.points) {
      x_most = std::max(x_most, x);
      y_most = std::max(y_most, y);
    }
  }
  axes.x_most = ticks_to(x_most).back();
  axes.y_most = ticks_to(y_most).back();
  std::string out = "<figure><figcaption>" + escape_html(plot.title) + "</figcaption>";
  out += format("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">", kWidth, kHeight);
  append_axes(out, plot, axes);
  for (size_t i = 0; i < plot.lines.size(); ++i)
    append_line(out, plot.lines[i], plot.steps, axes, kColours[i % kColours.size()]);
  if (plot.lines.size() > 1) {
    for (size_t i = 0; i < plot.lines.size(); ++i) {
      out += format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\" style=\"fill:%s\">",
                    kWidth - kRight - 4, kTop + 14 + 15 * static_cast<double>(i),
                    kColours[i % kColours.size()]);
      out += escape_html(plot.lines[i].name) + "</text>";
    }
  }
  return out + "</svg></figure>";
}

}  // namespace tandem::loadgen
