// Static assertions of third_party/onnxruntime/abi.h against a real header. Compiled only when GENAI_ORT_INCLUDE_DIR
// names the folder of onnxruntime_c_api.h; see third_party/onnxruntime/README.md.

#include "onnxruntime/abi.h"

#include <onnxruntime_c_api.h>

#include <cstddef>
#include <type_traits>

namespace {

template <typename F>
constexpr std::size_t offset() {
  return static_cast<std::size_t>(F::kSlot) * sizeof(void*);
}

/// Number of parameters of a function pointer type of the real header.
template <typename Pointer>
struct Arity;
template <typename Result, typename... Args>
struct Arity<Result(ORT_API_CALL*)(Args...)> {
  static constexpr std::size_t value = sizeof...(Args);
};
template <typename Result, typename... Args>
struct Arity<Result(ORT_API_CALL*)(Args...) noexcept> {
  static constexpr std::size_t value = sizeof...(Args);
};
template <typename Member>
constexpr std::size_t arity() {
  return Arity<std::remove_cv_t<Member>>::value;
}

template <typename Ours, typename Theirs>
constexpr bool equal(Ours ours, Theirs theirs) {
  return static_cast<long>(ours) == static_cast<long>(theirs);
}

// Places in the table.
static_assert(offsetof(OrtApi, CreateStatus) == offset<ort_abi::CreateStatus>());
static_assert(offsetof(OrtApi, GetErrorCode) == offset<ort_abi::GetErrorCode>());
static_assert(offsetof(OrtApi, GetErrorMessage) == offset<ort_abi::GetErrorMessage>());
static_assert(offsetof(OrtApi, ReleaseStatus) == offset<ort_abi::ReleaseStatus>());
static_assert(offsetof(OrtApi, CreateEnvWithCustomLogger) == offset<ort_abi::CreateEnvWithCustomLogger>());
static_assert(offsetof(OrtApi, ReleaseEnv) == offset<ort_abi::ReleaseEnv>());
static_assert(offsetof(OrtApi, GetBuildInfoString) == offset<ort_abi::GetBuildInfoString>());
static_assert(offsetof(OrtApi, GetAvailableProviders) == offset<ort_abi::GetAvailableProviders>());
static_assert(offsetof(OrtApi, ReleaseAvailableProviders) == offset<ort_abi::ReleaseAvailableProviders>());
static_assert(offsetof(OrtApi, CreateSessionOptions) == offset<ort_abi::CreateSessionOptions>());
static_assert(offsetof(OrtApi, ReleaseSessionOptions) == offset<ort_abi::ReleaseSessionOptions>());
static_assert(offsetof(OrtApi, DisableMemPattern) == offset<ort_abi::DisableMemPattern>());
static_assert(offsetof(OrtApi, EnableCpuMemArena) == offset<ort_abi::EnableCpuMemArena>());
static_assert(offsetof(OrtApi, DisableCpuMemArena) == offset<ort_abi::DisableCpuMemArena>());
static_assert(offsetof(OrtApi, EnableProfiling) == offset<ort_abi::EnableProfiling>());
static_assert(offsetof(OrtApi, SetSessionLogSeverityLevel) == offset<ort_abi::SetSessionLogSeverityLevel>());
static_assert(offsetof(OrtApi, SetSessionGraphOptimizationLevel) ==
              offset<ort_abi::SetSessionGraphOptimizationLevel>());
static_assert(offsetof(OrtApi, SetIntraOpNumThreads) == offset<ort_abi::SetIntraOpNumThreads>());
static_assert(offsetof(OrtApi, SetInterOpNumThreads) == offset<ort_abi::SetInterOpNumThreads>());
static_assert(offsetof(OrtApi, AddSessionConfigEntry) == offset<ort_abi::AddSessionConfigEntry>());
static_assert(offsetof(OrtApi, SetDeterministicCompute) == offset<ort_abi::SetDeterministicCompute>());
static_assert(offsetof(OrtApi, SessionOptionsAppendExecutionProvider) ==
              offset<ort_abi::SessionOptionsAppendExecutionProvider>());
static_assert(offsetof(OrtApi, CreateSession) == offset<ort_abi::CreateSession>());
static_assert(offsetof(OrtApi, CreateSessionFromArray) == offset<ort_abi::CreateSessionFromArray>());
static_assert(offsetof(OrtApi, ReleaseSession) == offset<ort_abi::ReleaseSession>());
static_assert(offsetof(OrtApi, Run) == offset<ort_abi::Run>());
static_assert(offsetof(OrtApi, SessionGetInputCount) == offset<ort_abi::SessionGetInputCount>());
static_assert(offsetof(OrtApi, SessionGetOutputCount) == offset<ort_abi::SessionGetOutputCount>());
static_assert(offsetof(OrtApi, SessionGetInputName) == offset<ort_abi::SessionGetInputName>());
static_assert(offsetof(OrtApi, SessionGetOutputName) == offset<ort_abi::SessionGetOutputName>());
static_assert(offsetof(OrtApi, SessionGetInputTypeInfo) == offset<ort_abi::SessionGetInputTypeInfo>());
static_assert(offsetof(OrtApi, SessionGetOutputTypeInfo) == offset<ort_abi::SessionGetOutputTypeInfo>());
static_assert(offsetof(OrtApi, SessionGetOverridableInitializerCount) ==
              offset<ort_abi::SessionGetOverridableInitializerCount>());
static_assert(offsetof(OrtApi, SessionGetOverridableInitializerName) ==
              offset<ort_abi::SessionGetOverridableInitializerName>());
static_assert(offsetof(OrtApi, SessionGetOverridableInitializerTypeInfo) ==
              offset<ort_abi::SessionGetOverridableInitializerTypeInfo>());
static_assert(offsetof(OrtApi, SessionEndProfiling) == offset<ort_abi::SessionEndProfiling>());
static_assert(offsetof(OrtApi, CreateRunOptions) == offset<ort_abi::CreateRunOptions>());
static_assert(offsetof(OrtApi, ReleaseRunOptions) == offset<ort_abi::ReleaseRunOptions>());
static_assert(offsetof(OrtApi, RunOptionsSetTerminate) == offset<ort_abi::RunOptionsSetTerminate>());
static_assert(offsetof(OrtApi, RunOptionsUnsetTerminate) == offset<ort_abi::RunOptionsUnsetTerminate>());
static_assert(offsetof(OrtApi, AddRunConfigEntry) == offset<ort_abi::AddRunConfigEntry>());
static_assert(offsetof(OrtApi, CreateLoraAdapterFromArray) == offset<ort_abi::CreateLoraAdapterFromArray>());
static_assert(offsetof(OrtApi, ReleaseLoraAdapter) == offset<ort_abi::ReleaseLoraAdapter>());
static_assert(offsetof(OrtApi, RunOptionsAddActiveLoraAdapter) == offset<ort_abi::RunOptionsAddActiveLoraAdapter>());
#if ORT_API_VERSION >= 25
static_assert(offsetof(OrtApi, RunOptionsEnableProfiling) == offset<ort_abi::RunOptionsEnableProfiling>());
static_assert(offsetof(OrtApi, RunOptionsDisableProfiling) == offset<ort_abi::RunOptionsDisableProfiling>());
static_assert(arity<decltype(OrtApi::RunOptionsEnableProfiling)>() == ort_abi::RunOptionsEnableProfiling::kArity);
static_assert(arity<decltype(OrtApi::RunOptionsDisableProfiling)>() == ort_abi::RunOptionsDisableProfiling::kArity);
#endif
static_assert(offsetof(OrtApi, CreateTensorAsOrtValue) == offset<ort_abi::CreateTensorAsOrtValue>());
static_assert(offsetof(OrtApi, CreateTensorWithDataAsOrtValue) == offset<ort_abi::CreateTensorWithDataAsOrtValue>());
static_assert(offsetof(OrtApi, GetTensorMutableData) == offset<ort_abi::GetTensorMutableData>());
static_assert(offsetof(OrtApi, GetTensorTypeAndShape) == offset<ort_abi::GetTensorTypeAndShape>());
static_assert(offsetof(OrtApi, GetOnnxTypeFromTypeInfo) == offset<ort_abi::GetOnnxTypeFromTypeInfo>());
static_assert(offsetof(OrtApi, CastTypeInfoToTensorInfo) == offset<ort_abi::CastTypeInfoToTensorInfo>());
static_assert(offsetof(OrtApi, GetTensorElementType) == offset<ort_abi::GetTensorElementType>());
static_assert(offsetof(OrtApi, GetDimensionsCount) == offset<ort_abi::GetDimensionsCount>());
static_assert(offsetof(OrtApi, GetDimensions) == offset<ort_abi::GetDimensions>());
static_assert(offsetof(OrtApi, GetSymbolicDimensions) == offset<ort_abi::GetSymbolicDimensions>());
static_assert(offsetof(OrtApi, ReleaseValue) == offset<ort_abi::ReleaseValue>());
static_assert(offsetof(OrtApi, ReleaseTypeInfo) == offset<ort_abi::ReleaseTypeInfo>());
static_assert(offsetof(OrtApi, ReleaseTensorTypeAndShapeInfo) == offset<ort_abi::ReleaseTensorTypeAndShapeInfo>());
static_assert(offsetof(OrtApi, CreateCpuMemoryInfo) == offset<ort_abi::CreateCpuMemoryInfo>());
static_assert(offsetof(OrtApi, ReleaseMemoryInfo) == offset<ort_abi::ReleaseMemoryInfo>());
static_assert(offsetof(OrtApi, GetAllocatorWithDefaultOptions) == offset<ort_abi::GetAllocatorWithDefaultOptions>());
static_assert(offsetof(OrtApi, RegisterAllocator) == offset<ort_abi::RegisterAllocator>());
static_assert(offsetof(OrtApi, AllocatorFree) == offset<ort_abi::AllocatorFree>());
static_assert(offsetof(OrtApi, CreateCustomOpDomain) == offset<ort_abi::CreateCustomOpDomain>());
static_assert(offsetof(OrtApi, CustomOpDomain_Add) == offset<ort_abi::CustomOpDomainAdd>());
static_assert(offsetof(OrtApi, ReleaseCustomOpDomain) == offset<ort_abi::ReleaseCustomOpDomain>());
static_assert(offsetof(OrtApi, AddCustomOpDomain) == offset<ort_abi::AddCustomOpDomain>());
static_assert(offsetof(OrtApi, KernelInfoGetAttribute_float) == offset<ort_abi::KernelInfoGetAttributeFloat>());
static_assert(offsetof(OrtApi, KernelInfoGetAttribute_int64) == offset<ort_abi::KernelInfoGetAttributeInt64>());
static_assert(offsetof(OrtApi, KernelInfo_GetNodeName) == offset<ort_abi::KernelInfoGetNodeName>());
static_assert(offsetof(OrtApi, KernelInfoGetConstantInput_tensor) ==
              offset<ort_abi::KernelInfoGetConstantInputTensor>());
static_assert(offsetof(OrtApi, KernelContext_GetInputCount) == offset<ort_abi::KernelContextGetInputCount>());
static_assert(offsetof(OrtApi, KernelContext_GetInput) == offset<ort_abi::KernelContextGetInput>());
static_assert(offsetof(OrtApi, KernelContext_GetOutput) == offset<ort_abi::KernelContextGetOutput>());
static_assert(offsetof(OrtApi, KernelContext_ParallelFor) == offset<ort_abi::KernelContextParallelFor>());

// Numbers of parameters.
static_assert(arity<decltype(OrtApi::CreateStatus)>() == ort_abi::CreateStatus::kArity);
static_assert(arity<decltype(OrtApi::GetErrorCode)>() == ort_abi::GetErrorCode::kArity);
static_assert(arity<decltype(OrtApi::GetErrorMessage)>() == ort_abi::GetErrorMessage::kArity);
static_assert(arity<decltype(OrtApi::ReleaseStatus)>() == ort_abi::ReleaseStatus::kArity);
static_assert(arity<decltype(OrtApi::CreateEnvWithCustomLogger)>() == ort_abi::CreateEnvWithCustomLogger::kArity);
static_assert(arity<decltype(OrtApi::ReleaseEnv)>() == ort_abi::ReleaseEnv::kArity);
static_assert(arity<decltype(OrtApi::GetBuildInfoString)>() == ort_abi::GetBuildInfoString::kArity);
static_assert(arity<decltype(OrtApi::GetAvailableProviders)>() == ort_abi::GetAvailableProviders::kArity);
static_assert(arity<decltype(OrtApi::ReleaseAvailableProviders)>() == ort_abi::ReleaseAvailableProviders::kArity);
static_assert(arity<decltype(OrtApi::CreateSessionOptions)>() == ort_abi::CreateSessionOptions::kArity);
static_assert(arity<decltype(OrtApi::ReleaseSessionOptions)>() == ort_abi::ReleaseSessionOptions::kArity);
static_assert(arity<decltype(OrtApi::DisableMemPattern)>() == ort_abi::DisableMemPattern::kArity);
static_assert(arity<decltype(OrtApi::EnableCpuMemArena)>() == ort_abi::EnableCpuMemArena::kArity);
static_assert(arity<decltype(OrtApi::DisableCpuMemArena)>() == ort_abi::DisableCpuMemArena::kArity);
static_assert(arity<decltype(OrtApi::EnableProfiling)>() == ort_abi::EnableProfiling::kArity);
static_assert(arity<decltype(OrtApi::SetSessionLogSeverityLevel)>() == ort_abi::SetSessionLogSeverityLevel::kArity);
static_assert(arity<decltype(OrtApi::SetSessionGraphOptimizationLevel)>() ==
              ort_abi::SetSessionGraphOptimizationLevel::kArity);
static_assert(arity<decltype(OrtApi::SetIntraOpNumThreads)>() == ort_abi::SetIntraOpNumThreads::kArity);
static_assert(arity<decltype(OrtApi::SetInterOpNumThreads)>() == ort_abi::SetInterOpNumThreads::kArity);
static_assert(arity<decltype(OrtApi::AddSessionConfigEntry)>() == ort_abi::AddSessionConfigEntry::kArity);
static_assert(arity<decltype(OrtApi::SetDeterministicCompute)>() == ort_abi::SetDeterministicCompute::kArity);
static_assert(arity<decltype(OrtApi::SessionOptionsAppendExecutionProvider)>() ==
              ort_abi::SessionOptionsAppendExecutionProvider::kArity);
static_assert(arity<decltype(OrtApi::CreateSession)>() == ort_abi::CreateSession::kArity);
static_assert(arity<decltype(OrtApi::CreateSessionFromArray)>() == ort_abi::CreateSessionFromArray::kArity);
static_assert(arity<decltype(OrtApi::ReleaseSession)>() == ort_abi::ReleaseSession::kArity);
static_assert(arity<decltype(OrtApi::Run)>() == ort_abi::Run::kArity);
static_assert(arity<decltype(OrtApi::SessionGetInputCount)>() == ort_abi::SessionGetInputCount::kArity);
static_assert(arity<decltype(OrtApi::SessionGetOutputCount)>() == ort_abi::SessionGetOutputCount::kArity);
static_assert(arity<decltype(OrtApi::SessionGetInputName)>() == ort_abi::SessionGetInputName::kArity);
static_assert(arity<decltype(OrtApi::SessionGetOutputName)>() == ort_abi::SessionGetOutputName::kArity);
static_assert(arity<decltype(OrtApi::SessionGetInputTypeInfo)>() == ort_abi::SessionGetInputTypeInfo::kArity);
static_assert(arity<decltype(OrtApi::SessionGetOutputTypeInfo)>() == ort_abi::SessionGetOutputTypeInfo::kArity);
static_assert(arity<decltype(OrtApi::SessionGetOverridableInitializerCount)>() ==
              ort_abi::SessionGetOverridableInitializerCount::kArity);
static_assert(arity<decltype(OrtApi::SessionGetOverridableInitializerName)>() ==
              ort_abi::SessionGetOverridableInitializerName::kArity);
static_assert(arity<decltype(OrtApi::SessionGetOverridableInitializerTypeInfo)>() ==
              ort_abi::SessionGetOverridableInitializerTypeInfo::kArity);
static_assert(arity<decltype(OrtApi::SessionEndProfiling)>() == ort_abi::SessionEndProfiling::kArity);
static_assert(arity<decltype(OrtApi::CreateRunOptions)>() == ort_abi::CreateRunOptions::kArity);
static_assert(arity<decltype(OrtApi::ReleaseRunOptions)>() == ort_abi::ReleaseRunOptions::kArity);
static_assert(arity<decltype(OrtApi::RunOptionsSetTerminate)>() == ort_abi::RunOptionsSetTerminate::kArity);
static_assert(arity<decltype(OrtApi::RunOptionsUnsetTerminate)>() == ort_abi::RunOptionsUnsetTerminate::kArity);
static_assert(arity<decltype(OrtApi::AddRunConfigEntry)>() == ort_abi::AddRunConfigEntry::kArity);
static_assert(arity<decltype(OrtApi::CreateLoraAdapterFromArray)>() == ort_abi::CreateLoraAdapterFromArray::kArity);
static_assert(arity<decltype(OrtApi::ReleaseLoraAdapter)>() == ort_abi::ReleaseLoraAdapter::kArity);
static_assert(arity<decltype(OrtApi::RunOptionsAddActiveLoraAdapter)>() ==
              ort_abi::RunOptionsAddActiveLoraAdapter::kArity);
static_assert(arity<decltype(OrtApi::CreateTensorAsOrtValue)>() == ort_abi::CreateTensorAsOrtValue::kArity);
static_assert(arity<decltype(OrtApi::CreateTensorWithDataAsOrtValue)>() ==
              ort_abi::CreateTensorWithDataAsOrtValue::kArity);
static_assert(arity<decltype(OrtApi::GetTensorMutableData)>() == ort_abi::GetTensorMutableData::kArity);
static_assert(arity<decltype(OrtApi::GetTensorTypeAndShape)>() == ort_abi::GetTensorTypeAndShape::kArity);
static_assert(arity<decltype(OrtApi::GetOnnxTypeFromTypeInfo)>() == ort_abi::GetOnnxTypeFromTypeInfo::kArity);
static_assert(arity<decltype(OrtApi::CastTypeInfoToTensorInfo)>() == ort_abi::CastTypeInfoToTensorInfo::kArity);
static_assert(arity<decltype(OrtApi::GetTensorElementType)>() == ort_abi::GetTensorElementType::kArity);
static_assert(arity<decltype(OrtApi::GetDimensionsCount)>() == ort_abi::GetDimensionsCount::kArity);
static_assert(arity<decltype(OrtApi::GetDimensions)>() == ort_abi::GetDimensions::kArity);
static_assert(arity<decltype(OrtApi::GetSymbolicDimensions)>() == ort_abi::GetSymbolicDimensions::kArity);
static_assert(arity<decltype(OrtApi::ReleaseValue)>() == ort_abi::ReleaseValue::kArity);
static_assert(arity<decltype(OrtApi::ReleaseTypeInfo)>() == ort_abi::ReleaseTypeInfo::kArity);
static_assert(arity<decltype(OrtApi::ReleaseTensorTypeAndShapeInfo)>() ==
              ort_abi::ReleaseTensorTypeAndShapeInfo::kArity);
static_assert(arity<decltype(OrtApi::CreateCpuMemoryInfo)>() == ort_abi::CreateCpuMemoryInfo::kArity);
static_assert(arity<decltype(OrtApi::ReleaseMemoryInfo)>() == ort_abi::ReleaseMemoryInfo::kArity);
static_assert(arity<decltype(OrtApi::GetAllocatorWithDefaultOptions)>() ==
              ort_abi::GetAllocatorWithDefaultOptions::kArity);
static_assert(arity<decltype(OrtApi::RegisterAllocator)>() == ort_abi::RegisterAllocator::kArity);
static_assert(arity<decltype(OrtApi::AllocatorFree)>() == ort_abi::AllocatorFree::kArity);
static_assert(arity<decltype(OrtApi::CreateCustomOpDomain)>() == ort_abi::CreateCustomOpDomain::kArity);
static_assert(arity<decltype(OrtApi::CustomOpDomain_Add)>() == ort_abi::CustomOpDomainAdd::kArity);
static_assert(arity<decltype(OrtApi::ReleaseCustomOpDomain)>() == ort_abi::ReleaseCustomOpDomain::kArity);
static_assert(arity<decltype(OrtApi::AddCustomOpDomain)>() == ort_abi::AddCustomOpDomain::kArity);
static_assert(arity<decltype(OrtApi::KernelInfoGetAttribute_float)>() == ort_abi::KernelInfoGetAttributeFloat::kArity);
static_assert(arity<decltype(OrtApi::KernelInfoGetAttribute_int64)>() == ort_abi::KernelInfoGetAttributeInt64::kArity);
static_assert(arity<decltype(OrtApi::KernelInfo_GetNodeName)>() == ort_abi::KernelInfoGetNodeName::kArity);
static_assert(arity<decltype(OrtApi::KernelInfoGetConstantInput_tensor)>() ==
              ort_abi::KernelInfoGetConstantInputTensor::kArity);
static_assert(arity<decltype(OrtApi::KernelContext_GetInputCount)>() == ort_abi::KernelContextGetInputCount::kArity);
static_assert(arity<decltype(OrtApi::KernelContext_GetInput)>() == ort_abi::KernelContextGetInput::kArity);
static_assert(arity<decltype(OrtApi::KernelContext_GetOutput)>() == ort_abi::KernelContextGetOutput::kArity);
static_assert(arity<decltype(OrtApi::KernelContext_ParallelFor)>() == ort_abi::KernelContextParallelFor::kArity);

// Enum values.
static_assert(equal(ort_abi::ErrorCode::kOk, ORT_OK));
static_assert(equal(ort_abi::ErrorCode::kFail, ORT_FAIL));
static_assert(equal(ort_abi::ErrorCode::kInvalidArgument, ORT_INVALID_ARGUMENT));
static_assert(equal(ort_abi::ErrorCode::kNoSuchFile, ORT_NO_SUCHFILE));
static_assert(equal(ort_abi::ErrorCode::kNoModel, ORT_NO_MODEL));
static_assert(equal(ort_abi::ErrorCode::kEngineError, ORT_ENGINE_ERROR));
static_assert(equal(ort_abi::ErrorCode::kRuntimeException, ORT_RUNTIME_EXCEPTION));
static_assert(equal(ort_abi::ErrorCode::kInvalidProtobuf, ORT_INVALID_PROTOBUF));
static_assert(equal(ort_abi::ErrorCode::kModelLoaded, ORT_MODEL_LOADED));
static_assert(equal(ort_abi::ErrorCode::kNotImplemented, ORT_NOT_IMPLEMENTED));
static_assert(equal(ort_abi::ErrorCode::kInvalidGraph, ORT_INVALID_GRAPH));
static_assert(equal(ort_abi::ErrorCode::kEpFail, ORT_EP_FAIL));
static_assert(equal(ort_abi::LoggingLevel::kVerbose, ORT_LOGGING_LEVEL_VERBOSE));
static_assert(equal(ort_abi::LoggingLevel::kWarning, ORT_LOGGING_LEVEL_WARNING));
static_assert(equal(ort_abi::LoggingLevel::kFatal, ORT_LOGGING_LEVEL_FATAL));
static_assert(equal(ort_abi::OnnxType::kUnknown, ONNX_TYPE_UNKNOWN));
static_assert(equal(ort_abi::OnnxType::kTensor, ONNX_TYPE_TENSOR));
static_assert(equal(ort_abi::OnnxType::kOpaque, ONNX_TYPE_OPAQUE));
static_assert(equal(ort_abi::ElementType::kUndefined, ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED));
static_assert(equal(ort_abi::ElementType::kFloat, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT));
static_assert(equal(ort_abi::ElementType::kUInt8, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8));
static_assert(equal(ort_abi::ElementType::kInt8, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8));
static_assert(equal(ort_abi::ElementType::kInt32, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32));
static_assert(equal(ort_abi::ElementType::kInt64, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64));
static_assert(equal(ort_abi::ElementType::kString, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING));
static_assert(equal(ort_abi::ElementType::kBool, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL));
static_assert(equal(ort_abi::ElementType::kFloat16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16));
static_assert(equal(ort_abi::ElementType::kDouble, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE));
static_assert(equal(ort_abi::ElementType::kBFloat16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16));
static_assert(equal(ort_abi::GraphOptimizationLevel::kDisableAll, ORT_DISABLE_ALL));
static_assert(equal(ort_abi::GraphOptimizationLevel::kBasic, ORT_ENABLE_BASIC));
static_assert(equal(ort_abi::GraphOptimizationLevel::kExtended, ORT_ENABLE_EXTENDED));
static_assert(equal(ort_abi::GraphOptimizationLevel::kAll, ORT_ENABLE_ALL));
static_assert(equal(ort_abi::AllocatorType::kDevice, OrtDeviceAllocator));
static_assert(equal(ort_abi::AllocatorType::kArena, OrtArenaAllocator));
static_assert(equal(ort_abi::MemType::kCpuInput, OrtMemTypeCPUInput));
static_assert(equal(ort_abi::MemType::kCpuOutput, OrtMemTypeCPUOutput));
static_assert(equal(ort_abi::MemType::kDefault, OrtMemTypeDefault));

// Layout.
static_assert(sizeof(OrtErrorCode) == sizeof(ort_abi::ErrorCode));
static_assert(sizeof(ONNXTensorElementDataType) == sizeof(ort_abi::ElementType));
static_assert(sizeof(OrtApiBase) == sizeof(ort_abi::ApiBase));
static_assert(offsetof(OrtApiBase, GetApi) == offsetof(ort_abi::ApiBase, get_api));
static_assert(offsetof(OrtApiBase, GetVersionString) == offsetof(ort_abi::ApiBase, get_version_string));
static_assert(offsetof(OrtAllocator, Alloc) == offsetof(ort_abi::AllocatorTable, alloc));
static_assert(offsetof(OrtAllocator, Free) == offsetof(ort_abi::AllocatorTable, free));
static_assert(offsetof(OrtAllocator, Info) == offsetof(ort_abi::AllocatorTable, info));
static_assert(offsetof(OrtAllocator, Reserve) == offsetof(ort_abi::AllocatorTable, reserve));
static_assert(offsetof(OrtCustomOp, version) == offsetof(ort_abi::CustomOp, version));
static_assert(offsetof(OrtCustomOp, CreateKernel) == offsetof(ort_abi::CustomOp, create_kernel));
static_assert(offsetof(OrtCustomOp, GetName) == offsetof(ort_abi::CustomOp, get_name));
static_assert(offsetof(OrtCustomOp, GetInputType) == offsetof(ort_abi::CustomOp, get_input_type));
static_assert(offsetof(OrtCustomOp, KernelCompute) == offsetof(ort_abi::CustomOp, kernel_compute));
static_assert(offsetof(OrtCustomOp, KernelDestroy) == offsetof(ort_abi::CustomOp, kernel_destroy));
static_assert(offsetof(OrtCustomOp, GetInputCharacteristic) == offsetof(ort_abi::CustomOp, get_input_characteristic));
static_assert(offsetof(OrtCustomOp, GetInputMemoryType) == offsetof(ort_abi::CustomOp, get_input_memory_type));
static_assert(offsetof(OrtCustomOp, CreateKernelV2) == offsetof(ort_abi::CustomOp, create_kernel_v2));
static_assert(offsetof(OrtCustomOp, KernelComputeV2) == offsetof(ort_abi::CustomOp, kernel_compute_v2));
static_assert(offsetof(OrtCustomOp, InferOutputShapeFn) == offsetof(ort_abi::CustomOp, infer_output_shape));
static_assert(offsetof(OrtCustomOp, GetStartVersion) == offsetof(ort_abi::CustomOp, get_start_version));
static_assert(offsetof(OrtCustomOp, GetEndVersion) == offsetof(ort_abi::CustomOp, get_end_version));
static_assert(offsetof(OrtCustomOp, GetMayInplace) == offsetof(ort_abi::CustomOp, get_may_inplace));
static_assert(offsetof(OrtCustomOp, ReleaseAliasMap) == offsetof(ort_abi::CustomOp, release_alias_map));
static_assert(sizeof(OrtCustomOp) == sizeof(ort_abi::CustomOp));
static_assert(equal(ort_abi::Characteristic::kOptional, INPUT_OUTPUT_OPTIONAL));
static_assert(ORT_API_VERSION >= ort_abi::kFloorApi);

}  // namespace
