#include "ep/kernels/matmul/einsum_equation.h"

#include <algorithm>
#include <cctype>

#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "Einsum";
constexpr int kEllipsis = 256;  // above all letters

// A term, with `axes` axes for its ellipsis. `rank`: of the operand, or -1 for the output.
EinsumEquation::Subscripts ParseTerm(const std::string& term, int rank, int axes) {
  EinsumEquation::Subscripts subscripts;
  bool ellipsis = false;
  for (size_t i = 0; i < term.size(); ++i) {
    if (std::isalpha(static_cast<unsigned char>(term[i])) != 0) {
      subscripts.push_back(static_cast<unsigned char>(term[i]));
      continue;
    }
    NPU_OP_CHECK(kOp, term.compare(i, 3, "...") == 0 && !ellipsis,
                 "expected letters and at most one ellipsis in a term, got '", term, "'");
    ellipsis = true;
    i += 2;
    const int letters = static_cast<int>(term.size()) - 3;
    const int count = rank < 0 ? axes : rank - letters;
    for (int axis = count; axis-- > 0;) subscripts.push_back(kEllipsis + axis);
  }
  NPU_OP_CHECK(kOp, rank < 0 || static_cast<int>(subscripts.size()) == rank, "expected an operand with an axis for ",
               "each subscript of '", term, "', got ", rank, " axes");
  return subscripts;
}

std::vector<std::string> SplitTerms(const std::string& text) {
  std::vector<std::string> terms(1);
  for (const char c : text) {
    if (c == ',') {
      terms.emplace_back();
    } else {
      terms.back() += c;
    }
  }
  return terms;
}

}  // namespace

EinsumEquation::EinsumEquation(const std::string& text, const std::vector<Shape>& shapes) {
  std::string compact;
  for (const char c : text)
    if (c != ' ') compact += c;
  const size_t arrow = compact.find("->");
  const std::vector<std::string> terms = SplitTerms(compact.substr(0, arrow));
  NPU_OP_CHECK(kOp, terms.size() == shapes.size(), "expected an operand for each term of '", text, "', got ",
               shapes.size());
  int ellipsis_axes = 0;
  std::map<int, int> uses;
  for (size_t i = 0; i < terms.size(); ++i) {
    operands.push_back(ParseTerm(terms[i], shapes[i].rank(), 0));
    for (int d = 0; d < shapes[i].rank(); ++d) {
      const int subscript = operands[i][static_cast<size_t>(d)];
      ++uses[subscript];
      if (subscript >= kEllipsis) ellipsis_axes = std::max(ellipsis_axes, subscript - kEllipsis + 1);
      int64_t& size = sizes.try_emplace(subscript, 1).first->second;
      NPU_OP_CHECK(kOp, size == 1 || shapes[i][d] == 1 || size == shapes[i][d],
                   "expected one size, or 1, for each subscript of '", text, "', got ", size, " and ", shapes[i][d]);
      if (shapes[i][d] != 1) size = shapes[i][d];
    }
  }
  NPU_OP_CHECK(kOp, static_cast<int>(sizes.size()) <= Shape::kMaxRank, "expected at most ", Shape::kMaxRank,
               " subscripts, got ", sizes.size());
  if (arrow != std::string::npos) {
    output = ParseTerm(compact.substr(arrow + 2), -1, ellipsis_axes);
  } else {  // the subscripts that occur once, in alphabetical order, after the ellipsis
    for (int axis = ellipsis_axes; axis-- > 0;) output.push_back(kEllipsis + axis);
    for (const auto& [subscript, count] : uses)
      if (subscript < kEllipsis && count == 1) output.push_back(subscript);
  }
  for (size_t i = 0; i < output.size(); ++i) {
    NPU_OP_CHECK(kOp, sizes.count(output[i]) != 0, "expected subscripts of the output in a term, got '", text, "'");
    NPU_OP_CHECK(kOp,
                 std::find(output.begin(), output.begin() + static_cast<int64_t>(i), output[i]) ==
                     output.begin() + static_cast<int64_t>(i),
                 "expected each subscript of the output once, got '", text, "'");
  }
}

}  // namespace npu
