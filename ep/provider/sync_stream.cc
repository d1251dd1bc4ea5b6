#include "ep/provider/sync_stream.h"

#include <utility>

namespace npu::provider {
namespace {

class Notification final : public OrtSyncNotificationImpl {
 public:
  Notification(const Api& api, Stream& stream)
      : OrtSyncNotificationImpl{}, api_(api), stream_(stream), event_(stream.device().backend()) {
    ort_version_supported = ORT_API_VERSION;
    Release = [](OrtSyncNotificationImpl* self) noexcept { delete static_cast<Notification*>(self); };
    Activate = [](OrtSyncNotificationImpl* self) noexcept {
      auto& me = *static_cast<Notification*>(self);
      return Guard(me.api_.ort, [&] { me.event_.Record(me.stream_); });
    };
    WaitOnDevice = [](OrtSyncNotificationImpl* self, OrtSyncStream* consumer) noexcept {
      auto& me = *static_cast<Notification*>(self);
      return Guard(me.api_.ort, [&] {
        if (Stream* stream = StreamOf(me.api_, consumer)) {
          stream->Wait(me.event_);
        } else {
          me.event_.Synchronize();
        }
      });
    };
    WaitOnHost = [](OrtSyncNotificationImpl* self) noexcept {
      auto& me = *static_cast<Notification*>(self);
      return Guard(me.api_.ort, [&] { me.event_.Synchronize(); });
    };
  }

 private:
  const Api& api_;
  Stream& stream_;
  Event event_;
};

class SyncStream : public OrtSyncStreamImpl {
 public:
  SyncStream(const Api& api, Stream& stream) : OrtSyncStreamImpl{}, api_(api), stream_(stream) {
    ort_version_supported = ORT_API_VERSION;
    Release = [](OrtSyncStreamImpl* self) noexcept { delete static_cast<SyncStream*>(self); };
    GetHandle = [](OrtSyncStreamImpl* self) noexcept -> void* { return &static_cast<SyncStream*>(self)->stream_; };
    CreateNotification = [](OrtSyncStreamImpl* self, OrtSyncNotificationImpl** out) noexcept {
      auto& me = *static_cast<SyncStream*>(self);
      *out = nullptr;
      return Guard(me.api_.ort, [&] { *out = new Notification(me.api_, me.stream_); });
    };
    Flush = &Synchronize;
    // ORT fails the run with this status, which is how the error of an asynchronous kernel reaches the caller.
    OnSessionRunEnd = &Synchronize;
  }
  virtual ~SyncStream() = default;

 protected:
  virtual bool capturing() const { return false; }

 private:
  static OrtStatus* ORT_API_CALL Synchronize(OrtSyncStreamImpl* self) noexcept {
    auto& me = *static_cast<SyncStream*>(self);
    if (me.capturing()) return nullptr;  // nothing runs before the capture is complete
    return Guard(me.api_.ort, [&] { me.stream_.Synchronize(); });
  }

  const Api& api_;
  Stream& stream_;
};

class SessionStream final : public SyncStream {
 public:
  SessionStream(const Api& api, std::shared_ptr<SessionRuns> runs, std::shared_ptr<SessionGraphs> graphs)
      : SyncStream(api, graphs == nullptr ? runs->TakeStream() : graphs->stream()),
        taken_(graphs == nullptr ? static_cast<Stream*>(GetHandle(this)) : nullptr),
        runs_(std::move(runs)),
        graphs_(std::move(graphs)) {}
  ~SessionStream() override {
    if (taken_ != nullptr) runs_->GiveStream(*taken_);
  }

 private:
  bool capturing() const override { return graphs_ != nullptr && graphs_->capturing(); }

  Stream* taken_;  // null: the stream belongs to the graphs
  std::shared_ptr<SessionRuns> runs_;
  std::shared_ptr<SessionGraphs> graphs_;
};

class UserStream final : public SyncStream {
 public:
  UserStream(const Api& api, std::unique_ptr<Stream> stream, std::function<void()> on_release)
      : SyncStream(api, *stream), stream_(std::move(stream)), on_release_(std::move(on_release)) {}
  ~UserStream() override {
    stream_.reset();
    on_release_();
  }

 private:
  std::unique_ptr<Stream> stream_;
  std::function<void()> on_release_;
};

}  // namespace

OrtSyncStreamImpl* NewSessionStream(const Api& api, std::shared_ptr<SessionRuns> runs,
                                    std::shared_ptr<SessionGraphs> graphs) {
  return new SessionStream(api, std::move(runs), std::move(graphs));
}

OrtSyncStreamImpl* NewUserStream(const Api& api, DeviceState& device, std::function<void()> on_release) {
  return new UserStream(api, device.device().CreateStream(), std::move(on_release));
}

Stream* StreamOf(const Api& api, OrtSyncStream* stream) {
  return stream == nullptr ? nullptr : static_cast<Stream*>(api.ort.SyncStream_GetHandle(stream));
}

}  // namespace npu::provider
