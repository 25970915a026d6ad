// wgmma_registers.cuh: the registers of products of warpgroups, as wgmma.cuh writes them in
// assembly: WGMMA_OPERANDS_N names the N / 2 sums of a thread and then the three operands behind
// them, and WGMMA_SUMS_N are these sums, d[FROM] and on. Both are made of groups of 8.
#pragma once

#define WGMMA_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_NAMES_8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_NAMES_24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_NAMES_40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_NAMES_48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_NAMES_56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_NAMES_64 "%64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_NAMES_72 "%72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_NAMES_80 "%80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_NAMES_88 "%88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_NAMES_96 "%96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_NAMES_104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_NAMES_112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define WGMMA_NAMES_120 "%120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_OPERANDS_8 "{%0, %1, %2, %3}, %4, %5, %6"
#define WGMMA_UP_TO_16 WGMMA_NAMES_0
#define WGMMA_UP_TO_32 WGMMA_UP_TO_16 "," WGMMA_NAMES_8
#define WGMMA_UP_TO_48 WGMMA_UP_TO_32 "," WGMMA_NAMES_16
#define WGMMA_UP_TO_64 WGMMA_UP_TO_48 "," WGMMA_NAMES_24
#define WGMMA_UP_TO_80 WGMMA_UP_TO_64 "," WGMMA_NAMES_32
#define WGMMA_UP_TO_96 WGMMA_UP_TO_80 "," WGMMA_NAMES_40
#define WGMMA_UP_TO_112 WGMMA_UP_TO_96 "," WGMMA_NAMES_48
#define WGMMA_UP_TO_128 WGMMA_UP_TO_112 "," WGMMA_NAMES_56
#define WGMMA_UP_TO_144 WGMMA_UP_TO_128 "," WGMMA_NAMES_64
#define WGMMA_UP_TO_160 WGMMA_UP_TO_144 "," WGMMA_NAMES_72
#define WGMMA_UP_TO_176 WGMMA_UP_TO_160 "," WGMMA_NAMES_80
#define WGMMA_UP_TO_192 WGMMA_UP_TO_176 "," WGMMA_NAMES_88
#define WGMMA_UP_TO_208 WGMMA_UP_TO_192 "," WGMMA_NAMES_96
#define WGMMA_UP_TO_224 WGMMA_UP_TO_208 "," WGMMA_NAMES_104
#define WGMMA_UP_TO_240 WGMMA_UP_TO_224 "," WGMMA_NAMES_112
#define WGMMA_UP_TO_256 WGMMA_UP_TO_240 "," WGMMA_NAMES_120
#define WGMMA_OPERANDS_16 "{" WGMMA_UP_TO_16 "}, %8, %9, %10"
#define WGMMA_OPERANDS_32 "{" WGMMA_UP_TO_32 "}, %16, %17, %18"
#define WGMMA_OPERANDS_48 "{" WGMMA_UP_TO_48 "}, %24, %25, %26"
#define WGMMA_OPERANDS_64 "{" WGMMA_UP_TO_64 "}, %32, %33, %34"
#define WGMMA_OPERANDS_80 "{" WGMMA_UP_TO_80 "}, %40, %41, %42"
#define WGMMA_OPERANDS_96 "{" WGMMA_UP_TO_96 "}, %48, %49, %50"
#define WGMMA_OPERANDS_112 "{" WGMMA_UP_TO_112 "}, %56, %57, %58"
#define WGMMA_OPERANDS_128 "{" WGMMA_UP_TO_128 "}, %64, %65, %66"
#define WGMMA_OPERANDS_144 "{" WGMMA_UP_TO_144 "}, %72, %73, %74"
#define WGMMA_OPERANDS_160 "{" WGMMA_UP_TO_160 "}, %80, %81, %82"
#define WGMMA_OPERANDS_176 "{" WGMMA_UP_TO_176 "}, %88, %89, %90"
#define WGMMA_OPERANDS_192 "{" WGMMA_UP_TO_192 "}, %96, %97, %98"
#define WGMMA_OPERANDS_208 "{" WGMMA_UP_TO_208 "}, %104, %105, %106"
#define WGMMA_OPERANDS_224 "{" WGMMA_UP_TO_224 "}, %112, %113, %114"
#define WGMMA_OPERANDS_240 "{" WGMMA_UP_TO_240 "}, %120, %121, %122"
#define WGMMA_OPERANDS_256 "{" WGMMA_UP_TO_256 "}, %128, %129, %130"
#define WGMMA_OPERANDS_32_OF_REGISTERS "{" WGMMA_UP_TO_32 "}, {%16, %17, %18, %19}, %20, %21"
#define WGMMA_OPERANDS_64_OF_REGISTERS "{" WGMMA_UP_TO_64 "}, {%32, %33, %34, %35}, %36, %37"
#define WGMMA_SUMS_8 "+f"(d[FROM]), "+f"(d[FROM + 1]), "+f"(d[FROM + 2]), "+f"(d[FROM + 3])
#define WGMMA_SUMS(I)                                                                                         \
  "+f"(d[FROM + I]), "+f"(d[FROM + I + 1]), "+f"(d[FROM + I + 2]), "+f"(d[FROM + I + 3]),               \
      "+f"(d[FROM + I + 4]), "+f"(d[FROM + I + 5]), "+f"(d[FROM + I + 6]), "+f"(d[FROM + I + 7])
#define WGMMA_SUMS_16 WGMMA_SUMS(0)
#define WGMMA_SUMS_32 WGMMA_SUMS_16, WGMMA_SUMS(8)
#define WGMMA_SUMS_48 WGMMA_SUMS_32, WGMMA_SUMS(16)
#define WGMMA_SUMS_64 WGMMA_SUMS_48, WGMMA_SUMS(24)
#define WGMMA_SUMS_80 WGMMA_SUMS_64, WGMMA_SUMS(32)
#define WGMMA_SUMS_96 WGMMA_SUMS_80, WGMMA_SUMS(40)
#define WGMMA_SUMS_112 WGMMA_SUMS_96, WGMMA_SUMS(48)
#define WGMMA_SUMS_128 WGMMA_SUMS_112, WGMMA_SUMS(56)
#define WGMMA_SUMS_144 WGMMA_SUMS_128, WGMMA_SUMS(64)
#define WGMMA_SUMS_160 WGMMA_SUMS_144, WGMMA_SUMS(72)
#define WGMMA_SUMS_176 WGMMA_SUMS_160, WGMMA_SUMS(80)
#define WGMMA_SUMS_192 WGMMA_SUMS_176, WGMMA_SUMS(88)
#define WGMMA_SUMS_208 WGMMA_SUMS_192, WGMMA_SUMS(96)
#define WGMMA_SUMS_224 WGMMA_SUMS_208, WGMMA_SUMS(104)
#define WGMMA_SUMS_240 WGMMA_SUMS_224, WGMMA_SUMS(112)
#define WGMMA_SUMS_256 WGMMA_SUMS_240, WGMMA_SUMS(120)
