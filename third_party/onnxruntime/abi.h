#pragma once

// Our own declaration of the part of ONNX Runtime's C ABI that genai uses; see README.md beside this file.

#include <cstddef>
#include <cstdint>

#if defined(_WIN32)
#define ORT_ABI_CALL __stdcall
#else
#define ORT_ABI_CALL
#endif

namespace ort_abi {

// Opaque objects of the library.
struct Allocator;
struct CustomOpDomain;
struct Env;
struct EpDevice;
struct HardwareDevice;
struct KernelContext;
struct KernelInfo;
struct LoraAdapter;
struct MemoryInfo;
struct ModelMetadata;
struct RunOptions;
struct Session;
struct SessionOptions;
struct ShapeInferContext;
struct Status;
struct TensorTypeAndShapeInfo;
struct TypeInfo;
struct Value;

// Paths are wide on Windows.
#if defined(_WIN32)
using PathChar = wchar_t;
#else
using PathChar = char;
#endif

enum class ErrorCode : std::int32_t {
  kOk = 0,
  kFail = 1,
  kInvalidArgument = 2,
  kNoSuchFile = 3,
  kNoModel = 4,
  kEngineError = 5,
  kRuntimeException = 6,
  kInvalidProtobuf = 7,
  kModelLoaded = 8,
  kNotImplemented = 9,
  kInvalidGraph = 10,
  kEpFail = 11,
  kModelLoadCanceled = 12,
  kModelRequiresCompilation = 13,
  kNotFound = 14,
};

enum class LoggingLevel : std::int32_t { kVerbose = 0, kInfo = 1, kWarning = 2, kError = 3, kFatal = 4 };

enum class OnnxType : std::int32_t { kUnknown = 0, kTensor = 1, kSequence = 2, kMap = 3, kOpaque = 4 };

enum class ElementType : std::int32_t {
  kUndefined = 0,
  kFloat = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kUInt16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kDouble = 11,
  kUInt32 = 12,
  kUInt64 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
  kBFloat16 = 16,
};

enum class GraphOptimizationLevel : std::int32_t { kDisableAll = 0, kBasic = 1, kExtended = 2, kAll = 99 };
enum class AllocatorType : std::int32_t { kInvalid = -1, kDevice = 0, kArena = 1 };
enum class MemType : std::int32_t { kCpuInput = -2, kCpuOutput = -1, kDefault = 0 };
enum class HardwareDeviceType : std::int32_t { kCpu = 0, kGpu = 1, kNpu = 2 };
enum class Characteristic : std::int32_t { kRequired = 0, kOptional = 1, kVariadic = 2 };

using LoggingFunction = void(ORT_ABI_CALL*)(void* param, LoggingLevel severity, const char* category,
                                            const char* log_id, const char* code_location, const char* message);

/// An allocator that the caller implements; `struct Allocator` of the library begins with these fields. Those after
/// `reserve` are read by libraries that find a newer version in `version`.
struct AllocatorTable {
  std::uint32_t version;
  void*(ORT_ABI_CALL* alloc)(AllocatorTable* self, std::size_t size);
  void(ORT_ABI_CALL* free)(AllocatorTable* self, void* memory);
  const MemoryInfo*(ORT_ABI_CALL* info)(const AllocatorTable* self);
  void*(ORT_ABI_CALL* reserve)(AllocatorTable* self, std::size_t size);
  void* get_stats;
  void* alloc_on_stream;
  void* shrink;
};

/// An operator that the caller implements. The library reads the fields up to those that came with `version`; functions
/// that are nullptr have a default there. A later field that ends in V2 stands in for the earlier one.
struct CustomOp {
  std::uint32_t version;
  void*(ORT_ABI_CALL* create_kernel)(const CustomOp*, const void* api, const KernelInfo*);
  const char*(ORT_ABI_CALL* get_name)(const CustomOp*);
  const char*(ORT_ABI_CALL* get_execution_provider_type)(const CustomOp*);
  ElementType(ORT_ABI_CALL* get_input_type)(const CustomOp*, std::size_t index);
  std::size_t(ORT_ABI_CALL* get_input_type_count)(const CustomOp*);
  ElementType(ORT_ABI_CALL* get_output_type)(const CustomOp*, std::size_t index);
  std::size_t(ORT_ABI_CALL* get_output_type_count)(const CustomOp*);
  void(ORT_ABI_CALL* kernel_compute)(void* kernel, KernelContext*);
  void(ORT_ABI_CALL* kernel_destroy)(void* kernel);
  Characteristic(ORT_ABI_CALL* get_input_characteristic)(const CustomOp*, std::size_t index);
  Characteristic(ORT_ABI_CALL* get_output_characteristic)(const CustomOp*, std::size_t index);
  MemType(ORT_ABI_CALL* get_input_memory_type)(const CustomOp*, std::size_t index);
  int(ORT_ABI_CALL* get_variadic_input_min_arity)(const CustomOp*);
  int(ORT_ABI_CALL* get_variadic_input_homogeneity)(const CustomOp*);
  int(ORT_ABI_CALL* get_variadic_output_min_arity)(const CustomOp*);
  int(ORT_ABI_CALL* get_variadic_output_homogeneity)(const CustomOp*);
  Status*(ORT_ABI_CALL* create_kernel_v2)(const CustomOp*, const void* api, const KernelInfo*, void** kernel);
  Status*(ORT_ABI_CALL* kernel_compute_v2)(void* kernel, KernelContext*);
  Status*(ORT_ABI_CALL* infer_output_shape)(const CustomOp*, ShapeInferContext*);
  int(ORT_ABI_CALL* get_start_version)(const CustomOp*);
  int(ORT_ABI_CALL* get_end_version)(const CustomOp*);
  std::size_t(ORT_ABI_CALL* get_may_inplace)(int** input_index, int** output_index);
  void(ORT_ABI_CALL* release_may_inplace)(int* input_index, int* output_index);
  std::size_t(ORT_ABI_CALL* get_alias_map)(int** input_index, int** output_index);
  void(ORT_ABI_CALL* release_alias_map)(int* input_index, int* output_index);
};

/// The body of a parallel loop: called once for each index, from any thread.
using ParallelBody = void(ORT_ABI_CALL*)(void* user_data, std::size_t index);

/// What the exported function OrtGetApiBase returns.
struct ApiBase {
  const void*(ORT_ABI_CALL* get_api)(std::uint32_t version);
  const char*(ORT_ABI_CALL* get_version_string)();
};
using GetApiBase = const ApiBase*(ORT_ABI_CALL*)();

/// Lowest API version that Api works with: the plugin execution providers came with it.
inline constexpr int kFloorApi = 22;

/// One entry of the function table: its place, the API version that brought it, and its C signature.
template <int kSlotIndex, int kSinceApi, typename Signature>
struct Function;
template <int kSlotIndex, int kSinceApi, typename Result, typename... Args>
struct Function<kSlotIndex, kSinceApi, Result(Args...)> {
  static constexpr int kSlot = kSlotIndex;
  static constexpr int kSince = kSinceApi;
  static constexpr std::size_t kArity = sizeof...(Args);
  using Pointer = Result(ORT_ABI_CALL*)(Args...);
};

// Errors.
using CreateStatus = Function<0, 1, Status*(ErrorCode, const char*)>;
using GetErrorCode = Function<1, 1, ErrorCode(const Status*)>;
using GetErrorMessage = Function<2, 1, const char*(const Status*)>;
using ReleaseStatus = Function<93, 1, void(Status*)>;

// Environment.
using CreateEnvWithCustomLogger = Function<4, 1, Status*(LoggingFunction, void*, LoggingLevel, const char*, Env**)>;
using ReleaseEnv = Function<92, 1, void(Env*)>;
using GetBuildInfoString = Function<254, 15, const char*()>;
using GetAvailableProviders = Function<125, 4, Status*(char***, int*)>;
using ReleaseAvailableProviders = Function<126, 4, Status*(char**, int)>;

// Session options.
using CreateSessionOptions = Function<10, 1, Status*(SessionOptions**)>;
using ReleaseSessionOptions = Function<100, 1, void(SessionOptions*)>;
using DisableMemPattern = Function<17, 1, Status*(SessionOptions*)>;
using EnableCpuMemArena = Function<18, 1, Status*(SessionOptions*)>;
using DisableCpuMemArena = Function<19, 1, Status*(SessionOptions*)>;
using EnableProfiling = Function<14, 1, Status*(SessionOptions*, const PathChar*)>;
using SetSessionLogSeverityLevel = Function<22, 1, Status*(SessionOptions*, int)>;
using SetSessionGraphOptimizationLevel = Function<23, 1, Status*(SessionOptions*, GraphOptimizationLevel)>;
using SetIntraOpNumThreads = Function<24, 1, Status*(SessionOptions*, int)>;
using SetInterOpNumThreads = Function<25, 1, Status*(SessionOptions*, int)>;
using AddSessionConfigEntry = Function<130, 5, Status*(SessionOptions*, const char*, const char*)>;
using SetDeterministicCompute = Function<273, 17, Status*(SessionOptions*, bool)>;
using SessionOptionsAppendExecutionProvider =
    Function<216, 12, Status*(SessionOptions*, const char*, const char* const*, const char* const*, std::size_t)>;

// Plugin execution providers.
using RegisterExecutionProviderLibrary = Function<301, 22, Status*(Env*, const char*, const PathChar*)>;
using GetEpDevices = Function<303, 22, Status*(const Env*, const EpDevice* const**, std::size_t*)>;
using SessionOptionsAppendExecutionProviderV2 =
    Function<304, 22,
             Status*(SessionOptions*, Env*, const EpDevice* const*, std::size_t, const char* const*, const char* const*,
                     std::size_t)>;
using EpDeviceEpName = Function<312, 22, const char*(const EpDevice*)>;
using EpDeviceDevice = Function<316, 22, const HardwareDevice*(const EpDevice*)>;
using HardwareDeviceTypeOf = Function<307, 22, HardwareDeviceType(const HardwareDevice*)>;

// Sessions.
using CreateSession = Function<7, 1, Status*(const Env*, const PathChar*, const SessionOptions*, Session**)>;
using CreateSessionFromArray =
    Function<8, 1, Status*(const Env*, const void*, std::size_t, const SessionOptions*, Session**)>;
using ReleaseSession = Function<95, 1, void(Session*)>;
using Run = Function<9, 1,
                     Status*(Session*, const RunOptions*, const char* const*, const Value* const*, std::size_t,
                             const char* const*, std::size_t, Value**)>;
using SessionGetInputCount = Function<30, 1, Status*(const Session*, std::size_t*)>;
using SessionGetOutputCount = Function<31, 1, Status*(const Session*, std::size_t*)>;
using SessionGetInputName = Function<36, 1, Status*(const Session*, std::size_t, Allocator*, char**)>;
using SessionGetOutputName = Function<37, 1, Status*(const Session*, std::size_t, Allocator*, char**)>;
using SessionGetInputTypeInfo = Function<33, 1, Status*(const Session*, std::size_t, TypeInfo**)>;
using SessionGetOutputTypeInfo = Function<34, 1, Status*(const Session*, std::size_t, TypeInfo**)>;
using SessionGetOverridableInitializerCount = Function<32, 1, Status*(const Session*, std::size_t*)>;
using SessionGetOverridableInitializerName = Function<38, 1, Status*(const Session*, std::size_t, Allocator*, char**)>;
using SessionGetOverridableInitializerTypeInfo = Function<35, 1, Status*(const Session*, std::size_t, TypeInfo**)>;
using SessionEndProfiling = Function<110, 2, Status*(Session*, Allocator*, char**)>;

// Run options.
using CreateRunOptions = Function<39, 1, Status*(RunOptions**)>;
using ReleaseRunOptions = Function<97, 1, void(RunOptions*)>;
using RunOptionsSetTerminate = Function<46, 1, Status*(RunOptions*)>;
using RunOptionsUnsetTerminate = Function<47, 1, Status*(RunOptions*)>;
using AddRunConfigEntry = Function<165, 8, Status*(RunOptions*, const char*, const char*)>;
using RunOptionsEnableProfiling = Function<415, 25, Status*(RunOptions*, const PathChar*)>;
using RunOptionsDisableProfiling = Function<416, 25, Status*(RunOptions*)>;

// Adapters.
using CreateLoraAdapterFromArray = Function<281, 20, Status*(const void*, std::size_t, Allocator*, LoraAdapter**)>;
using ReleaseLoraAdapter = Function<282, 20, void(LoraAdapter*)>;
using RunOptionsAddActiveLoraAdapter = Function<283, 20, Status*(RunOptions*, const LoraAdapter*)>;

// Values and types.
using CreateTensorAsOrtValue =
    Function<48, 1, Status*(Allocator*, const std::int64_t*, std::size_t, ElementType, Value**)>;
using CreateTensorWithDataAsOrtValue =
    Function<49, 1,
             Status*(const MemoryInfo*, void*, std::size_t, const std::int64_t*, std::size_t, ElementType, Value**)>;
using GetTensorMutableData = Function<51, 1, Status*(Value*, void**)>;
using GetTensorTypeAndShape = Function<65, 1, Status*(const Value*, TensorTypeAndShapeInfo**)>;
using GetOnnxTypeFromTypeInfo = Function<56, 1, Status*(const TypeInfo*, OnnxType*)>;
using CastTypeInfoToTensorInfo = Function<55, 1, Status*(const TypeInfo*, const TensorTypeAndShapeInfo**)>;
using GetTensorElementType = Function<60, 1, Status*(const TensorTypeAndShapeInfo*, ElementType*)>;
using GetDimensionsCount = Function<61, 1, Status*(const TensorTypeAndShapeInfo*, std::size_t*)>;
using GetDimensions = Function<62, 1, Status*(const TensorTypeAndShapeInfo*, std::int64_t*, std::size_t)>;
using GetSymbolicDimensions = Function<63, 1, Status*(const TensorTypeAndShapeInfo*, const char**, std::size_t)>;
using ReleaseValue = Function<96, 1, void(Value*)>;
using ReleaseTypeInfo = Function<98, 1, void(TypeInfo*)>;
using ReleaseTensorTypeAndShapeInfo = Function<99, 1, void(TensorTypeAndShapeInfo*)>;

// Memory.
using CreateCpuMemoryInfo = Function<69, 1, Status*(AllocatorType, MemType, MemoryInfo**)>;
using ReleaseMemoryInfo = Function<94, 1, void(MemoryInfo*)>;
using GetAllocatorWithDefaultOptions = Function<78, 1, Status*(Allocator**)>;
using RegisterAllocator = Function<176, 9, Status*(Env*, Allocator*)>;
using AllocatorFree = Function<76, 1, Status*(Allocator*, void*)>;

// Operators of our own.
using CreateCustomOpDomain = Function<26, 1, Status*(const char*, CustomOpDomain**)>;
using CustomOpDomainAdd = Function<27, 1, Status*(CustomOpDomain*, const CustomOp*)>;
using ReleaseCustomOpDomain = Function<101, 1, void(CustomOpDomain*)>;
using AddCustomOpDomain = Function<28, 1, Status*(SessionOptions*, CustomOpDomain*)>;
using KernelInfoGetAttributeFloat = Function<85, 1, Status*(const KernelInfo*, const char*, float*)>;
using KernelInfoGetAttributeInt64 = Function<86, 1, Status*(const KernelInfo*, const char*, std::int64_t*)>;
using KernelInfoGetNodeName = Function<244, 15, Status*(const KernelInfo*, char*, std::size_t*)>;
using KernelInfoGetConstantInputTensor =
    Function<249, 15, Status*(const KernelInfo*, std::size_t, int*, const Value**)>;
using KernelContextGetInputCount = Function<88, 1, Status*(const KernelContext*, std::size_t*)>;
using KernelContextGetInput = Function<90, 1, Status*(const KernelContext*, std::size_t, const Value**)>;
using KernelContextGetOutput =
    Function<91, 1, Status*(KernelContext*, std::size_t, const std::int64_t*, std::size_t, Value**)>;
using KernelContextParallelFor =
    Function<274, 17, Status*(const KernelContext*, ParallelBody, std::size_t, std::size_t, void*)>;
using GetTensorElementTypeAndShapeDataReference =
    Function<414, 24, Status*(const Value*, ElementType*, const std::int64_t**, std::size_t*)>;

/// The function table of a loaded library. A plain view; the table lives as long as the library is loaded.
class Api {
 public:
  Api(const void* table, int version) : table_(static_cast<void* const*>(table)), version_(version) {}

  /// API version of the library: the minor number of its version.
  int version() const { return version_; }

  /// Whether the loaded library has this function.
  template <typename F>
  bool has() const {
    return F::kSince <= version_;
  }

  /// Calls a function that every library above the floor has.
  template <typename F, typename... Args>
  auto call(Args... args) const {
    static_assert(F::kSince <= kFloorApi, "newer than the floor: test has<F>() and use call_newer");
    return reinterpret_cast<typename F::Pointer>(table_[F::kSlot])(args...);
  }

  /// Calls a function that came after the floor. Requires: has<F>().
  template <typename F, typename... Args>
  auto call_newer(Args... args) const {
    return reinterpret_cast<typename F::Pointer>(table_[F::kSlot])(args...);
  }

 private:
  void* const* table_;
  int version_;
};

}  // namespace ort_abi

#undef ORT_ABI_CALL
