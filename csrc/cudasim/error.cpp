// Implements the names and texts of errors, and each thread's last error.
#include "cudasim/error.h"

#include <cstdlib>
#include <cstring>

namespace cudasim {
namespace {

thread_local cudaError_t last = cudaSuccess;

struct Text {
  cudaError_t error;
  const char *name, *text;
};

#define CUDASIM_TEXT(name, text) {name, #name, text}
constexpr Text kTexts[] = {
    CUDASIM_TEXT(cudaSuccess, "no error"),
    CUDASIM_TEXT(cudaErrorInvalidValue, "invalid argument"),
    CUDASIM_TEXT(cudaErrorMemoryAllocation, "out of memory"),
    CUDASIM_TEXT(cudaErrorInitializationError, "initialization error"),
    CUDASIM_TEXT(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    CUDASIM_TEXT(cudaErrorInvalidSymbol, "invalid device symbol"),
    CUDASIM_TEXT(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    CUDASIM_TEXT(cudaErrorInvalidDeviceFunction, "invalid device function"),
    CUDASIM_TEXT(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    CUDASIM_TEXT(cudaErrorInvalidDevice, "invalid device ordinal"),
    CUDASIM_TEXT(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    CUDASIM_TEXT(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    CUDASIM_TEXT(cudaErrorNotReady, "device not ready"),
    CUDASIM_TEXT(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    CUDASIM_TEXT(cudaErrorLaunchTimeout, "the launch timed out and was terminated"),
    CUDASIM_TEXT(cudaErrorAssert, "device-side assert triggered"),
    CUDASIM_TEXT(cudaErrorHardwareStackError, "hardware stack error"),
    CUDASIM_TEXT(cudaErrorIllegalInstruction, "an illegal instruction was encountered"),
    CUDASIM_TEXT(cudaErrorMisalignedAddress, "misaligned address"),
    CUDASIM_TEXT(cudaErrorInvalidAddressSpace, "operation not supported on global/shared address space"),
    CUDASIM_TEXT(cudaErrorInvalidPc, "invalid program counter"),
    CUDASIM_TEXT(cudaErrorLaunchFailure, "unspecified launch failure"),
    CUDASIM_TEXT(cudaErrorCooperativeLaunchTooLarge, "too many blocks in cooperative launch"),
    CUDASIM_TEXT(cudaErrorNotSupported, "operation not supported"),
    CUDASIM_TEXT(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    CUDASIM_TEXT(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    CUDASIM_TEXT(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    CUDASIM_TEXT(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    CUDASIM_TEXT(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    CUDASIM_TEXT(cudaErrorStreamCaptureImplicit,
                 "operation would make the legacy stream depend on a capturing blocking stream"),
    CUDASIM_TEXT(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    CUDASIM_TEXT(cudaErrorStreamCaptureWrongThread, "attempt to terminate a thread-local capture sequence from another thread"),
    CUDASIM_TEXT(cudaErrorGraphExecUpdateFailure, "the graph update was not performed: the graphs differ in structure"),
};
#undef CUDASIM_TEXT

const Text* text_of(cudaError_t error) {
  for (const Text& text : kTexts) {
    if (text.error == error) return &text;
  }
  return nullptr;
}

}  // namespace

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last = error;
  return error;
}

cudaError_t injected(const char* function) {
  const char* wanted = std::getenv("CUDASIM_FAIL");
  if (!wanted) return cudaSuccess;
  const size_t length = std::strlen(function);
  for (const char* at = wanted; at; at = std::strchr(at, ',')) {
    at += *at == ',';
    if (std::strncmp(at, function, length) == 0 && at[length] == '=') return report(cudaError_t(std::atoi(at + length + 1)));
  }
  return cudaSuccess;
}

}  // namespace cudasim

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudasim::last;
  cudasim::last = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return cudasim::last; }

const char* cudaGetErrorName(cudaError_t error) {
  const cudasim::Text* text = cudasim::text_of(error);
  return text ? text->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  const cudasim::Text* text = cudasim::text_of(error);
  return text ? text->text : "unrecognized error code";
}
