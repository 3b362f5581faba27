// The arithmetic, compiled once for each set of instructions; CLEARHEAD_VARIANT names the one at hand.

namespace CLEARHEAD_VARIANT {

int floats_at_once() {
#if defined(__AVX512F__)
    return 16;
#elif defined(__AVX2__)
    return 8;
#else
    return 4;
#endif
}

}  // namespace CLEARHEAD_VARIANT
