#include "output_files.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "mstar/weights/mapped_file.h"

namespace mstar::apps {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAudioExtensions[] = {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".m4a",
                                                 ".mp4", ".webm", ".aac", ".aif", ".aiff", ".au",  ".caf",
                                                 ".w64", ".wma",  ".amr", ".spx", ".mka",  ".mkv", ".mov"};

bool is_audio(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return std::find(std::begin(kAudioExtensions), std::end(kAudioExtensions), extension) != std::end(kAudioExtensions);
}

std::string why() { return std::strerror(errno); }

constexpr int kAnyDepth = -1;

// Every audio file below `root`, relative to it, in order of name; at most `max_depth` directories down.
std::vector<fs::path> audio_below(const fs::path& root, std::string& fault, int max_depth = kAnyDepth) {
  std::vector<fs::path> out;
  std::error_code error;
  fs::recursive_directory_iterator at(root, fs::directory_options::skip_permission_denied, error), end;
  for (; !error && at != end; at.increment(error)) {
    const bool hidden = at->path().filename().string().starts_with('.');
    std::error_code ignored;
    if ((hidden && at->is_directory(ignored)) || at.depth() == max_depth) at.disable_recursion_pending();
    if (!hidden && at->is_regular_file(ignored) && is_audio(at->path()))
      out.push_back(at->path().lexically_relative(root));
  }
  if (error) fault = root.string() + ": " + error.message();
  std::sort(out.begin(), out.end());
  return out;
}

InputFile input(const fs::path& path, const fs::path& below) {
  InputFile out{.path = path.string(), .stem = below, .extension = below.extension().string()};
  out.stem.replace_extension();
  return out;
}

bool is_pattern(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

using Parts = std::vector<std::string>;

Parts parts_of(const fs::path& path) {
  Parts out;
  for (const fs::path& each : path) out.push_back(each.string());
  return out;
}

// Part by part: * ? [] stay within one, ** is any number of directories. Cost: parts of the pattern x parts of the
// path, however many ** there are.
bool matches(const Parts& pattern, const Parts& path) {
  // may[j]: the parts of the pattern so far match the first j of the path.
  std::vector<bool> may(path.size() + 1, false);
  may[0] = true;
  for (const std::string& part : pattern) {
    std::vector<bool> next(path.size() + 1, false);
    for (std::size_t j = 0; j <= path.size(); ++j) {
      if (part == "**") {
        next[j] = may[j] || (j > 0 && next[j - 1]);
      } else {
        next[j] = j > 0 && may[j - 1] && ::fnmatch(part.c_str(), path[j - 1].c_str(), 0) == 0;
      }
    }
    may = std::move(next);
  }
  return may[path.size()];
}

// The audio files that a pattern names, with the directory that their structure is kept below.
std::vector<InputFile> find_matching(const fs::path& pattern, std::string& fault) {
  fs::path root;
  Parts rest;
  for (const fs::path& part : pattern) {
    if (rest.empty() && !is_pattern(part.string())) {
      root /= part;
    } else {
      rest.push_back(part.string());
    }
  }
  const bool any_depth = std::find(rest.begin(), rest.end(), "**") != rest.end();
  std::vector<InputFile> out;
  for (const fs::path& file :
       audio_below(root.empty() ? "." : root, fault, any_depth ? kAnyDepth : static_cast<int>(rest.size()) - 1))
    if (matches(rest, parts_of(file))) out.push_back(input(root / file, file));
  if (fault.empty() && out.empty()) fault = pattern.string() + ": no audio file matches this pattern, by extension";
  return out;
}

Status write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return unavailable(why());
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  // A full disk may show here only.
  if (::fsync(file) != 0 && errno != EINVAL) return unavailable(why());
  return ok_status();
}

}  // namespace

std::vector<InputFile> find_inputs(const std::vector<std::string>& arguments, std::vector<std::string>& faults) {
  std::vector<InputFile> out;
  std::set<std::string> seen;
  const auto add = [&](InputFile file) {
    if (seen.insert(fs::path(file.path).lexically_normal().string()).second) out.push_back(std::move(file));
  };
  for (const std::string& each : arguments) {
    if (each == "-") {
      add({.path = "-", .stem = "stdin", .extension = ""});
      continue;
    }
    std::error_code error;
    const fs::file_status status = fs::status(each, error);
    if (status.type() == fs::file_type::not_found && is_pattern(each)) {
      std::string fault;
      for (InputFile& file : find_matching(each, fault)) add(std::move(file));
      if (!fault.empty()) faults.push_back(fault);
    } else if (status.type() == fs::file_type::not_found) {
      faults.push_back(each + ": no such file");
    } else if (status.type() == fs::file_type::directory) {
      std::string fault;
      const std::vector<fs::path> found = audio_below(each, fault);
      for (const fs::path& file : found) add(input(fs::path(each) / file, file));
      if (!fault.empty()) faults.push_back(fault);
      if (fault.empty() && found.empty()) faults.push_back(each + ": no audio file in this directory, by extension");
    } else if (error) {
      faults.push_back(each + ": " + error.message());
    } else if (::access(each.c_str(), R_OK) != 0) {
      faults.push_back(each + ": " + why());
    } else {
      add(input(each, fs::path(each).filename()));
    }
  }
  return out;
}

Result<std::vector<fs::path>> plan_outputs(const std::vector<InputFile>& inputs, const fs::path& directory,
                                           std::string_view format) {
  const std::string ending = "." + std::string(format);
  std::map<fs::path, int> count;
  for (const InputFile& each : inputs) ++count[each.stem];
  std::vector<fs::path> out;
  std::map<fs::path, const InputFile*> taken;
  for (const InputFile& each : inputs) {
    fs::path path = directory / each.stem;
    if (count[each.stem] > 1) path += each.extension;
    path += ending;
    const auto [at, is_new] = taken.emplace(path, &each);
    if (!is_new)
      return invalid_request(at->second->shown() + " and " + each.shown() + " would both be written to " +
                             path.string() + "; name the directory above them instead, and its structure is kept");
    out.push_back(std::move(path));
  }
  return out;
}

fs::path partial_path(const fs::path& path) {
  fs::path out = path;
  out.replace_extension(".partial" + path.extension().string());
  return out;
}

Result<std::string> read_whole(const std::string& path) {
  const int file = path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return unavailable(why());
  std::string out;
  struct stat status {};
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode)) out.reserve(static_cast<std::size_t>(status.st_size) + 1);
  constexpr std::size_t kBlockBytes = 1 << 20;
  ssize_t got = 0;
  std::string fault;
  do {
    const std::size_t at = out.size();
    out.resize(at + kBlockBytes);
    got = ::read(file, out.data() + at, kBlockBytes);
    if (got < 0 && errno != EINTR) fault = why();
    out.resize(at + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  } while (got > 0 || (got < 0 && fault.empty()));
  if (file != STDIN_FILENO) ::close(file);
  if (!fault.empty()) return unavailable(fault);
  return out;
}

Result<HostValue> open_whole(const std::string& path) {
  std::error_code error;
  if (path != "-" && fs::is_regular_file(path, error)) {
    // What cannot be mapped may still be read, or else tells why not below.
    if (auto mapped = weights::MappedFile::open(path)) {
      const std::span<const std::byte> bytes = (*mapped)->bytes();
      return HostValue::part_of(std::move(*mapped), DType::bytes, {static_cast<std::int64_t>(bytes.size())}, bytes);
    }
  }
  MSTAR_TRY_ASSIGN(std::string bytes, read_whole(path));
  return HostValue::shared_blob(std::make_shared<const std::string>(std::move(bytes)));
}

Status prepare_directory(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (!error && !fs::is_directory(directory, error)) return unavailable(directory.string() + " is no directory");
  if (error) return unavailable("cannot create " + directory.string() + ": " + error.message());
  if (::access(directory.c_str(), W_OK | X_OK) != 0)
    return unavailable("cannot write to " + directory.string() + ": " + why());
  return ok_status();
}

Status write_atomically(const fs::path& path, std::string_view bytes) {
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  if (error) return unavailable("cannot create " + path.parent_path().string() + ": " + error.message());
  const std::string temporary = path.string() + ".tmp" + std::to_string(::getpid());
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return unavailable("cannot write " + path.string() + ": " + why());
  Status status = write_all(file, bytes);
  if (::close(file) != 0 && status.ok()) status = unavailable(why());
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) status = unavailable(why());
  if (status.ok()) return status;
  ::unlink(temporary.c_str());
  return std::move(status.error()).in("cannot write " + path.string());
}

}  // namespace mstar::apps
