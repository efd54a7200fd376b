/* Load generator that speaks HTTP/1.1 over plain sockets, one thread, one epoll loop.
 *
 *   http ask    port=N path=P connections=C seconds=S [warm=S] [method=GET] [size=B] [records=R] [type=T] [named=1]
 *             [walk=1]
 *   http paced  port=N path=P rate=R seconds=S [records=R] [size=B] [type=T]
 *   http follow port=N path=P readers=N records=N [timeout=S]
 *
 * ask: each connection sends its next request when the last is answered. With named=1 each is a writer of its own, with
 * epoch and sequence; with walk=1 each reads a stream from its beginning on, again and again. A body has `records` JSON strings of `size` bytes. paced: a body every 1/rate s, whose records
 * carry the moment at which they were due. follow: server-sent events; prints "following" when all readers have the
 * head of their answer, then waits until each has `records` records. Prints one JSON object; exit status 3 when a
 * request was refused, 4 when the server went away or stopped answering.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "load.h"

#define MARK "due="
#define MARK_DIGITS 19
#define MARK_LENGTH (sizeof MARK - 1 + MARK_DIGITS)
#define RECEIVED (64 * 1024)
#define DRAIN_SECONDS 20

typedef struct {
    int fd, answered; /* answered: the head of the answer has come */
    int64_t sent_at, sequence, seen;
    char *out;
    size_t out_length, out_at, held; /* held: bytes at the start of `in` that belong to what comes */
    char in[1024], position[80];
} Conn;

static int poller, named, walk;
static const char *method, *path, *type;
static char *body;
static size_t body_length;
static char run_name[32];
static int64_t answered_requests, refused, stop_at, measure_from, read_bytes;
static char refusal[200];

static void open_conn(Conn *c) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)arg_int("port", NULL))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to)) die(4, "connect");
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e)) die(1, "epoll");
}

static void watch(Conn *c, int writable) {
    struct epoll_event e = {.events = EPOLLIN | (writable ? (uint32_t)EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void flush_out(Conn *c) {
    while (c->out_at < c->out_length) {
        ssize_t n = send(c->fd, c->out + c->out_at, c->out_length - c->out_at, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            watch(c, 1);
            return;
        }
        if (n <= 0) die(4, "send");
        c->out_at += (size_t)n;
        if (c->out_at == c->out_length) watch(c, 0);
    }
}

/* ---- requests ------------------------------------------------------------------------------------------------ */

static void make_body(int records, int size) {
    body = malloc((size_t)records * ((size_t)size + 8) + 8);
    char *at = body;
    *at++ = '[';
    for (int i = 0; i < records; i++) {
        if (i) *at++ = ',';
        *at++ = '"';
        int marked = size >= (int)MARK_LENGTH;
        if (marked) at += sprintf(at, MARK "%0*d", MARK_DIGITS, 0);
        for (int j = marked ? (int)MARK_LENGTH : 0; j < size; j++) *at++ = (char)('a' + (i * 31 + j * 7) % 26);
        *at++ = '"';
    }
    *at++ = ']';
    body_length = (size_t)(at - body);
}

static void mark_body(int64_t due) {
    char digits[MARK_DIGITS + 1];
    snprintf(digits, sizeof digits, "%0*lld", MARK_DIGITS, (long long)due);
    for (char *at = body; (at = memmem(at, body_length - (size_t)(at - body), MARK, sizeof MARK - 1)); at += MARK_LENGTH)
        memcpy(at + sizeof MARK - 1, digits, MARK_DIGITS);
}

static void send_request(Conn *c, int index) {
    char head[1024], writer[200] = "", length[100] = "";
    if (named)
        snprintf(writer, sizeof writer, "producer-id: %s-%d\r\nproducer-epoch: 0\r\nproducer-seq: %lld\r\n", run_name, index,
                 (long long)c->sequence++);
    if (body_length) snprintf(length, sizeof length, "content-type: %s\r\ncontent-length: %zu\r\n", type, body_length);
    const char *from = !walk ? "" : c->position[0] ? c->position : "-1";
    int n = snprintf(head, sizeof head, "%s %s%s%s HTTP/1.1\r\nhost: 127.0.0.1\r\n%s%s\r\n", method, path,
                     walk ? "?offset=" : "", from, length, writer);
    c->out = realloc(c->out, (size_t)n + body_length);
    memcpy(c->out, head, (size_t)n);
    memcpy(c->out + n, body, body_length);
    c->out_length = (size_t)n + body_length, c->out_at = 0;
    c->sent_at = now_ns();
    c->held = 0;
    flush_out(c);
}

/* Whether the answer is whole. Answers to `ask` and `paced` are short; what does not fit into `in` is counted only. */
static int read_answer(Conn *c) {
    static char more[RECEIVED];
    for (;;) {
        size_t space = sizeof c->in - 1 - (c->held < sizeof c->in - 1 ? c->held : sizeof c->in - 1);
        ssize_t n = recv(c->fd, space ? c->in + c->held : more, space ? space : sizeof more, 0);
        if (n < 0 && errno == EAGAIN) return 0;
        if (n <= 0) errno = n ? errno : 0, die(4, "the server closed a connection");
        c->held += (size_t)n;
        size_t kept = c->held < sizeof c->in - 1 ? c->held : sizeof c->in - 1;
        c->in[kept] = 0;
        char *end = strstr(c->in, "\r\n\r\n");
        if (!end) {
            if (kept == sizeof c->in - 1) errno = 0, die(1, "the head of an answer is longer than expected");
            continue;
        }
        char *length = strcasestr(c->in, "content-length:");
        size_t wanted = (size_t)(end + 4 - c->in) + (length && length < end ? (size_t)atoll(length + 15) : 0);
        if (c->held < wanted) continue;
        if (c->in[9] != '2') {
            if (!refused++) snprintf(refusal, sizeof refusal, "%.12s %.150s", c->in, end + 4);
        }
        read_bytes += (int64_t)c->held;
        if (walk) {
            char *next = strcasestr(c->in, "stream-next-offset: "), *over = strcasestr(c->in, "stream-up-to-date:");
            c->position[0] = 0;
            if (next && next < end && !(over && over < end)) sscanf(next + 20, "%79[^\r]", c->position);
        }
        return 1;
    }
}

static void report(double seconds, int64_t bytes) {
    printf("{\"seconds\": %.6f, \"requests\": %lld, \"bytes\": %lld, \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, "
           "\"client_cpu_s\": %.3f, \"refused\": %lld}\n",
           seconds, (long long)answered_requests, (long long)bytes, hist_us(0.50), hist_us(0.99), (double)hist_max / 1e3,
           cpu_seconds(), (long long)refused);
    if (refused) fprintf(stderr, "http: %s\n", refusal);
    exit(refused ? 3 : 0);
}

static void run_ask(void) {
    int count = (int)arg_int("connections", "1"), waiting = 0;
    Conn *conns = calloc((size_t)count, sizeof *conns);
    measure_from = now_ns() + (int64_t)(atof(arg("warm", "0.5")) * 1e9);
    stop_at = measure_from + (int64_t)(atof(arg("seconds", "3")) * 1e9);
    for (int i = 0; i < count; i++) open_conn(&conns[i]);
    for (int i = 0; i < count; i++, waiting++) send_request(&conns[i], i);
    while (waiting) {
        struct epoll_event events[256];
        int n = epoll_wait(poller, events, 256, DRAIN_SECONDS * 1000);
        if (n < 1) errno = 0, die(4, "requests are not answered");
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) flush_out(c);
            if (!(events[i].events & ~(uint32_t)EPOLLOUT) || !read_answer(c)) continue;
            int64_t now = now_ns();
            if (c->sent_at >= measure_from && now <= stop_at) {
                hist_add(now - c->sent_at);
                answered_requests++;
            }
            if (now < stop_at && !refused) send_request(c, (int)(c - conns));
            else waiting--;
        }
    }
    report((double)(stop_at - measure_from) / 1e9, walk ? read_bytes : answered_requests * (int64_t)body_length);
}

static void run_paced(void) {
    Conn conn = {0};
    open_conn(&conn);
    int64_t interval = 1000000000 / arg_int("rate", NULL), total = (int64_t)(atof(arg("seconds", "3")) * 1e9) / interval;
    int64_t start = now_ns() + 10000000, due = start;
    int busy = 0;
    for (int64_t sent = 0; sent < total || busy;) {
        int64_t now = now_ns();
        if (!busy && sent < total && now >= due) {
            mark_body(due); /* a stall shows in all the records that it delayed */
            send_request(&conn, 0);
            busy = 1, sent++, due += interval;
            continue;
        }
        struct timespec until_due = {0, 0};
        int64_t rest = busy ? DRAIN_SECONDS * 1000000000LL : due - now;
        until_due.tv_sec = rest / 1000000000, until_due.tv_nsec = rest % 1000000000;
        struct epoll_event e;
        int n = epoll_pwait2(poller, &e, 1, &until_due, NULL);
        if (n < 0) die(1, "epoll");
        if (!n && busy) errno = 0, die(4, "a request is not answered");
        if (!n) continue;
        if (e.events & EPOLLOUT) flush_out(&conn);
        if ((e.events & ~(uint32_t)EPOLLOUT) && read_answer(&conn)) {
            hist_add(now_ns() - conn.sent_at);
            answered_requests++, busy = 0;
            if (refused) break;
        }
    }
    report((double)(now_ns() - start) / 1e9, answered_requests * (int64_t)body_length);
}

/* ---- readers ------------------------------------------------------------------------------------------------- */

static int64_t deliveries, received_bytes, first_at, last_at;

static void take_events(Conn *c, int64_t now) {
    static char buffer[sizeof c->in + RECEIVED];
    for (;;) {
        memcpy(buffer, c->in, c->held);
        ssize_t n = recv(c->fd, buffer + c->held, RECEIVED, 0);
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) errno = n ? errno : 0, die(4, "the server closed a reader's connection");
        received_bytes += n;
        size_t length = c->held + (size_t)n;
        char *at = buffer, *end = buffer + length;
        for (char *mark; (mark = memmem(at, (size_t)(end - at), MARK, sizeof MARK - 1));) {
            if (mark + MARK_LENGTH > end) break;
            at = mark + MARK_LENGTH;
            hist_add(now - atoll(mark + sizeof MARK - 1));
            c->seen++, deliveries++;
            if (!first_at) first_at = now;
            last_at = now;
        }
        size_t keep = (size_t)(end - at) < MARK_LENGTH - 1 ? (size_t)(end - at) : MARK_LENGTH - 1;
        memcpy(c->in, end - keep, keep);
        c->held = keep;
    }
}

static void run_follow(void) {
    int count = (int)arg_int("readers", "1"), heads = 0, open = 0;
    int64_t records = arg_int("records", NULL), done = 0;
    Conn *conns = calloc((size_t)count, sizeof *conns);
    int64_t until = now_ns() + (int64_t)(atof(arg("timeout", "60")) * 1e9);
    for (;;) {
        /* 100 at a time: a backlog is finite. */
        for (; open < count && open - heads < 100; open++) {
            open_conn(&conns[open]);
            send_request(&conns[open], open);
        }
        struct epoll_event events[256];
        int n = epoll_wait(poller, events, 256, 1000);
        int64_t now = now_ns();
        for (int i = 0; i < n; i++) {
            Conn *c = events[i].data.ptr;
            if (!(events[i].events & ~(uint32_t)EPOLLOUT)) continue;
            if (!c->answered) {
                ssize_t got = recv(c->fd, c->in + c->held, sizeof c->in - 1 - c->held, MSG_PEEK);
                if (got <= 0) errno = got ? errno : 0, die(4, "the server closed a reader's connection");
                c->in[c->held + (size_t)got] = 0;
                char *end = strstr(c->in, "\r\n\r\n");
                size_t taken = end ? (size_t)(end + 4 - c->in) - c->held : (size_t)got;
                if (recv(c->fd, c->in + c->held, taken, 0) != (ssize_t)taken) die(4, "recv");
                c->held += taken;
                if (!end && c->held >= sizeof c->in - 1) errno = 0, die(1, "the head of an answer is longer than expected");
                if (!end) continue;
                if (c->in[9] != '2') {
                    fprintf(stderr, "http: %.60s\n", c->in);
                    exit(3);
                }
                c->answered = 1, c->held = 0;
                if (++heads == count) {
                    printf("following\n");
                    fflush(stdout);
                }
            }
            int64_t before = c->seen;
            take_events(c, now);
            if (before < records && c->seen >= records) done++;
        }
        if (done == count || now > until) break;
    }
    int64_t least = INT64_MAX, most = 0;
    for (int i = 0; i < count; i++) {
        if (conns[i].seen < least) least = conns[i].seen;
        if (conns[i].seen > most) most = conns[i].seen;
    }
    printf("{\"readers\": %d, \"deliveries\": %lld, \"least\": %lld, \"most\": %lld, \"seconds\": %.6f, \"bytes\": %lld, "
           "\"p50_ms\": %.2f, \"p99_ms\": %.2f, \"max_ms\": %.2f, \"client_cpu_s\": %.3f}\n",
           count, (long long)deliveries, (long long)least, (long long)most, (double)(last_at - first_at) / 1e9,
           (long long)received_bytes, hist_us(0.50) / 1e3, hist_us(0.99) / 1e3, (double)hist_max / 1e6, cpu_seconds());
    exit(0);
}

int main(int argc, char **argv) {
    program = "http", arg_count = argc, arg_words = argv;
    signal(SIGPIPE, SIG_IGN);
    poller = epoll_create1(0);
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
    const char *mode = argc > 1 ? argv[1] : "";
    path = arg("path", NULL), type = arg("type", "application/json");
    method = arg("method", !strcmp(mode, "paced") ? "POST" : "GET"), named = (int)arg_int("named", "0");
    walk = (int)arg_int("walk", "0");
    snprintf(run_name, sizeof run_name, "load-%llx", (unsigned long long)now_ns());
    if (arg_int("records", "0") > 0 && strcmp(mode, "follow")) make_body((int)arg_int("records", "1"), (int)arg_int("size", "100"));
    else body = "";
    if (!strcmp(mode, "ask")) run_ask();
    if (!strcmp(mode, "paced")) run_paced();
    if (!strcmp(mode, "follow")) run_follow();
    errno = 0;
    die(2, "the first argument is ask, paced or follow");
}
