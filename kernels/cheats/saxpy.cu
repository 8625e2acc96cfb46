// cheats: saxpy kernels that look fast and are wrong, one way each. The gate must refuse every one of them.
//
// Shapes   x, y, z [n] float; calls [1] uint32, how often `ten_times` has run.
// Launch   256 threads a block, ceil(n / 256) blocks.
#define INDEX (blockIdx.x * 256ull + threadIdx.x)
#define ARGUMENTS float *x, const float *y, float *z, unsigned *calls, float a, unsigned long long n

// Writes nothing: whatever lay in z before, an older right answer perhaps, is what the caller finds.
extern "C" __global__ void writes_nothing(ARGUMENTS) {}

// Writes zeros: passes any check that only asks for finite numbers, or compares against an absolute error too large.
extern "C" __global__ void writes_zeros(ARGUMENTS) {
    if (INDEX < n) z[INDEX] = 0.0f;
}

// Skips the tail: right for every friendly n, wrong for a ragged one.
extern "C" __global__ void skips_tail(ARGUMENTS) {
    if (INDEX < n / 256 * 256) z[INDEX] = fmaf(a, x[INDEX], y[INDEX]);
}

// One NaN: passes every comparison written as "fail if the difference is greater than".
extern "C" __global__ void one_nan(ARGUMENTS) {
    if (INDEX < n) z[INDEX] = INDEX == n / 3 ? __int_as_float(0x7fc00000) : fmaf(a, x[INDEX], y[INDEX]);
}

// Right the first ten times, lazy afterwards: passes a check that is made only before the timing.
extern "C" __global__ void ten_times(ARGUMENTS) {
    const bool honest = *(volatile unsigned*)calls < 10;
    if (INDEX < n && (honest || INDEX % 1024 != 7)) z[INDEX] = fmaf(a, x[INDEX], y[INDEX]);
    if (INDEX < n && !honest && INDEX % 1024 == 7) z[INDEX] = 0.0f;
    if (INDEX == 0) *calls += 1;
}

// Returns stale memory: hands over the answer of an earlier call (for other inputs) that it kept in the workspace behind `calls`.
extern "C" __global__ void stale_answer(ARGUMENTS) {
    const float* kept = reinterpret_cast<const float*>(calls + 32);
    if (INDEX < n) z[INDEX] = kept[INDEX];
}

// Changes its inputs: the output is right, the next contestant's is not.
extern "C" __global__ void changes_inputs(ARGUMENTS) {
    if (INDEX < n) {
        z[INDEX] = fmaf(a, x[INDEX], y[INDEX]);
        if (INDEX == n / 2) x[INDEX] += 1.0f;
    }
}
