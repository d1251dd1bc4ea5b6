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

class SyncStream final : public OrtSyncStreamImpl {
 public:
  SyncStream(const Api& api, DeviceState& device, std::shared_ptr<SessionGraphs> graphs)
      : OrtSyncStreamImpl{},
        api_(api),
        device_(device),
        graphs_(std::move(graphs)),
        own_(graphs_ == nullptr ? device.CreateStream() : nullptr),
        stream_(graphs_ == nullptr ? *own_ : graphs_->stream()) {
    ort_version_supported = ORT_API_VERSION;
    Release = [](OrtSyncStreamImpl* self) noexcept { delete static_cast<SyncStream*>(self); };
    GetHandle = [](OrtSyncStreamImpl* self) noexcept -> void* { return &static_cast<SyncStream*>(self)->stream_; };
    CreateNotification = [](OrtSyncStreamImpl* self, OrtSyncNotificationImpl** out) noexcept {
      auto& me = *static_cast<SyncStream*>(self);
      *out = nullptr;
      return Guard(me.api_.ort, [&] { *out = new Notification(me.api_, me.stream_); });
    };
    Flush = &Synchronize;
    // ORT fails the run with this status, so this is where the error of an asynchronous kernel reaches the caller.
    OnSessionRunEnd = &Synchronize;
  }
  ~SyncStream() {
    if (own_ != nullptr) device_.DestroyStream(std::move(own_));
  }

 private:
  static OrtStatus* ORT_API_CALL Synchronize(OrtSyncStreamImpl* self) noexcept {
    auto& me = *static_cast<SyncStream*>(self);
    if (me.graphs_ != nullptr && me.graphs_->capturing()) return nullptr;  // nothing runs before the capture is whole
    return Guard(me.api_.ort, [&] { me.stream_.Synchronize(); });
  }

  const Api& api_;
  DeviceState& device_;
  std::shared_ptr<SessionGraphs> graphs_;
  std::unique_ptr<Stream> own_;  // null: the graphs'
  Stream& stream_;
};

}  // namespace

OrtSyncStreamImpl* NewSyncStream(const Api& api, DeviceState& device, std::shared_ptr<SessionGraphs> graphs) {
  return new SyncStream(api, device, std::move(graphs));
}

Stream* StreamOf(const Api& api, OrtSyncStream* stream) {
  return stream == nullptr ? nullptr : static_cast<Stream*>(api.ort.SyncStream_GetHandle(stream));
}

}  // namespace npu::provider
