// The i8 tiles over a namespace's Isa; included once per instruction set, inside its namespace and target attributes.
//
// Isa: Vector (i32 lanes), kLanes, kRows/kVectors (what fits in registers for a tile), Weights and weights(pointer),
// Codes and codes(word), and add(sums, codes, weights): sums + the dot products of four i8 by four i8 in each lane.

template <int kRows, int kPanels, int kVectors>
inline __attribute__((always_inline)) void multiply(const std::uint32_t* a, std::ptrdiff_t lda, const std::int8_t* b,
                                                    std::ptrdiff_t panel_stride, std::int64_t steps, std::int32_t* c,
                                                    std::ptrdiff_t c_panel_stride, bool first) {
  constexpr int kAcross = kPanels * kVectors;
  typename Isa::Vector sums[kRows][kAcross];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kAcross; ++j)
      sums[r][j] = first ? Isa::zero()
                         : Isa::load(c + (j / kVectors) * c_panel_stride + r * kPanel + (j % kVectors) * Isa::kLanes);
  }
  const std::uint32_t* rows[(kRows + 2) / 3];
#pragma GCC unroll 16
  for (int g = 0; g < (kRows + 2) / 3; ++g) rows[g] = a + 3 * g * lda;
  for (std::int64_t k = 0; k < steps; ++k) {
    typename Isa::Weights w[kAcross];
#pragma GCC unroll 16
    for (int j = 0; j < kAcross; ++j)
      w[j] = Isa::weights(b + (j / kVectors) * panel_stride + (j % kVectors) * Isa::kLanes * 4);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto x = Isa::codes(rows[r / 3][(r % 3) * lda]);
#pragma GCC unroll 16
      for (int j = 0; j < kAcross; ++j) sums[r][j] = Isa::add(sums[r][j], x, w[j]);
    }
#pragma GCC unroll 16
    for (int g = 0; g < (kRows + 2) / 3; ++g) ++rows[g];
    b += kPanel * 4;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kAcross; ++j)
      Isa::store(c + (j / kVectors) * c_panel_stride + r * kPanel + (j % kVectors) * Isa::kLanes, sums[r][j]);
  }
}

template <int kRows>
void tile_of(const std::uint32_t* a, std::ptrdiff_t lda, const std::int8_t* b, std::int64_t steps, std::int32_t* c,
             bool first) {
  for (int j = 0; j < kPanel / Isa::kLanes; j += Isa::kVectors)
    multiply<kRows, 1, Isa::kVectors>(a, lda, b + j * Isa::kLanes * 4, 0, steps, c + j * Isa::kLanes, 0, first);
}

template <int... kRows>
void micro_tile(std::integer_sequence<int, kRows...>, const std::uint32_t* a, std::ptrdiff_t lda, int rows,
                const std::int8_t* b, std::int64_t steps, std::int32_t* c, bool first) {
  using Tile = void (*)(const std::uint32_t*, std::ptrdiff_t, const std::int8_t*, std::int64_t, std::int32_t*, bool);
  static constexpr Tile kEach[] = {tile_of<kRows + 1>...};
  kEach[rows - 1](a, lda, b, steps, c, first);
}

void tile(const void* a, std::ptrdiff_t lda, int rows, const void* b, std::int64_t steps, void* c, bool first) {
  constexpr std::make_integer_sequence<int, Isa::kRows> kUpTo;
  for (int row = 0; row < rows; row += Isa::kRows)
    micro_tile(kUpTo, static_cast<const std::uint32_t*>(a) + row * lda, lda,
               rows - row < Isa::kRows ? rows - row : Isa::kRows, static_cast<const std::int8_t*>(b), steps,
               static_cast<std::int32_t*>(c) + row * kPanel, first);
}

template <int kRows>
void few_of(const std::uint32_t* a, std::ptrdiff_t lda, const std::int8_t* panels, std::ptrdiff_t stride,
            int num_panels, std::int64_t steps, std::int32_t* c) {
  constexpr int kWant = Isa::few_panels(kRows), kVectors = Isa::few_vectors(kRows);
  constexpr int kPanelVectors = kPanel / Isa::kLanes;
  const std::ptrdiff_t c_stride = kRows * kPanel;
  int panel = 0;
  for (; panel + kWant <= num_panels; panel += kWant)
    for (int j = 0; j < kPanelVectors; j += kVectors)
      multiply<kRows, kWant, kVectors>(a, lda, panels + panel * stride + j * Isa::kLanes * 4, stride, steps,
                                       c + panel * c_stride + j * Isa::kLanes, c_stride, true);
  for (; panel < num_panels; ++panel)
    for (int j = 0; j < kPanelVectors; j += kVectors)
      multiply<kRows, 1, kVectors>(a, lda, panels + panel * stride + j * Isa::kLanes * 4, 0, steps,
                                   c + panel * c_stride + j * Isa::kLanes, 0, true);
}

void few_rows(const void* a, std::ptrdiff_t lda, int rows, const void* panels, std::size_t panel_bytes, int num_panels,
              std::int64_t steps, void* c) {
  using Few = void (*)(const std::uint32_t*, std::ptrdiff_t, const std::int8_t*, std::ptrdiff_t, int, std::int64_t,
                       std::int32_t*);
  constexpr Few kFew[kFewRows] = {few_of<1>, few_of<2>, few_of<3>, few_of<4>,
                                  few_of<5>, few_of<6>, few_of<7>, few_of<8>};
  kFew[rows - 1](static_cast<const std::uint32_t*>(a), lda, static_cast<const std::int8_t*>(panels),
                 static_cast<std::ptrdiff_t>(panel_bytes), num_panels, steps, static_cast<std::int32_t*>(c));
}

constexpr LinearTiles kTiles = {tile, few_rows, nullptr, kPanel * 4};
