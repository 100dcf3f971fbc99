#include "api/openapi.h"

#include <array>
#include <string>
#include <utility>

#include "api/request_tables.h"

namespace tandem::api {

namespace {

struct Operation {
  const char* path;
  const char* method;
  const char* summary;
  const char* request;  // a schema's name; null: no body
  const char* reply;    // a schema's name; null: text
  const char* stream;   // the schema of one event when the answer is streamed; null: never
};

constexpr std::array kOperations = {
    Operation{"/v1/chat/completions", "post", "Answer a conversation", "ChatRequest",
              "ChatCompletion", "ChatCompletionChunk"},
    Operation{"/v1/responses", "post", "Answer a conversation, in the Responses dialect",
              "ResponsesRequest", "AnyObject", "AnyObject"},
    Operation{"/v1/responses/input_tokens", "post", "Count a body of it", "InputTokensRequest",
              "AnyObject", nullptr},
    Operation{"/v1/messages", "post", "Answer a conversation, in Anthropic's dialect",
              "MessagesRequest", "AnyObject", "AnyObject"},
    Operation{"/v1/messages/count_tokens", "post", "Count a body of it", "CountTokensRequest",
              "AnyObject", nullptr},
    Operation{"/v1/completions", "post", "Continue texts, or score them", "CompletionRequest",
              "Completion", "Completion"},
    Operation{"/v1/embeddings", "post", "Turn texts into vectors", "EmbeddingRequest",
              "EmbeddingList", nullptr},
    Operation{"/v1/models", "get", "The served models", nullptr, "ModelList", nullptr},
    Operation{"/v1/models/{model}", "get", "One model", nullptr, "Model", nullptr},
    Operation{"/tokenize", "post", "Text or a conversation to token ids", "TokenizeRequest",
              "TokenList", nullptr},
    Operation{"/detokenize", "post", "Token ids to text", "DetokenizeRequest", "TokenText",
              nullptr},
    Operation{"/api/chat", "post", "Answer a conversation, in Ollama's dialect",
              "OllamaChatRequest", "OllamaReply", nullptr},
    Operation{"/api/generate", "post", "Continue a text, in Ollama's dialect",
              "OllamaGenerateRequest", "OllamaReply", nullptr},
    Operation{"/api/embed", "post", "Turn texts into vectors, in Ollama's dialect",
              "OllamaEmbedRequest", "OllamaEmbedReply", nullptr},
    Operation{"/api/embeddings", "post", "Turn one text into a vector, in Ollama's older way",
              "OllamaEmbeddingsRequest", "OllamaEmbeddingsReply", nullptr},
    Operation{"/api/tags", "get", "The served models, in Ollama's dialect", nullptr, "OllamaTags",
              nullptr},
    Operation{"/api/version", "get", "The version, in Ollama's dialect", nullptr, "OllamaVersion",
              nullptr},
    Operation{"/health", "get", "Whether the process lives", nullptr, "Health", nullptr},
    Operation{"/ready", "get", "Whether requests can be taken", nullptr, "Health", nullptr},
    Operation{"/metrics", "get", "Prometheus", nullptr, nullptr, nullptr},
    Operation{"/openapi.json", "get", "This document", nullptr, "AnyObject", nullptr},
};

JsonValue text(std::string value) { return JsonValue::string(std::move(value)); }

JsonValue reference(const char* schema) {
  return JsonValue::object({{"$ref", text(std::string("#/components/schemas/") + schema)}});
}

JsonValue content(const char* type, JsonValue schema) {
  return JsonValue::object({{type, JsonValue::object({{"schema", std::move(schema)}})}});
}

JsonValue response(const char* description, JsonValue body) {
  return JsonValue::object({{"description", text(description)}, {"content", std::move(body)}});
}

JsonValue responses(const Operation& operation) {
  const bool ollama = std::string_view(operation.path).starts_with("/api/");
  JsonValue body = operation.reply == nullptr
                       ? content("text/plain", JsonValue::object({{"type", text("string")}}))
                       : content("application/json", reference(operation.reply));
  if (operation.stream != nullptr) {
    body.set("text/event-stream", JsonValue::object({{"schema", reference(operation.stream)}}));
  }
  if (operation.reply != nullptr && std::string_view(operation.reply) == "OllamaReply") {
    body.set("application/x-ndjson", JsonValue::object({{"schema", reference(operation.reply)}}));
  }
  JsonValue out = JsonValue::object();
  out.set("200", response("The answer", std::move(body)));
  struct Failure {
    const char* status;
    const char* description;
    bool for_bodies;
  };
  constexpr Failure kFailures[] = {
      {"400", "The request cannot succeed as it is; param names the field", true},
      {"401", "The key is missing or wrong", false},
      {"404", "There is no such model", true},
      {"429", "Too many requests; Retry-After says when to try again", false},
      {"503", "Nobody can take the request now; Retry-After says when to try again", false}};
  for (const Failure& failure : kFailures) {
    const bool model = std::string_view(operation.path).find("{model}") != std::string_view::npos;
    if (failure.for_bodies && operation.request == nullptr && !model) continue;
    out.set(failure.status,
            response(failure.description,
                     content("application/json", reference(ollama ? "OllamaError" : "Error"))));
  }
  return out;
}

JsonValue operation_json(const Operation& operation) {
  JsonValue out = JsonValue::object({{"summary", text(operation.summary)}});
  const std::string_view path = operation.path;
  if (path.find("{model}") != std::string_view::npos) {
    JsonValue parameter = JsonValue::object();
    parameter.set("name", text("model"));
    parameter.set("in", text("path"));
    parameter.set("required", JsonValue::boolean(true));
    parameter.set("schema", JsonValue::object({{"type", text("string")}}));
    out.set("parameters", JsonValue::array({std::move(parameter)}));
  }
  if (operation.request != nullptr) {
    out.set("requestBody", JsonValue::object({{"required", JsonValue::boolean(true)},
                                              {"content", content("application/json",
                                                                  reference(operation.request))}}));
  }
  out.set("responses", responses(operation));
  const bool open = path == "/health" || path == "/ready";
  if (open) out.set("security", JsonValue::array());
  return out;
}

}  // namespace

JsonValue request_schema(Endpoint endpoint) {
  JsonValue schema = JsonValue::object({{"type", text("object")}});
  JsonValue properties = JsonValue::object();
  JsonValue required = JsonValue::array();
  for (const std::span<const Field> table : request_tables(endpoint)) {
    const JsonValue part = fields_schema(table, required);
    for (const auto& [name, field] : part.members()) properties.set(name, field);
  }
  schema.set("properties", std::move(properties));
  if (!required.items().empty()) schema.set("required", std::move(required));
  return schema;
}

JsonValue openapi_document() {
  JsonValue paths = JsonValue::object();
  for (const Operation& operation : kOperations) {
    paths.set(operation.path, JsonValue::object({{operation.method, operation_json(operation)}}));
  }
  JsonValue schemas = *parse_json(kReplySchemas);
  constexpr std::pair<const char*, Endpoint> kRequests[] = {
      {"ChatRequest", Endpoint::kChatCompletions}, {"CompletionRequest", Endpoint::kCompletions},
      {"ResponsesRequest", Endpoint::kResponses},  {"InputTokensRequest", Endpoint::kInputTokens},
      {"MessagesRequest", Endpoint::kMessages},    {"CountTokensRequest", Endpoint::kCountTokens},
      {"EmbeddingRequest", Endpoint::kEmbeddings}, {"TokenizeRequest", Endpoint::kTokenize},
      {"DetokenizeRequest", Endpoint::kDetokenize}};
  for (const auto& [name, endpoint] : kRequests) schemas.set(name, request_schema(endpoint));

  JsonValue components = JsonValue::object({{"schemas", std::move(schemas)}});
  components.set(
      "securitySchemes",
      JsonValue::object(
          {{"key", JsonValue::object({{"type", text("http")}, {"scheme", text("bearer")}})}}));
  JsonValue document = JsonValue::object();
  document.set("openapi", text("3.1.0"));
  document.set(
      "info",
      JsonValue::object(
          {{"title", text("Tandem")},
           {"version", text("1")},
           {"description", text("OpenAI's API. Types are strict, null is as good as absent, fields "
                                "that are not listed are ignored.")}}));
  document.set("paths", std::move(paths));
  document.set("components", std::move(components));
  document.set("security", JsonValue::array({JsonValue::object({{"key", JsonValue::array()}})}));
  return document;
}

}  // namespace tandem::api
