#include "motley/energy/meter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace motley::energy {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kNobody = 65534;

// A sysfs of our own.
class MeterTest : public testing::Test {
 protected:
  MeterTest() : root_(fs::path(testing::TempDir()) / ("meter_test_" + std::to_string(::getpid()))) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~MeterTest() override { fs::remove_all(root_); }

  void Write(const std::string& file, const std::string& content) const {
    const fs::path path = root_ / "class" / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << content << "\n";
  }

  void WriteZone(const std::string& zone, const std::string& name, const std::string& energy_uj,
                 const std::string& range_uj = "1000000000") const {
    Write("powercap/" + zone + "/name", name);
    Write("powercap/" + zone + "/energy_uj", energy_uj);
    Write("powercap/" + zone + "/max_energy_range_uj", range_uj);
  }

  std::unique_ptr<Meter> Open() const {
    auto meter = OpenMeter(root_, clock_);
    EXPECT_TRUE(meter.ok()) << meter.status().ToString();
    return meter.ok() ? std::move(meter).value() : nullptr;
  }

  fs::path root_;
  base::VirtualClock clock_;
};

TEST_F(MeterTest, RaplSumsThePackagesFromTheMomentItWasOpened) {
  WriteZone("intel-rapl:0", "package-0", "5000000");
  WriteZone("intel-rapl:1", "package-1", "7000000");
  const auto meter = Open();
  ASSERT_NE(meter, nullptr);
  EXPECT_EQ(meter->source(), "measured: rapl");
  EXPECT_EQ(*meter->Joules(), 0.0);
  WriteZone("intel-rapl:0", "package-0", "6500000");
  EXPECT_DOUBLE_EQ(*meter->Joules(), 1.5);
  WriteZone("intel-rapl:1", "package-1", "9000000");
  EXPECT_DOUBLE_EQ(*meter->Joules(), 3.5);
  EXPECT_DOUBLE_EQ(*meter->Joules(), 3.5);
}

TEST_F(MeterTest, RaplLeavesOutWhatPackagesContainOrAreContainedIn) {
  const auto write = [&](const std::string& microjoules) {
    WriteZone("intel-rapl:0", "package-0", microjoules);
    for (const char* part : {"intel-rapl:0:0", "intel-rapl:0:1"}) {
      WriteZone(part, "core", microjoules);
    }
    WriteZone("intel-rapl:1", "psys", microjoules);
    WriteZone("intel-rapl-mmio:0", "package-0", microjoules);
    fs::create_directories(root_ / "class/powercap/intel-rapl");
  };
  write("0");
  const auto meter = Open();
  ASSERT_NE(meter, nullptr);
  write("4000000");
  EXPECT_DOUBLE_EQ(*meter->Joules(), 4.0);
}

TEST_F(MeterTest, RaplGoesOnWhenACounterWrapsAround) {
  WriteZone("intel-rapl:0", "package-0", "99000000", "100000000");
  const auto meter = Open();
  ASSERT_NE(meter, nullptr);
  WriteZone("intel-rapl:0", "package-0", "2000000", "100000000");
  EXPECT_DOUBLE_EQ(*meter->Joules(), 3.0);
  WriteZone("intel-rapl:0", "package-0", "1000000", "100000000");
  EXPECT_DOUBLE_EQ(*meter->Joules(), 102.0);
}

TEST_F(MeterTest, RaplThatOnlyRootMayReadSaysSoWithTheRemedy) {
  WriteZone("intel-rapl:0", "package-0", "1");
  fs::permissions(root_ / "class/powercap/intel-rapl:0/energy_uj", fs::perms::owner_read);
  if (::geteuid() == 0) {
    ASSERT_EQ(::seteuid(kNobody), 0);
  } else {
    fs::permissions(root_ / "class/powercap/intel-rapl:0/energy_uj", fs::perms::none);
  }
  const auto meter = OpenMeter(root_, clock_);
  if (::getuid() == 0) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  ASSERT_FALSE(meter.ok());
  EXPECT_EQ(meter.status().code(), base::Code::kUnavailable);
  EXPECT_NE(meter.status().message().find("intel-rapl:0/energy_uj"), std::string::npos);
  EXPECT_NE(meter.status().message().find("may not read"), std::string::npos);
  EXPECT_NE(meter.status().fix().find("chmod a+r"), std::string::npos);
}

TEST_F(MeterTest, RaplRefusesWhatIsNoCounter) {
  for (const char* garbage : {"", "12x", "-5", "1.5", "99999999999999999999", "1000000001"}) {
    WriteZone("intel-rapl:0", "package-0", garbage);
    const auto meter = OpenMeter(root_, clock_);
    ASSERT_FALSE(meter.ok()) << garbage;
    EXPECT_EQ(meter.status().code(), base::Code::kInvalidInput);
    EXPECT_NE(meter.status().message().find("energy_uj"), std::string::npos);
  }
}

TEST_F(MeterTest, AFailedReadingLosesNothing) {
  WriteZone("intel-rapl:0", "package-0", "0");
  WriteZone("intel-rapl:1", "package-1", "0");
  const auto meter = Open();
  ASSERT_NE(meter, nullptr);
  WriteZone("intel-rapl:0", "package-0", "1000000");
  fs::remove(root_ / "class/powercap/intel-rapl:1/energy_uj");
  const auto failed = meter->Joules();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().code(), base::Code::kNotFound);
  EXPECT_NE(failed.status().message().find("intel-rapl:1"), std::string::npos);
  WriteZone("intel-rapl:1", "package-1", "2000000");
  EXPECT_DOUBLE_EQ(*meter->Joules(), 3.0);
}

TEST_F(MeterTest, PrefersRaplAndFallsBackToHwmon) {
  Write("hwmon/hwmon0/power1_input", "1000000");
  EXPECT_EQ(Open()->source(), "measured: hwmon");
  WriteZone("intel-rapl:0", "package-0", "broken");
  EXPECT_EQ(Open()->source(), "measured: hwmon");
  WriteZone("intel-rapl:0", "package-0", "1");
  EXPECT_EQ(Open()->source(), "measured: rapl");
}

TEST_F(MeterTest, HwmonIntegratesPowerByTheTrapezoidRule) {
  Write("hwmon/hwmon0/power1_input", "10000000");
  clock_.Advance(100.0);
  const auto meter = Open();
  ASSERT_NE(meter, nullptr);
  EXPECT_EQ(*meter->Joules(), 0.0);
  clock_.Advance(2.0);
  Write("hwmon/hwmon0/power1_input", "30000000");
  EXPECT_DOUBLE_EQ(*meter->Joules(), 40.0);  // (10 + 30) / 2 W for 2 s
  clock_.Advance(1.0);
  EXPECT_DOUBLE_EQ(*meter->Joules(), 70.0);
  EXPECT_DOUBLE_EQ(*meter->Joules(), 70.0);
  clock_.Advance(1.0);
  fs::remove(root_ / "class/hwmon/hwmon0/power1_input");
  EXPECT_FALSE(meter->Joules().ok());
  clock_.Advance(1.0);
  Write("hwmon/hwmon0/power1_input", "-1");
  EXPECT_DOUBLE_EQ(*meter->Joules(), 100.0) << "over the gap of 2 s as well";
}

TEST_F(MeterTest, HwmonUsesTheBestSensorOfEachChipAndSumsTheChips) {
  const auto write = [&](const std::string& joules) {
    Write("hwmon/hwmon0/energy1_input", joules + "000000");
    Write("hwmon/hwmon0/energy2_input", joules + "000000");
    Write("hwmon/hwmon0/power1_input", "777000000");
  };
  write("5");
  Write("hwmon/hwmon2/power1_average", "3000000");
  Write("hwmon/hwmon2/power1_input", "888000000");
  Write("hwmon/hwmon3/temp1_input", "45000");
  Write("hwmon/hwmon3/power1_cap", "45000");
  const auto meter = Open();
  ASSERT_NE(meter, nullptr);
  EXPECT_EQ(meter->source(), "measured: hwmon");
  clock_.Advance(2.0);
  write("9");
  EXPECT_DOUBLE_EQ(*meter->Joules(), 4.0 + 4.0 + 6.0);
  write("1");  // the driver was loaded anew
  EXPECT_DOUBLE_EQ(*meter->Joules(), 14.0 + 1.0 + 1.0);
}

TEST_F(MeterTest, HwmonCountsNothingTwice) {
  Write("hwmon/hwmon0/name", "amd_energy");
  for (const char* sensor : {"1", "2", "3"}) {
    const std::string stem = std::string("hwmon/hwmon0/energy") + sensor;
    Write(stem + "_label",
          sensor == std::string("3") ? "Esocket0" : "Ecore00" + std::string(sensor));
    Write(stem + "_input", "0");
  }
  Write("hwmon/hwmon1/name", "BAT0");
  Write("hwmon/hwmon1/power1_input", "20000000");
  const auto meter = Open();
  ASSERT_NE(meter, nullptr);
  for (const char* sensor : {"1", "2", "3"}) {
    Write(std::string("hwmon/hwmon0/energy") + sensor + "_input", "6000000");
  }
  clock_.Advance(1.0);
  EXPECT_DOUBLE_EQ(*meter->Joules(), 6.0);

  Write("hwmon/hwmon2/name", "power_meter");
  Write("hwmon/hwmon2/power1_average", "50000000");
  const auto whole = Open();
  ASSERT_NE(whole, nullptr);
  clock_.Advance(1.0);
  EXPECT_DOUBLE_EQ(*whole->Joules(), 50.0);
}

TEST_F(MeterTest, HwmonLeavesOutASensorThatCannotBeReadAtTheStart) {
  Write("hwmon/hwmon0/power1_input", "asleep");
  const auto none = OpenMeter(root_, clock_);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), base::Code::kInvalidInput);
  EXPECT_NE(none.status().message().find("'asleep'"), std::string::npos);
  Write("hwmon/hwmon1/power1_input", "2000000");
  const auto meter = Open();
  ASSERT_NE(meter, nullptr);
  clock_.Advance(3.0);
  EXPECT_DOUBLE_EQ(*meter->Joules(), 6.0);
}

TEST_F(MeterTest, AMachineWithoutSensorsIsToldWhatWasLookedFor) {
  const auto meter = OpenMeter(root_, clock_);
  ASSERT_FALSE(meter.ok());
  EXPECT_EQ(meter.status().code(), base::Code::kNotFound);
  for (const char* part : {"powercap/intel-rapl:*", "hwmon/hwmon*", "energy*_input"}) {
    EXPECT_NE(meter.status().message().find(part), std::string::npos) << meter.status().message();
  }
  EXPECT_NE(meter.status().fix().find("watts_busy"), std::string::npos);
}

}  // namespace
}  // namespace motley::energy
