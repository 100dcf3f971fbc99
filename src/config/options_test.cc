#include "config/options.h"

#include <fstream>

#include <gtest/gtest.h>

namespace tandem::config {
namespace {

struct Fixture {
  std::string model;
  std::string mode = "fast";
  int32_t threads = 1;
  uint16_t port = 8000;
  Bytes memory{size_t{512} << 20};
  Duration timeout = std::chrono::seconds(30);
  std::vector<std::string> urls;
  bool verbose = false;
  Options options{"test", "Tests."};
  Fixture() {
    options.positional(model, "MODEL", "a model");
    options.choice(mode, "numerics", {"fast", "exact"}, "numbers");
    options.value(threads, "threads", "N", "threads", 1, 64);
    options.value(port, "port", "PORT", "port");
    options.value(memory, "kv-memory", "SIZE", "memory");
    options.value(timeout, "timeout", "TIME", "time");
    options.list(urls, "decode", "URL", "workers");
    options.flag(verbose, "verbose", "talks");
  }
};

TEST(Options, ReadsFlagsInEveryForm) {
  Fixture f;
  auto parsed =
      f.options.parse({"m.gguf", "--threads=2", "--kv-memory", "1.5G", "--timeout", "250ms",
                       "--decode", "a", "b", "--verbose", "--numerics", "exact"});
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(f.model, "m.gguf");
  EXPECT_EQ(f.threads, 2);
  EXPECT_EQ(f.memory.value, 1610612736U);
  EXPECT_EQ(f.timeout, std::chrono::milliseconds(250));
  EXPECT_EQ(f.urls, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(f.verbose);
  EXPECT_EQ(f.mode, "exact");
}

TEST(Options, ErrorsNameTheOption) {
  const std::vector<std::vector<std::string>> bad = {{"m", "--threads", "0"},
                                                     {"m", "--threads", "x"},
                                                     {"m", "--port", "70000"},
                                                     {"m", "--kv-memory", "lots"},
                                                     {"m", "--numerics", "odd"}};
  for (const auto& arguments : bad) {
    Fixture f;
    const auto parsed = f.options.parse(arguments);
    ASSERT_FALSE(parsed);
    EXPECT_NE(parsed.error().message.find(arguments[1]), std::string::npos)
        << parsed.error().message;
  }
  Fixture f;
  EXPECT_NE(f.options.parse({}).error().message.find("MODEL"), std::string::npos);
  Fixture g;
  EXPECT_NE(g.options.parse({"m", "--nonsense"}).error().message.find("nonsense"),
            std::string::npos);
}

TEST(Options, HelpNamesEveryOptionAndItsDefault) {
  Fixture f;
  f.options.example("tandem test m.gguf");
  const auto parsed = f.options.parse({"--help"});
  ASSERT_TRUE(parsed);
  ASSERT_TRUE(parsed->help);
  for (const char* word : {"MODEL", "--threads", "--kv-memory", "512.0 MiB", "fast|exact",
                           "--config", "tandem test m.gguf"}) {
    EXPECT_NE(parsed->help->find(word), std::string::npos) << word << *parsed->help;
  }
}

TEST(Options, AHiddenOneWorksAndIsNotInTheHelp) {
  Fixture f;
  std::string fault;
  f.options.value(fault, "plant-fault", "NAME", "for tests");
  f.options.hide("plant-fault");
  const auto help = f.options.parse({"--help"});
  ASSERT_TRUE(help && help->help);
  EXPECT_EQ(help->help->find("plant-fault"), std::string::npos) << *help->help;
  ASSERT_TRUE(f.options.parse({"m", "--plant-fault", "x"}));
  EXPECT_EQ(fault, "x");
}

TEST(Options, TheFileHasTheSameNamesAndFlagsWin) {
  const std::string path = ::testing::TempDir() + "options_test.toml";
  std::ofstream(path) << "threads = 3\nkv-memory = \"1G\"\n[test]\nport = 9\ndecode = "
                         "[\"x\"]\n[other]\nwhatever = 1\n";
  Fixture f;
  auto parsed = f.options.parse({"m", "--config", path, "--threads", "4"});
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(f.threads, 4);
  EXPECT_EQ(f.port, 9);
  EXPECT_EQ(f.memory.value, size_t{1} << 30);
  EXPECT_EQ(f.urls, std::vector<std::string>{"x"});
  std::ofstream(path) << "thraeds = 3\n";
  Fixture g;
  parsed = g.options.parse({"m", "--config", path});
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().message.find("thraeds"), std::string::npos);
  EXPECT_NE(parsed.error().message.find("line 1"), std::string::npos);
  std::ofstream(path) << "threads = [1, 2]\n";
  EXPECT_FALSE(g.options.parse({"m", "--config", path})) << "which of them?";
  std::ofstream(path) << "threads = [\n";
  EXPECT_FALSE(g.options.parse({"m", "--config", path}));
  EXPECT_FALSE(g.options.parse({"m", "--config", path + ".absent"}));
}

TEST(Options, AnArrayOfTablesIsGivenTableByTable) {
  const std::string path = ::testing::TempDir() + "options_tables.toml";
  std::ofstream(path) << "[[workers]]\nurl = \"a\"\nport = 7\n[[workers]]\nurl = \"b\"\n"
                         "[[test.workers]]\nurl = \"c\"\n";
  Fixture f;
  std::string seen;
  f.options.tables("workers", [&](const Options::Table& table) -> Status {
    for (const auto& [key, value] : table) seen += key + "=" + value + " ";
    return seen.find("=c") != std::string::npos ? make_error(400, "x", "c is too much") : Status();
  });
  const auto parsed = f.options.parse({"m", "--config", path});
  EXPECT_EQ(seen, "port=7 url=a url=b url=c ");
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().message.find("line 6"), std::string::npos) << parsed.error().message;
  EXPECT_NE(parsed.error().message.find("c is too much"), std::string::npos);
  std::ofstream(path) << "[[workerz]]\nurl = \"a\"\n";
  EXPECT_FALSE(f.options.parse({"m", "--config", path}));
}

}  // namespace
}  // namespace tandem::config
