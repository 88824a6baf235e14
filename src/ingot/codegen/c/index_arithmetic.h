IG_OPTIONAL int64_t ig_min(int64_t a, int64_t b) { return a < b ? a : b; }
IG_OPTIONAL int64_t ig_max(int64_t a, int64_t b) { return a > b ? a : b; }
IG_OPTIONAL int64_t ig_clamp(int64_t a, int64_t limit) { return a < 0 ? 0 : a > limit ? limit : a; }
IG_OPTIONAL int64_t ig_floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
IG_OPTIONAL int64_t ig_floor_mod(int64_t a, int64_t b) { return a - ig_floor_div(a, b) * b; }
IG_OPTIONAL int64_t ig_round_up(int64_t bytes) { return bytes < 64 ? 64 : (bytes + 63) / 64 * 64; }
