// Which files `mstar transcribe` reads and writes.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "mstar/base/host_value.h"
#include "mstar/base/result.h"

namespace mstar::apps {

// One recording to read.
struct InputFile {
  std::string path;            // "-": standard input
  std::filesystem::path stem;  // below the output directory, without an extension
  std::string extension;       // with its dot; tells apart a.wav and a.flac
  std::string shown() const { return path == "-" ? "standard input" : path; }
};

// What the arguments name: files as they are, directories by every audio file below them (by extension, hidden ones
// left out, in order of name), patterns by those that match (* ? [] within a name, ** any directories; what exists by
// the very name of a pattern is that file). Each file once. `faults` gets one sentence for each argument that cannot be
// read.
std::vector<InputFile> find_inputs(const std::vector<std::string>& arguments, std::vector<std::string>& faults);

// The output path of each input: DIR/stem.format; inputs that differ by extension only become a.wav.txt and a.flac.txt.
// Pure. invalid_request names two inputs that still meet.
Result<std::vector<std::filesystem::path>> plan_outputs(const std::vector<InputFile>& inputs,
                                                        const std::filesystem::path& directory,
                                                        std::string_view format);

// "a.txt" -> "a.partial.txt": what an interrupted run leaves, so that a second run does not take it for the whole.
std::filesystem::path partial_path(const std::filesystem::path& path);

// Reads a file, or standard input for "-", whole. unavailable says why it cannot be read.
Result<std::string> read_whole(const std::string& path);

// The same bytes without a copy of them: a regular file is mapped, so that its pages come from the file when they are
// read and the system may drop them again. Anything else (standard input, a pipe) is read whole. A file that another
// program cuts short while it is mapped ends this one (SIGBUS). Errors: unavailable, as above.
Result<HostValue> open_whole(const std::string& path);

// Creates the directory and checks that files can be made in it. unavailable says why not.
Status prepare_directory(const std::filesystem::path& directory);

// Readers see the old file or the whole new one. unavailable (no permission, disk full, ...): nothing is left behind.
Status write_atomically(const std::filesystem::path& path, std::string_view bytes);

}  // namespace mstar::apps
