/* The C interface between the core and the optional FFmpeg module, mstar_media_ffmpeg.so. The module is a program part
 * of its own because distributions build FFmpeg under the GPL; the core never links it. Both sides are built from this
 * header, and the version says whether they fit. */
#ifndef MSTAR_MEDIA_FFMPEG_MODULE_H_
#define MSTAR_MEDIA_FFMPEG_MODULE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MSTAR_FFMPEG_ABI_VERSION 1

/* Encoded bytes, owned by the caller, who keeps them and `user` alive until close. */
typedef struct mstar_ffmpeg_bytes {
  void* user;
  int64_t size_bytes;
  /* Copies up to num_bytes from `offset` on; returns how many, 0 at the end, -1 if they cannot be read. */
  int64_t (*read_at)(void* user, int64_t offset, uint8_t* out, int64_t num_bytes);
} mstar_ffmpeg_bytes;

typedef struct mstar_ffmpeg_format {
  int32_t rate_hz;
  int32_t num_channels;
  int64_t num_frames; /* at rate_hz, estimated from the container's duration; -1 where it has none */
} mstar_ffmpeg_format;

typedef struct mstar_ffmpeg_stream mstar_ffmpeg_stream;

/* A message for the user, always ended by a zero. */
typedef struct mstar_ffmpeg_error {
  char text[256];
} mstar_ffmpeg_error;

/* One stream is used by one thread at a time; different streams by any. Nothing throws across this interface. */
typedef struct mstar_ffmpeg_functions {
  uint32_t abi_version;
  /* Opens the first audio stream; NULL with `error` filled if there is none that can be decoded. */
  mstar_ffmpeg_stream* (*open)(const mstar_ffmpeg_bytes* bytes, mstar_ffmpeg_format* format, mstar_ffmpeg_error* error);
  /* Writes up to max_frames interleaved float frames; returns how many, 0 at the end, -1 with `error` filled. */
  int64_t (*read)(mstar_ffmpeg_stream* stream, float* interleaved, int64_t max_frames, mstar_ffmpeg_error* error);
  void (*close)(mstar_ffmpeg_stream* stream);
} mstar_ffmpeg_functions;

/* The one symbol of the module. */
typedef const mstar_ffmpeg_functions* (*mstar_ffmpeg_entry)(void);
#define MSTAR_FFMPEG_ENTRY_NAME "mstar_ffmpeg"

#ifdef __cplusplus
}
#endif

#endif /* MSTAR_MEDIA_FFMPEG_MODULE_H_ */
