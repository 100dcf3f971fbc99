// Line plots as SVG, for a page that needs nothing else.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tandem::loadgen {

using Points = std::vector<std::pair<double, double>>;

struct Line {
  std::string name;
  Points points;  // ascending in x
};

struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Line> lines;
  bool steps = false;  // each value holds until the next
};

// About five round numbers from zero to `most` or a little beyond; the last is the axis' end.
std::vector<double> ticks_to(double most);
std::string svg_plot(const Plot& plot);
std::string escape_html(std::string_view text);

}  // namespace tandem::loadgen
