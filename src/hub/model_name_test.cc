#include "hub/model_name.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "hub/checksum.h"

namespace tandem::hub {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<std::string>;

TEST(ModelName, IsTwoWordsAndAFile) {
  const auto name = parse_model_name("acme/tiny-1.5_b:Q4_K_M");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->repository(), "acme/tiny-1.5_b");
  EXPECT_EQ(name->file, "Q4_K_M");
  EXPECT_EQ(parse_model_name("acme/tiny:sub/x.gguf")->file, "sub/x.gguf");
  for (const char* const bad :
       {"", "tiny", "/tiny", "acme/", "a/b/c", "../tiny", "acme/..", "a b/c",
        "acme/tiny:", "acme/tiny:../x", "acme/tiny:/x", "models/x\n"}) {
    EXPECT_FALSE(parse_model_name(bad)) << bad;
  }
}

TEST(SafePath, StaysBelowItsDirectory) {
  for (const char* const good : {"a", "a/b.json", ".gitattributes", "a..b/c"})
    EXPECT_TRUE(is_safe_path(good)) << good;
  for (const char* const bad : {"", "/a", "..", "a/../b", "a//b", "a/", "./a", "a\\b", "a\nb"})
    EXPECT_FALSE(is_safe_path(bad)) << bad;
}

TEST(ChooseFiles, ByNameMarkOrTheUsual) {
  const Paths two = {"README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-m.gguf"};
  EXPECT_EQ(*choose_files(two, ""), Paths{"m-Q4_K_M.gguf"});
  EXPECT_EQ(*choose_files(two, "q8_0"), Paths{"m-Q8_0.gguf"});
  EXPECT_EQ(*choose_files(two, "README.md"), Paths{"README.md"});
  EXPECT_EQ(choose_files(two, "m").error().code, "file_ambiguous");
  const auto missing = choose_files(two, "Q5_K");
  EXPECT_EQ(missing.error().status, 404);
  EXPECT_NE(missing.error().message.find("m-Q4_K_M.gguf, m-Q8_0.gguf"), std::string::npos);
  EXPECT_EQ(choose_files({"a-Q5_0.gguf", "a-Q8_0.gguf"}, "").error().code, "file_ambiguous");
  EXPECT_EQ(choose_files({"a.txt"}, "").error().code, "file_not_found");
  EXPECT_EQ(*choose_files({"only.gguf"}, ""), Paths{"only.gguf"});
}

TEST(ChooseFiles, AMarkIsAWholeOne) {
  const Paths paths = {"m-Q4_K_M.gguf", "m-Q4_K.gguf"};
  EXPECT_EQ(*choose_files(paths, "Q4_K"), Paths{"m-Q4_K.gguf"});
}

TEST(ChooseFiles, PartsOfASplitFileAreOne) {
  const Paths parts = {"b-Q8_0-00001-of-00002.gguf", "b-Q8_0-00002-of-00002.gguf"};
  Paths all = parts;
  all.push_back("b-Q2_K.gguf");
  EXPECT_EQ(*choose_files(all, "Q8_0"), parts);
  EXPECT_EQ(*choose_files(all, parts[1]), parts);
  EXPECT_EQ(*choose_files(parts, ""), parts);
}

TEST(ChooseFiles, SafetensorsComeFirstAndOnce) {
  const Paths paths = {
      "config.json",     "consolidated.safetensors", "m-Q8_0.gguf", "model.safetensors",
      "sub/config.json", "tokenizer.model",          "x.py"};
  EXPECT_EQ(*choose_files(paths, ""),
            (Paths{"config.json", "model.safetensors", "tokenizer.model"}));
}

TEST(FindModel, PathsStayPathsAndNamesBecomeThem) {
  char pattern[] = "/tmp/models-XXXXXX";
  const std::string root = ::mkdtemp(pattern);
  fs::create_directories(root + "/acme/tiny");
  std::ofstream(root + "/acme/tiny/tiny.Q8_0.gguf") << "x";
  std::ofstream(root + "/acme/tiny/tiny.Q4_K_M.gguf.0123.part") << "x";
  fs::create_directories(root + "/acme/hf");
  std::ofstream(root + "/acme/hf/model.safetensors") << "x";
  const auto pulled = find_model("acme/tiny:Q8_0", root);
  ASSERT_TRUE(pulled) << pulled.error().message;
  EXPECT_EQ(pulled->path, root + "/acme/tiny/tiny.Q8_0.gguf");
  EXPECT_EQ(pulled->name, "acme/tiny");
  EXPECT_EQ(find_model("acme/hf", root)->path, root + "/acme/hf");
  EXPECT_EQ(find_model(root, "/nowhere")->path, root);
  EXPECT_EQ(find_model("scripted:x", "/nowhere")->path, "scripted:x");
  for (const char* const text : {"acme/none", "acme/tiny:Q4_K_M"})
    EXPECT_NE(find_model(text, root).error().message.find("tandem pull"), std::string::npos);
  EXPECT_EQ(find_model("none.gguf", root).error().code, "model_not_found");
  fs::remove_all(root);
}

TEST(Checksum, IsWhatOtherToolsSay) {
  Checksum sum = Checksum::sha256();
  sum.update("ab");
  sum.update("c");
  EXPECT_EQ(sum.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Checksum blob = Checksum::git_blob(0);
  EXPECT_EQ(blob.hex(), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391") << "git's empty blob";
}

}  // namespace
}  // namespace tandem::hub
