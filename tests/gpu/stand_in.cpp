// What a build of torch without CUDA lacks to have tensors of device "cuda" in Python: someone who
// says that there is one such device, and that its streams and events are always done. Preloaded,
// because torch asks once, when it starts.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::EventFlag, c10::Stream;

struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isAvailable() const override { return true; }
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
};

struct Guard : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() const override { return Device(DeviceType::CUDA, 0); }
  Device exchangeDevice(Device) const override { return getDevice(); }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, getDevice()); }
  Stream exchangeStream(Stream) const noexcept override { return getStream(getDevice()); }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

namespace at {
using CUDAHooks = Hooks; // the name that torch looks for
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)
}

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
}
