#include "weights/checkpoint.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "weights/gguf_writer.h"
#include "weights/safetensors_writer.h"

namespace tandem::weights {
namespace {

// A directory that disappears with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tandem-weights-XXXXXX");
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  void write(const std::string& name, std::span<const std::byte> bytes) const {
    std::filesystem::create_directories(std::filesystem::path(file(name)).parent_path());
    std::ofstream out(file(name), std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(out.good());
  }
  void write(const std::string& name, std::string_view text) const {
    write(name, std::as_bytes(std::span(text)));
  }

 private:
  std::string path_;
};

std::string message_of(const Result<Checkpoint>& result) {
  return result ? "" : result.error().code + ": " + result.error().message;
}

// Part `number` (from 0) of `count`, with one vector [number].
std::vector<std::byte> part(uint32_t number, uint32_t count, const std::string& tensor,
                            int32_t total) {
  GgufWriter writer;
  if (number == 0) writer.add_string("general.architecture", "llama");
  writer.add_u32("split.no", number);
  writer.add_u32("split.count", count);
  writer.add_i32("split.tensors.count", total);
  const std::vector<float> values = {static_cast<float>(number)};
  writer.add_vector(tensor, values);
  return writer.finish();
}

TEST(CheckpointGguf, OneFileGivesItsMetadataTensorsAndDigest) {
  const TemporaryDirectory directory;
  const std::vector<std::byte> bytes = part(0, 1, "a", 1);
  directory.write("anything", bytes);  // the content decides, not the name
  auto checkpoint = Checkpoint::open(directory.file("anything"));
  ASSERT_TRUE(checkpoint) << message_of(checkpoint);
  EXPECT_TRUE(checkpoint->is_gguf());
  EXPECT_EQ(checkpoint->gguf()->string("general.architecture").value(), "llama");
  ASSERT_NE(checkpoint->find_tensor("a"), nullptr);
  EXPECT_EQ(checkpoint->find_tensor("b"), nullptr);
  EXPECT_EQ(checkpoint->digest(), numerics::sha256(bytes));
  EXPECT_EQ(checkpoint->file_bytes(), bytes.size());
  EXPECT_EQ(checkpoint->json("config.json"), nullptr);
  EXPECT_FALSE(checkpoint->text("config.json"));
  Checkpoint moved = std::move(*checkpoint);
  moved.release_resident();
  EXPECT_EQ(moved.find_tensor("a")->bytes[0], std::byte{0});
}

TEST(CheckpointGguf, AnyPartOpensTheWholeSplitModel) {
  const TemporaryDirectory directory;
  for (uint32_t i = 0; i < 3; ++i) {
    directory.write("m-0000" + std::to_string(i + 1) + "-of-00003.gguf",
                    part(i, 3, "t" + std::to_string(i), 3));
  }
  std::vector<numerics::Digest> digests;
  for (const char* name : {"m-00001-of-00003.gguf", "m-00003-of-00003.gguf"}) {
    const auto checkpoint = Checkpoint::open(directory.file(name));
    ASSERT_TRUE(checkpoint) << message_of(checkpoint);
    EXPECT_EQ(checkpoint->tensors().size(), 3U);
    EXPECT_EQ(checkpoint->gguf()->string("general.architecture").value(), "llama");
    for (const char* tensor : {"t0", "t1", "t2"})
      EXPECT_NE(checkpoint->find_tensor(tensor), nullptr);
    digests.push_back(checkpoint->digest());
  }
  EXPECT_EQ(digests[0], digests[1]);
}

TEST(CheckpointGguf, PartsThatDoNotFitTogetherAreRefused) {
  const TemporaryDirectory directory;
  const auto refused = [&](const std::string& name, std::string_view reason) {
    const std::string message = message_of(Checkpoint::open(directory.file(name)));
    EXPECT_NE(message.find(reason), std::string::npos) << message;
  };
  directory.write("m-00001-of-00002.gguf", part(0, 2, "a", 2));
  refused("m-00001-of-00002.gguf", "model_not_found");  // the second is missing
  directory.write("m-00002-of-00002.gguf", part(0, 2, "b", 2));
  refused("m-00001-of-00002.gguf", "part 1 of 2");  // two first parts
  directory.write("m-00002-of-00002.gguf", part(1, 3, "b", 2));
  refused("m-00001-of-00002.gguf", "part 2 of 3");
  directory.write("m-00002-of-00002.gguf", part(1, 2, "a", 2));
  refused("m-00001-of-00002.gguf", "two of the model's files");
  directory.write("m-00002-of-00002.gguf", part(1, 2, "b", 5));
  directory.write("m-00001-of-00002.gguf", part(0, 2, "a", 5));
  refused("m-00001-of-00002.gguf", "split.tensors.count says 5");
  directory.write("renamed.gguf", part(0, 2, "a", 2));
  refused("renamed.gguf", "keep the parts' own names");
}

std::vector<std::byte> shard(const std::vector<std::string>& tensors) {
  SafetensorsWriter writer;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<float> values = {static_cast<float>(i), 2};
    writer.add(tensors[i], Format::kBF16, {1, 2}, values);
  }
  return writer.finish();
}

TEST(CheckpointDirectory, GivesDocumentsAndTensors) {
  const TemporaryDirectory directory;
  directory.write("config.json", R"({"model_type":"llama","hidden_size":2})");
  directory.write("tokenizer.json", R"({"version":"1.0"})");
  directory.write("chat_template.jinja", "{{ messages }}");
  directory.write("additional_chat_templates/tool_use.jinja", "{{ tools }}");
  directory.write("README.md", "not a document");
  directory.write("model.safetensors", shard({"a", "b"}));
  // The directory, the file in it, and a path with a trailing slash are the same checkpoint.
  std::vector<numerics::Digest> digests;
  for (const std::string& path :
       {directory.path(), directory.path() + "/", directory.file("model.safetensors")}) {
    auto checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint) << message_of(checkpoint);
    EXPECT_FALSE(checkpoint->is_gguf());
    EXPECT_EQ(checkpoint->gguf(), nullptr);
    ASSERT_NE(checkpoint->json("config.json"), nullptr);
    EXPECT_EQ(checkpoint->json("config.json")->find("model_type")->as_string(), "llama");
    EXPECT_EQ(checkpoint->json("generation_config.json"), nullptr);
    EXPECT_EQ(checkpoint->json("chat_template.jinja"), nullptr);
    EXPECT_EQ(checkpoint->text("chat_template.jinja"), "{{ messages }}");
    EXPECT_EQ(checkpoint->text("additional_chat_templates/tool_use.jinja"), "{{ tools }}");
    EXPECT_FALSE(checkpoint->text("README.md"));
    EXPECT_EQ(checkpoint->documents().size(), 4U);
    EXPECT_EQ(checkpoint->tensors().size(), 2U);
    digests.push_back(checkpoint->digest());
    checkpoint->release_resident();
    EXPECT_EQ(checkpoint->json("config.json"), nullptr);
    EXPECT_EQ(checkpoint->find_tensor("b")->columns(), 2);
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_EQ(digests[0], digests[2]);
  directory.write("tokenizer.json", R"({"version":"1.1"})");
  EXPECT_NE(Checkpoint::open(directory.path())->digest(), digests[0]);
}

TEST(CheckpointDirectory, ShardsMustBeWhatTheIndexSays) {
  const TemporaryDirectory directory;
  const auto refused = [&](std::string_view reason) {
    const std::string message = message_of(Checkpoint::open(directory.path()));
    EXPECT_NE(message.find(reason), std::string::npos) << message;
  };
  const auto index = [&](std::string_view map) {
    directory.write("model.safetensors.index.json", R"({"weight_map":)" + std::string(map) + "}");
  };
  directory.write("config.json", "{}");
  refused("there is no model.safetensors");
  index(R"({"a":"m-1-of-2.safetensors","b":"m-2-of-2.safetensors"})");
  directory.write("m-1-of-2.safetensors", shard({"a", "unlisted"}));
  refused("model_not_found");  // the second shard is missing
  directory.write("m-2-of-2.safetensors", shard({"b"}));
  for (const std::string& path : {directory.path(), directory.file("m-2-of-2.safetensors")}) {
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint) << message_of(checkpoint);
    EXPECT_EQ(checkpoint->tensors().size(), 2U);
    EXPECT_EQ(checkpoint->find_tensor("unlisted"), nullptr);
  }
  index(R"({"a":"m-1-of-2.safetensors","b":"m-1-of-2.safetensors"})");
  refused("places tensor b in m-1-of-2.safetensors, which does not hold it");
  index(R"({"a":"m-2-of-2.safetensors","b":"m-2-of-2.safetensors"})");
  refused("places tensor a in");
  index(R"({"a":"m-1-of-2.safetensors","b":"m-2-of-2.safetensors"})");
  directory.write("m-2-of-2.safetensors", shard({"b", "a"}));
  refused("tensor a is in m-2-of-2.safetensors");
  for (const char* name : {"../secret.safetensors", "/etc/passwd", "m-1-of-2.bin", ""}) {
    index(R"({"a":")" + std::string(name) + R"("})");
    refused("names a file that is no .safetensors beside it");
  }
  for (const char* map : {"{}", "[]", R"({"a":1})"}) {
    index(map);
    EXPECT_FALSE(Checkpoint::open(directory.path()));
  }
}

TEST(CheckpointDirectory, BrokenDocumentsAndAdaptersWithoutModelsAreNamed) {
  const TemporaryDirectory directory;
  directory.write("adapter_model.safetensors", shard({"lora_A"}));
  EXPECT_NE(message_of(Checkpoint::open(directory.path())).find("no config.json"),
            std::string::npos);
  directory.write("adapter_config.json", R"({"r":8})");
  const auto adapter = Checkpoint::open(directory.path());
  ASSERT_TRUE(adapter) << message_of(adapter);
  EXPECT_NE(adapter->find_tensor("lora_A"), nullptr);
  directory.write("tokenizer.json", "{");
  const std::string message = message_of(Checkpoint::open(directory.path()));
  EXPECT_NE(message.find("invalid_model"), std::string::npos);
  EXPECT_NE(message.find("tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace tandem::weights
