#include "motley/data/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <array>

namespace motley::data {
namespace {

class Inflater {
 public:
  Inflater() { ready_ = inflateInit2(&stream_, kGzipOnly) == Z_OK; }
  ~Inflater() {
    if (ready_) inflateEnd(&stream_);
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  bool ready() const { return ready_; }
  z_stream& stream() { return stream_; }

 private:
  static constexpr int kGzipOnly = 15 + 16;  // largest window, gzip header demanded
  z_stream stream_{};
  bool ready_ = false;
};

}  // namespace

base::Result<std::string> Inflate(std::string_view bytes, const std::string& origin,
                                  std::uint64_t limit) {
  Inflater inflater;
  if (!inflater.ready()) return base::Internal("{}: zlib cannot start", origin);
  z_stream& stream = inflater.stream();
  std::string out;
  std::array<unsigned char, std::size_t{64} << 10> buffer{};
  std::size_t position = 0;  // in `bytes`, of the next input zlib has not been given
  const auto offset = [&] { return position - stream.avail_in; };
  while (out.size() < limit) {
    if (stream.avail_in == 0) {
      // zlib counts in 32 bits. It never writes to its input; the type is older than const.
      const std::size_t count = std::min<std::size_t>(bytes.size() - position, 1U << 30);
      const auto* next = reinterpret_cast<const Bytef*>(bytes.data() + position);
      stream.next_in = const_cast<Bytef*>(next);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
      stream.avail_in = static_cast<uInt>(count);
      position += count;
    }
    stream.next_out = buffer.data();
    stream.avail_out = static_cast<uInt>(buffer.size());
    const int code = inflate(&stream, Z_NO_FLUSH);
    const std::size_t produced = buffer.size() - stream.avail_out;
    out.append(reinterpret_cast<const char*>(buffer.data()),
               std::min<std::size_t>(produced, limit - out.size()));
    if (code == Z_STREAM_END) {
      if (offset() == bytes.size()) break;
      if (inflateReset(&stream) != Z_OK) return base::Internal("{}: zlib cannot go on", origin);
    } else if (code == Z_BUF_ERROR || (code == Z_OK && produced == 0 && offset() == bytes.size())) {
      return base::InvalidInput("{}: byte {}: the gzip stream is cut off", origin, offset());
    } else if (code != Z_OK) {
      return base::InvalidInput("{}: byte {}: not a sound gzip stream ({})", origin, offset(),
                                stream.msg != nullptr ? stream.msg : "zlib gives no reason");
    }
  }
  return out;
}

}  // namespace motley::data
