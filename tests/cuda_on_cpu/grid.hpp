// What CUDA C++ offers to kernels, for g++ on a CPU: to test kernels where no GPU is.
//
// A block's 256 threads are fibres, run in an order that is drawn anew after every barrier; blocks run
// one after the other in a drawn order. A fibre gives way at barriers, at what a warp does together,
// and now and then at an atomic. Shared memory is filled with garbage before every block. Reported are:
// arguments of other types than the kernel's, a barrier that some threads never reach, and lanes of a
// warp that meet at different calls. Memory of a device and its speed it does not stand for.

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static __attribute__((section("shared")))
#define inline static // what an inline function shares would have another kind of section

extern "C" char __attribute__((weak)) __start_shared[], __attribute__((weak)) __stop_shared[];

struct Index {
    unsigned x, y, z;
};
Index threadIdx, blockIdx, blockDim, gridDim;

// --- Fibres ---

const int FIBRES = 256, STACK = 1 << 16;
enum State { READY, AT_BARRIER, IN_WARP, DONE };

struct Fibre {
    jmp_buf place;
    ucontext_t first;
    std::vector<char> stack;
    State state;
    int call; // which call of a warp it is in
    uint64_t given;
};

Fibre fibres[FIBRES];
jmp_buf scheduler;
std::string failure;
uint64_t drawn;
void (*entry)(void **);
void **arguments;

unsigned draw(unsigned limit)
{
    drawn = drawn * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)((drawn >> 33) % limit);
}

void wait(State state, int call = 0)
{
    Fibre &mine = fibres[threadIdx.x];
    mine.state = state;
    mine.call = call;
    if (!_setjmp(mine.place))
        _longjmp(scheduler, 1);
}

void begin()
{
    entry(arguments);
    fibres[threadIdx.x].state = DONE;
    _longjmp(scheduler, 1);
}

void resume(int thread, bool fresh)
{
    threadIdx = {(unsigned)thread, 0, 0};
    Fibre &fibre = fibres[thread];
    fibre.state = READY;
    if (_setjmp(scheduler))
        return;
    if (!fresh)
        _longjmp(fibre.place, 1);
    getcontext(&fibre.first);
    fibre.stack.resize(STACK);
    fibre.first.uc_stack.ss_sp = fibre.stack.data();
    fibre.first.uc_stack.ss_size = STACK;
    makecontext(&fibre.first, begin, 0);
    setcontext(&fibre.first);
}

// Let those go on who have met; false where nobody can.
bool release()
{
    int ready = 0, waiting = 0, done = 0;
    for (int warp = 0; warp < FIBRES; warp += 32) {
        Fibre *lanes = fibres + warp;
        bool met = std::all_of(lanes, lanes + 32, [](Fibre &f) { return f.state == IN_WARP; });
        for (int lane = 0; met && lane < 32; lane++) {
            if (lanes[lane].call != lanes[0].call)
                failure = "lanes of a warp meet at different calls";
            lanes[lane].state = READY;
        }
    }
    for (Fibre &fibre : fibres) {
        ready += fibre.state == READY;
        waiting += fibre.state == AT_BARRIER;
        done += fibre.state == DONE;
    }
    if (waiting == FIBRES)
        for (Fibre &fibre : fibres)
            fibre.state = READY;
    bool stuck = ready == 0 && waiting < FIBRES && done < FIBRES;
    if (stuck)
        failure = "threads wait for others that never come";
    return done < FIBRES && failure.empty();
}

void run_block(unsigned number)
{
    int order[FIBRES];
    bool fresh[FIBRES];
    for (int i = 0; i < FIBRES; i++) {
        order[i] = i;
        fresh[i] = true;
        fibres[i].state = READY;
    }
    unsigned asleep = 0; // warps that others run ahead of, for a while
    blockIdx = {number, 0, 0};
    if (__start_shared)
        memset(__start_shared, (int)draw(256), __stop_shared - __start_shared);
    do {
        for (int i = FIBRES - 1; i > 0; i--)
            std::swap(order[i], order[draw(i + 1)]);
        if (draw(16) == 0)
            asleep = draw(1 << FIBRES / 32);
        for (int thread : order)
            if (fibres[thread].state == READY && !(asleep >> thread / 32 & 1)) {
                resume(thread, fresh[thread]);
                fresh[thread] = false;
            }
    } while (release());
}

// --- What kernels call ---

inline void __syncthreads() { wait(AT_BARRIER); }

inline void maybe_yield()
{
    if (draw(4) == 0)
        wait(READY);
}

// What all lanes of the warp gave, in `all`.
template <class T> void meet(int call, T value, T *all)
{
    unsigned first = threadIdx.x / 32 * 32;
    memcpy(&fibres[threadIdx.x].given, &value, sizeof value);
    wait(IN_WARP, call);
    for (int lane = 0; lane < 32; lane++)
        memcpy(all + lane, &fibres[first + lane].given, sizeof value);
    wait(IN_WARP, -call);
}

template <class T> T __shfl_up_sync(unsigned, T value, unsigned step)
{
    T all[32];
    unsigned lane = threadIdx.x % 32;
    meet(1, value, all);
    return all[lane < step ? lane : lane - step];
}

template <class T> T __shfl_xor_sync(unsigned, T value, int mask)
{
    T all[32];
    unsigned lane = threadIdx.x % 32;
    meet(2, value, all);
    return all[lane ^ mask];
}

inline unsigned __ballot_sync(unsigned, int value)
{
    int all[32];
    unsigned found = 0;
    meet(3, value, all);
    for (int lane = 0; lane < 32; lane++)
        found |= (unsigned)(all[lane] != 0) << lane;
    return found;
}

inline unsigned __match_any_sync(unsigned, unsigned value)
{
    unsigned all[32], found = 0;
    meet(4, value, all);
    for (int lane = 0; lane < 32; lane++)
        found |= (unsigned)(all[lane] == value) << lane;
    return found;
}

template <class T> T atomicAdd(T *at, T value)
{
    T old = *at;
    *at += value;
    maybe_yield();
    return old;
}

template <class T> T atomicOr(T *at, T value)
{
    T old = *at;
    *at |= value;
    maybe_yield();
    return old;
}

template <class T> T atomicMax(T *at, T value)
{
    T old = *at;
    *at = std::max(old, value);
    maybe_yield();
    return old;
}

template <class To, class From> To same_bits(From value)
{
    static_assert(sizeof(To) == sizeof(From));
    To found;
    memcpy(&found, &value, sizeof found);
    return found;
}

inline unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }
inline int __float_as_int(float value) { return same_bits<int>(value); }
inline float __uint_as_float(unsigned word) { return same_bits<float>(word); }
inline double __longlong_as_double(long long word) { return same_bits<double>(word); }
inline int __popc(unsigned word) { return __builtin_popcount(word); }
inline int __ffs(unsigned word) { return __builtin_ffs((int)word); }

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) ushort4 {
    unsigned short x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w)
{
    return {x, y, z, w};
}

// --- Launching: a kernel by its name, with arguments that say their types ---

// Such as i8, or *f4 for a pointer to float: how NumPy writes them; two floats are a complex number.
template <class T> std::string written()
{
    if constexpr (std::is_pointer_v<T>)
        return "*" + written<std::remove_cv_t<std::remove_pointer_t<T>>>();
    else {
        bool two = std::is_same_v<T, float2>;
        char kind = two ? 'c' : std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 'i' : 'u';
        return kind + std::to_string(sizeof(T));
    }
}

template <class... A> std::string types(void (*)(A...)) { return ((written<A>() + " ") + ...); }

template <class... A, size_t... I> void call(void (*kernel)(A...), void **given, std::index_sequence<I...>)
{
    kernel(*(A *)given[I]...);
}

template <class... A> std::index_sequence_for<A...> places(void (*)(A...)) { return {}; }

template <auto KERNEL_> void run(void **given) { call(KERNEL_, given, places(KERNEL_)); }

struct Kernel {
    std::string name, types;
    void (*run)(void **);
};
#define LAUNCHABLE(name) {#name, types(name), run<name>},
extern const std::vector<Kernel> kernels;

// Run a grid; what went wrong, or an empty text.
extern "C" const char *launch(const char *name, unsigned blocks, const char *given, void **values, uint64_t seed)
{
    auto named = [&](const Kernel &kernel) { return kernel.name == name; };
    auto found = std::find_if(kernels.begin(), kernels.end(), named);
    failure.clear();
    if (found == kernels.end())
        failure = "there is no such kernel";
    else if (found->types != given)
        failure = "takes " + found->types + "and is given " + given;
    std::vector<unsigned> order(blocks);
    drawn = seed;
    for (unsigned i = 0; i < blocks; i++) {
        unsigned other = draw(i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    gridDim = {blocks, 1, 1};
    blockDim = {FIBRES, 1, 1};
    arguments = values;
    for (unsigned block : order)
        if (failure.empty()) {
            entry = found->run;
            run_block(block);
        }
    return failure.c_str();
}
