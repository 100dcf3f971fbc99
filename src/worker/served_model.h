// ServedModel: a model with everything a worker needs to serve it, from a GGUF file or a script.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/tools/reply_parser.h"
#include "base/result.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace tandem::worker {

struct AdapterSource {
  std::string name;  // served name
  std::string path;  // a PEFT directory or a GGUF adapter
};

struct ServedModelOptions {
  std::string model;  // path of a GGUF, or "scripted:FILE"
  std::string name;   // served id; empty: the file's name without its ending
  model::Numerics numerics = model::Numerics::kFast;
  std::optional<model::Numerics> prompt_numerics = {};  // none: the same
  std::optional<ops::KvDtype> kv_dtype = {};            // none: model::default_kv_dtype()
  int32_t threads = 1;
  int32_t prefill_chunk = 256;  // 0: as long as the model's context
  int32_t max_sequences = 64;
  size_t kv_bytes = 0;        // what the pages may take, which bounds the context; 0: no bound
  int32_t block_tokens = 16;  // of a page
  std::string lineage;        // empty: the file's digest
  std::vector<AdapterSource> adapters;
  api::ParserNames parsers;  // how its replies are read
};

struct ServedModel {
  std::unique_ptr<model::Model> model;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::string tokenizer_identity;  // text::tokenizer_identity() of it and of the template
  std::optional<text::ChatTemplate> chat_template;
  std::string name;
  std::string lineage;                // with the adapters' digests: their KV is theirs alone
  std::string weights;                // the format that most of the weights' bytes have
  std::vector<std::string> adapters;  // names, sorted
  int32_t prefill_chunk = 0;          // never 0 here
  std::shared_ptr<const api::ReplyFormat> format;
};

Result<ServedModel> load_served_model(const ServedModelOptions& options);

}  // namespace tandem::worker
