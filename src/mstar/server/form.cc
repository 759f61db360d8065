#include "mstar/server/form.h"

#include <algorithm>

#include "mstar/server/ascii.h"
#include "mstar/server/json_text.h"
#include "mstar/server/multipart.h"

namespace mstar::server {
namespace {

constexpr int kMaxFields = 1000;
constexpr std::size_t kMaxFileNameBytes = 255;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// For the body types that are parsed whole.
class WholeBodyReader final : public BodyReader {
 public:
  WholeBodyReader(BodyKind kind, std::size_t limit_bytes) : kind_(kind), limit_bytes_(limit_bytes) {}

  Status feed(std::string_view bytes) override {
    if (bytes.size() > limit_bytes_ - body_.size())
      return exhausted("the body is larger than " + std::to_string(limit_bytes_) + " bytes");
    body_ += bytes;
    return ok_status();
  }

  Result<Form> finish() override {
    if (kind_ == kUrlencoded) return parse_urlencoded(body_);
    Form form;
    if (kind_ == kRaw) {
      form.files.push_back({.field = "body", .file_name = "body", .content_type = {}, .bytes = std::move(body_)});
      return form;
    }
    MSTAR_TRY_ASSIGN(form.fields, params_from_json(body_, "the request body"));
    return form;
  }

 private:
  BodyKind kind_;
  std::size_t limit_bytes_;
  std::string body_;
};

}  // namespace

void add_field(Params& fields, std::string_view name, std::string value) {
  const bool is_list = name.ends_with("[]");
  if (is_list) name.remove_suffix(2);
  const auto it = fields.values().find(name);
  if (it == fields.values().end()) {
    if (is_list) {
      fields.set(std::string(name), std::vector<std::string>{std::move(value)});
    } else {
      fields.set(std::string(name), std::move(value));
    }
    return;
  }
  std::vector<std::string> list;
  if (const auto* one = std::get_if<std::string>(&it->second)) list.push_back(*one);
  if (const auto* many = std::get_if<std::vector<std::string>>(&it->second)) list = *many;
  list.push_back(std::move(value));
  fields.set(std::string(name), std::move(list));
}

Result<std::string> percent_decode(std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+' && plus_is_space) {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
      const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
      if (low < 0) return invalid_request("malformed percent escape");
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return out;
}

Result<Form> parse_urlencoded(std::string_view body) {
  Form form;
  int num_fields = 0;
  while (!body.empty()) {
    const std::string_view pair = body.substr(0, body.find('&'));
    body.remove_prefix(std::min(body.size(), pair.size() + 1));
    if (pair.empty()) continue;
    if (++num_fields > kMaxFields) return invalid_request("the form has too many fields");
    const std::size_t equals = pair.find('=');
    MSTAR_TRY_ASSIGN(std::string name, percent_decode(pair.substr(0, equals), true));
    std::string value;
    if (equals != std::string_view::npos) {
      MSTAR_TRY_ASSIGN(value, percent_decode(pair.substr(equals + 1), true));
    }
    if (name.empty() || name == "[]") return invalid_request("a form field has no name");
    if (!is_utf8(name)) return invalid_request("a form field's name is not UTF-8");
    if (!is_utf8(value)) return invalid_request("'" + name + "' is not UTF-8").with_field(name);
    add_field(form.fields, name, std::move(value));
  }
  return form;
}

std::string base_name(std::string_view file_name) {
  const std::size_t slash = file_name.find_last_of("/\\");
  if (slash != std::string_view::npos) file_name.remove_prefix(slash + 1);
  std::string out;
  for (const char c : file_name)
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) out += c;
  // The end carries the extension.
  if (out.size() > kMaxFileNameBytes) out.erase(0, out.size() - kMaxFileNameBytes);
  if (!is_utf8(out))
    for (char& c : out)
      if (static_cast<unsigned char>(c) >= 0x80) c = '_';
  if (out.empty() || out == "." || out == "..") return "file";
  return out;
}

BodyKind body_kind(std::string_view content_type) {
  const std::string kind = lower(trim(content_type.substr(0, content_type.find(';'))));
  if (kind == "multipart/form-data") return kMultipart;
  if (kind == "application/x-www-form-urlencoded") return kUrlencoded;
  if (kind == "application/json") return kJson;
  return kNoBody;
}

std::unique_ptr<BodyReader> make_raw_body_reader(std::size_t limit_bytes) {
  return std::make_unique<WholeBodyReader>(kRaw, limit_bytes);
}

std::string body_kind_names(unsigned kinds) {
  std::string out;
  const auto add = [&](unsigned kind, std::string_view name) {
    if (!(kinds & kind)) return;
    if (!out.empty()) out += ", ";
    out += name;
  };
  add(kMultipart, "multipart/form-data");
  add(kUrlencoded, "application/x-www-form-urlencoded");
  add(kJson | kJsonText, "application/json");
  return out;
}

Result<std::unique_ptr<BodyReader>> make_body_reader(std::string_view content_type, std::size_t json_limit_bytes,
                                                     std::size_t expected_bytes) {
  const BodyKind kind = body_kind(content_type);
  if (kind == kNoBody) return invalid_request("unknown Content-Type").with_field("Content-Type");
  if (kind == kMultipart) {
    MSTAR_TRY_ASSIGN(std::string boundary, multipart_boundary(content_type));
    return std::unique_ptr<BodyReader>(
        std::make_unique<MultipartReader>(std::move(boundary), MultipartLimits{}, expected_bytes));
  }
  return std::unique_ptr<BodyReader>(std::make_unique<WholeBodyReader>(kind, json_limit_bytes));
}

}  // namespace mstar::server
