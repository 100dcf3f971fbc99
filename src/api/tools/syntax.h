// The two things a family of models is made of here. CallSyntax: how it writes calls, from the
// marker that opens one to the end of the last. ReplyMachine: how a whole reply is put together.
// Most families are a TaggedReply (text, a reasoning block, calls between markers) with a
// CallSyntax of their own; some are machines of their own (harmony, Kimi K3).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/tools/call_sink.h"
#include "api/tools/cursor.h"

namespace tandem::api {

// The markers of one family by their index in its table, found in the vocabulary at hand.
using Markers = std::vector<Marker>;

class CallSyntax {
 public:
  CallSyntax() = default;
  CallSyntax(const CallSyntax&) = delete;
  CallSyntax& operator=(const CallSyntax&) = delete;
  virtual ~CallSyntax() = default;

  // kMore: the text at hand says no more. kAgain: something was taken, ask again. kDone: the calls
  // are over. kBroken: this was no call, what was recorded is text.
  enum class Step : uint8_t { kMore, kAgain, kDone, kBroken };

  virtual std::span<const Marker* const> openers() const = 0;
  // Whether calls may begin without a marker where an answer begins.
  virtual Cursor::Match bare(const Cursor&) const { return Cursor::Match::kNo; }
  // After its opener was taken; nullptr: bare.
  virtual void open(const Marker* opener) = 0;
  virtual Step step(Cursor& in, CallSink& sink) = 0;
};

class ReplyMachine {
 public:
  ReplyMachine() = default;
  ReplyMachine(const ReplyMachine&) = delete;
  ReplyMachine& operator=(const ReplyMachine&) = delete;
  virtual ~ReplyMachine() = default;

  // False: nothing could be taken.
  virtual bool step(Cursor& in, CallSink& sink) = 0;
  // After the end, when step() takes nothing any more.
  virtual void finish(Cursor& in, CallSink& sink) = 0;
};

// How a reply begins, as the end of its prompt says.
enum class Opening : uint8_t { kFree, kReasoning, kAnswer };

struct ReasoningStyle {
  // The pairs of markers around reasoning; the first that opens counts.
  std::vector<Marker> open;
  std::vector<Marker> close;
  // What stands between an opening marker and the reasoning ("thought\n" of Gemma).
  std::string label;
  // A call's marker ends reasoning that was not closed.
  bool calls_end_it = false;
};

// `syntax` may be null: calls are not looked for.
std::unique_ptr<ReplyMachine> make_tagged_reply(const ReasoningStyle& reasoning,
                                                std::unique_ptr<CallSyntax> syntax,
                                                Opening opening);

// The families' own; `markers` outlives what is made. See families.cc for the tables.
std::unique_ptr<CallSyntax> make_hermes_calls(const Markers& markers);
std::unique_ptr<CallSyntax> make_llama_calls(const Markers& markers);
std::unique_ptr<CallSyntax> make_mistral_calls(const Markers& markers);
std::unique_ptr<CallSyntax> make_kimi_calls(const Markers& markers);
std::unique_ptr<CallSyntax> make_deepseek_calls(const Markers& markers);
std::unique_ptr<CallSyntax> make_pythonic_calls(const Markers& markers);
std::unique_ptr<CallSyntax> make_gemma_calls(const Markers& markers);
std::unique_ptr<CallSyntax> make_glm_calls(const Markers& markers);
std::unique_ptr<CallSyntax> make_qwen_xml_calls(const Markers& markers);
std::unique_ptr<CallSyntax> make_dsml_calls(const Markers& markers);
std::unique_ptr<ReplyMachine> make_harmony_reply(const Markers& markers, Opening opening);
std::unique_ptr<ReplyMachine> make_xtml_reply(const Markers& markers, Opening opening);

}  // namespace tandem::api
