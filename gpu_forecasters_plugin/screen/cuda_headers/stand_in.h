// What host code of extensions commonly uses of torch, declared and not defined: only device code is made of it.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace c10 {
enum class ScalarType { Byte, Char, Short, Int, Long, Half, Float, Double, Bool, BFloat16, Float8_e5m2, Float8_e4m3fn };
enum class DeviceType { CPU, CUDA };
enum class MemoryFormat { Contiguous, Preserve, ChannelsLast };
constexpr ScalarType kByte = ScalarType::Byte, kUInt8 = ScalarType::Byte, kChar = ScalarType::Char,
                     kInt8 = ScalarType::Char, kShort = ScalarType::Short, kInt16 = ScalarType::Short,
                     kInt = ScalarType::Int, kInt32 = ScalarType::Int, kLong = ScalarType::Long,
                     kInt64 = ScalarType::Long, kHalf = ScalarType::Half, kFloat16 = ScalarType::Half,
                     kFloat = ScalarType::Float, kFloat32 = ScalarType::Float, kDouble = ScalarType::Double,
                     kFloat64 = ScalarType::Double, kBool = ScalarType::Bool, kBFloat16 = ScalarType::BFloat16,
                     kFloat8_e4m3fn = ScalarType::Float8_e4m3fn, kFloat8_e5m2 = ScalarType::Float8_e5m2;
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;

struct alignas(2) Half {
  uint16_t x;
  __host__ __device__ Half();
  __host__ __device__ Half(float);
  __host__ __device__ operator float() const;
};
struct alignas(2) BFloat16 {
  uint16_t x;
  __host__ __device__ BFloat16();
  __host__ __device__ BFloat16(float);
  __host__ __device__ operator float() const;
};
struct Device {
  Device(DeviceType, int = 0);
  int index() const;
  bool is_cuda() const;
  bool operator==(const Device&) const;
  bool operator!=(const Device&) const;
};
struct TypeMeta {
  operator ScalarType() const;
  int64_t itemsize() const;
  bool operator==(ScalarType) const;
  bool operator!=(ScalarType) const;
};
struct IntArrayRef {
  IntArrayRef(std::initializer_list<int64_t>);
  IntArrayRef(const std::vector<int64_t>&);
  int64_t operator[](size_t) const;
  size_t size() const;
  std::vector<int64_t> vec() const;
  const int64_t* begin() const;
  const int64_t* end() const;
  bool operator==(const IntArrayRef&) const;
  bool operator!=(const IntArrayRef&) const;
};
struct TensorOptions {
  TensorOptions();
  TensorOptions(ScalarType);
  TensorOptions(Device);
  TensorOptions(DeviceType);
  TensorOptions dtype(ScalarType) const;
  TensorOptions device(Device) const;
  TensorOptions device(DeviceType, int = 0) const;
  TensorOptions requires_grad(bool) const;
};
struct Scalar {
  Scalar(double);
  Scalar(int64_t);
  Scalar(int);
  template <class T> T to() const;
};
}  // namespace c10

namespace at {
using namespace c10;
struct Tensor {
  Tensor();
  template <class T> T* data_ptr() const;
  template <class T> T* mutable_data_ptr() const;
  template <class T> const T* const_data_ptr() const;
  template <class T> T* data() const;
  void* data_ptr() const;
  int64_t size(int64_t) const;
  int64_t stride(int64_t) const;
  int64_t dim() const;
  int64_t ndimension() const;
  int64_t numel() const;
  int64_t element_size() const;
  int64_t nbytes() const;
  IntArrayRef sizes() const;
  IntArrayRef strides() const;
  TensorOptions options() const;
  Device device() const;
  int get_device() const;
  TypeMeta dtype() const;
  ScalarType scalar_type() const;
  bool is_cuda() const;
  bool is_contiguous() const;
  bool defined() const;
  Tensor contiguous() const;
  Tensor clone() const;
  Tensor detach() const;
  Tensor to(ScalarType) const;
  Tensor to(Device) const;
  Tensor to(TensorOptions) const;
  Tensor toType(ScalarType) const;
  Tensor view(IntArrayRef) const;
  Tensor reshape(IntArrayRef) const;
  Tensor flatten() const;
  Tensor transpose(int64_t, int64_t) const;
  Tensor t() const;
  Tensor permute(IntArrayRef) const;
  Tensor unsqueeze(int64_t) const;
  Tensor squeeze() const;
  Tensor squeeze(int64_t) const;
  Tensor slice(int64_t, int64_t, int64_t, int64_t = 1) const;
  Tensor narrow(int64_t, int64_t, int64_t) const;
  Tensor select(int64_t, int64_t) const;
  Tensor sum() const;
  Tensor mean() const;
  Tensor zero_() const;
  Tensor fill_(Scalar) const;
  Tensor copy_(const Tensor&) const;
  Tensor operator[](int64_t) const;
  template <class T> T item() const;
};
Tensor operator+(const Tensor&, const Tensor&);
Tensor operator-(const Tensor&, const Tensor&);
Tensor operator*(const Tensor&, const Tensor&);
Tensor operator/(const Tensor&, const Tensor&);
Tensor operator*(const Tensor&, Scalar);
Tensor operator/(const Tensor&, Scalar);
Tensor empty(IntArrayRef, TensorOptions = {});
Tensor zeros(IntArrayRef, TensorOptions = {});
Tensor ones(IntArrayRef, TensorOptions = {});
Tensor full(IntArrayRef, Scalar, TensorOptions = {});
Tensor empty_like(const Tensor&);
Tensor empty_like(const Tensor&, TensorOptions);
Tensor zeros_like(const Tensor&);
Tensor zeros_like(const Tensor&, TensorOptions);
Tensor ones_like(const Tensor&);
Tensor matmul(const Tensor&, const Tensor&);
Tensor mm(const Tensor&, const Tensor&);
Tensor bmm(const Tensor&, const Tensor&);
struct OptionalDeviceGuard;
namespace cuda {
struct CUDAStream {
  operator cudaStream_t() const;
  cudaStream_t stream() const;
};
CUDAStream getCurrentCUDAStream(int = -1);
CUDAStream getDefaultCUDAStream(int = -1);
cudaDeviceProp* getCurrentDeviceProperties();
struct CUDAGuard {
  explicit CUDAGuard(Device);
  explicit CUDAGuard(int);
};
struct OptionalCUDAGuard {
  OptionalCUDAGuard();
  explicit OptionalCUDAGuard(Device);
};
}  // namespace cuda
}  // namespace at

namespace c10 {
using at::empty;
namespace cuda {
using namespace at::cuda;
}
template <class T> using optional = std::optional<T>;
template <class T> using ArrayRef = std::vector<T>;
}  // namespace c10

namespace torch {
using namespace at;
using at::empty;
using at::Tensor;
using Dtype = c10::ScalarType;
using c10::Half;
using c10::BFloat16;
namespace cuda {
using namespace at::cuda;
}
namespace headeronly {
using namespace c10;
}
}  // namespace torch

namespace gpu_forecasters {
struct Module {
  template <class... T> Module& def(T&&...);
  std::string doc();
};
struct Streamed {
  template <class... T> static void take(T&&...);
};
}  // namespace gpu_forecasters
namespace pybind11 {
struct arg {
  arg(const char*);
  template <class T> arg& operator=(T&&);
};
using module_ = gpu_forecasters::Module;
}  // namespace pybind11
namespace py = pybind11;

#define PYBIND11_MODULE(name, m) static void gpu_forecasters_module(gpu_forecasters::Module& m)
#define TORCH_EXTENSION_NAME candidate
#define TORCH_LIBRARY(name, m) static void gpu_forecasters_library(gpu_forecasters::Module& m)
#define TORCH_CHECK(condition, ...) \
  do {                              \
    if (!(condition)) throw std::runtime_error("check"); \
  } while (0)
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
#define AT_ASSERTM TORCH_CHECK
#define AT_ERROR(...) throw std::runtime_error("error")
#define AT_CUDA_CHECK(expression) (void)(expression)
#define C10_CUDA_CHECK(expression) (void)(expression)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() (void)cudaGetLastError()
#define GF_CASE(type, name, ...) \
  {                              \
    using scalar_t = type;       \
    __VA_ARGS__();               \
  }
#define AT_DISPATCH_FLOATING_TYPES(kind, name, ...) \
  do {                                              \
    (void)(kind);                                   \
    GF_CASE(float, name, __VA_ARGS__)               \
    GF_CASE(double, name, __VA_ARGS__)              \
  } while (0)
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(kind, name, ...) \
  do {                                                       \
    AT_DISPATCH_FLOATING_TYPES(kind, name, __VA_ARGS__);     \
    GF_CASE(at::Half, name, __VA_ARGS__)                     \
  } while (0)
#define AT_DISPATCH_FLOATING_TYPES_AND(other, kind, name, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(kind, name, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND2(first, second, kind, name, ...) \
  do {                                                                  \
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(kind, name, __VA_ARGS__);       \
    GF_CASE(at::BFloat16, name, __VA_ARGS__)                            \
  } while (0)
