#include "ep/kernels/attention/core/layout.h"

namespace npu::attention {

namespace {

constexpr Layout kLayouts[] = {
    {"BSH", Form::kBSH, Form::kBSH},         {"BSND", Form::kBSND, Form::kBSND},
    {"BNSD", Form::kBNSD, Form::kBNSD},      {"BNSD_BSND", Form::kBNSD, Form::kBSND},
    {"BSH_BNSD", Form::kBSH, Form::kBNSD},   {"BSND_BNSD", Form::kBSND, Form::kBNSD},
    {"BSH_NBSD", Form::kBSH, Form::kNBSD},   {"BSND_NBSD", Form::kBSND, Form::kNBSD},
    {"BNSD_NBSD", Form::kBNSD, Form::kNBSD}, {"TND", Form::kTND, Form::kTND},
    {"NTD", Form::kNTD, Form::kNTD},         {"TND_NTD", Form::kTND, Form::kNTD},
    {"NTD_TND", Form::kNTD, Form::kTND},     {"SH", Form::kSH, Form::kSH},
    {"NSD", Form::kNSD, Form::kNSD},
};

}  // namespace

int RankOf(Form form) {
  if (form == Form::kSH) return 2;
  return JoinsHeads(form) || form == Form::kNSD || IsPacked(form) ? 3 : 4;
}

const char* AxesText(Form form) {
  switch (form) {
    case Form::kBSH:
      return "[B, S, N*D]";
    case Form::kSBH:
      return "[S, B, N*D]";
    case Form::kBSND:
      return "[B, S, N, D]";
    case Form::kBNSD:
      return "[B, N, S, D]";
    case Form::kNBSD:
      return "[N, B, S, D]";
    case Form::kTND:
      return "[T, N, D]";
    case Form::kNTD:
      return "[N, T, D]";
    case Form::kSH:
      return "[S, N*D]";
    case Form::kNSD:
      return "[N, S, D]";
  }
  return "";
}

const Layout* FindLayout(const std::string& name) {
  for (const Layout& layout : kLayouts) {
    if (name == layout.name) return &layout;
  }
  return nullptr;
}

Axes AxesOf(const Shape& shape, Form form, int64_t heads) {
  switch (form) {
    case Form::kBSH:
      return {shape[0], heads, shape[1], shape[2] / heads, shape.Elements(1, 3), shape[2] / heads, shape[2]};
    case Form::kSBH:
      return {shape[1], heads, shape[0], shape[2] / heads, shape[2], shape[2] / heads, shape.Elements(1, 3)};
    case Form::kBSND:
      return {shape[0], shape[2], shape[1], shape[3], shape.Elements(1, 4), shape[3], shape.Elements(2, 4)};
    case Form::kBNSD:
      return {shape[0], shape[1], shape[2], shape[3], shape.Elements(1, 4), shape.Elements(2, 4), shape[3]};
    case Form::kNBSD:
      return {shape[1], shape[0], shape[2], shape[3], shape.Elements(2, 4), shape.Elements(1, 4), shape[3]};
    case Form::kTND:
      return {1, shape[1], shape[0], shape[2], 0, shape[2], shape.Elements(1, 3)};
    case Form::kNTD:
    case Form::kNSD:
      return {1, shape[0], shape[1], shape[2], 0, shape.Elements(1, 3), shape[2]};
    case Form::kSH:
      return {1, heads, shape[0], shape[1] / heads, 0, shape[1] / heads, shape[1]};
  }
  return {};
}

Shape OutputShape(Form form, const Axes& query, int64_t size) {
  switch (form) {
    case Form::kBSH:
      return {query.batch, query.rows, Shape{query.heads, size}.Elements()};
    case Form::kSBH:
      return {query.rows, query.batch, Shape{query.heads, size}.Elements()};
    case Form::kBSND:
      return {query.batch, query.rows, query.heads, size};
    case Form::kBNSD:
      return {query.batch, query.heads, query.rows, size};
    case Form::kNBSD:
      return {query.heads, query.batch, query.rows, size};
    case Form::kTND:
      return {query.rows, query.heads, size};
    case Form::kNTD:
    case Form::kNSD:
      return {query.heads, query.rows, size};
    case Form::kSH:
      return {query.rows, Shape{query.heads, size}.Elements()};
  }
  return {};
}

}  // namespace npu::attention
