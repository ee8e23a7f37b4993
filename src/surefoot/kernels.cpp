// Facts and derivatives of softmax on a CPU, each in one reading of the logits.
//
// Python's lock is not held while these functions run, so that several threads can each compute some rows.
// Up to FEW classes a vector holds one class of eight rows; above, it holds several classes of one row.
// Exponentials and sums are float64, but above MANY classes the exponentials of float32 logits are float32: each
// fact is then right to 1e-7. Their sums are float64, so that rows tie whatever the order of their classes.
//
// Logits must be finite and labels in range. If they are not, because somebody has changed them since they were
// checked, results are NaN or of any value, but nothing is read or written outside the arrays. Without this library the same is computed with torch: `predictions/logits.py`,
// `calibrators/search.py`.

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(ONE_CPU)
#define ON_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ON_EACH_CPU
#endif
#define INLINE static inline __attribute__((always_inline))

namespace {

constexpr int LANES = 8, ROWS = 64, GROUPS = ROWS / LANES, FEW = 32, MANY = 100;
constexpr double NOTHING = -1e300;  // in the place of a logit that is not there: e to it, times any scale, is 0
constexpr double DECIMALS = 1e12;  // confidences are rounded to so many parts, so that equal probabilities tie

typedef double Doubles __attribute__((vector_size(64)));
typedef int64_t Wholes __attribute__((vector_size(64)));
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint64_t Bits __attribute__((vector_size(64)));
typedef float EightFloats __attribute__((vector_size(32)));

// e^x for x up to 0: 2^n times Taylor's polynomial of the rest, which is at most log(2) / 2 in size. Where the
// result would be below the normal numbers it is 0.
INLINE Doubles exponential(Doubles x) {
  constexpr double round = 0x1.8p52;  // adding it rounds, and puts the whole number into the last bits
  Doubles shifted = x * 0x1.71547652b82fep+0 + round, n = shifted - round;
  Doubles r = x - n * 0x1.62e42fefa3800p-1 - n * 0x1.ef35793c76730p-45;
  Doubles p = r * (1.0 / 479001600) + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 1.0 / 2;
  p = p * r + 1.0;
  p = p * r + 1.0;
  return (Doubles)(((Wholes)p + ((Wholes)shifted << 52)) & (x > -708.0));
}

INLINE Floats exponential(Floats x) {
  constexpr float round = 0x1.8p23f;
  Floats shifted = x * 0x1.715476p+0f + round, n = shifted - round;
  Floats r = x - n * 0x1.62e400p-1f - n * 0x1.7f7d1cp-20f;
  Floats p = r * (1.0f / 5040) + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 1.0f / 2;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return (Floats)(((Ints)p + ((Ints)shifted << 23)) & (x > -87.0f));
}

// log(1 + x) for x from 0: of 1 + x = 2^n m it is n log 2 + 2 atanh((m - 1) / (m + 1)), and what 1 + x rounds off.
INLINE Doubles log_of_one_plus(Doubles x) {
  constexpr int64_t root_of_half = 0x3fe6a09e667f3bcd;
  Doubles total = 1.0 + x, lost = (x - (total - 1.0)) / total;
  Wholes n = ((Wholes)total - root_of_half) >> 52;
  Doubles whole = __builtin_convertvector(n, Doubles), m = (Doubles)((Wholes)total - (n << 52));
  Doubles s = (m - 1.0) / (m + 1.0), t = s * s;
  Doubles p = t * (1.0 / 21) + 1.0 / 19;
  p = p * t + 1.0 / 17;
  p = p * t + 1.0 / 15;
  p = p * t + 1.0 / 13;
  p = p * t + 1.0 / 11;
  p = p * t + 1.0 / 9;
  p = p * t + 1.0 / 7;
  p = p * t + 1.0 / 5;
  p = p * t + 1.0 / 3;
  return whole * 0x1.62e42fefa3800p-1 + (2.0 * s + (2.0 * s * t * p + whole * 0x1.ef35793c76730p-45 + lost));
}

// GCC 12 computes some choices by ?: number by number.
template <class Mask, class Vector> INLINE Vector choose(Mask mask, Vector yes, Vector no) {
  return (Vector)((mask & (Mask)yes) | (~mask & (Mask)no));
}

// The value, or the nearest of 0 and `last`; 0 for NaN.
INLINE double within(double value, double last) { return value > 0 ? value < last ? value : last : 0; }

INLINE double sum(Doubles v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

INLINE EightFloats low(Floats v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7); }
INLINE EightFloats high(Floats v) { return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15); }
INLINE Doubles widen(EightFloats v) { return __builtin_convertvector(v, Doubles); }
// Eight bytes: compilers convert them number by number. As the last bits of a float64 they are added to 2^52.
INLINE Doubles load(const uint8_t *from) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first byte is in the last bits");
  uint64_t all;
  memcpy(&all, from, sizeof all);
  const Bits shifts = {0, 8, 16, 24, 32, 40, 48, 56};
  return (Doubles)((((all - Bits{}) >> shifts) & 255) | 0x4330000000000000) - 0x1p52;
}
INLINE Doubles load(const double *from) { Doubles v; memcpy(&v, from, sizeof v); return v; }
INLINE Doubles load(const float *from) { EightFloats v; memcpy(&v, from, sizeof v); return widen(v); }

// `work(d, first)` of the logits of a row less its highest, in vectors, with the number of each one's first class.
template <class T, class Work>
INLINE void each_of_row(const T *row, int64_t classes, double highest, Work work) {
  int64_t first = 0;
  for (; first + LANES <= classes; first += LANES) work(load(row + first) - highest, first);
  if (first == classes) return;
  Doubles d = NOTHING - Doubles{};
  for (int lane = 0; first + lane < classes; lane++) d[lane] = (double)row[first + lane] - highest;
  work(d, first);
}

// The first class with the highest logit, of FEW or more. Without branches that depend on the logits, the
// processor works on several rows at once.
template <class T> INLINE int64_t top_class(const T *row, int64_t classes) {
  typedef T Vector __attribute__((vector_size(64)));
  typedef T Unaligned __attribute__((vector_size(64), aligned(sizeof(T)), may_alias));
  typedef decltype(Vector{} > Vector{}) Places;
  typedef decltype(Places{}[0] + 0) Number;
  constexpr int WIDTH = 64 / sizeof(T), PARTS = 4;
  Places lanes;
  for (int lane = 0; lane < WIDTH; lane++) lanes[lane] = lane;
  Vector most[PARTS];
  Places place[PARTS];
  for (int part = 0; part < PARTS; part++) {
    most[part] = *(const Unaligned *)row;
    place[part] = lanes;
  }
  auto look = [&](int part, int64_t first) __attribute__((always_inline)) {
    Vector next = *(const Unaligned *)(row + first);
    place[part] = choose(next > most[part], lanes + (Number)first, place[part]);
    most[part] = next > most[part] ? next : most[part];
  };
  int64_t first = WIDTH;
  for (; first + PARTS * WIDTH <= classes; first += PARTS * WIDTH)
    for (int part = 0; part < PARTS; part++) look(part, first + part * WIDTH);
  for (; first + WIDTH <= classes; first += WIDTH) look(0, first);
  look(1, classes - WIDTH);  // again, but for the last few
  T highest = row[0];
  Vector best = most[0];
  for (int part = 1; part < PARTS; part++) best = most[part] > best ? most[part] : best;
  for (int lane = 0; lane < WIDTH; lane++) highest = best[lane] > highest ? best[lane] : highest;
  const Places nowhere = (Number)classes - Places{};
  Places lowest = nowhere;
  for (int part = 0; part < PARTS; part++) {
    Places candidate = choose(most[part] == highest, place[part], nowhere);
    lowest = candidate < lowest ? candidate : lowest;
  }
  int64_t top = classes;
  for (int lane = 0; lane < WIDTH; lane++) top = lowest[lane] < top ? lowest[lane] : top;
  return top < classes ? top : 0;  // NaN equals nothing
}

// Of ROWS rows: the highest logit, the class it is of, the label and its logit, and sums over the classes.
struct Block {
  Doubles highest[GROUPS], of_label[GROUPS], sums[4][GROUPS];
  Wholes top[GROUPS], label[GROUPS];
};

template <class T> struct Rows {
  const T *logits;
  int64_t classes, stride;      // from row to row, in numbers
  const int64_t *chosen, *labels;  // the rows that are read; all where there is no list

  INLINE const T *of(const Rows &rows, int64_t number) {
    return rows.logits + rows.stride * (rows.chosen ? rows.chosen[number] : number);
  }
};

template <class T> INLINE double logit_of(const T *row, int64_t label, int64_t classes) {
  return (uint64_t)label < (uint64_t)classes ? (double)row[label] : __builtin_nan("");
}

// For few classes: ROWS rows, class by class, in float64; and the highest logits and their classes.
template <class T> INLINE void turn(const Rows<T> &rows, int64_t start, int64_t count, Doubles columns[][GROUPS], Block &block) {
  double *numbers = (double *)columns, *of_label = (double *)block.of_label;
  int64_t *labels = (int64_t *)block.label;
  for (int64_t number = 0; number < ROWS; number++) {
    const T *row = Rows<T>::of(rows, start + (number < count ? number : 0));
    int64_t label = rows.labels[start + (number < count ? number : 0)];
    for (int64_t k = 0; k < rows.classes; k++) numbers[k * ROWS + number] = row[k];
    labels[number] = label;
    of_label[number] = logit_of(row, label, rows.classes);
  }
  for (int group = 0; group < GROUPS; group++) {
    Doubles highest = columns[0][group];
    Wholes top = {};
    for (int64_t k = 1; k < rows.classes; k++) {
      auto higher = columns[k][group] > highest;
      top = higher ? k - Wholes{} : top;
      highest = higher ? columns[k][group] : highest;
    }
    block.highest[group] = highest;
    block.top[group] = top;
  }
}

template <class T> INLINE double find_top(const Rows<T> &rows, int64_t start, int64_t number, Block &block, const T *&row) {
  row = Rows<T>::of(rows, start + number);
  int64_t top = top_class(row, rows.classes), label = rows.labels[start + number];
  ((int64_t *)block.top)[number] = top;
  ((int64_t *)block.label)[number] = label;
  ((double *)block.of_label)[number] = logit_of(row, label, rows.classes);
  return ((double *)block.highest)[number] = row[top];
}

// With d = z - highest: the sums of e^d, d e^d and e^2d over all classes but the top one.
template <class T> INLINE void add_ratios(const Rows<T> &rows, int64_t start, int64_t count, Block &block) {
  if (rows.classes <= FEW) {
    Doubles columns[FEW][GROUPS];
    turn(rows, start, count, columns, block);
    for (int group = 0; group < GROUPS; group++) {
      Doubles total = {}, products = {}, squares = {};
      for (int64_t k = 0; k < rows.classes; k++) {
        Doubles d = columns[k][group] - block.highest[group];
        d = choose(block.top[group] == k, NOTHING - Doubles{}, d);
        Doubles ratio = exponential(d);
        total += ratio;
        products += d * ratio;
        squares += ratio * ratio;
      }
      block.sums[0][group] = total;
      block.sums[1][group] = products;
      block.sums[2][group] = squares;
    }
    return;
  }
  for (int64_t number = 0; number < count; number++) {
    const T *row;
    double highest = find_top(rows, start, number, block, row);
    Doubles total = {}, products = {}, squares = {};
    if (sizeof(T) == sizeof(float) && rows.classes > MANY) {
      constexpr int WIDTH = 16;
      constexpr float ABSENT = -1e30f;  // e to it is 0
      const float *z = (const float *)row, most = (float)highest;
      const int64_t top = ((int64_t *)block.top)[number], of_top = top - top % WIDTH, whole = rows.classes - rows.classes % WIDTH;
      Floats some_products = {}, some_squares = {};
      // The bits of a float32 from 0, put into those of a float64, are the same number times 2^-896: two shifts
      // instead of a conversion.
      Doubles even = {}, odd = {};
      auto add = [&](Floats d) __attribute__((always_inline)) {
        d = choose(d > ABSENT, d, ABSENT - Floats{});  // of huge logits it may be -infinity, and times 0 NaN
        Floats ratio = exponential(d);
        even += (Doubles)((Bits)ratio << 32 >> 3);
        odd += (Doubles)((Bits)ratio >> 32 << 29);
        some_products += d * ratio;
        some_squares += ratio * ratio;
      };
      auto add_whole = [&](int64_t from, int64_t to) __attribute__((always_inline)) {
        for (int64_t first = from; first < to; first += WIDTH) {
          Floats d;
          memcpy(&d, z + first, sizeof d);
          add(d - most);
        }
      };
      auto add_some = [&](int64_t first) __attribute__((always_inline)) {
        Floats d = ABSENT - Floats{};
        for (int lane = 0; lane < WIDTH && first + lane < rows.classes; lane++)
          if (first + lane != top) d[lane] = z[first + lane] - most;
        add(d);
      };
      constexpr int64_t IN_FLOAT = 8 * WIDTH;  // classes whose products are added up in float32
      for (int64_t first = 0; first < whole; first += IN_FLOAT) {
        const int64_t end = first + IN_FLOAT < whole ? first + IN_FLOAT : whole;
        if (first <= top && top < end) {
          add_whole(first, of_top);
          add_some(of_top);
          add_whole(of_top + WIDTH, end);
        } else {
          add_whole(first, end);
        }
        products += widen(low(some_products) + high(some_products));
        squares += widen(low(some_squares) + high(some_squares));
        some_products = some_squares = Floats{};
      }
      if (whole < rows.classes) add_some(whole);
      total = (even + odd) * 0x1p896;
      products += widen(low(some_products) + high(some_products));
      squares += widen(low(some_squares) + high(some_squares));
    } else {
      const int64_t top = ((int64_t *)block.top)[number];
      const Wholes numbers = {0, 1, 2, 3, 4, 5, 6, 7};
      each_of_row(row, rows.classes, highest, [&](Doubles d, int64_t first) __attribute__((always_inline)) {
        d = choose(numbers == top - first, NOTHING - Doubles{}, d);
        Doubles ratio = exponential(d);
        total += ratio;
        products += d * ratio;
        squares += ratio * ratio;
      });
    }
    ((double *)block.sums[0])[number] = sum(total);
    ((double *)block.sums[1])[number] = sum(products);
    ((double *)block.sums[2])[number] = sum(squares);
  }
}

INLINE void store(double *into, Doubles v, int64_t count) {
  if (count >= LANES) memcpy(into, &v, sizeof v);
  else memcpy(into, &v, sizeof(double) * count);
}

// To the sums over rows: -log p(true), the same with p(true) clipped, squared error, entropy, errors, the confident
// predictions, and the errors among them.
INLINE void add_totals(int64_t n, const double *limits, const double *log_p, const double *confidence,
                       const double *squared_error, const double *entropy, const uint8_t *correct, double *totals) {
  const double low = limits[0], high = limits[1], sure = limits[2];
  Doubles sums[4] = {};
  auto add = [&](Doubles log, Doubles error, Doubles spread) __attribute__((always_inline)) {
    Doubles raised = choose(log < low, low - Doubles{}, log);
    sums[0] -= log;
    sums[1] -= choose(raised > high, high - Doubles{}, raised);
    sums[2] += error;
    sums[3] += spread;
  };
  int64_t row = 0, errors = 0, above = 0, errors_above = 0;
  for (; row + LANES <= n; row += LANES) add(load(log_p + row), load(squared_error + row), load(entropy + row));
  for (int number = 0; number < 4; number++) totals[number] += sum(sums[number]);
  for (; row < n; row++) {
    totals[0] -= log_p[row];
    totals[1] -= log_p[row] < low ? low : log_p[row] > high ? high : log_p[row];
    totals[2] += squared_error[row];
    totals[3] += entropy[row];
  }
  for (row = 0; row < n; row++) {
    errors += !correct[row];
    above += confidence[row] > sure;
    errors_above += !correct[row] & (confidence[row] > sure);
  }
  totals[4] += (double)errors;
  totals[5] += (double)above;
  totals[6] += (double)errors_above;
}

template <class T>
INLINE void softmax_facts(const Rows<T> &rows, int64_t n, const double *limits, double *log_p, double *confidence,
                          double *squared_error, double *entropy, uint8_t *correct, double *totals) {
  Block block = {};
  for (int number = 0; number < 7; number++) totals[number] = 0;
  for (int64_t start = 0; start < n; start += ROWS) {
    int64_t count = n - start < ROWS ? n - start : ROWS;
    add_ratios(rows, start, count, block);
    for (int group = 0; group * LANES < count; group++) {
      int64_t at = start + group * LANES, left = count - group * LANES;
      Doubles rest = block.sums[0][group], products = block.sums[1][group], squares = block.sums[2][group];
      Doubles total = 1.0 + rest, share = 1.0 / total, log_total = log_of_one_plus(rest);
      Doubles truth = block.of_label[group] - block.highest[group], ratio = exponential(truth);
      Wholes right = block.top[group] == block.label[group];
      // 1 - p(true) as a sum, not as a difference of near equals.
      Doubles others = choose(right, rest, total - ratio);
      squares = choose(right, squares, 1.0 + squares - ratio * ratio);
      constexpr double round = 0x1.8p52;
      const Doubles log_of_label = truth - log_total, sure_of = ((share * DECIMALS + round) - round) / DECIMALS;
      const Doubles error = (others * others + squares) * (share * share) / (double)rows.classes;
      const Doubles spread = log_total - products * share;
      store(log_p + at, log_of_label, left);
      store(confidence + at, sure_of, left);
      store(squared_error + at, error, left);
      store(entropy + at, spread, left);
      for (int lane = 0; lane < LANES && lane < left; lane++) correct[at + lane] = right[lane] != 0;
    }
    add_totals(count, limits, log_p + start, confidence + start, squared_error + start, entropy + start, correct + start, totals);
  }
}

// With d = z - highest and w = e^(scale d): the sums of w, w d, w d^2 and w d^3, and from them the derivatives.
template <class T>
INLINE void softmax_slopes(const Rows<T> &rows, int64_t n, double scale, const double *weights, double *slopes,
                           double *totals) {
  Block block = {};
  Doubles all[4] = {}, largest = -1e300 - Doubles{};
  for (int64_t start = 0; start < n; start += ROWS) {
    int64_t count = n - start < ROWS ? n - start : ROWS;
    if (rows.classes <= FEW) {
      Doubles columns[FEW][GROUPS];
      turn(rows, start, count, columns, block);
      for (int group = 0; group < GROUPS; group++) {
        Doubles sums[4] = {};
        for (int64_t k = 0; k < rows.classes; k++) {
          Doubles d = columns[k][group] - block.highest[group], weight = exponential(scale * d);
          sums[0] += weight;
          sums[1] += weight *= d;
          sums[2] += weight *= d;
          sums[3] += weight *= d;
        }
        for (int power = 0; power < 4; power++) block.sums[power][group] = sums[power];
      }
    } else {
      for (int64_t number = 0; number < count; number++) {
        const T *row;
        double highest = find_top(rows, start, number, block, row);
        Doubles sums[4] = {};
        each_of_row(row, rows.classes, highest, [&](Doubles d, int64_t) __attribute__((always_inline)) {
          Doubles weight = exponential(scale * d);
          sums[0] += weight;
          sums[1] += weight *= d;
          sums[2] += weight *= d;
          sums[3] += weight *= d;
        });
        for (int power = 0; power < 4; power++) ((double *)block.sums[power])[number] = sum(sums[power]);
      }
    }
    for (int group = 0; group * LANES < count; group++) {
      int64_t at = start + group * LANES, left = count - group * LANES;
      Doubles share = 1.0 / block.sums[0][group], mean = block.sums[1][group] * share;
      Doubles square = block.sums[2][group] * share, cube = block.sums[3][group] * share, counted = {};
      Wholes there = {};  // not beyond the last row
      for (int lane = 0; lane < LANES && lane < left; lane++) {
        counted[lane] = weights ? weights[at + lane] : 1.0;
        there[lane] = -1;
      }
      Doubles slope = counted * (mean - (block.of_label[group] - block.highest[group]));
      Doubles second = square - mean * mean, third = cube - mean * (3.0 * square - 2.0 * mean * mean);
      if (slopes) store(slopes + at, slope, left);
      all[0] += there ? slope : Doubles{};
      all[1] += there ? counted * second : Doubles{};
      all[2] += there ? counted * third : Doubles{};
      all[3] += there ? slope * slope : Doubles{};
      largest = (there & (slope > largest)) ? slope : largest;
    }
  }
  for (int power = 0; power < 4; power++) totals[power] = sum(all[power]);
  totals[4] = largest[0];
  for (int lane = 1; lane < LANES; lane++) totals[4] = largest[lane] > totals[4] ? largest[lane] : totals[4];
}

template <class T> INLINE void top_classes(const Rows<T> &rows, int64_t n, uint8_t *correct) {
  if (rows.classes > FEW) {
    for (int64_t number = 0; number < n; number++)
      correct[number] = top_class(Rows<T>::of(rows, number), rows.classes) == rows.labels[number];
    return;
  }
  for (int64_t number = 0; number < n; number++) {
    const T *row = Rows<T>::of(rows, number);
    int64_t top = 0;
    T highest = row[0];
    for (int64_t k = 1; k < rows.classes; k++) {
      top = row[k] > highest ? k : top;
      highest = row[k] > highest ? row[k] : highest;
    }
    correct[number] = top == rows.labels[number];
  }
}

template <class T> INLINE double sum_of_squares(const T *values, int64_t n) {
  constexpr int PARTS = 4, STEP = PARTS * LANES;
  Doubles sums[PARTS] = {};
  int64_t first = 0;
  for (; first + STEP <= n; first += STEP)
    for (int part = 0; part < PARTS; part++) {
      Doubles v = load(values + first + part * LANES);
      sums[part] += v * v;
    }
  double rest = 0;
  for (; first < n; first++) rest += (double)values[first] * values[first];
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest;
}

// The lowest and the highest.
template <class T> INLINE void extremes(const T *values, int64_t n, double *result) {
  typedef T Vector __attribute__((vector_size(64)));
  constexpr int WIDTH = 64 / sizeof(T), PARTS = 4;
  Vector low[PARTS], high[PARTS];
  for (int part = 0; part < PARTS; part++) low[part] = high[part] = values[0] - Vector{};
  int64_t first = 0;
  for (; first + PARTS * WIDTH <= n; first += PARTS * WIDTH)
    for (int part = 0; part < PARTS; part++) {
      Vector v;
      memcpy(&v, values + first + part * WIDTH, sizeof v);
      low[part] = v < low[part] ? v : low[part];
      high[part] = v > high[part] ? v : high[part];
    }
  T lowest = values[0], highest = values[0];
  for (int part = 0; part < PARTS; part++)
    for (int lane = 0; lane < WIDTH; lane++) {
      lowest = low[part][lane] < lowest ? low[part][lane] : lowest;
      highest = high[part][lane] > highest ? high[part][lane] : highest;
    }
  for (; first < n; first++) {
    lowest = values[first] < lowest ? values[first] : lowest;
    highest = values[first] > highest ? values[first] : highest;
  }
  result[0] = lowest;
  result[1] = highest;
}

typedef uint8_t Bytes16 __attribute__((vector_size(16)));
INLINE void interleave(Bytes16 a, Bytes16 b, Bytes16 &first, Bytes16 &second) {
  first = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  second = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

// Bytes (8, n), less than 8 rows with zeros: the bytes of each column together.
INLINE void transpose(const uint8_t *rows, int64_t count, int64_t n, uint8_t *columns) {
  constexpr int64_t WIDTH = sizeof(Bytes16);
  int64_t first = 0;
  for (; first + WIDTH <= n; first += WIDTH) {
    Bytes16 x[8] = {}, y[8];  // each step doubles how many bytes of a column are together
    for (int64_t row = 0; row < count; row++) memcpy(x + row, rows + row * n + first, sizeof *x);
    for (int k = 0; k < 4; k++) interleave(x[k], x[k + 4], y[2 * k], y[2 * k + 1]);
    for (int k = 0; k < 4; k++) interleave(y[k], y[k + 4], x[2 * k], x[2 * k + 1]);
    for (int k = 0; k < 4; k++) interleave(x[k], x[k + 4], y[2 * k], y[2 * k + 1]);
    memcpy(columns + 8 * first, y, sizeof y);
  }
  for (; first < n; first++)
    for (int64_t row = 0; row < 8; row++) columns[8 * first + row] = row < count ? rows[row * n + first] : 0;
}

// Each unit's counts of 8 resamples, in one place, times some of its values.
template <int SUMS>
INLINE void add_products_of(const uint8_t *space, const double *values, int64_t units, double *result, int64_t resamples,
                            int64_t stride) {
  constexpr int64_t BLOCK = 1024;  // units whose products are added up before they are added to all others
  Doubles totals[SUMS] = {};
  for (int64_t start = 0; start < units; start += BLOCK) {
    const int64_t end = units - start < BLOCK ? units : start + BLOCK;
    Doubles some[SUMS] = {};
    for (int64_t unit = start; unit < end; unit++) {
      Doubles weight = load(space + 8 * unit);
      for (int number = 0; number < SUMS; number++) some[number] += weight * values[number * units + unit];
    }
    for (int number = 0; number < SUMS; number++) totals[number] += some[number];
  }
  for (int64_t resample = 0; resample < resamples; resample++)
    for (int number = 0; number < SUMS; number++) result[resample * stride + number] = totals[number][resample];
}

template <int NUMBER> struct Number { static constexpr int value = NUMBER; };

// counts (up to 8 resamples, units) times values (sums, units). `space` is for 8 bytes of each unit.
INLINE void add_products(const uint8_t *counts, int64_t resamples, const double *values, int64_t sums, int64_t units,
                         uint8_t *space, double *result) {
  const int64_t stride = sums;
  transpose(counts, resamples, units, space);
  for (; sums > 0; sums -= 8, values += 8 * units, result += 8) {
    auto add = [&](auto number) __attribute__((always_inline)) {
      add_products_of<decltype(number)::value>(space, values, units, result, resamples, stride);
    };
    switch (sums) {
      case 1: add(Number<1>{}); break;
      case 2: add(Number<2>{}); break;
      case 3: add(Number<3>{}); break;
      case 4: add(Number<4>{}); break;
      case 5: add(Number<5>{}); break;
      case 6: add(Number<6>{}); break;
      case 7: add(Number<7>{}); break;
      default: add(Number<8>{});
    }
  }
}

// Of up to 8 resamples: before each block of ranked decisions, and after the last, how many were drawn, and the sum of
// their residuals. Decisions come in any order with the number of their block: where that is the order of their units,
// only the sums, which stay in the cache, are not read one after another. `space` is for 8 bytes of each unit, `sums`
// for two vectors of each block.
INLINE void add_blocks(const uint8_t *counts, int64_t resamples, int64_t units, const int64_t *unit, const int32_t *block_of,
                       const double *residual, int64_t n, int64_t blocks, uint8_t *space, Doubles *sums, double *mass,
                       double *residuals) {
  transpose(counts, resamples, units, space);
  memset((void *)sums, 0, sizeof(Doubles) * 2 * blocks);
  for (int64_t number = 0; number < n; number++) {
    Doubles weight = load(space + 8 * unit[number]), *own = sums + 2 * block_of[number];
    own[0] += weight;
    own[1] += weight * residual[number];
  }
  Doubles reached = {}, summed = {};
  for (int64_t block = 0; block <= blocks; block++) {
    for (int64_t resample = 0; resample < resamples; resample++) {
      mass[resample * (blocks + 1) + block] = reached[resample];
      residuals[resample * (blocks + 1) + block] = summed[resample];
    }
    if (block == blocks) return;
    reached += sums[2 * block];
    summed += sums[2 * block + 1];
  }
}

// facts (count, n) times their transpose: all sums of products of two of them, the lower half and its mirror image.
INLINE void add_squares(const double *facts, int64_t count, int64_t n, double *result) {
  constexpr int64_t BLOCK = 512;
  for (int64_t start = 0; start < n; start += BLOCK) {
    const int64_t end = n - start < BLOCK ? n : start + BLOCK, whole = start + (end - start) / (2 * LANES) * (2 * LANES);
    for (int64_t one = 0; one < count; one++)
      for (int64_t other = 0; other <= one; other++) {
        const double *left = facts + one * n, *right = facts + other * n;
        Doubles even = {}, odd = {};
        for (int64_t row = start; row < whole; row += 2 * LANES) {
          even += load(left + row) * load(right + row);
          odd += load(left + row + LANES) * load(right + row + LANES);
        }
        double rest = 0;
        for (int64_t row = whole; row < end; row++) rest += left[row] * right[row];
        result[one * count + other] += sum(even + odd) + rest;
      }
  }
  for (int64_t one = 0; one < count; one++)
    for (int64_t other = 0; other < one; other++) result[other * count + one] = result[one * count + other];
}

// A cell of a stream's doubts: numbers, errors, the sum of the doubts less the cell's start, and the only doubt plus 1.
struct Cell {
  int64_t count, errors, offset, only;
};

// Adds some doubts to cells that are 2^shift doubts wide. Without branches, which nobody could predict; and as the
// cells are not in the cache, those of several doubts are fetched at once.
INLINE void add_doubts(const double *doubts, const uint8_t *correct, int64_t n, int64_t bits, int64_t even, Cell *cells) {
  constexpr int64_t NONE = 0, SEVERAL = -1, AT_ONCE = 64;
  Cell *of[AT_ONCE];
  int64_t offset[AT_ONCE];
  for (int64_t start = 0; start < n; start += AT_ONCE) {
    const int64_t count = n - start < AT_ONCE ? n - start : AT_ONCE;
    for (int64_t number = 0; number < count; number++) {
      const int64_t doubt = (int64_t)within(doubts[start + number], DECIMALS), leading = 63 - __builtin_clzll((uint64_t)doubt | 1);
      const int64_t octave = (leading < even ? leading : even) - bits, shift = octave > 0 ? octave : 0;
      of[number] = cells + (doubt >> shift) + (shift << bits);
      offset[number] = doubt - (doubt >> shift << shift);
      __builtin_prefetch(of[number], 1);
    }
    for (int64_t number = 0; number < count; number++) {
      const int64_t only = (int64_t)doubts[start + number] + 1;
      Cell &cell = *of[number];
      cell.count += 1;
      cell.errors += !correct[start + number];
      cell.offset += offset[number];
      cell.only = (cell.only == NONE) | (cell.only == only) ? only : SEVERAL;
    }
  }
}

INLINE void spread(double confidence, double residual, int64_t cells, double *grid) {
  const double place = within(confidence * (double)cells - 0.5, (double)(cells - 1));
  int64_t cell = (int64_t)place;
  cell = cell < cells - 2 ? cell : cells - 2;
  double to_right = residual * (place - (double)cell);
  grid[cell] += residual - to_right;
  grid[cell + 1] += to_right;
}

// What a stream adds up, of each version of some rows: the logits as they are (temperature 0), or divided by a
// temperature. Chosen facts of each row, numbered as in `add_totals`, are added to `sums`, and all products of two of
// them to `products`; the first of all facts is 1. `space` is for
// `at_once` rows of each, of five facts and of the scaled logits.
template <class T>
INLINE void add_stream(const T *z, int64_t n, int64_t classes, int64_t stride, const int64_t *labels, int64_t versions,
                       const double *temperatures, const double *limits, const int64_t *chosen, int64_t of_version,
                       int64_t bits, int64_t even, Cell *const *cells, int64_t grid_cells,
                       double *const *grids, int64_t at_once, double *space, double *sums, double *products) {
  const int64_t all = 1 + versions * of_version;
  double *facts[4], *each = space + 5 * at_once;
  for (int number = 0; number < 4; number++) facts[number] = space + number * at_once;
  uint8_t *correct = (uint8_t *)(space + 4 * at_once);
  T *scaled = (T *)(each + all * at_once);
  for (int64_t start = 0; start < n; start += at_once) {
    const int64_t count = n - start < at_once ? n - start : at_once;
    const T *some = z + start * stride;
    double *into = each;
    for (int64_t row = 0; row < count; row++) into[row] = 1.0;
    into += count;
    sums[0] += (double)count;
    for (int64_t version = 0; version < versions; version++) {
      Rows<T> rows = {some, classes, stride, nullptr, labels + start};
      if (temperatures[version] > 0) {
        const T temperature = (T)temperatures[version];
        for (int64_t row = 0; row < count; row++)
          for (int64_t k = 0; k < classes; k++) scaled[row * classes + k] = some[row * stride + k] / temperature;
        rows.logits = scaled;
        rows.stride = classes;
      }
      double totals[7];
      softmax_facts(rows, count, limits, facts[0], facts[1], facts[2], facts[3], correct, totals);
      const double *log_p = facts[0], *confidence = facts[1];
      for (int64_t place = 0; place < of_version; place++, into += count) {
        sums[1 + version * of_version + place] += totals[chosen[place]];
        switch (chosen[place]) {
          case 0:
            for (int64_t row = 0; row < count; row++) into[row] = -log_p[row];
            break;
          case 1:
            for (int64_t row = 0; row < count; row++) {
              const double raised = log_p[row] < limits[0] ? limits[0] : log_p[row];
              into[row] = raised > limits[1] ? -limits[1] : -raised;
            }
            break;
          case 4:
            for (int64_t row = 0; row < count; row++) into[row] = !correct[row];
            break;
          case 5:
            for (int64_t row = 0; row < count; row++) into[row] = confidence[row] > limits[2];
            break;
          case 6:
            for (int64_t row = 0; row < count; row++) into[row] = !correct[row] & (confidence[row] > limits[2]);
            break;
          default:  // squared error, entropy
            memcpy(into, facts[chosen[place]], sizeof(double) * count);
        }
      }
      constexpr double round = 0x1.8p52;
      for (int64_t row = 0; row < count; row++) {
        spread(confidence[row], (double)correct[row] - confidence[row], grid_cells, grids[version]);
        facts[0][row] = DECIMALS - ((confidence[row] * DECIMALS + round) - round);
      }
      add_doubts(facts[0], correct, count, bits, even, cells[version]);
    }
    add_squares(each, all, count, products);
  }
}

}  // namespace

#define EXPORT(name, T)                                                                                            \
  extern "C" ON_EACH_CPU void softmax_facts_##name(const T *z, int64_t n, int64_t classes, int64_t stride,         \
                                                   const int64_t *chosen, const int64_t *labels,                    \
                                                   const double *limits, double *log_p, double *confidence,        \
                                                   double *squared_error, double *entropy, uint8_t *correct,       \
                                                   double *totals) {                                               \
    softmax_facts<T>({z, classes, stride, chosen, labels}, n, limits, log_p, confidence, squared_error, entropy,   \
                     correct, totals);                                                                             \
  }                                                                                                                \
  extern "C" ON_EACH_CPU void softmax_slopes_##name(const T *z, int64_t n, int64_t classes, int64_t stride,        \
                                                    const int64_t *labels, double scale, const double *weights,    \
                                                    double *slopes, double *totals) {                              \
    softmax_slopes<T>({z, classes, stride, nullptr, labels}, n, scale, weights, slopes, totals);                   \
  }                                                                                                                \
  extern "C" ON_EACH_CPU void top_is_label_##name(const T *z, int64_t n, int64_t classes, int64_t stride,          \
                                                  const int64_t *chosen, const int64_t *labels,                    \
                                                  uint8_t *correct) {                                              \
    top_classes<T>({z, classes, stride, chosen, labels}, n, correct);                                              \
  }                                                                                                                \
  extern "C" ON_EACH_CPU void add_stream_##name(                                                                  \
      const T *z, int64_t n, int64_t classes, int64_t stride, const int64_t *labels, int64_t versions,              \
      const double *temperatures, const double *limits, const int64_t *chosen, int64_t of_version, int64_t bits,    \
      int64_t even, Cell *const *cells, int64_t grid_cells, double *const *grids,                                   \
      int64_t at_once, double *space, double *sums, double *products) {                                            \
    add_stream(z, n, classes, stride, labels, versions, temperatures, limits, chosen, of_version, bits, even,      \
               cells, grid_cells, grids, at_once, space, sums, products);                                          \
  }                                                                                                                \
  extern "C" ON_EACH_CPU void extremes_##name(const T *values, int64_t n, double *result) {                          \
    extremes(values, n, result);                                                                                   \
  }                                                                                                                \
  extern "C" ON_EACH_CPU double sum_of_squares_##name(const T *values, int64_t n) { return sum_of_squares(values, n); }

EXPORT(float32, float)
EXPORT(float64, double)

// How many confidences are in each cell of 1 / cells, the most confident first; their errors; and their sum.
extern "C" void count_in_cells(const double *confidence, const uint8_t *correct, int64_t n, int64_t cells, int16_t *cell,
                               double *sums) {
  for (int64_t number = 0; number < n; number++) {
    const int64_t own = (int64_t)within((1.0 - confidence[number]) * (double)cells, (double)(cells - 1));
    cell[number] = (int16_t)own;
    sums[3 * own] += 1.0;
    sums[3 * own + 1] += 1.0 - correct[number];
    sums[3 * own + 2] += confidence[number];
  }
}

// The numbers of the rows whose cell is chosen, from `first` on; how many they are is returned.
extern "C" int64_t rows_in_cells(const int16_t *cell, int64_t first, int64_t n, const uint8_t *chosen, int64_t *rows) {
  int64_t found = 0;
  for (int64_t number = 0; number < n; number++)
    if (chosen[cell[number]]) rows[found++] = first + number;
  return found;
}

// Counts of doubts, which are whole numbers, in the cells of a grid without zooms: `Histogram.add` of streaming/cells.py.
extern "C" void count_doubts(const double *doubts, const uint8_t *correct, int64_t n, int64_t bits, int64_t even,
                             Cell *cells) {
  add_doubts(doubts, correct, n, bits, even, cells);
}

// Each residual, shared between the two cells that are nearest to its confidence: `spread_on_grid`.
extern "C" void spread_on_grid(const double *confidence, const double *residual, int64_t n, int64_t cells, double *grid) {
  for (int64_t number = 0; number < n; number++) spread(confidence[number], residual[number], cells, grid);
}

extern "C" ON_EACH_CPU void products(const uint8_t *counts, int64_t resamples, const double *values, int64_t sums,
                                     int64_t units, uint8_t *space, double *result) {
  add_products(counts, resamples, values, sums, units, space, result);
}

extern "C" ON_EACH_CPU void squares(const double *facts, int64_t count, int64_t n, double *result) {
  add_squares(facts, count, n, result);
}

// numpy's PCG64: a state is the last one times MULTIPLIER, plus an increment, and gives a word.
typedef unsigned __int128 Word;
static constexpr Word MULTIPLIER = (Word)0x2360ed051fc65da4 << 64 | 0x4385df649fccf645;

INLINE uint64_t word_of(Word state) {
  const uint64_t mixed = (uint64_t)(state >> 64) ^ (uint64_t)state;
  const int turn = (int)(state >> 122);
  return mixed >> turn | mixed << (-turn & 63);
}

// So many pairs of words after a state; the last state is returned. Of two states, one is ahead of the other, so that
// the processor need not wait for each multiplication.
INLINE Word write_words(Word last, Word increment, int64_t pairs, uint8_t *into) {
  const Word factor = MULTIPLIER * MULTIPLIER, step = increment * MULTIPLIER + increment;
  Word states[2] = {last * MULTIPLIER + increment, last * factor + step};
  for (int64_t pair = 0; pair < pairs; pair++)
    for (int ahead = 0; ahead < 2; ahead++) {
      const uint64_t word = word_of(states[ahead]);
      memcpy(into + 8 * (2 * pair + ahead), &word, sizeof word);
      last = states[ahead];
      states[ahead] = last * factor + step;
    }
  return last;
}

// Numbers of 32 bits (resamples, units) from which numpy's `integers(units, dtype=uint32)` draws as many units as there
// are, from PCG64: unit number * units / 2^32, unless what the division leaves is too small. Each that is needed in the
// place of such a one is drawn at once and counted. `generator` is the state and the increment, high word first, whether
// 32 bits are left of the last word, and which; it is left as numpy would leave it.
extern "C" ON_EACH_CPU void draw_numbers(uint64_t *generator, int64_t resamples, int64_t units, uint32_t *numbers,
                                         uint8_t *counts) {
  memset(counts, 0, (size_t)(resamples * units));
  if (units < 2) return;
  const Word increment = (Word)generator[2] << 64 | generator[3];
  Word state = (Word)generator[0] << 64 | generator[1];
  auto next = [&]() __attribute__((always_inline)) {
    generator[4] = !generator[4];
    if (!generator[4]) return (uint32_t)generator[5];
    state = state * MULTIPLIER + increment;
    const uint64_t word = word_of(state);
    generator[5] = word >> 32;
    return (uint32_t)word;
  };
  const uint32_t range = (uint32_t)units, rejected = (uint32_t)((((uint64_t)1 << 32) - range) % range);
  for (; resamples > 0; resamples--, numbers += units, counts += units) {
    int64_t drawn = 0, missing = 0;
    if (generator[4]) numbers[drawn++] = next();
    const int64_t pairs = (units - drawn) / 4;
    state = write_words(state, increment, pairs, (uint8_t *)(numbers + drawn));
    drawn += 4 * pairs;
    while (drawn < units) numbers[drawn++] = next();
    for (int64_t number = 0; number < units; number++) missing += numbers[number] * range < rejected;
    while (missing > 0) {
      const uint64_t product = (uint64_t)next() * range;
      counts[product >> 32] += (uint32_t)product >= rejected;
      missing -= (uint32_t)product >= rejected;
    }
  }
  generator[0] = (uint64_t)(state >> 64);
  generator[1] = (uint64_t)state;
}

// Adds how often each unit is drawn by such numbers, modulo 256.
extern "C" ON_EACH_CPU void count_numbers(const uint32_t *numbers, int64_t resamples, int64_t units, uint8_t *counts) {
  if (units < 2) {
    for (int64_t number = 0; number < resamples * units; number++) counts[number] = 1;
    return;
  }
  const uint64_t range = (uint64_t)units, rejected = (((uint64_t)1 << 32) - range) % range;
  for (; resamples > 0; resamples--, numbers += units, counts += units)
    for (int64_t number = 0; number < units; number++) {
      const uint64_t product = numbers[number] * range;
      if ((uint32_t)product >= rejected) counts[product >> 32]++;
    }
}

// How often each decision is drawn with its unit.
extern "C" void drawn_decisions(const uint8_t *counts, const int64_t *unit, int64_t n, uint8_t *drawn) {
  for (int64_t number = 0; number < n; number++) drawn[number] = counts[unit[number]];
}

extern "C" ON_EACH_CPU void block_sums(const uint8_t *counts, int64_t resamples, int64_t units, const int64_t *unit,
                                       const int32_t *block_of, const double *residual, int64_t n, int64_t blocks,
                                       uint8_t *space, double *sums, double *mass, double *residuals) {
  add_blocks(counts, resamples, units, unit, block_of, residual, n, blocks, space, (Doubles *)sums, mass, residuals);
}

// Up to 2^24 confidences from the highest to the lowest, equal ones in their order: their numbers, and the places where
// a run of equal ones ends. How many runs there are is returned; 0 where a confidence is not rounded to 1 / DECIMALS
// or not from 0 to 1. A radix sort of the doubts, each with its number below it. `space` is for two of each.
extern "C" int64_t rank_confidences(const double *confidence, int64_t n, uint64_t *space, int64_t *order, int64_t *ends) {
  constexpr int DIGITS = 4, BITS = 10, BELOW = 24;  // DECIMALS is less than 2^40
  constexpr uint64_t VALUES = 1 << BITS, LAST = VALUES - 1, NUMBER = (1 << BELOW) - 1;
  constexpr double round = 0x1.8p52;
  int64_t places[DIGITS][VALUES] = {};
  uint64_t *from = space, *into = space + n;
  for (int64_t number = 0; number < n; number++) {
    double units = confidence[number] * DECIMALS + round - round;
    if (!(units >= 0 && units <= DECIMALS) || units / DECIMALS != confidence[number]) return 0;
    uint64_t doubt = (uint64_t)(DECIMALS - units);
    from[number] = doubt << BELOW | (uint64_t)number;
    for (int digit = 0; digit < DIGITS; digit++) places[digit][doubt >> digit * BITS & LAST]++;
  }
  for (int digit = 0; digit < DIGITS; digit++) {
    int64_t before = 0;
    for (uint64_t value = 0; value < VALUES; value++) {
      int64_t count = places[digit][value];
      places[digit][value] = before;
      before += count;
    }
    for (int64_t number = 0; number < n; number++)
      into[places[digit][from[number] >> (BELOW + digit * BITS) & LAST]++] = from[number];
    uint64_t *sorted = into;
    into = from;
    from = sorted;
  }
  int64_t runs = 0;
  for (int64_t number = 0; number < n; number++) {
    order[number] = (int64_t)(from[number] & NUMBER);
    ends[runs] = number;
    runs += number + 1 == n || from[number] >> BELOW != from[number + 1] >> BELOW;
  }
  return runs;
}
