#include "mstar/server/generate_api.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "mstar/server/ascii.h"
#include "mstar/server/base64.h"
#include "mstar/server/json_text.h"
#include "mstar/server/request_id.h"

namespace mstar::server {
namespace {

using decl::Modality;

constexpr std::string_view kOwnFields[] = {
    "text",      "files",        "file",      "model", "input_modalities", "output_modalities",
    "streaming", "model_kwargs", "request_id"};

Error bad_field(std::string_view field, std::string message) {
  return invalid_request(std::move(message)).with_field(std::string(field));
}

std::optional<Modality> modality_of_file(std::string_view file_name) {
  constexpr std::pair<std::string_view, Modality> kExtensions[] = {
      {"png", Modality::image}, {"jpg", Modality::image},  {"jpeg", Modality::image}, {"webp", Modality::image},
      {"bmp", Modality::image}, {"tiff", Modality::image}, {"gif", Modality::image},  {"wav", Modality::audio},
      {"mp3", Modality::audio}, {"flac", Modality::audio}, {"ogg", Modality::audio},  {"opus", Modality::audio},
      {"m4a", Modality::audio}, {"aac", Modality::audio},  {"mp4", Modality::video},  {"avi", Modality::video},
      {"mov", Modality::video}, {"mkv", Modality::video},  {"webm", Modality::video}};
  const std::size_t dot = file_name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string extension = lower(file_name.substr(dot + 1));
  for (const auto& [name, modality] : kExtensions)
    if (name == extension) return modality;
  return std::nullopt;
}

// "text, image" or a list of names.
Result<std::vector<Modality>> read_modalities(const Params& fields, std::string_view field) {
  std::vector<Modality> out;
  MSTAR_TRY_ASSIGN(const std::vector<std::string> lists, fields.get_strings(field));
  for (std::string_view rest : lists) {
    while (!rest.empty()) {
      const std::string_view item = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), item.size() + 1));
      if (trim(item).empty()) continue;
      const auto modality = decl::modality_from_name(trim(item));
      if (!modality)
        return bad_field(field, "unknown modality '" + std::string(trim(item)) + "' in " + std::string(field));
      out.push_back(*modality);
    }
  }
  return out;
}

Status add_media(decl::ApiRequest& request, std::string file_name, std::string content_type, std::string bytes) {
  decl::Media media;
  const auto modality = modality_of_file(file_name);
  if (!modality) return bad_field("files", "the kind of the file '" + file_name + "' is not known by its extension");
  if (bytes.empty()) return bad_field("files", "the file '" + file_name + "' is empty");
  media.modality = *modality;
  media.field = "files";
  media.file_name = std::move(file_name);
  media.content_type = std::move(content_type);
  media.bytes = HostValue::shared_blob(std::make_shared<const std::string>(std::move(bytes)));
  request.media.push_back(std::move(media));
  return ok_status();
}

// JSON bodies carry files as [{"name":"a.wav","data":base64}].
Status add_json_files(decl::ApiRequest& request, const std::string& text) {
  if (Status bounded = check_json_bounds(text, "files"); !bounded)
    return std::move(bounded.error()).with_field("files");
  const nlohmann::json files = nlohmann::json::parse(text, nullptr, false);
  const auto wrong = [] { return bad_field("files", "files must be a list of {\"name\", \"data\": base64}"); };
  if (!files.is_array()) return wrong();
  for (const auto& each : files) {
    if (!each.is_object()) return wrong();
    const auto name = each.find("name");
    const auto data = each.find("data");
    if (name == each.end() || !name->is_string() || data == each.end() || !data->is_string()) return wrong();
    auto bytes = base64_decode(data->get_ref<const std::string&>());
    if (!bytes) return bad_field("files", "a file's data is not base64");
    MSTAR_TRY(add_media(request, base_name(name->get_ref<const std::string&>()), "", std::move(*bytes)));
  }
  return ok_status();
}

// The shape of one chunk in both answers: "data":base64,"metadata":{}
void append_chunk(std::string& out, const decl::Chunk& chunk) {
  out += "\"data\":\"";
  append_base64(out, chunk.value.text());
  out += "\",\"metadata\":";
  Params metadata = chunk.metadata;
  if (!chunk.format.empty() && chunk.format != "utf8" && !metadata.has("format")) metadata.set("format", chunk.format);
  append_json_params(out, metadata);
}

class ChunkStream final : public AnswerWriter {
 public:
  bool streams() const override { return true; }
  std::string_view content_type() const override { return "application/x-ndjson; charset=utf-8"; }
  Status on_chunk(std::size_t, const decl::Chunk& chunk, std::string& out) override {
    out += "{\"modality\":";
    append_json_string(out, decl::modality_name(chunk.modality));
    out += ',';
    append_chunk(out, chunk);
    out += "}\n";
    return ok_status();
  }
  Status on_finished(std::size_t, const Finished&, std::string&) override { return ok_status(); }
  void on_failed(const HttpError& error, std::string& out) override {
    out += "{\"modality\":\"error\",\"data\":\"";
    append_base64(out, error.message);
    out += "\",\"metadata\":{\"status\":" + std::to_string(error.status) + ",\"message\":";
    append_json_string(out, error.message);
    out += ",\"code\":";
    append_json_string_or_null(out, error.code);
    out += "}}\n";
  }
};

class WholeOutputs final : public AnswerWriter {
 public:
  explicit WholeOutputs(std::string request_id) : request_id_(std::move(request_id)) {}
  bool streams() const override { return false; }
  std::string_view content_type() const override { return "application/json"; }
  Status on_chunk(std::size_t, const decl::Chunk& chunk, std::string&) override {
    std::string& list = outputs_[std::string(decl::modality_name(chunk.modality))];
    list += list.empty() ? "{" : ",{";
    append_chunk(list, chunk);
    list += '}';
    return ok_status();
  }
  Status on_finished(std::size_t, const Finished& finished, std::string& out) override {
    out += "{\"request_id\":";
    append_json_string(out, request_id_);
    out += ",\"outputs\":{";
    bool first = true;
    for (const auto& [modality, list] : outputs_) {
      if (!first) out += ',';
      first = false;
      append_json_string(out, modality);
      out.append(":[").append(list).append("]");
    }
    out += "},\"metadata\":";
    append_json_params(out, finished.metadata);
    out += ",\"usage\":{\"prompt_tokens\":" + std::to_string(finished.usage.prompt_tokens) +
           ",\"completion_tokens\":" + std::to_string(finished.usage.completion_tokens) + "}}";
    return ok_status();
  }
  void on_failed(const HttpError&, std::string&) override {}

 private:
  std::string request_id_;
  std::map<std::string, std::string> outputs_;  // modality -> its chunks, joined
};

Status take_files(Form& form, decl::ApiRequest& request) {
  for (Upload& each : form.files) {
    if (each.field != "files" && each.field != "file")
      return bad_field(each.field, "files are sent in the field files");
    MSTAR_TRY(add_media(request, std::move(each.file_name), std::move(each.content_type), std::move(each.bytes)));
  }
  if (!form.fields.has("files")) return ok_status();
  const auto& value = form.fields.values().find("files")->second;
  if (const auto* list = std::get_if<std::vector<std::string>>(&value); list && list->empty()) return ok_status();
  MSTAR_TRY_ASSIGN(const std::string text, form.fields.get_string("files", ""));
  return add_json_files(request, text);
}

// input_modalities says what the request carries; without it the files' kinds and the text speak for themselves.
Status check_input_modalities(const Params& fields, const decl::ApiRequest& request) {
  MSTAR_TRY_ASSIGN(const std::vector<Modality> named, read_modalities(fields, "input_modalities"));
  if (named.empty()) return ok_status();
  for (const decl::Media& each : request.media)
    if (std::find(named.begin(), named.end(), each.modality) == named.end())
      return bad_field("input_modalities", "input_modalities lacks " + std::string(decl::modality_name(each.modality)) +
                                               ", the kind of '" + each.file_name + "'");
  return ok_status();
}

}  // namespace

Result<Call> make_generate(Form form, const std::string& default_model, std::string& request_id) {
  Call call;
  decl::ApiRequest& request = call.requests.emplace_back();
  const Params& fields = form.fields;
  request.route = decl::Route::generate;
  MSTAR_TRY_ASSIGN(request.model, fields.get_string("model", default_model));
  if (request.model.empty())
    return bad_field("model", "the field model is missing, and more than one model or none is served here");
  MSTAR_TRY_ASSIGN(request.text, fields.get_string("text", ""));
  MSTAR_TRY(take_files(form, request));
  MSTAR_TRY(check_input_modalities(fields, request));
  MSTAR_TRY_ASSIGN(request.output_modalities, read_modalities(fields, "output_modalities"));
  if (request.output_modalities.empty()) request.output_modalities = {Modality::text};
  MSTAR_TRY_ASSIGN(request.stream, fields.get_bool("streaming", true));
  for (const auto& [name, value] : fields.values()) {
    if (std::find(std::begin(kOwnFields), std::end(kOwnFields), name) == std::end(kOwnFields))
      request.fields.set(name, value);
  }
  MSTAR_TRY_ASSIGN(const std::string kwargs, fields.get_string("model_kwargs", ""));
  if (!trim(kwargs).empty()) {
    auto parsed = params_from_json(kwargs, "model_kwargs");
    if (!parsed) return std::move(parsed.error()).with_field("model_kwargs");
    for (const auto& [name, value] : parsed->values()) request.fields.set(name, value);
  }
  MSTAR_TRY_ASSIGN(std::string named_id, fields.get_string("request_id", ""));
  if (!named_id.empty()) {
    if (!is_sane_request_id(named_id))
      return bad_field("request_id", "request_id must be 1 to 128 of letters, digits and -_.:");
    request.fields.set("request_id", named_id);
    request_id = std::move(named_id);
  }
  if (request.stream) {
    call.answer = std::make_unique<ChunkStream>();
  } else {
    call.answer = std::make_unique<WholeOutputs>(request_id);
  }
  return call;
}

}  // namespace mstar::server
