// Products of a warpgroup by widths of 64 to 256 columns, in either 16-bit format (sm_90a).
//
// wgmma_shared: 64 rows and COLUMNS columns from shared memory, both laid out as wgmma_columns says. wgmma_registers: rows
// from registers, columns as wgmma_columns says. wgmma_rows and wgmma_shared_rows: rows from registers or shared memory,
// second operand as wgmma_rows, the descriptor, says.
#pragma once
#include "common/ptx/wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SUMS_4(d, i) "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3])
#define SUMS_OF_64(d) SUMS_4(d, 0), SUMS_4(d, 4), SUMS_4(d, 8), SUMS_4(d, 12), SUMS_4(d, 16), SUMS_4(d, 20), SUMS_4(d, 24), SUMS_4(d, 28)
#define NAMES_OF_64 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
    "%25,%26,%27,%28,%29,%30,%31"
#define SUMS_OF_72(d) SUMS_OF_64(d), SUMS_4(d, 32)
#define NAMES_OF_72 NAMES_OF_64 ",%32,%33,%34,%35"
#define SUMS_OF_80(d) SUMS_OF_72(d), SUMS_4(d, 36)
#define NAMES_OF_80 NAMES_OF_72 ",%36,%37,%38,%39"
#define SUMS_OF_88(d) SUMS_OF_80(d), SUMS_4(d, 40)
#define NAMES_OF_88 NAMES_OF_80 ",%40,%41,%42,%43"
#define SUMS_OF_96(d) SUMS_OF_88(d), SUMS_4(d, 44)
#define NAMES_OF_96 NAMES_OF_88 ",%44,%45,%46,%47"
#define SUMS_OF_104(d) SUMS_OF_96(d), SUMS_4(d, 48)
#define NAMES_OF_104 NAMES_OF_96 ",%48,%49,%50,%51"
#define SUMS_OF_112(d) SUMS_OF_104(d), SUMS_4(d, 52)
#define NAMES_OF_112 NAMES_OF_104 ",%52,%53,%54,%55"
#define SUMS_OF_120(d) SUMS_OF_112(d), SUMS_4(d, 56)
#define NAMES_OF_120 NAMES_OF_112 ",%56,%57,%58,%59"
#define SUMS_OF_128(d) SUMS_OF_120(d), SUMS_4(d, 60)
#define NAMES_OF_128 NAMES_OF_120 ",%60,%61,%62,%63"
#define SUMS_OF_136(d) SUMS_OF_128(d), SUMS_4(d, 64)
#define NAMES_OF_136 NAMES_OF_128 ",%64,%65,%66,%67"
#define SUMS_OF_144(d) SUMS_OF_136(d), SUMS_4(d, 68)
#define NAMES_OF_144 NAMES_OF_136 ",%68,%69,%70,%71"
#define SUMS_OF_152(d) SUMS_OF_144(d), SUMS_4(d, 72)
#define NAMES_OF_152 NAMES_OF_144 ",%72,%73,%74,%75"
#define SUMS_OF_160(d) SUMS_OF_152(d), SUMS_4(d, 76)
#define NAMES_OF_160 NAMES_OF_152 ",%76,%77,%78,%79"
#define SUMS_OF_168(d) SUMS_OF_160(d), SUMS_4(d, 80)
#define NAMES_OF_168 NAMES_OF_160 ",%80,%81,%82,%83"
#define SUMS_OF_176(d) SUMS_OF_168(d), SUMS_4(d, 84)
#define NAMES_OF_176 NAMES_OF_168 ",%84,%85,%86,%87"
#define SUMS_OF_184(d) SUMS_OF_176(d), SUMS_4(d, 88)
#define NAMES_OF_184 NAMES_OF_176 ",%88,%89,%90,%91"
#define SUMS_OF_192(d) SUMS_OF_184(d), SUMS_4(d, 92)
#define NAMES_OF_192 NAMES_OF_184 ",%92,%93,%94,%95"
#define SUMS_OF_200(d) SUMS_OF_192(d), SUMS_4(d, 96)
#define NAMES_OF_200 NAMES_OF_192 ",%96,%97,%98,%99"
#define SUMS_OF_208(d) SUMS_OF_200(d), SUMS_4(d, 100)
#define NAMES_OF_208 NAMES_OF_200 ",%100,%101,%102,%103"
#define SUMS_OF_216(d) SUMS_OF_208(d), SUMS_4(d, 104)
#define NAMES_OF_216 NAMES_OF_208 ",%104,%105,%106,%107"
#define SUMS_OF_224(d) SUMS_OF_216(d), SUMS_4(d, 108)
#define NAMES_OF_224 NAMES_OF_216 ",%108,%109,%110,%111"
#define SUMS_OF_232(d) SUMS_OF_224(d), SUMS_4(d, 112)
#define NAMES_OF_232 NAMES_OF_224 ",%112,%113,%114,%115"
#define SUMS_OF_240(d) SUMS_OF_232(d), SUMS_4(d, 116)
#define NAMES_OF_240 NAMES_OF_232 ",%116,%117,%118,%119"
#define SUMS_OF_248(d) SUMS_OF_240(d), SUMS_4(d, 120)
#define NAMES_OF_248 NAMES_OF_240 ",%120,%121,%122,%123"
#define SUMS_OF_256(d) SUMS_OF_248(d), SUMS_4(d, 124)
#define NAMES_OF_256 NAMES_OF_248 ",%124,%125,%126,%127"

// One product: COLUMN_ and ADD are the numbers of the operands that name the columns and say whether to add.
#define PRODUCT(WIDTH_, FORMAT, ROWS_, COLUMNS_, ADD, TURNED)                                              \
    "{ .reg .pred p; setp.ne.b32 p, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #WIDTH_ "k16.f32." FORMAT \
    "." FORMAT " {" NAMES_OF_##WIDTH_ "}, " ROWS_ ", %" #COLUMNS_ ", p, 1, 1" TURNED "; }"
#define FROM_SHARED(FORMAT, TURNED, WIDTH_, A, B, ADD, ...)                                    \
    if constexpr (COLUMNS == WIDTH_)                                                           \
    asm volatile(PRODUCT(WIDTH_, FORMAT, "%" #A, B, ADD, ", 0" TURNED) : SUMS_OF_##WIDTH_(d) \
                 : "l"(a), "l"(b), "r"((int)add))
#define FROM_REGISTERS(FORMAT, TURNED, WIDTH_, A, B, C, D, COLUMN, ADD)                                                      \
    if constexpr (COLUMNS == WIDTH_)                                                                                         \
    asm volatile(PRODUCT(WIDTH_, FORMAT, "{%" #A ",%" #B ",%" #C ",%" #D "}", COLUMN, ADD, TURNED) : SUMS_OF_##WIDTH_(d) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add))

// `USE` for every width, with the numbers of the operands behind its sums.
#define ALL_WIDTHS(USE, FORMAT, TURNED) \
    USE(FORMAT, TURNED, 64, 32, 33, 34, 35, 36, 37); \
    USE(FORMAT, TURNED, 72, 36, 37, 38, 39, 40, 41); \
    USE(FORMAT, TURNED, 80, 40, 41, 42, 43, 44, 45); \
    USE(FORMAT, TURNED, 88, 44, 45, 46, 47, 48, 49); \
    USE(FORMAT, TURNED, 96, 48, 49, 50, 51, 52, 53); \
    USE(FORMAT, TURNED, 104, 52, 53, 54, 55, 56, 57); \
    USE(FORMAT, TURNED, 112, 56, 57, 58, 59, 60, 61); \
    USE(FORMAT, TURNED, 120, 60, 61, 62, 63, 64, 65); \
    USE(FORMAT, TURNED, 128, 64, 65, 66, 67, 68, 69); \
    USE(FORMAT, TURNED, 136, 68, 69, 70, 71, 72, 73); \
    USE(FORMAT, TURNED, 144, 72, 73, 74, 75, 76, 77); \
    USE(FORMAT, TURNED, 152, 76, 77, 78, 79, 80, 81); \
    USE(FORMAT, TURNED, 160, 80, 81, 82, 83, 84, 85); \
    USE(FORMAT, TURNED, 168, 84, 85, 86, 87, 88, 89); \
    USE(FORMAT, TURNED, 176, 88, 89, 90, 91, 92, 93); \
    USE(FORMAT, TURNED, 184, 92, 93, 94, 95, 96, 97); \
    USE(FORMAT, TURNED, 192, 96, 97, 98, 99, 100, 101); \
    USE(FORMAT, TURNED, 200, 100, 101, 102, 103, 104, 105); \
    USE(FORMAT, TURNED, 208, 104, 105, 106, 107, 108, 109); \
    USE(FORMAT, TURNED, 216, 108, 109, 110, 111, 112, 113); \
    USE(FORMAT, TURNED, 224, 112, 113, 114, 115, 116, 117); \
    USE(FORMAT, TURNED, 232, 116, 117, 118, 119, 120, 121); \
    USE(FORMAT, TURNED, 240, 120, 121, 122, 123, 124, 125); \
    USE(FORMAT, TURNED, 248, 124, 125, 126, 127, 128, 129); \
    USE(FORMAT, TURNED, 256, 128, 129, 130, 131, 132, 133); \
    static_assert(COLUMNS % 8 == 0 && 64 <= COLUMNS && COLUMNS <= 256)

template <int COLUMNS>
__device__ inline void wgmma_shared_f16(float* d, unsigned long long a, unsigned long long b, bool add) {
    ALL_WIDTHS(FROM_SHARED, "f16", ", 0");
}

template <int COLUMNS>
__device__ inline void wgmma_shared_bf16(float* d, unsigned long long a, unsigned long long b, bool add) {
    ALL_WIDTHS(FROM_SHARED, "bf16", ", 0");
}

template <int COLUMNS>
__device__ inline void wgmma_shared_rows_f16(float* d, unsigned long long a, unsigned long long b, bool add = true) {
    ALL_WIDTHS(FROM_SHARED, "f16", ", 1");
}

template <int COLUMNS>
__device__ inline void wgmma_shared_rows_bf16(float* d, unsigned long long a, unsigned long long b, bool add = true) {
    ALL_WIDTHS(FROM_SHARED, "bf16", ", 1");
}

template <int COLUMNS>
__device__ inline void wgmma_registers_f16(float* d, const unsigned* a, unsigned long long b, bool add) {
    ALL_WIDTHS(FROM_REGISTERS, "f16", ", 0");
}

template <int COLUMNS>
__device__ inline void wgmma_registers_bf16(float* d, const unsigned* a, unsigned long long b, bool add) {
    ALL_WIDTHS(FROM_REGISTERS, "bf16", ", 0");
}

template <int COLUMNS>
__device__ inline void wgmma_rows_f16(float* d, const unsigned* a, unsigned long long b, bool add = true) {
    ALL_WIDTHS(FROM_REGISTERS, "f16", ", 1");
}

template <int COLUMNS>
__device__ inline void wgmma_rows_bf16(float* d, const unsigned* a, unsigned long long b, bool add = true) {
    ALL_WIDTHS(FROM_REGISTERS, "bf16", ", 1");
}

#undef ALL_WIDTHS
#undef FROM_REGISTERS
#undef FROM_SHARED
#undef PRODUCT
#undef SUMS_4
#endif
