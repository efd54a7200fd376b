/* What the load generators share: arguments, the clock, a latency histogram. Each is one file of its own otherwise. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static const char *program = "";

static void die(int status, const char *what) {
    fprintf(stderr, "%s: %s%s%s\n", program, what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(status);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- arguments: key=value words ------------------------------------------------------------------------------ */

static int arg_count;
static char **arg_words;

static const char *arg(const char *key, const char *fallback) {
    size_t n = strlen(key);
    for (int i = 2; i < arg_count; i++)
        if (!strncmp(arg_words[i], key, n) && arg_words[i][n] == '=') return arg_words[i] + n + 1;
    if (!fallback) {
        errno = 0;
        fprintf(stderr, "%s: argument %s is missing\n", program, key);
        exit(2);
    }
    return fallback;
}

static int64_t arg_int(const char *key, const char *fallback) { return atoll(arg(key, fallback)); }

/* ---- latency histogram: 64 linear steps in each power of two, so every value is within 1.6 % ------------------ */

static uint64_t hist[64 * 64];
static uint64_t hist_total;
static int64_t hist_max;

static void hist_add(int64_t ns) {
    if (ns < 1) ns = 1;
    if (ns > hist_max) hist_max = ns;
    int log2 = 63 - __builtin_clzll((uint64_t)ns);
    int step = log2 < 6 ? (int)ns : (int)((uint64_t)ns >> (log2 - 6)) & 63;
    hist[(log2 < 6 ? 0 : log2 - 5) * 64 + step]++;
    hist_total++;
}

static double hist_us(double quantile) {
    uint64_t wanted = (uint64_t)(quantile * (double)hist_total), seen = 0;
    for (int i = 0; i < 64 * 64; i++) {
        seen += hist[i];
        if (seen > wanted || seen == hist_total) {
            int row = i / 64, step = i % 64;
            double ns = row == 0 ? step : (double)((uint64_t)(64 + step) << (row - 1));
            return ns / 1e3;
        }
    }
    return 0;
}

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}
