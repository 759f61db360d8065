// The tiles of block-quantised weights over a namespace's Isa; included once per instruction set, inside its namespace
// and target attributes.
//
// Isa: kLanes columns in a vector; Codes (a word of four codes in each lane), Sums (i32 lanes), Floats; load and
// arithmetic on them; add<kSigned>(sums, codes, word): sums + the dot product of four codes by the four i8 of `word`,
// where kSigned codes are 128 above their value and the dot product is that of the value if Isa::kTakesOffset.
//
// Whatever the source, the tile or the instruction set, an output is one chain over the groups of its row: sum =
// fma(dot
// * scale of x, scale of w, sum) (for each half where there are two), then sum = fma(min of w, -scale of x * sum of x's
// codes, sum). The dots are exact.

constexpr int kPanelVectors = kPanel / Isa::kLanes;

// Words 2p and 2p + 1 of the codes.
struct CodePair {
  typename Isa::Codes even, odd;
};

// A panel as it is packed.
template <BlockFormat kFormat>
struct Packed {
  static constexpr BlockLayout kLayout = block_layout(kFormat);
  static constexpr int kGroups = kLayout.groups;
  static constexpr bool kHasMin = kLayout.has_min, kHalves = kLayout.halves, kSigned = kLayout.bits == 8;
  static constexpr std::size_t kStepBytes = kLayout.step_bytes();

  struct Header {
    typename Isa::Floats scale, minimum;
  };
  static BLOCKS_INLINE Header header(const std::uint8_t* step, int column) {
    Header out{Isa::halves(step + column * 2), Isa::zero_floats()};
    if constexpr (kHasMin) out.minimum = Isa::halves(step + 64 + column * 2);
    return out;
  }
  static BLOCKS_INLINE const std::uint8_t* group(const std::uint8_t* step, int index) {
    return step + kLayout.header_bytes() + static_cast<std::size_t>(index) * kLayout.group_bytes();
  }
  static BLOCKS_INLINE typename Isa::Floats scale(const Header& header, const std::uint8_t* group, int half,
                                                  int column) {
    if constexpr (kHalves) return Isa::mul(header.scale, Isa::signed_bytes(group + half * kPanel + column));
    if constexpr (kGroups > 1) return Isa::mul(header.scale, Isa::unsigned_bytes(group + column));
    return header.scale;
  }
  static BLOCKS_INLINE typename Isa::Floats minimum(const Header& header, const std::uint8_t* group, int column) {
    if constexpr (kGroups > 1) return Isa::mul(header.minimum, Isa::unsigned_bytes(group + kPanel + column));
    return header.minimum;
  }
  // The high bits that pairs 0..3 share (q6_k: pairs 0 and 1, or 2 and 3).
  static BLOCKS_INLINE typename Isa::Codes high(const std::uint8_t* group, int half, int column) {
    const std::uint8_t* at = group + kLayout.multiplier_bytes() + kLayout.low_bytes();
    if constexpr (kLayout.bits == 5) return Isa::load(at + column * 4);
    if constexpr (kLayout.bits == 6) return Isa::load(at + half * 128 + column * 4);
    return Isa::zero_sums();
  }
  template <int kPair>
  static BLOCKS_INLINE CodePair pair(const std::uint8_t* group, typename Isa::Codes high, int column) {
    const std::uint8_t* low = group + kLayout.multiplier_bytes() + column * 4;
    if constexpr (kLayout.bits == 8)
      return {Isa::load(low + 2 * kPair * kPanel * 4), Isa::load(low + (2 * kPair + 1) * kPanel * 4)};
    const typename Isa::Codes both = Isa::load(low + kPair * kPanel * 4);
    CodePair out{Isa::low_nibbles(both), Isa::high_nibbles(both)};
    if constexpr (kLayout.bits == 5) {
      out.even = Isa::template merge<4 - 2 * kPair, 0x10>(out.even, high);
      out.odd = Isa::template merge<4 - (2 * kPair + 1), 0x10>(out.odd, high);
    } else if constexpr (kLayout.bits == 6) {
      out.even = Isa::template merge<4 - kPair % 2 * 4, 0x30>(out.even, high);
      out.odd = Isa::template merge<2 - kPair % 2 * 4, 0x30>(out.odd, high);
    }
    return out;
  }
};

// Wide groups, one a step.
template <bool kMin, bool kTwo, bool kSign>
struct Wide {
  static constexpr int kGroups = 1;
  static constexpr bool kHasMin = kMin, kHalves = kTwo, kSigned = kSign;
  static constexpr std::size_t kStepBytes = kWideGroupBytes;

  struct Header {};
  static BLOCKS_INLINE Header header(const std::uint8_t*, int) { return {}; }
  static BLOCKS_INLINE const std::uint8_t* group(const std::uint8_t* step, int) { return step; }
  static BLOCKS_INLINE typename Isa::Floats scale(const Header&, const std::uint8_t* group, int half, int column) {
    return Isa::load_floats(reinterpret_cast<const float*>(group + kWideScalesAt + half * 128) + column);
  }
  static BLOCKS_INLINE typename Isa::Floats minimum(const Header&, const std::uint8_t* group, int column) {
    return Isa::load_floats(reinterpret_cast<const float*>(group + kWideMinimaAt) + column);
  }
  static BLOCKS_INLINE typename Isa::Codes high(const std::uint8_t*, int, int) { return Isa::zero_sums(); }
  template <int kPair>
  static BLOCKS_INLINE CodePair pair(const std::uint8_t* group, typename Isa::Codes, int column) {
    const std::uint8_t* at = group + (2 * kPair * kPanel + column) * 4;
    return {Isa::load(at), Isa::load(at + kPanel * 4)};
  }
};

// kRows x kVectors outputs from column `column` on.
template <class Source, int kRows, int kVectors>
struct Block {
  static constexpr int kGroupWords = Source::kHalves ? 11 : 10;
  static constexpr int kParts = Source::kHalves ? 2 : 1;
  // Sums of floats stay in registers where there is room, else in c.
  static constexpr bool kKeeps = kRows * kVectors <= Isa::kKeptSums;

  typename Isa::Floats kept[kRows][kVectors];
  const std::uint32_t* rows[(kRows + 2) / 3];  // three rows share a pointer, so that the addresses fit in registers too
  std::ptrdiff_t lda;
  float* c;
  int column;

  BLOCKS_INLINE std::uint32_t word(int row, int index) const { return rows[row / 3][(row % 3) * lda + index]; }
  BLOCKS_INLINE typename Isa::Floats sum(int r, int v) const {
    if constexpr (kKeeps) return kept[r][v];
    return Isa::load_floats(c + r * kPanel + column + v * Isa::kLanes);
  }
  BLOCKS_INLINE void set_sum(int r, int v, typename Isa::Floats value) {
    if constexpr (kKeeps) {
      kept[r][v] = value;
    } else {
      Isa::store_floats(c + r * kPanel + column + v * Isa::kLanes, value);
    }
  }

  template <int kPair>
  BLOCKS_INLINE void add_pair(const std::uint8_t* group, const typename Isa::Codes (&high)[kVectors],
                              typename Isa::Sums (&dots)[kRows][kVectors]) const {
    CodePair codes[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v)
      codes[v] = Source::template pair<kPair>(group, high[v], column + v * Isa::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto even = Isa::word(word(r, 2 * kPair)), odd = Isa::word(word(r, 2 * kPair + 1));
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        dots[r][v] = Isa::template add<Source::kSigned>(dots[r][v], codes[v].even, even);
        dots[r][v] = Isa::template add<Source::kSigned>(dots[r][v], codes[v].odd, odd);
      }
    }
  }

  // Inputs 0..31, or one half of them.
  template <int kPart>
  BLOCKS_INLINE void add_part(const typename Source::Header (&headers)[kVectors], const std::uint8_t* group) {
    typename Isa::Codes high[kVectors];
    typename Isa::Sums dots[kRows][kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) high[v] = Source::high(group, kPart, column + v * Isa::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v)
        dots[r][v] = Source::kHasMin || (Source::kSigned && Isa::kTakesOffset)
                         ? Isa::zero_sums()
                         : Isa::word(word(r, kGroupExcessWord + kPart));
    add_pair<2 * kPart>(group, high, dots);
    add_pair<2 * kPart + 1>(group, high, dots);
    if constexpr (kParts == 1) {
      add_pair<2>(group, high, dots);
      add_pair<3>(group, high, dots);
    }
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const auto scale = Source::scale(headers[v], group, kPart, column + v * Isa::kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
        set_sum(
            r, v,
            Isa::fma(Isa::mul(Isa::to_floats(dots[r][v]), Isa::floats(word(r, kGroupScaleWord))), scale, sum(r, v)));
    }
  }

  BLOCKS_INLINE void add_minima(const typename Source::Header (&headers)[kVectors], const std::uint8_t* group) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      const auto minimum = Source::minimum(headers[v], group, column + v * Isa::kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
        set_sum(r, v, Isa::fma(minimum, Isa::floats(word(r, kGroupExcessWord)), sum(r, v)));
    }
  }

  BLOCKS_INLINE void run(const std::uint32_t* a, const std::uint8_t* b, std::int64_t steps, bool first) {
#pragma GCC unroll 16
    for (int g = 0; g < (kRows + 2) / 3; ++g) rows[g] = a + 3 * g * lda;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        if (kKeeps || first)
          set_sum(r, v, first ? Isa::zero_floats() : Isa::load_floats(c + r * kPanel + column + v * Isa::kLanes));
      }
    for (std::int64_t step = 0; step < steps; ++step, b += Source::kStepBytes) {
      typename Source::Header headers[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) headers[v] = Source::header(b, column + v * Isa::kLanes);
#pragma GCC unroll 1
      for (int index = 0; index < Source::kGroups; ++index) {
        const std::uint8_t* group = Source::group(b, index);
        add_part<0>(headers, group);
        if constexpr (kParts == 2) add_part<1>(headers, group);
        if constexpr (Source::kHasMin) add_minima(headers, group);
#pragma GCC unroll 16
        for (int g = 0; g < (kRows + 2) / 3; ++g) rows[g] += kGroupWords;
      }
    }
    if constexpr (kKeeps) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) Isa::store_floats(c + r * kPanel + column + v * Isa::kLanes, kept[r][v]);
    }
  }
};

template <class Source, int kRows, int kVectors>
void multiply(const std::uint32_t* a, std::ptrdiff_t lda, const std::uint8_t* b, std::int64_t steps, float* c,
              bool first) {
  for (int column = 0; column < kPanel; column += kVectors * Isa::kLanes) {
    Block<Source, kRows, kVectors> block;
    block.lda = lda;
    block.c = c;
    block.column = column;
    block.run(a, b, steps, first);
  }
}

template <class Source, int... kRows>
void wide_rows(std::integer_sequence<int, kRows...>, const std::uint32_t* a, std::ptrdiff_t lda, int rows,
               const std::uint8_t* b, std::int64_t steps, float* c, bool first) {
  using Tile = void (*)(const std::uint32_t*, std::ptrdiff_t, const std::uint8_t*, std::int64_t, float*, bool);
  static constexpr Tile kEach[] = {multiply<Source, kRows + 1, Isa::kWideVectors>...};
  kEach[rows - 1](a, lda, b, steps, c, first);
}

template <class Source>
void wide_tile(const void* a, std::ptrdiff_t lda, int rows, const void* b, std::int64_t steps, void* c, bool first) {
  constexpr std::make_integer_sequence<int, Isa::kWideRows> kUpTo;
  for (int row = 0; row < rows; row += Isa::kWideRows)
    wide_rows<Source>(kUpTo, static_cast<const std::uint32_t*>(a) + row * lda, lda,
                      rows - row < Isa::kWideRows ? rows - row : Isa::kWideRows, static_cast<const std::uint8_t*>(b),
                      steps, static_cast<float*>(c) + row * kPanel, first);
}

template <BlockFormat kFormat>
using WideOf = Wide<block_layout(kFormat).has_min, block_layout(kFormat).halves,
                    block_layout(kFormat).bits == 8 && Isa::kTakesOffset>;

template <int kPair, class Source>
BLOCKS_INLINE void widen_pair(const std::uint8_t* group, typename Isa::Codes high, int column, std::uint8_t* to) {
  const CodePair codes = Source::template pair<kPair>(group, high, column);
  Isa::store(to + (2 * kPair * kPanel + column) * 4, codes.even);
  Isa::store(to + ((2 * kPair + 1) * kPanel + column) * 4, codes.odd);
}

template <BlockFormat kFormat>
void widen_blocks(const void* from, std::int64_t steps, void* wide) {
  using Source = Packed<kFormat>;
  const auto* step = static_cast<const std::uint8_t*>(from);
  auto* to = static_cast<std::uint8_t*>(wide);
  for (; steps > 0; --steps, step += Source::kStepBytes) {
    for (int index = 0; index < Source::kGroups; ++index, to += kWideGroupBytes) {
      const std::uint8_t* group = Source::group(step, index);
      for (int column = 0; column < kPanel; column += Isa::kLanes) {
        const auto header = Source::header(step, column);
        auto* scales = reinterpret_cast<float*>(to + kWideScalesAt) + column;
        auto* second = reinterpret_cast<float*>(to + kWideMinimaAt) + column;
        Isa::store_floats(scales, Source::scale(header, group, 0, column));
        if constexpr (Source::kHalves) Isa::store_floats(second, Source::scale(header, group, 1, column));
        if constexpr (Source::kHasMin) Isa::store_floats(second, Source::minimum(header, group, column));
        const auto first_high = Source::high(group, 0, column);
        const auto second_high = Source::kHalves ? Source::high(group, 1, column) : first_high;
        widen_pair<0, Source>(group, first_high, column, to);
        widen_pair<1, Source>(group, first_high, column, to);
        widen_pair<2, Source>(group, second_high, column, to);
        widen_pair<3, Source>(group, second_high, column, to);
      }
    }
  }
}

template <class Source>
void few_of(const std::uint32_t* a, std::ptrdiff_t lda, int rows, const std::uint8_t* panel, std::int64_t steps,
            float* c) {
  switch (rows) {
    case 1:
      return multiply<Source, 1, Isa::few_vectors(1)>(a, lda, panel, steps, c, true);
    case 2:
      return multiply<Source, 2, Isa::few_vectors(2)>(a, lda, panel, steps, c, true);
    case 3:
      return multiply<Source, 3, Isa::few_vectors(3)>(a, lda, panel, steps, c, true);
    default:
      return multiply<Source, 4, Isa::few_vectors(4)>(a, lda, panel, steps, c, true);
  }
}

// Registers hold four rows: more of them read each panel twice, the second time from cache.
template <BlockFormat kFormat>
void few_blocks(const void* a, std::ptrdiff_t lda, int rows, const void* panels, std::size_t panel_bytes,
                int num_panels, std::int64_t steps, void* c) {
  const auto* x = static_cast<const std::uint32_t*>(a);
  const auto* panel = static_cast<const std::uint8_t*>(panels);
  auto* out = static_cast<float*>(c);
  for (int i = 0; i < num_panels; ++i, panel += panel_bytes)
    for (int row = 0; row < rows; row += 4) {
      const int count = rows - row < 4 ? rows - row : 4;
      few_of<Packed<kFormat>>(x + row * lda, lda, count, panel, steps, out);
      out += count * kPanel;
    }
}

template <BlockFormat kFormat>
constexpr LinearTiles tiles_of() {
  constexpr BlockLayout kLayout = block_layout(kFormat);
  return {.tile = nullptr,
          .few = few_blocks<kFormat>,
          .widen = widen_blocks<kFormat>,
          .step_bytes = kLayout.step_bytes(),
          .step_words = kLayout.groups * kLayout.group_words(),
          .block_steps = 8 / kLayout.groups,
          .wide_steps = kLayout.groups,
          .widen_from_rows = 0};
}

template <BlockFormat kFormat>
constexpr LinearTiles wide_tiles_of() {
  return {.tile = wide_tile<WideOf<kFormat>>,
          .few = nullptr,
          .widen = nullptr,
          .step_bytes = kWideGroupBytes,
          .step_words = block_layout(kFormat).group_words()};
}

// In the order of BlockFormat.
constexpr LinearTiles kTiles[] = {tiles_of<BlockFormat::q8_0>(), tiles_of<BlockFormat::q4_0>(),
                                  tiles_of<BlockFormat::q4_1>(), tiles_of<BlockFormat::q5_0>(),
                                  tiles_of<BlockFormat::q5_1>(), tiles_of<BlockFormat::q4_k>(),
                                  tiles_of<BlockFormat::q5_k>(), tiles_of<BlockFormat::q6_k>()};
constexpr LinearTiles kWideTiles[] = {wide_tiles_of<BlockFormat::q8_0>(), wide_tiles_of<BlockFormat::q4_0>(),
                                      wide_tiles_of<BlockFormat::q4_1>(), wide_tiles_of<BlockFormat::q5_0>(),
                                      wide_tiles_of<BlockFormat::q5_1>(), wide_tiles_of<BlockFormat::q4_k>(),
                                      wide_tiles_of<BlockFormat::q5_k>(), wide_tiles_of<BlockFormat::q6_k>()};
