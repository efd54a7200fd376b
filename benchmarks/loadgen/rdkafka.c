/* The throughput client: librdkafka driven from C, so that no interpreter stands between it and the broker.
 *
 *   rdkafka produce lib=PATH brokers=HOST:PORT topic=T messages=N size=B [librdkafka.property=value ...]
 *   rdkafka transactions lib=PATH brokers=HOST:PORT topic=T partitions=P producers=N per=K records=R size=B seconds=S
 *           interval_ms=I transactional=1|0 [librdkafka.property=value ...]
 *   rdkafka consume lib=PATH brokers=HOST:PORT topic=T partitions=P messages=N [librdkafka.property=value ...]
 *
 * The shared library is the one inside the confluent-kafka wheel, opened by path: it comes without headers, so the few
 * functions of its stable C interface that are needed are declared here. Prints one JSON object.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    int err;
    void *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *opaque;
} Message;

enum { PRODUCER, CONSUMER };
enum { CONF_OK = 0, ERR_QUEUE_FULL = -184, PARTITION_UNASSIGNED = -1 };

static void *library;
static const char *(*version_str)(void);
static const char *(*err2str)(int);
static int (*last_error)(void);
static void *(*conf_new)(void);
static int (*conf_set)(void *, const char *, const char *, char *, size_t);
static void (*conf_set_dr_msg_cb)(void *, void (*)(void *, const Message *, void *));
static void *(*handle_new)(int, void *, char *, size_t);
static void *(*topic_new)(void *, const char *, void *);
static int (*produce)(void *, int32_t, int, void *, size_t, const void *, size_t, void *);
static int (*poll_events)(void *, int);
static int (*flush)(void *, int);
static void *(*list_new)(int);
static void *(*list_add)(void *, const char *, int32_t);
static int (*list_set_offset)(void *, const char *, int32_t, int64_t);
static int (*assign)(void *, const void *);
static int (*poll_set_consumer)(void *);
static void *(*get_consumer_queue)(void *);
static ssize_t (*consume_batch)(void *, int, Message **, size_t);
static void (*message_destroy)(Message *);
static void *(*init_transactions)(void *, int);
static void *(*begin_transaction)(void *);
static void *(*commit_transaction)(void *, int);
static const char *(*error_string)(const void *);
static int (*error_is_retriable)(const void *);
static void (*error_destroy)(void *);

static int arg_count;
static char **arg_words;
static int64_t delivered, failed;
static int first_error;

static void die(const char *what, const char *detail) {
    fprintf(stderr, "rdkafka: %s: %s\n", what, detail);
    exit(2);
}

static const char *arg(const char *key) {
    size_t n = strlen(key);
    for (int i = 2; i < arg_count; i++)
        if (!strncmp(arg_words[i], key, n) && arg_words[i][n] == '=') return arg_words[i] + n + 1;
    die("argument is missing", key);
    return NULL;
}

static void resolve(void *slot, const char *name) {
    void *found = dlsym(library, name);
    if (!found) die("the library lacks", name);
    memcpy(slot, &found, sizeof found);
}

static void open_library(void) {
    library = dlopen(arg("lib"), RTLD_NOW | RTLD_LOCAL);
    if (!library) die("cannot open librdkafka", dlerror());
    resolve(&version_str, "rd_kafka_version_str");
    resolve(&err2str, "rd_kafka_err2str");
    resolve(&last_error, "rd_kafka_last_error");
    resolve(&conf_new, "rd_kafka_conf_new");
    resolve(&conf_set, "rd_kafka_conf_set");
    resolve(&conf_set_dr_msg_cb, "rd_kafka_conf_set_dr_msg_cb");
    resolve(&handle_new, "rd_kafka_new");
    resolve(&topic_new, "rd_kafka_topic_new");
    resolve(&produce, "rd_kafka_produce");
    resolve(&poll_events, "rd_kafka_poll");
    resolve(&flush, "rd_kafka_flush");
    resolve(&list_new, "rd_kafka_topic_partition_list_new");
    resolve(&list_add, "rd_kafka_topic_partition_list_add");
    resolve(&list_set_offset, "rd_kafka_topic_partition_list_set_offset");
    resolve(&assign, "rd_kafka_assign");
    resolve(&poll_set_consumer, "rd_kafka_poll_set_consumer");
    resolve(&get_consumer_queue, "rd_kafka_queue_get_consumer");
    resolve(&consume_batch, "rd_kafka_consume_batch_queue");
    resolve(&message_destroy, "rd_kafka_message_destroy");
    resolve(&init_transactions, "rd_kafka_init_transactions");
    resolve(&begin_transaction, "rd_kafka_begin_transaction");
    resolve(&commit_transaction, "rd_kafka_commit_transaction");
    resolve(&error_string, "rd_kafka_error_string");
    resolve(&error_is_retriable, "rd_kafka_error_is_retriable");
    resolve(&error_destroy, "rd_kafka_error_destroy");
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void on_delivery(void *handle, const Message *message, void *opaque) {
    (void)handle, (void)opaque;
    if (message->err) {
        __atomic_add_fetch(&failed, 1, __ATOMIC_RELAXED);
        if (!first_error) first_error = message->err;
    } else {
        __atomic_add_fetch(&delivered, 1, __ATOMIC_RELAXED);
    }
}

/* Words with a dot before their equals sign are librdkafka properties; our own words have none. */
static void *configured(void) {
    void *conf = conf_new();
    char error[512], key[128];
    if (conf_set(conf, "bootstrap.servers", arg("brokers"), error, sizeof error) != CONF_OK) die("property", error);
    for (int i = 2; i < arg_count; i++) {
        char *equals = strchr(arg_words[i], '='), *dot = strchr(arg_words[i], '.');
        size_t n = equals ? (size_t)(equals - arg_words[i]) : 0;
        if (!equals || !dot || dot > equals || n >= sizeof key) continue;
        memcpy(key, arg_words[i], n);
        key[n] = 0;
        if (conf_set(conf, key, equals + 1, error, sizeof error) != CONF_OK) die("property", error);
    }
    return conf;
}

static void report(double seconds, int64_t messages, int64_t bytes, int64_t total_bytes) {
    printf("{\"seconds\": %.6f, \"records\": %lld, \"bytes\": %lld, \"total_bytes\": %lld, \"failed\": %lld, \"client_cpu_s\": %.3f, "
           "\"error_code\": %d, \"librdkafka\": \"%s\"}\n",
           seconds, (long long)messages, (long long)bytes, (long long)total_bytes, (long long)failed, cpu_seconds(), first_error,
           version_str());
    if (first_error) fprintf(stderr, "rdkafka: %s\n", err2str(first_error));
    fflush(stdout);
}

static int run_produce(void) {
    int64_t messages = atoll(arg("messages"));
    size_t size = (size_t)atoll(arg("size"));
    char error[512];
    void *conf = configured();
    conf_set_dr_msg_cb(conf, on_delivery);
    void *handle = handle_new(PRODUCER, conf, error, sizeof error);
    if (!handle) die("producer", error);
    void *topic = topic_new(handle, arg("topic"), NULL);
    char *payload = malloc(size);
    uint32_t seed = 12345;
    for (size_t i = 0; i < size; i++) payload[i] = (char)((seed = seed * 1664525u + 1013904223u) >> 24);
    /* One record first: connecting and asking for metadata is not what is measured. */
    if (produce(topic, PARTITION_UNASSIGNED, 0, payload, size, NULL, 0, NULL)) die("produce", err2str(last_error()));
    flush(handle, 30000);
    if (delivered != 1) die("the first record was not acknowledged", err2str(first_error));
    double start = now(), patience = start + 120;
    for (int64_t i = 0; i < messages; i++) {
        while (produce(topic, PARTITION_UNASSIGNED, 0, payload, size, NULL, 0, NULL)) {
            if (last_error() != ERR_QUEUE_FULL) die("produce", err2str(last_error()));
            poll_events(handle, 10);
            if (now() > patience) die("produce", "records are overdue");
        }
        if (!(i & 1023)) poll_events(handle, 0);
    }
    while (delivered + failed < messages + 1 && now() < patience) poll_events(handle, 50);
    report(now() - start, delivered - 1, (delivered - 1) * (int64_t)size, delivered * (int64_t)size);
    return delivered == messages + 1 ? 0 : 3;
}

static int run_consume(void) {
    int64_t messages = atoll(arg("messages")), bytes = 0, seen = 0, first_batch = 0, first_bytes = 0;
    int wanted = atoi(arg("partitions"));
    char error[512];
    void *handle = handle_new(CONSUMER, configured(), error, sizeof error);
    if (!handle) die("consumer", error);
    poll_set_consumer(handle);
    void *list = list_new(wanted);
    for (int i = 0; i < wanted; i++) {
        list_add(list, arg("topic"), i);
        list_set_offset(list, arg("topic"), i, 0);
    }
    if (assign(handle, list)) die("assign", "refused");
    void *queue = get_consumer_queue(handle);
    static Message *batch[10000];
    double start = 0, patience = now() + 120;
    while (seen < messages && now() < patience) {
        ssize_t n = consume_batch(queue, 200, batch, 10000);
        for (ssize_t i = 0; i < n; i++) {
            if (batch[i]->err) {
                if (batch[i]->err != -191 && !first_error) first_error = batch[i]->err;
            } else {
                seen++;
                bytes += (int64_t)batch[i]->len;
            }
            message_destroy(batch[i]);
        }
        if (!start && seen) start = now(), first_batch = seen, first_bytes = bytes; /* the clock starts at the first batch */
    }
    report(now() - start, seen - first_batch, bytes - first_bytes, bytes);
    int status = seen >= messages && !first_error ? 0 : 3;
    _exit(status); /* closing a consumer takes its time and measures nothing */
}

/* What the threads of `transactions` share, and what each has found. */
enum { COPY = 2, COMMITS_MAX = 1 << 20, ANSWER_MS = 30000 };
static int partitions, per, records, interval_ms, transactional;
static size_t record_size;
static double deadline;
static pthread_barrier_t ready, go;

typedef struct {
    pthread_t thread;
    int number;
    int64_t transactions;
    double *commits; /* seconds that each commit took, behind a flush */
    double ended;
} Worker;

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void checked(const char *what, void *error) {
    if (error) die(what, error_string(error));
}

static void end_transaction(void *handle, Worker *worker) {
    if (flush(handle, ANSWER_MS)) die("flush", "records are overdue");
    if (!transactional) return;
    double began = now();
    void *error;
    while ((error = commit_transaction(handle, ANSWER_MS))) {
        if (!error_is_retriable(error) || now() > began + 60) die("commit", error_string(error));
        error_destroy(error);
    }
    if (worker->transactions < COMMITS_MAX) worker->commits[worker->transactions] = now() - began;
    worker->transactions++;
}

/* Either one transaction after the other, `records` to each of `per` partitions; or, with interval_ms, as many records as
 * librdkafka takes, and a commit after each interval. */
static void *work(void *argument) {
    Worker *worker = argument;
    char error[512], id[64], *payload = malloc(record_size);
    uint32_t seed = 12345;
    for (size_t i = 0; i < record_size; i++) payload[i] = (char)((seed = seed * 1664525u + 1013904223u) >> 24);
    void *conf = configured();
    snprintf(id, sizeof id, "%s-%d", arg("topic"), worker->number);
    if (transactional && conf_set(conf, "transactional.id", id, error, sizeof error) != CONF_OK) die("property", error);
    if (!transactional && conf_set(conf, "enable.idempotence", "true", error, sizeof error) != CONF_OK) die("property", error);
    conf_set_dr_msg_cb(conf, on_delivery);
    void *handle = handle_new(PRODUCER, conf, error, sizeof error);
    if (!handle) die("producer", error);
    void *topic = topic_new(handle, arg("topic"), NULL);
    if (transactional) checked("init", init_transactions(handle, 60000));
    int first = worker->number * per;
    for (int warm = 1; warm >= 0; warm--) { /* one first: connecting and asking for metadata is not what is measured */
        double until = 0;
        if (!warm) {
            pthread_barrier_wait(&ready);
            pthread_barrier_wait(&go);
            worker->transactions = 0;
        }
        do {
            if (transactional) checked("begin", begin_transaction(handle));
            until = now() + interval_ms / 1e3;
            for (int64_t i = 0; interval_ms && !warm ? (i & 63) || now() < until : i < (int64_t)per * records; i++) {
                int partition = interval_ms ? PARTITION_UNASSIGNED : (int)((first + i % per) % partitions);
                while (produce(topic, partition, COPY, payload, record_size, NULL, 0, NULL)) {
                    if (last_error() != ERR_QUEUE_FULL) die("produce", err2str(last_error()));
                    poll_events(handle, 1);
                }
                if (!(i & 1023)) poll_events(handle, 0);
            }
            if (transactional || !interval_ms || warm) end_transaction(handle, worker);
            first += per;
        } while (!warm && now() < deadline);
    }
    if (flush(handle, ANSWER_MS)) die("flush", "records are overdue");
    worker->ended = now();
    return NULL;
}

static int run_transactions(void) {
    int producers = atoi(arg("producers"));
    partitions = atoi(arg("partitions")), per = atoi(arg("per")), records = atoi(arg("records"));
    interval_ms = atoi(arg("interval_ms")), transactional = atoi(arg("transactional"));
    record_size = (size_t)atoll(arg("size"));
    Worker *workers = calloc((size_t)producers, sizeof *workers);
    pthread_barrier_init(&ready, NULL, (unsigned)producers + 1);
    pthread_barrier_init(&go, NULL, (unsigned)producers + 1);
    for (int i = 0; i < producers; i++) {
        workers[i].number = i;
        workers[i].commits = malloc(COMMITS_MAX * sizeof(double));
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i])) die("thread", "refused");
    }
    pthread_barrier_wait(&ready);
    int64_t before = delivered, transactions = 0, kept = 0;
    double start = now(), ended = start;
    deadline = start + atof(arg("seconds"));
    pthread_barrier_wait(&go);
    for (int i = 0; i < producers; i++) {
        pthread_join(workers[i].thread, NULL);
        transactions += workers[i].transactions;
        if (workers[i].ended > ended) ended = workers[i].ended;
    }
    double *commits = malloc((size_t)(transactions + 1) * sizeof(double));
    for (int i = 0; i < producers; i++)
        for (int64_t k = 0; k < workers[i].transactions && k < COMMITS_MAX; k++) commits[kept++] = workers[i].commits[k];
    qsort(commits, (size_t)kept, sizeof *commits, compare_doubles);
    double p50 = kept ? commits[kept / 2] : 0, p99 = kept ? commits[kept * 99 / 100] : 0;
    int64_t done = delivered - before;
    printf("{\"seconds\": %.6f, \"transactions\": %lld, \"records\": %lld, \"bytes\": %lld, \"failed\": %lld, "
           "\"commit_p50_us\": %.1f, \"commit_p99_us\": %.1f, \"client_cpu_s\": %.3f, \"error_code\": %d}\n",
           ended - start, (long long)transactions, (long long)done, (long long)(done * (int64_t)record_size), (long long)failed,
           p50 * 1e6, p99 * 1e6, cpu_seconds(), first_error);
    fflush(stdout);
    _exit(failed || first_error ? 3 : 0); /* closing 32 producers takes its time and measures nothing */
}

int main(int argc, char **argv) {
    arg_count = argc, arg_words = argv;
    open_library();
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "produce")) return run_produce();
    if (!strcmp(mode, "consume")) return run_consume();
    if (!strcmp(mode, "transactions")) return run_transactions();
    die("the first argument is produce, consume or transactions", mode);
}
