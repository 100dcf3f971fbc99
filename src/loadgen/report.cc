#include "loadgen/report.h"

#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace tandem::loadgen {

namespace {

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  std::array<char, 512> text{};
  std::va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text.data(), text.size(), pattern, arguments);
  va_end(arguments);
  return text.data();
}

long long whole(int64_t value) { return static_cast<long long>(value); }

std::string percentile_name(double percentile) { return format("p%g", percentile); }

// Milliseconds with three or four digits.
std::string milliseconds(double seconds) {
  const double value = seconds * 1e3;
  return format(value < 10 ? "%.2f" : value < 1000 ? "%.1f" : "%.0f", value);
}

std::string upper_name(Measure measure) {
  std::string name(measure_name(measure));
  for (char& c : name) c = static_cast<char>(c - 'a' + 'A');
  return measure == Measure::kE2e ? "E2E" : name;
}

std::string objectives_text(const Summary& summary) {
  std::string out;
  for (const Objective& objective : summary.objectives()) {
    out += (out.empty() ? "" : ", ") + upper_name(objective.measure) + " at most " +
           milliseconds(objective.seconds) + " ms";
  }
  return out;
}

void append_counts(std::string& out, Summary& summary, const RunFacts& facts) {
  out += format("requests        %lld sent in %.2f s: %lld completed, %lld failed",
                whole(summary.sent_count()), summary.seconds(), whole(summary.completed()),
                whole(summary.failed()));
  if (const int64_t cut = summary.errors(ErrorKind::kUnfinished); cut > 0)
    out += format(", %lld unfinished", whole(cut));
  out += '\n';
  for (size_t i = 1; i < kErrorKinds; ++i) {
    const auto kind = static_cast<ErrorKind>(i);
    if (summary.errors(kind) == 0 || kind == ErrorKind::kUnfinished) continue;
    out += format("  %-14.*s %lld", static_cast<int>(error_kind_name(kind).size()),
                  error_kind_name(kind).data(), whole(summary.errors(kind)));
    if (kind == ErrorKind::kStatus) {
      for (const auto& [status, count] : summary.statuses())
        out += format(" (%d: %lld)", status, whole(count));
    }
    if (!summary.reasons()[i].empty()) out += " \"" + summary.reasons()[i] + '"';
    out += '\n';
  }
  out += format("concurrency     %.2f on average, %lld at most\n", summary.concurrency(),
                whole(summary.most_open()));
  if (facts.open_loop)
    out += "sent late       " + milliseconds(summary.lag().percentile(0.99)) + " ms (p99), " +
           milliseconds(summary.lag().most()) + " ms (most)\n";
  const auto input = static_cast<double>(summary.input_tokens());
  const auto output = static_cast<double>(summary.output_tokens());
  out += format("tokens          %.0f input (%lld cached), %.0f output", input,
                whole(summary.cached_tokens()), output);
  if (summary.counted_by_server() < summary.completed())
    out += format("; %lld answers without usage: their pieces stand for tokens",
                  whole(summary.completed() - summary.counted_by_server()));
  out += format("\nthroughput      %.3f requests/s, %.1f input, %.1f output, %.1f tokens/s\n",
                summary.rate(static_cast<double>(summary.completed())), summary.rate(input),
                summary.rate(output), summary.rate(input + output));
  if (!summary.objectives().empty()) {
    out += format("goodput         %.3f requests/s (%lld of %lld kept %s)\n",
                  summary.rate(static_cast<double>(summary.good())), whole(summary.good()),
                  whole(summary.completed()), objectives_text(summary).c_str());
  }
}

JsonValue latency_json(Distribution& values, const std::vector<double>& percentiles,
                       double factor) {
  JsonValue out = JsonValue::object();
  out.set("count", JsonValue::unsigned_integer(values.count()));
  out.set("mean", JsonValue::real(values.mean() * factor));
  out.set("std", JsonValue::real(values.deviation() * factor));
  out.set("min", JsonValue::real(values.least() * factor));
  for (const double percentile : percentiles)
    out.set(percentile_name(percentile),
            JsonValue::real(values.percentile(percentile / 100) * factor));
  out.set("max", JsonValue::real(values.most() * factor));
  out.set("exact", JsonValue::boolean(values.is_exact()));
  return out;
}

JsonValue errors_json(const Summary& summary) {
  JsonValue out = JsonValue::object();
  for (size_t i = 1; i < kErrorKinds; ++i) {
    const auto kind = static_cast<ErrorKind>(i);
    if (summary.errors(kind) == 0 || kind == ErrorKind::kUnfinished) continue;
    JsonValue entry = JsonValue::object();
    entry.set("count", JsonValue::integer(summary.errors(kind)));
    entry.set("example", JsonValue::string(summary.reasons()[i]));
    if (kind == ErrorKind::kStatus) {
      JsonValue statuses = JsonValue::object();
      for (const auto& [status, count] : summary.statuses())
        statuses.set(std::to_string(status), JsonValue::integer(count));
      entry.set("statuses", std::move(statuses));
    }
    out.set(error_kind_name(kind), std::move(entry));
  }
  return out;
}

JsonValue timeline_json(const Timeline& timeline) {
  JsonValue out = JsonValue::object();
  out.set("seconds_per_bin", JsonValue::real(timeline.width()));
  JsonValue bins = JsonValue::array();
  for (const TimelineBin& bin : timeline.bins()) {
    JsonValue entry = JsonValue::object();
    entry.set("pieces", JsonValue::integer(bin.tokens));
    entry.set("completed", JsonValue::integer(bin.finished));
    entry.set("failed", JsonValue::integer(bin.failed));
    entry.set("open", JsonValue::real(bin.busy / timeline.width()));
    entry.set("mean_ttft_ms", bin.firsts == 0 ? JsonValue()
                                              : JsonValue::real(1e3 * bin.ttft_sum /
                                                                static_cast<double>(bin.firsts)));
    bins.push_back(std::move(entry));
  }
  out.set("bins", std::move(bins));
  return out;
}

JsonValue requests_json(const Summary& summary) {
  JsonValue out = JsonValue::object();
  out.set("sent", JsonValue::integer(summary.sent_count()));
  out.set("completed", JsonValue::integer(summary.completed()));
  out.set("failed", JsonValue::integer(summary.failed()));
  out.set("unfinished", JsonValue::integer(summary.errors(ErrorKind::kUnfinished)));
  out.set("mean_open", JsonValue::real(summary.concurrency()));
  out.set("most_open", JsonValue::integer(summary.most_open()));
  return out;
}

JsonValue throughput_json(const Summary& summary) {
  const auto input = static_cast<double>(summary.input_tokens());
  const auto output = static_cast<double>(summary.output_tokens());
  JsonValue out = JsonValue::object();
  out.set("requests_per_s",
          JsonValue::real(summary.rate(static_cast<double>(summary.completed()))));
  out.set("input_tokens_per_s", JsonValue::real(summary.rate(input)));
  out.set("output_tokens_per_s", JsonValue::real(summary.rate(output)));
  out.set("total_tokens_per_s", JsonValue::real(summary.rate(input + output)));
  return out;
}

JsonValue goodput_json(const Summary& summary) {
  if (summary.objectives().empty()) return {};
  JsonValue limits = JsonValue::object();
  for (const Objective& objective : summary.objectives())
    limits.set(std::string(measure_name(objective.measure)) + "_ms",
               JsonValue::real(objective.seconds * 1e3));
  JsonValue out = JsonValue::object();
  out.set("objectives", std::move(limits));
  out.set("good", JsonValue::integer(summary.good()));
  out.set("requests_per_s", JsonValue::real(summary.rate(static_cast<double>(summary.good()))));
  return out;
}

}  // namespace

std::string_view definitions() {
  return "Definitions as in the benchmark clients of vLLM and SGLang: TTFT is from the request "
         "being "
         "sent to the first piece with content (the opening role chunk, which vLLM's client takes "
         "for the first, does not count), ITL between two pieces of one answer, E2E from the "
         "request to its last piece, TPOT = (E2E - TTFT) / (output tokens - 1); percentiles "
         "interpolate linearly (numpy's default); throughput counts completed requests, from the "
         "first request sent to the last one's end. Failed requests enter no latency.";
}

std::string text_report(Summary& summary, const RunFacts& facts) {
  std::string out;
  out += facts.url + "  " + facts.model + "  " + facts.api + '\n' + facts.dataset + "; " +
         facts.load + (facts.interrupted ? "; interrupted" : "") + "\n\n";
  append_counts(out, summary, facts);
  out += format("\n%-10s %9s %9s %9s", "ms", "mean", "std", "min");
  for (const double percentile : facts.percentiles)
    out += format(" %9s", percentile_name(percentile).c_str());
  out += format(" %9s %9s\n", "max", "count");
  for (const Measure measure : kMeasures) {
    Distribution& values = summary.of(measure);
    out += format("%-10s %9s %9s %9s", upper_name(measure).c_str(),
                  milliseconds(values.mean()).c_str(), milliseconds(values.deviation()).c_str(),
                  milliseconds(values.least()).c_str());
    for (const double percentile : facts.percentiles)
      out += format(" %9s", milliseconds(values.percentile(percentile / 100)).c_str());
    out += format(" %9s %9zu\n", milliseconds(values.most()).c_str(), values.count());
    if (!values.is_exact())
      out += format("%-10s percentiles from a histogram, within 0.2 %%\n", "");
  }
  return out;
}

JsonValue json_report(Summary& summary, const RunFacts& facts) {
  JsonValue out = JsonValue::object();
  out.set("tandem_bench", JsonValue::integer(1));
  out.set("definitions", JsonValue::string(std::string(definitions())));
  out.set("date", JsonValue::string(facts.date));
  out.set("url", JsonValue::string(facts.url));
  out.set("model", JsonValue::string(facts.model));
  out.set("api", JsonValue::string(facts.api));
  out.set("dataset", JsonValue::string(facts.dataset));
  out.set("load", JsonValue::string(facts.load));
  out.set("interrupted", JsonValue::boolean(facts.interrupted));
  out.set("duration_s", JsonValue::real(summary.seconds()));
  out.set("requests", requests_json(summary));
  out.set("errors", errors_json(summary));
  JsonValue tokens = JsonValue::object();
  tokens.set("input", JsonValue::integer(summary.input_tokens()));
  tokens.set("output", JsonValue::integer(summary.output_tokens()));
  tokens.set("cached", JsonValue::integer(summary.cached_tokens()));
  tokens.set("answers_counted_by_server", JsonValue::integer(summary.counted_by_server()));
  tokens.set("input_length", latency_json(summary.input_lengths(), facts.percentiles, 1));
  tokens.set("output_length", latency_json(summary.output_lengths(), facts.percentiles, 1));
  out.set("tokens", std::move(tokens));
  out.set("throughput", throughput_json(summary));
  out.set("goodput", goodput_json(summary));
  JsonValue latencies = JsonValue::object();
  for (const Measure measure : kMeasures)
    latencies.set(measure_name(measure), latency_json(summary.of(measure), facts.percentiles, 1e3));
  out.set("latency_ms", std::move(latencies));
  out.set("sent_late_ms",
          facts.open_loop ? latency_json(summary.lag(), facts.percentiles, 1e3) : JsonValue());
  out.set("timeline", timeline_json(summary.timeline()));
  return out;
}

std::string progress_line(const Summary& summary, double seconds, int64_t requests) {
  std::string out = format("%6.1f s  open %lld  done %lld", seconds, whole(summary.open()),
                           whole(summary.completed()));
  if (requests > 0) out += format("/%lld", whole(requests));
  out += format("  failed %lld", whole(summary.failed()));
  // The pieces of the last two seconds or so.
  const auto& bins = summary.timeline().bins();
  const double width = summary.timeline().width();
  const auto recent =
      std::min(bins.size(), static_cast<size_t>(std::max(1.0, std::ceil(2 / width))));
  int64_t pieces = 0;
  for (size_t i = bins.size() - recent; i < bins.size(); ++i) pieces += bins[i].tokens;
  const double span = std::min(static_cast<double>(recent) * width, std::max(seconds, 1e-3));
  out += format("  %.0f pieces/s", recent == 0 ? 0.0 : static_cast<double>(pieces) / span);
  out += "  TTFT p50 " + milliseconds(summary.of(Measure::kTtft).rough_percentile(0.5)) + " p99 " +
         milliseconds(summary.of(Measure::kTtft).rough_percentile(0.99));
  out += "  ITL p50 " + milliseconds(summary.of(Measure::kItl).rough_percentile(0.5)) + " p99 " +
         milliseconds(summary.of(Measure::kItl).rough_percentile(0.99)) + " ms";
  return out;
}

std::string record_line(const RequestRecord& record) {
  JsonValue out = JsonValue::object();
  out.set("id", JsonValue::unsigned_integer(record.id));
  out.set("session", JsonValue::unsigned_integer(record.session));
  out.set("turn", JsonValue::integer(record.turn));
  out.set("planned_s", JsonValue::real(record.planned));
  out.set("sent_s", JsonValue::real(record.sent));
  out.set("ended_s", JsonValue::real(record.ended));
  const bool good = record.error == ErrorKind::kNone;
  out.set("ttft_ms", good ? JsonValue::real(record.ttft() * 1e3) : JsonValue());
  out.set("tpot_ms",
          good && record.output_tokens > 1 ? JsonValue::real(record.tpot() * 1e3) : JsonValue());
  out.set("e2e_ms", good ? JsonValue::real(record.e2e() * 1e3) : JsonValue());
  out.set("pieces", JsonValue::integer(record.pieces));
  out.set("input_tokens", JsonValue::integer(record.input_tokens));
  out.set("output_tokens", JsonValue::integer(record.output_tokens));
  out.set("cached_tokens", JsonValue::integer(record.cached_tokens));
  out.set("counted_by_server", JsonValue::boolean(record.counted_by_server));
  out.set("error",
          good ? JsonValue() : JsonValue::string(std::string(error_kind_name(record.error))));
  out.set("status", JsonValue::integer(record.status));
  return out.dump();
}

}  // namespace tandem::loadgen
