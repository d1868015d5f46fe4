#include "motley/base/cpu.h"

#include <gtest/gtest.h>

#include "apps/motley/train_plan.h"

namespace motley::app {
namespace {

TEST(CpuTest, TellsKindsApartThatHaveOneName) {
  const std::string text =
      "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
      "model name\t: Intel(R) Xeon(R) Processor\nstepping\t: 8\ncpu MHz\t\t: 2100.0\n\n"
      "processor\t: 1\nmodel name\t: another\n";
  EXPECT_EQ(base::CpuModelFrom(text),
            "Intel(R) Xeon(R) Processor, cpu family 6, model 143, stepping 8");
  EXPECT_EQ(base::CpuModelFrom("processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n"
                               "CPU variant\t: 0x3\nCPU part\t: 0xd0c\n"),
            "CPU implementer 0x41, CPU variant 0x3, CPU part 0xd0c");
  for (const char* nothing : {"", "\n", ":", "model name", "no colon\nat all"}) {
    EXPECT_EQ(base::CpuModelFrom(nothing), "unknown") << nothing;
  }
  EXPECT_NE(base::CpuModel(), "");
}

TEST(CpuTest, KernelChoicesOfAnotherCpuAreDropped) {
  run::TrainState state;
  state.kernel_choices = {{"conv1", "lowered"}};
  EXPECT_FALSE(DropChoicesOfAnotherCpu(state, "here"));  // a checkpoint that does not say
  state.job = {{"device.cpu", "here"}};
  EXPECT_FALSE(DropChoicesOfAnotherCpu(state, "here"));
  EXPECT_EQ(state.kernel_choices.size(), 1U);
  EXPECT_TRUE(DropChoicesOfAnotherCpu(state, "there"));
  EXPECT_TRUE(state.kernel_choices.empty());
}

}  // namespace
}  // namespace motley::app
