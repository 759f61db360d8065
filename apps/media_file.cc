#include "media_file.h"

#include <algorithm>
#include <filesystem>

#include "output_files.h"

namespace mstar::apps {
namespace {

struct Kind {
  std::string_view extension;
  decl::Modality modality;
};
constexpr Kind kKinds[] = {
    {".png", decl::Modality::image},  {".jpg", decl::Modality::image}, {".jpeg", decl::Modality::image},
    {".gif", decl::Modality::image},  {".bmp", decl::Modality::image}, {".webp", decl::Modality::image},
    {".mp4", decl::Modality::video},  {".mov", decl::Modality::video}, {".mkv", decl::Modality::video},
    {".webm", decl::Modality::video}, {".avi", decl::Modality::video}, {".wav", decl::Modality::audio},
    {".flac", decl::Modality::audio}, {".ogg", decl::Modality::audio}, {".oga", decl::Modality::audio},
    {".opus", decl::Modality::audio}, {".mp3", decl::Modality::audio}, {".m4a", decl::Modality::audio},
    {".aac", decl::Modality::audio},  {".aif", decl::Modality::audio}, {".aiff", decl::Modality::audio}};

std::optional<decl::Modality> kind_of(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  const auto* const found =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.extension == extension; });
  return found == std::end(kKinds) ? std::nullopt : std::optional(found->modality);
}

}  // namespace

Result<decl::Media> read_media(const std::string& argument) {
  std::string path = argument;
  std::optional<decl::Modality> modality;
  if (const std::size_t colon = argument.find(':'); colon != std::string::npos) {
    modality = decl::modality_from_name(argument.substr(0, colon));
    if (modality) path = argument.substr(colon + 1);
  }
  if (!modality) modality = kind_of(path);
  if (!modality)
    return invalid_request("what is '" + argument + "'? Write audio:" + argument + ", image:... or video:...");
  auto bytes = open_whole(path);
  if (!bytes) return std::move(bytes.error()).in(path);
  return decl::Media{.modality = *modality,
                     .field = "files",
                     .file_name = path == "-" ? "stdin" : std::filesystem::path(path).filename().string(),
                     .content_type = {},
                     .bytes = std::move(*bytes)};
}

std::string chunk_file_name(const decl::Chunk& chunk, int number) {
  std::string extension;
  for (const char c : chunk.format)
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) extension += c;
  if (extension.empty()) extension = std::string(decl::modality_name(chunk.modality));
  return "answer-" + std::to_string(number) + "." + extension;
}

}  // namespace mstar::apps
