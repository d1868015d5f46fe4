#include "motley/cluster/incoming_model.h"

#include <gtest/gtest.h>

#include <string>

namespace motley::cluster {
namespace {

// One part of three parameters.
class IncomingModelTest : public testing::Test {
 protected:
  static proto::Part Whole(const StepKey& key) {
    proto::Part part;
    part.set_generation(key.generation);
    part.set_step(key.step);
    part.set_array(proto::ARRAY_MODEL);
    part.set_floats(std::string(3 * sizeof(float), '\0'));
    return part;
  }
  const Parts parts_{3, 0};
  IncomingModel incoming_{parts_, /*with_velocity=*/false};
};

TEST_F(IncomingModelTest, IsNotCompleteBeforeAnythingHasCome) {
  for (const StepKey& key : {StepKey{0, 0}, StepKey{1, 0}}) {
    EXPECT_FALSE(incoming_.Complete(key));
    EXPECT_FALSE(incoming_.HasRange(key, 0));
    EXPECT_EQ(incoming_.Missing(key), -1);
    ASSERT_TRUE(incoming_.Take(Whole(key)).ok());
    EXPECT_TRUE(incoming_.Complete(key));
    EXPECT_EQ(incoming_.model().size(), 3U);
  }
}

TEST_F(IncomingModelTest, PassesOverWhatIsOlderAndRefusesWhatComesTwice) {
  ASSERT_TRUE(incoming_.Take(Whole({2, 5})).ok());
  EXPECT_TRUE(incoming_.Take(Whole({2, 4})).ok());
  EXPECT_TRUE(incoming_.Take(Whole({1, 6})).ok());
  EXPECT_TRUE(incoming_.Complete({2, 5}));
  EXPECT_FALSE(incoming_.Take(Whole({2, 5})).ok());
}

}  // namespace
}  // namespace motley::cluster
