#include "loadgen/prompt_text.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "loadgen/random.h"

namespace tandem::loadgen {

namespace {

constexpr std::array<std::string_view, 128> kWords = {
    "time",      "people",   "water",  "house",     "light",  "world",   "hand",      "part",
    "place",     "case",     "week",   "company",   "system", "program", "question",  "work",
    "number",    "night",    "point",  "home",      "room",   "mother",  "area",      "money",
    "story",     "fact",     "month",  "right",     "study",  "book",    "eye",       "job",
    "word",      "business", "issue",  "side",      "kind",   "head",    "service",   "friend",
    "father",    "power",    "hour",   "game",      "line",   "end",     "member",    "law",
    "car",       "city",     "name",   "president", "team",   "minute",  "idea",      "body",
    "back",      "parent",   "face",   "others",    "level",  "office",  "door",      "health",
    "person",    "art",      "war",    "history",   "party",  "result",  "change",    "morning",
    "reason",    "research", "girl",   "guy",       "moment", "air",     "teacher",   "force",
    "long",      "great",    "little", "own",       "other",  "old",     "big",       "high",
    "different", "small",    "large",  "next",      "early",  "young",   "important", "few",
    "public",    "bad",      "same",   "able",      "the",    "and",     "with",      "from",
    "they",      "this",     "have",   "about",     "after",  "there",   "then",      "over",
    "under",     "into",     "only",   "some",      "make",   "find",    "give",      "tell",
    "know",      "take",     "come",   "look",      "want",   "seem",    "feel",      "leave"};

}  // namespace

void append_words(std::string& out, uint64_t seed, size_t words) {
  Random random(seed);
  for (size_t i = 0; i < words; ++i) {
    out += kWords[random.next() % kWords.size()];
    out += ' ';
  }
}

size_t words_for(int32_t tokens, double tokens_per_word) {
  return static_cast<size_t>(std::max(1.0, std::round(tokens / std::max(tokens_per_word, 0.05))));
}

void append_token_ids(std::vector<uint32_t>& out, uint64_t seed, size_t tokens, uint32_t least,
                      uint32_t count) {
  Random random(seed);
  for (size_t i = 0; i < tokens; ++i)
    out.push_back(least + static_cast<uint32_t>(random.next() % std::max<uint32_t>(count, 1)));
}

}  // namespace tandem::loadgen
