/* Load generator that speaks prepared Kafka frames over plain sockets, one thread, one epoll loop.
 *
 *   raw produce port=N topic=T partitions=P connections=C inflight=K size=B records=R seconds=S [requests=N] [acks=-1]
 *   raw paced   port=N topic=T partitions=P connections=C rate=R size=B seconds=S [warm=S] [acks=-1]
 *   raw fetch   port=N topic=T partitions=P connections=C seconds=S [max_bytes=B]
 *   raw tail    port=N topic=T rate=R size=B seconds=S [warm=S]
 *
 * It asks for no metadata: a single node leads every partition. Its purpose is a client whose own cost per request is
 * so small and so constant that the broker's cost can be seen. Prints one JSON object; exit status 3 when the broker
 * answered an error code, 4 when it went away or stopped answering.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

#define API_PRODUCE 0
#define API_FETCH 1
#define PRODUCE_VERSION 10 /* flexible, by topic name; what librdkafka sends */
#define FETCH_VERSION 12   /* the last version that names topics */
#define BATCH_HEADER 61
#define MAX_RESPONSE (256u << 20)
#define DRAIN_SECONDS 20

/* ---- wire writing -------------------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *data;
    size_t len, cap;
} Bytes;

static uint8_t *grow(Bytes *b, size_t n) {
    if (b->len + n > b->cap) {
        b->cap = (b->len + n) * 2 + 256;
        b->data = realloc(b->data, b->cap);
        if (!b->data) die(1, "out of memory");
    }
    uint8_t *at = b->data + b->len;
    b->len += n;
    return at;
}

static void store(uint8_t *at, uint64_t v, int n) {
    for (int i = n - 1; i >= 0; i--, v >>= 8) at[i] = (uint8_t)v;
}

static uint64_t load(const uint8_t *at, int n) {
    uint64_t v = 0;
    for (int i = 0; i < n; i++) v = v << 8 | at[i];
    return v;
}

static void put(Bytes *b, int64_t v, int n) { store(grow(b, (size_t)n), (uint64_t)v, n); }

static void put_uvarint(Bytes *b, uint64_t v) {
    while (v > 127) {
        *grow(b, 1) = (uint8_t)(v | 128);
        v >>= 7;
    }
    *grow(b, 1) = (uint8_t)v;
}

static void put_varint(Bytes *b, int64_t v) { put_uvarint(b, ((uint64_t)v << 1) ^ (uint64_t)(v >> 63)); }

static void put_compact(Bytes *b, const char *s) {
    put_uvarint(b, strlen(s) + 1);
    memcpy(grow(b, strlen(s)), s, strlen(s));
}

static uint64_t take_uvarint(const uint8_t **at, const uint8_t *end) {
    uint64_t v = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;
        v |= (uint64_t)(byte & 127) << shift;
        if (!(byte & 128)) return v;
    }
    errno = 0;
    die(4, "a response ends in the middle of a number");
    return 0;
}

static int64_t take_varint(const uint8_t **at, const uint8_t *end) {
    uint64_t v = take_uvarint(at, end);
    return (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
}

static uint32_t crc32c(const uint8_t *data, size_t n) {
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ 0x82F63B78u : c >> 1;
            table[i] = c;
        }
    uint32_t crc = 0xFFFFFFFFu;
    while (n--) crc = table[(crc ^ *data++) & 255] ^ (crc >> 8);
    return crc ^ 0xFFFFFFFFu;
}

static void put_request_header(Bytes *b, int api, int version) {
    put(b, 0, 4); /* frame length, filled in at the end */
    put(b, api, 2);
    put(b, version, 2);
    put(b, 0, 4); /* correlation id */
    put(b, 7, 2);
    memcpy(grow(b, 7), "loadgen", 7);
    put_uvarint(b, 0);
}

static void seal_batch(uint8_t *batch, size_t len) { store(batch + 17, crc32c(batch + 21, len - 21), 4); }

/* A record batch (format v2) of `records` equal values of `size` bytes; *value_at tells where the first value lies. */
static void put_batch(Bytes *b, int records, int size, size_t *value_at) {
    size_t start = b->len;
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    int64_t ms = (int64_t)wall.tv_sec * 1000 + wall.tv_nsec / 1000000;
    put(b, 0, 8);
    put(b, 0, 4);  /* batch length */
    put(b, -1, 4); /* leader epoch */
    put(b, 2, 1);  /* magic */
    put(b, 0, 4);  /* CRC */
    put(b, 0, 2);  /* attributes */
    put(b, records - 1, 4);
    put(b, ms, 8);
    put(b, ms, 8);
    put(b, -1, 8); /* producer id, epoch, sequence: not idempotent */
    put(b, -1, 2);
    put(b, -1, 4);
    put(b, records, 4);
    uint32_t seed = 12345;
    for (int i = 0; i < records; i++) {
        Bytes r = {0};
        put(&r, 0, 1);
        put_varint(&r, 0);
        put_varint(&r, i);
        put_varint(&r, -1); /* no key */
        put_varint(&r, size);
        size_t value = r.len;
        uint8_t *at = grow(&r, (size_t)size);
        for (int k = 0; k < size; k++) at[k] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
        put_varint(&r, 0); /* no headers */
        put_varint(b, (int64_t)r.len);
        if (i == 0) *value_at = b->len + value;
        memcpy(grow(b, r.len), r.data, r.len);
        free(r.data);
    }
    store(b->data + start + 8, b->len - start - 12, 4);
    seal_batch(b->data + start, b->len - start);
}

typedef struct {
    Bytes frame;
    size_t partition_at, batch_at, batch_len, value_at;
} ProduceFrame;

static ProduceFrame produce_frame(const char *topic, int acks, int records, int size) {
    ProduceFrame p = {0};
    Bytes batch = {0};
    size_t value_at = 0;
    put_batch(&batch, records, size, &value_at);
    put_request_header(&p.frame, API_PRODUCE, PRODUCE_VERSION);
    put_uvarint(&p.frame, 0); /* no transactional id */
    put(&p.frame, acks, 2);
    put(&p.frame, 30000, 4);
    put_uvarint(&p.frame, 2);
    put_compact(&p.frame, topic);
    put_uvarint(&p.frame, 2);
    p.partition_at = p.frame.len;
    put(&p.frame, 0, 4);
    put_uvarint(&p.frame, batch.len + 1);
    p.batch_at = p.frame.len;
    p.batch_len = batch.len;
    p.value_at = p.batch_at + value_at;
    memcpy(grow(&p.frame, batch.len), batch.data, batch.len);
    memset(grow(&p.frame, 3), 0, 3); /* empty tag sections of partition, topic, request */
    store(p.frame.data, p.frame.len - 4, 4);
    free(batch.data);
    return p;
}

/* ---- connections --------------------------------------------------------------------------------------------- */

typedef struct {
    int fd, partition, outstanding;
    uint32_t sent, answered;
    int64_t offset;
    Bytes out, in;
    size_t out_at;
    int64_t *sent_at;
    int wants_write;
} Conn;

static int poller;

static void open_conn(Conn *c) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)arg_int("port", NULL))};
    inet_pton(AF_INET, arg("host", "127.0.0.1"), &a.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&a, sizeof a)) die(4, "connect");
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e);
}

static void flush_out(Conn *c) {
    while (c->out_at < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + c->out_at, c->out.len - c->out_at, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) die(4, "send");
        c->out_at += (size_t)n;
    }
    int pending = c->out_at < c->out.len;
    if (!pending) c->out.len = c->out_at = 0;
    if (pending != c->wants_write) {
        struct epoll_event e = {.events = EPOLLIN | (pending ? EPOLLOUT : 0), .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
        c->wants_write = pending;
    }
}

/* Reads what is there and hands every complete frame (without its length) to `use`. */
static void read_in(Conn *c, void (*use)(Conn *, const uint8_t *, const uint8_t *)) {
    for (;;) {
        size_t want = 65536;
        if (c->in.len >= 4) {
            size_t frame = load(c->in.data, 4) + 4;
            if (frame > MAX_RESPONSE) errno = 0, die(4, "a response has an absurd length");
            if (frame > c->in.len + want) want = frame - c->in.len;
        }
        uint8_t *at = grow(&c->in, want);
        ssize_t n = recv(c->fd, at, want, 0);
        c->in.len -= want - (n > 0 ? (size_t)n : 0);
        if (n == 0) errno = 0, die(4, "the broker closed a connection");
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) die(4, "recv");
        size_t done = 0;
        while (c->in.len - done >= 4) {
            size_t frame = load(c->in.data + done, 4) + 4;
            if (c->in.len - done < frame) break;
            use(c, c->in.data + done + 4, c->in.data + done + frame);
            done += frame;
        }
        if (done) memmove(c->in.data, c->in.data + done, c->in.len -= done);
        if ((size_t)n < want) return;
    }
}

static int first_error;

static void note_error(int code) {
    if (code && !first_error) first_error = code;
}

/* ---- produce ------------------------------------------------------------------------------------------------- */

static ProduceFrame produced;
static int partitions, inflight, time_answers = 1;
static int64_t requests_left, answered_requests, last_base_offset, stop_at, last_answer_at, measure_from;
static uint64_t unacked;

static void check_correlation(Conn *c, const uint8_t *at) {
    if (load(at, 4) != c->answered) errno = 0, die(4, "responses arrived out of order");
}

static void on_produce(Conn *c, const uint8_t *at, const uint8_t *end) {
    check_correlation(c, at);
    at += 5; /* correlation id, empty tags */
    take_uvarint(&at, end);
    at += take_uvarint(&at, end) - 1; /* topic name */
    take_uvarint(&at, end);
    if (end - at < 14) errno = 0, die(4, "a Produce response is too short");
    note_error((int16_t)load(at + 4, 2));
    last_base_offset = (int64_t)load(at + 6, 8);
    last_answer_at = now_ns();
    int64_t sent_at = c->sent_at[c->answered % (uint32_t)inflight];
    if (time_answers && sent_at >= measure_from) hist_add(last_answer_at - sent_at);
    c->answered++;
    c->outstanding--;
    answered_requests++;
    unacked--;
}

static void queue_produce(Conn *c, int64_t now) {
    uint8_t *at = grow(&c->out, produced.frame.len);
    memcpy(at, produced.frame.data, produced.frame.len);
    store(at + 8, c->sent, 4);
    store(at + produced.partition_at, (uint64_t)c->partition, 4);
    c->sent_at[c->sent % (uint32_t)inflight] = now;
    c->partition = (c->partition + 1) % partitions;
    c->sent++;
    c->outstanding++;
    unacked++;
}

static void fill_produce(Conn *c) {
    int64_t now = now_ns();
    while (c->outstanding < inflight && requests_left > 0 && now < stop_at) {
        queue_produce(c, now);
        requests_left--;
    }
    flush_out(c);
}

static void report(double seconds, int64_t requests, int64_t records, int64_t bytes) {
    printf("{\"seconds\": %.6f, \"requests\": %lld, \"records\": %lld, \"bytes\": %lld, \"samples\": %llu, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f, \"client_cpu_s\": %.3f, "
           "\"error_code\": %d}\n",
           seconds, (long long)requests, (long long)records, (long long)bytes, (unsigned long long)hist_total,
           hist_us(0.50), hist_us(0.99), hist_us(0.999), (double)hist_max / 1e3, cpu_seconds(), first_error);
    exit(first_error ? 3 : 0);
}

static Conn *open_all(int count) {
    Conn *conns = calloc((size_t)count, sizeof *conns);
    for (int i = 0; i < count; i++) {
        conns[i].partition = i % partitions;
        conns[i].sent_at = calloc((size_t)inflight, sizeof(int64_t));
        open_conn(&conns[i]);
    }
    return conns;
}

static void run_produce(void) {
    int count = (int)arg_int("connections", "16"), records = (int)arg_int("records", "1");
    int size = (int)arg_int("size", "100");
    partitions = (int)arg_int("partitions", "1");
    inflight = (int)arg_int("inflight", "1");
    requests_left = arg_int("requests", "1000000000000");
    produced = produce_frame(arg("topic", NULL), (int)arg_int("acks", "-1"), records, size);
    Conn *conns = open_all(count);
    int64_t start = now_ns();
    stop_at = start + (int64_t)(atof(arg("seconds", "5")) * 1e9);
    for (int i = 0; i < count; i++) fill_produce(&conns[i]);
    while (unacked) {
        struct epoll_event events[256];
        int n = epoll_wait(poller, events, 256, 1000);
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_in(c, on_produce);
            fill_produce(c);
        }
        if (now_ns() > stop_at + DRAIN_SECONDS * 1000000000LL) errno = 0, die(4, "answers are overdue");
    }
    int64_t per_request = (int64_t)records * size;
    report((double)(last_answer_at - start) / 1e9, answered_requests, answered_requests * records,
           answered_requests * per_request);
}

/* ---- fetch --------------------------------------------------------------------------------------------------- */

static int max_bytes, wait_ms;
static int64_t fetched_records, fetched_bytes, fetch_requests;
static void (*on_batch)(const uint8_t *batch, size_t len);

static void send_fetch(Conn *c) {
    c->out.len = c->out_at = 0;
    Bytes *b = &c->out;
    put_request_header(b, API_FETCH, FETCH_VERSION);
    store(b->data + 8, c->sent++, 4);
    put(b, -1, 4);
    put(b, wait_ms, 4);
    put(b, 1, 4); /* min bytes */
    put(b, 50 << 20, 4);
    put(b, 0, 1); /* read uncommitted */
    put(b, 0, 4); /* no session */
    put(b, -1, 4);
    put_uvarint(b, 2);
    put_compact(b, arg("topic", NULL));
    put_uvarint(b, 2);
    put(b, c->partition, 4);
    put(b, -1, 4);
    put(b, c->offset, 8);
    put(b, -1, 4);
    put(b, -1, 8);
    put(b, max_bytes, 4);
    put_uvarint(b, 0);
    put_uvarint(b, 0);
    put_uvarint(b, 1); /* nothing forgotten */
    put_uvarint(b, 1); /* no rack */
    put_uvarint(b, 0);
    store(b->data, b->len - 4, 4);
    c->outstanding = 1;
    flush_out(c);
}

static void on_fetch(Conn *c, const uint8_t *at, const uint8_t *end) {
    check_correlation(c, at);
    c->answered++;
    c->outstanding = 0;
    fetch_requests++;
    at += 5 + 4;
    note_error((int16_t)load(at, 2));
    at += 2 + 4;
    if (take_uvarint(&at, end) < 2) return; /* nothing in time */
    at += take_uvarint(&at, end) - 1;
    take_uvarint(&at, end);
    at += 4;
    note_error((int16_t)load(at, 2));
    int64_t high_watermark = (int64_t)load(at + 2, 8);
    at += 2 + 24;
    for (uint64_t aborted = take_uvarint(&at, end); aborted > 1; aborted--) at += 17;
    at += 4;
    uint64_t size = take_uvarint(&at, end);
    const uint8_t *stop = size ? at + size - 1 : at;
    if (stop > end) errno = 0, die(4, "a Fetch response is too short");
    while (stop - at >= BATCH_HEADER) {
        size_t len = load(at + 8, 4) + 12;
        if (len > (size_t)(stop - at)) break; /* a cut-off last batch is legal */
        int64_t next = (int64_t)load(at, 8) + (int64_t)load(at + 23, 4) + 1;
        if (next > c->offset) {
            c->offset = next;
            fetched_records += (int64_t)load(at + 57, 4);
            fetched_bytes += (int64_t)len;
            if (on_batch) on_batch(at, len);
        }
        at += len;
    }
    if (!on_batch && c->offset >= high_watermark) c->offset = 0; /* throughput runs start over at the end */
}

static void run_fetch(void) {
    int count = (int)arg_int("connections", "1");
    inflight = 1;
    partitions = (int)arg_int("partitions", "1");
    max_bytes = (int)arg_int("max_bytes", "1048576");
    wait_ms = 500;
    Conn *conns = open_all(count);
    int64_t start = now_ns(), end = start + (int64_t)(atof(arg("seconds", "3")) * 1e9), now = start;
    for (int i = 0; i < count; i++) send_fetch(&conns[i]);
    while (now < end) {
        struct epoll_event events[256];
        int n = epoll_wait(poller, events, 256, 100);
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_in(c, on_fetch);
            if (c->wants_write) flush_out(c);
            else if (!c->outstanding) send_fetch(c);
        }
        now = now_ns();
    }
    if (!fetched_records) errno = 0, first_error = first_error ? first_error : -1;
    report((double)(now - start) / 1e9, fetch_requests, fetched_records, fetched_bytes);
}

/* ---- at a fixed rate ------------------------------------------------------------------------------------------ */

/* A timer that ticks every `interval` ns from `due` on; its events have no connection. */
static int start_ticking(int64_t interval, int64_t due) {
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &e);
    struct itimerspec tick = {{interval / 1000000000, interval % 1000000000}, {due / 1000000000, due % 1000000000}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &tick, NULL);
    return timer;
}

/* A request to each partition in turn, timed from the moment it was due: a stall shows in all that it delayed. */
static void run_paced(void) {
    int count = (int)arg_int("connections", "16"), size = (int)arg_int("size", "100");
    int64_t interval = 1000000000 / arg_int("rate", "250");
    partitions = (int)arg_int("partitions", "1");
    inflight = 10000;
    produced = produce_frame(arg("topic", NULL), (int)arg_int("acks", "-1"), 1, size);
    Conn *conns = open_all(count);
    int64_t due = now_ns() + 10000000, start = due, sent = 0;
    int64_t total = (int64_t)(atof(arg("seconds", "10")) * 1e9) / interval;
    measure_from = start + (int64_t)(atof(arg("warm", "1")) * 1e9);
    int timer = start_ticking(interval, due);
    while (answered_requests < total && !first_error) {
        struct epoll_event events[64];
        int n = epoll_wait(poller, events, 64, 1000);
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            uint64_t ticks;
            if (c) {
                if (events[i].events & ~(uint32_t)EPOLLOUT) read_in(c, on_produce);
                flush_out(c);
            } else if (read(timer, &ticks, 8) == 8) {
                for (; ticks && sent < total; ticks--, sent++, due += interval) {
                    c = &conns[sent % count];
                    c->partition = (int)(sent % partitions);
                    if (c->outstanding == inflight) errno = 0, die(4, "too many answers are overdue");
                    queue_produce(c, due);
                    flush_out(c);
                }
            }
        }
        if (now_ns() > start + total * interval + DRAIN_SECONDS * 1000000000LL) errno = 0, die(4, "answers are overdue");
    }
    report((double)(now_ns() - start) / 1e9, answered_requests, answered_requests, answered_requests * size);
}

static void on_tail_batch(const uint8_t *batch, size_t len) {
    const uint8_t *at = batch + BATCH_HEADER, *end = batch + len;
    take_varint(&at, end);
    at++;
    take_varint(&at, end);
    take_varint(&at, end);
    take_varint(&at, end);
    if (take_varint(&at, end) < 8 || end - at < 8) return;
    int64_t due = (int64_t)load(at, 8);
    if (due >= measure_from) hist_add(now_ns() - due);
}

static void run_tail(void) {
    int64_t rate = arg_int("rate", "500"), interval = 1000000000 / rate;
    int size = (int)arg_int("size", "100");
    partitions = 1;
    inflight = 100000;
    time_answers = 0; /* what is timed here is the delivery */
    max_bytes = 1 << 20;
    wait_ms = 500;
    produced = produce_frame(arg("topic", NULL), (int)arg_int("acks", "-1"), 1, size < 8 ? 8 : size);
    Conn *conns = open_all(2), *producer = &conns[0], *consumer = &conns[1];
    consumer->partition = 0;
    requests_left = 1, stop_at = INT64_MAX;
    fill_produce(producer); /* the answer to a first record tells where the tail begins */
    while (unacked) {
        struct epoll_event e;
        if (epoll_wait(poller, &e, 1, DRAIN_SECONDS * 1000) < 1) errno = 0, die(4, "no answer to the first record");
        read_in(producer, on_produce);
    }
    if (first_error) report(0, 0, 0, 0);
    consumer->offset = last_base_offset + 1;
    on_batch = on_tail_batch;
    send_fetch(consumer);
    int64_t due = now_ns() + 10000000, start = due, sent = 0;
    measure_from = start + (int64_t)(atof(arg("warm", "0.5")) * 1e9);
    int64_t total = (int64_t)(atof(arg("seconds", "3")) * (double)rate);
    int timer = start_ticking(interval, due);
    while (fetched_records < total) {
        struct epoll_event events[8];
        int n = epoll_wait(poller, events, 8, 1000);
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            if (!c) {
                uint64_t ticks;
                if (read(timer, &ticks, 8) != 8) continue;
                /* Each record carries the moment it was due, so a stall shows in all the records it delayed. */
                for (; ticks && sent < total; ticks--, sent++, due += interval) {
                    store(produced.frame.data + produced.value_at, (uint64_t)due, 8);
                    seal_batch(produced.frame.data + produced.batch_at, produced.batch_len);
                    queue_produce(producer, now_ns());
                }
                flush_out(producer);
            } else if (c == producer) {
                if (events[i].events & ~(uint32_t)EPOLLOUT) read_in(c, on_produce);
                flush_out(c);
            } else {
                if (events[i].events & ~(uint32_t)EPOLLOUT) read_in(c, on_fetch);
                if (c->wants_write) flush_out(c);
                else if (!c->outstanding) send_fetch(c);
            }
        }
        if (first_error) break;
        if (now_ns() > start + total * interval + DRAIN_SECONDS * 1000000000LL) errno = 0, die(4, "records are overdue");
    }
    report((double)(now_ns() - start) / 1e9, sent, fetched_records, fetched_records * size);
}

int main(int argc, char **argv) {
    program = "raw", arg_count = argc, arg_words = argv;
    signal(SIGPIPE, SIG_IGN);
    poller = epoll_create1(0);
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "produce")) run_produce();
    if (!strcmp(mode, "paced")) run_paced();
    if (!strcmp(mode, "fetch")) run_fetch();
    if (!strcmp(mode, "tail")) run_tail();
    errno = 0;
    die(2, "the first argument is produce, paced, fetch or tail");
}
