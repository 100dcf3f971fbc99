// The page: the terminal's table, the distributions of the latencies, and the run over time.
#include <cstdio>

#include "loadgen/report.h"
#include "loadgen/svg.h"

namespace tandem::loadgen {

namespace {

constexpr size_t kCurvePoints = 400;

constexpr std::string_view kStyle =
    ":root{color-scheme:light dark}body{font:15px/1.45 system-ui,sans-serif;max-width:1180px;"
    "margin:2em auto;padding:0 1em}pre{overflow-x:auto;background:#8881;padding:1em}figure{display:"
    "inline-block;width:560px;max-width:100%;margin:0 8px 18px 0}figcaption{font-weight:600}svg{"
    "width:100%}svg text{font-size:11px;fill:currentColor}.g{stroke:#8885;stroke-width:.7}.d{"
    "opacity:.75;font-size:13px}";

Plot curve(Summary& summary, Measure measure, const char* title) {
  Plot plot{title,
            "milliseconds",
            "share of " + std::string(measure == Measure::kItl ? "gaps" : "requests"),
            {}};
  Line line{title, {}};
  for (const auto& [value, share] : summary.of(measure).cumulative(kCurvePoints))
    line.points.emplace_back(value * 1e3, share);
  plot.lines.push_back(std::move(line));
  return plot;
}

template <typename Value>
Line over_time(const Timeline& timeline, const char* name, Value value) {
  Line line{name, {}};
  for (size_t i = 0; i < timeline.bins().size(); ++i) {
    line.points.emplace_back(static_cast<double>(i) * timeline.width(), value(timeline.bins()[i]));
  }
  return line;
}

Line first_tokens(const Timeline& timeline, const char* name, bool worst) {
  Line line{name, {}};
  for (size_t i = 0; i < timeline.bins().size(); ++i) {
    const TimelineBin& bin = timeline.bins()[i];
    if (bin.firsts == 0) continue;
    const double value = worst ? bin.ttft_worst : bin.ttft_sum / static_cast<double>(bin.firsts);
    line.points.emplace_back((static_cast<double>(i) + 0.5) * timeline.width(), value * 1e3);
  }
  return line;
}

}  // namespace

std::string html_report(Summary& summary, const RunFacts& facts) {
  std::string out =
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>tandem bench</title><style>";
  out += std::string(kStyle) + "</style></head><body><h1>tandem bench</h1><p>" +
         escape_html(facts.date) + "</p><pre>" + escape_html(text_report(summary, facts)) +
         "</pre><p class=\"d\">" + escape_html(definitions()) + "</p><h2>Latencies</h2>";
  out += svg_plot(curve(summary, Measure::kTtft, "Time to first token"));
  out += svg_plot(curve(summary, Measure::kItl, "Time between pieces"));
  out += svg_plot(curve(summary, Measure::kTpot, "Time per output token"));
  out += svg_plot(curve(summary, Measure::kE2e, "Whole request"));
  const Timeline& time = summary.timeline();
  const double width = time.width();
  out += "<h2>Over time</h2>";
  out += svg_plot(
      {"Pieces received a second",
       "seconds",
       "pieces/s",
       {over_time(time, "pieces",
                  [&](const TimelineBin& bin) { return static_cast<double>(bin.tokens) / width; })},
       true});
  out += svg_plot(
      {"Requests",
       "seconds",
       "requests",
       {over_time(time, "open", [&](const TimelineBin& bin) { return bin.busy / width; }),
        over_time(
            time, "completed a second",
            [&](const TimelineBin& bin) { return static_cast<double>(bin.finished) / width; }),
        over_time(time, "failed a second",
                  [&](const TimelineBin& bin) { return static_cast<double>(bin.failed) / width; })},
       true});
  out += svg_plot({"Time to first token over time",
                   "seconds",
                   "milliseconds",
                   {first_tokens(time, "mean", false), first_tokens(time, "worst", true)}});
  return out + "</body></html>\n";
}

}  // namespace tandem::loadgen
