// How Python calls a kernel: by a list of pointers to its arguments, and a list of what they must be.
#pragma once
#include <stddef.h>

#include <type_traits>
#include <utility>

template <typename T>
constexpr int simt_floating = std::is_floating_point_v<T> ? 1 << 16 : 0;

template <typename T>
constexpr int simt_type() {  // a scalar's size; for a pointer minus the alignment of what it points to
  if constexpr (std::is_pointer_v<T>) {
    typedef std::remove_cv_t<std::remove_pointer_t<T>> To;
    if constexpr (std::is_void_v<To>)
      return -1;
    else
      return -int(alignof(To) + simt_floating<To>);
  } else {
    return int(sizeof(T) + simt_floating<T>);
  }
}
template <typename... A>
void simt_types(void (*)(A...), int* types) {
  *types = int(sizeof...(A));
  ((*++types = simt_type<A>()), ...);
}
template <typename... A, size_t... I>
void simt_call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<A>*>(arguments[I])...);
}
template <typename... A>
void simt_call(void (*kernel)(A...), void** arguments) {
  simt_call(kernel, arguments, std::make_index_sequence<sizeof...(A)>());
}

#define SIMT_ENTRY(NAME)                                                                \
  extern "C" void simt_types_##NAME(int* types) { simt_types(&NAME, types); }           \
  extern "C" void simt_run_##NAME(void** arguments) { simt_call(&NAME, arguments); }

extern "C" void* simt_anchor() {
  static thread_local char anchor;  // being touched, it makes this thread's shared memory exist
  return &anchor;
}
