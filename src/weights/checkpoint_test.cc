#include "weights/checkpoint.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "weights/gguf_writer.h"

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

}  // namespace
}  // namespace tandem::weights
