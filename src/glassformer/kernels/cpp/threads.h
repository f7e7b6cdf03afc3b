// Threads for kernels that are compiled without torch: OpenMP's, or those of the standard library where it is missing.
#if !defined(_OPENMP)
#include <thread>
#endif

// Divide `count` tasks among threads: each calls body(first, end) once. The same task has the same result in any thread.
template <typename Body>
void parallel_for(int64_t count, int64_t threads, const Body& body) {
#if defined(_OPENMP)
#pragma omp parallel num_threads(static_cast<int>(threads)) if (threads > 1)
  {
    const int64_t n = omp_get_num_threads(), me = omp_get_thread_num();
    body(count * me / n, count * (me + 1) / n);
  }
#else  // starting a thread takes a small part of the time of a kernel
  const int64_t n = std::max<int64_t>(1, std::min(count, threads));
  std::vector<std::thread> more;
  for (int64_t i = 1; i < n; ++i) more.emplace_back([&, i] { body(count * i / n, count * (i + 1) / n); });
  body(0, count / n);
  for (std::thread& one : more) one.join();
#endif
}
