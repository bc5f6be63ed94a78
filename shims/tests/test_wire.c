/* wire.c against hostile and plain bytes. Built with sanitizers: reading too far is a failure by itself. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../wire.h"
#include "check.h"

/* A copy on the heap, of exactly the right size: a byte too far is seen. */
static unsigned char *exact(const void *bytes, size_t size)
{
    unsigned char *copy = malloc(size == 0 ? 1 : size);
    if (copy == NULL)
        abort();
    memcpy(copy, bytes, size);
    return copy;
}

static void test_a_header_survives_and_its_limits_hold(void)
{
    const struct {
        struct frame_header header;
        bool fits;
    } cases[] = {
        {{0, FRAME_READY, 0}, true},
        {{WIRE_MAX_BODY, FRAME_INVOKE, WIRE_MAX_FDS}, true},
        {{WIRE_MAX_BODY + 1, FRAME_INVOKE, 0}, false},
        {{0, FRAME_INVOKE, WIRE_MAX_FDS + 1}, false},
        {{UINT32_MAX, UINT16_MAX, UINT16_MAX}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char bytes[WIRE_HEADER_SIZE];
        struct frame_header again;
        wire_header_encode(&cases[i].header, bytes);
        CHECK(wire_header_decode(bytes, &again) == cases[i].fits);
        CHECK(again.length == cases[i].header.length);
        CHECK(again.type == cases[i].header.type);
        CHECK(again.fds == cases[i].header.fds);
    }
}

static void test_what_is_written_is_read(void)
{
    char *words[] = {"", "a", "\xff\xfe", "two\nlines", NULL};
    struct wire_writer writer = {0};
    wire_write_u32(&writer, 0x80000001u);
    wire_write_blob(&writer, "a\0b", 3);
    wire_write_vector(&writer, words);
    wire_write_blob(&writer, "end", 3);
    CHECK(!writer.failed);

    unsigned char *body = exact(writer.bytes, writer.length);
    struct wire_reader reader = {.at = body, .left = writer.length};
    CHECK(wire_read_u32(&reader) == 0x80000001u);
    struct wire_string blob = wire_read_blob(&reader);
    CHECK(blob.length == 3 && memcmp(blob.bytes, "a\0b", 3) == 0);
    char **vector = wire_read_vector(&reader);
    if (CHECK(vector != NULL)) {
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            CHECK(words[i] == NULL ? vector[i] == NULL : strcmp(vector[i], words[i]) == 0);
    }
    free(vector);
    char *text = wire_copy_string(wire_read_string(&reader));
    CHECK(text != NULL && strcmp(text, "end") == 0);
    free(text);
    CHECK(wire_read_end(&reader));
    free(body);
    wire_writer_free(&writer);
}

static void test_a_short_body_fails_at_every_length(void)
{
    char *words[] = {"one", "", "three", NULL};
    struct wire_writer writer = {0};
    wire_write_u32(&writer, 7);
    wire_write_blob(&writer, "text", 4);
    wire_write_vector(&writer, words);
    for (size_t length = 0; length < writer.length; length++) {
        unsigned char *body = exact(writer.bytes, length);
        struct wire_reader reader = {.at = body, .left = length};
        wire_read_u32(&reader);
        wire_read_string(&reader);
        char **vector = wire_read_vector(&reader);
        CHECK(!wire_read_end(&reader));
        CHECK(vector == NULL);
        free(vector);
        /* What failed stays failed, and everything after it is empty. */
        CHECK(wire_read_u32(&reader) == 0);
        CHECK(wire_read_blob(&reader).length == 0);
        CHECK(wire_read_count(&reader) == 0);
        free(body);
    }
    wire_writer_free(&writer);
}

static void test_malformed_items_fail(void)
{
    static const struct {
        const char *bytes;
        size_t size;
        char kind;
    } cases[] = {
        {"\xff\xff\xff\xff", 4, 's'},                    /* a string of 4 GiB */
        {"\x02\0\0\0a\0", 6, 's'},                       /* a NUL in a string */
        {"\x02\0\0\0\x01\0\0\0", 8, 'v'},                /* two strings, room for one length */
        {"\xff\xff\xff\xff\0\0\0\0", 8, 'v'},            /* 4 Gi strings */
        {"\x01\0\0\0\x05\0\0\0four", 12, 'v'},           /* the last string too long by one */
        {"\x01\0\0\0\x01\0\0\0\0", 9, 'v'},              /* a NUL in a list's string */
        {"\x01\0\0\0\xff\xff\xff\xff", 8, 'v'},          /* a length that wraps */
        {"\x02\0\0\0\xfc\xff\xff\xff\x04\0\0\0", 12, 'v'}, /* two lengths whose sum wraps */
        {"\0\0\0", 3, 'v'},
        {"", 0, 'v'},
        {"", 0, 's'},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char *body = exact(cases[i].bytes, cases[i].size);
        struct wire_reader reader = {.at = body, .left = cases[i].size};
        if (cases[i].kind == 's')
            CHECK(wire_read_string(&reader).length == 0);
        else
            CHECK(wire_read_vector(&reader) == NULL);
        CHECK(reader.failed);
        free(body);
    }
}

static void test_bytes_behind_the_end_are_noticed(void)
{
    unsigned char *body = exact("\x01\0\0\0\0", 5);
    struct wire_reader reader = {.at = body, .left = 5};
    CHECK(wire_read_u32(&reader) == 1);
    CHECK(!reader.failed);
    CHECK(!wire_read_end(&reader));
    free(body);
}

static void test_a_list_longer_than_allowed_fails(void)
{
    size_t size = 4 + ((size_t)WIRE_MAX_STRINGS + 1) * 4;
    unsigned char *body = calloc(1, size);
    if (body == NULL)
        abort();
    body[0] = 1;
    body[2] = 0x10; /* 2^20 + 1 */
    struct wire_reader reader = {.at = body, .left = size};
    CHECK(wire_read_vector(&reader) == NULL);
    body[0] = 0;
    reader = (struct wire_reader){.at = body, .left = size - 4};
    char **vector = wire_read_vector(&reader);
    CHECK(vector != NULL && wire_read_end(&reader));
    free(vector);
    free(body);
}

static void test_a_writer_stops_at_the_limit(void)
{
    unsigned char *big = calloc(1, WIRE_MAX_BODY + 1);
    if (big == NULL)
        abort();
    struct wire_writer writer = {0};
    wire_write_blob(&writer, big, WIRE_MAX_BODY - 4);
    CHECK(!writer.failed && writer.length == WIRE_MAX_BODY);
    wire_write_u32(&writer, 1);
    CHECK(writer.failed && writer.length == WIRE_MAX_BODY);
    wire_writer_free(&writer);
    CHECK(writer.bytes == NULL && writer.length == 0);

    wire_write_blob(&writer, big, WIRE_MAX_BODY - 3);
    CHECK(writer.failed);
    wire_writer_free(&writer);
    wire_write_blob(&writer, big, WIRE_MAX_BODY + 1);
    CHECK(writer.failed);
    wire_write_u32(&writer, 1); /* a failed writer stays one */
    CHECK(writer.failed);
    wire_writer_free(&writer);
    free(big);
}

/* xorshift32: the same bytes in every run. */
static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static void test_random_bodies_are_read_within_their_bounds(void)
{
    uint32_t state = 20260101;
    unsigned ended = 0;
    for (unsigned round = 0; round < 20000; round++) {
        size_t size = next_random(&state) % 64;
        unsigned char *body = malloc(size == 0 ? 1 : size);
        if (body == NULL)
            abort();
        for (size_t i = 0; i < size; i++) /* small numbers, so that lengths often fit */
            body[i] = next_random(&state) % 3 == 0 ? (unsigned char)(next_random(&state) % 9) : 0;
        struct wire_reader reader = {.at = body, .left = size};
        while (!reader.failed && reader.left > 0) {
            switch (next_random(&state) % 4) {
            case 0:
                wire_read_u32(&reader);
                break;
            case 1:
                wire_read_string(&reader);
                break;
            case 2:
                wire_read_blob(&reader);
                break;
            default:
                free(wire_read_vector(&reader));
            }
        }
        ended += wire_read_end(&reader);
        free(body);
    }
    CHECK(ended > 0);
}

static unsigned open_descriptors(void)
{
    unsigned count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void make_pair(int pair[2])
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        abort();
}

static void test_a_frame_and_its_descriptors_arrive(void)
{
    int pair[2];
    int pipe_fds[2];
    make_pair(pair);
    if (pipe(pipe_fds) != 0)
        abort();
    CHECK(wire_send(pair[0], FRAME_COMMAND, "body", 4, pipe_fds, 2) == 0);
    CHECK(wire_send(pair[0], FRAME_READY, NULL, 0, NULL, 0) == 0);

    struct frame_header header;
    unsigned char *body;
    int fds[3];
    CHECK(wire_receive(pair[1], &header, &body, fds, 3) == 1);
    CHECK(header.type == FRAME_COMMAND && header.length == 4 && header.fds == 2);
    CHECK(memcmp(body, "body", 4) == 0);
    CHECK((fcntl(fds[0], F_GETFD) & FD_CLOEXEC) != 0 && (fcntl(fds[1], F_GETFD) & FD_CLOEXEC) != 0);
    char byte = 0;
    CHECK(write(fds[1], "x", 1) == 1 && read(pipe_fds[0], &byte, 1) == 1 && byte == 'x');
    free(body);
    close(fds[0]);
    close(fds[1]);

    CHECK(wire_receive(pair[1], &header, &body, fds, 3) == 1);
    CHECK(header.type == FRAME_READY && header.length == 0 && header.fds == 0 && body != NULL);
    free(body);
    close(pair[0]);
    CHECK(wire_receive(pair[1], &header, &body, fds, 3) == 0);
    close(pair[1]);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

static void test_a_large_frame_crosses_a_small_buffer(void)
{
    int pair[2];
    make_pair(pair);
    size_t size = WIRE_MAX_BODY;
    unsigned char *big = malloc(size);
    if (big == NULL)
        abort();
    for (size_t i = 0; i < size; i++)
        big[i] = (unsigned char)(i * 31 >> 3);
    pid_t child = fork();
    if (child == 0) {
        close(pair[1]);
        int fd = pair[0];
        _exit(wire_send(pair[0], FRAME_INVOKE, big, size, &fd, 1) == 0 ? 0 : 1);
    }
    close(pair[0]);
    struct frame_header header;
    unsigned char *body;
    int fd;
    if (CHECK(wire_receive(pair[1], &header, &body, &fd, 1) == 1)) {
        CHECK(header.length == size && memcmp(body, big, size) == 0);
        free(body);
        close(fd);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(pair[1]);
    free(big);
}

static void send_raw(int socket, const void *bytes, size_t size, const int *fds, unsigned count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(WIRE_MAX_FDS * sizeof(int))];
    } space = {0};
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count > 0) {
        message.msg_control = space.bytes;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *control = CMSG_FIRSTHDR(&message);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(control), fds, count * sizeof(int));
    }
    if (sendmsg(socket, &message, MSG_NOSIGNAL) != (ssize_t)size)
        abort();
}

/* Whatever the peer sends, a frame that is refused leaves no descriptor behind. */
static void test_a_bad_frame_is_refused_whole(void)
{
    static const struct {
        const char *what;
        const char *bytes;
        size_t size;
        unsigned fds;
        unsigned room;
    } cases[] = {
        {"half a header", "\x04\0\0\0", 4, 0, 3},
        {"half a header with descriptors", "\x04\0\0\0", 4, 3, 3},
        {"no body", "\x04\0\0\0\x01\0\0\0", 8, 0, 3},
        {"half a body", "\x04\0\0\0\x01\0\x02\0ab", 10, 2, 3},
        {"a body beyond the limit", "\x01\0\x80\0\x01\0\0\0", 8, 1, 3},
        {"more descriptors than the header may say", "\0\0\0\0\x01\0\xff\xff", 8, 1, 3},
        {"fewer descriptors than it says", "\0\0\0\0\x01\0\x03\0", 8, 2, 3},
        {"more descriptors than it says", "\0\0\0\0\x01\0\x01\0", 8, 2, 3},
        {"more descriptors than there is room for", "\0\0\0\0\x01\0\x04\0", 8, 4, 3},
        {"descriptors where none are taken", "\0\0\0\0\x01\0\x01\0", 8, 1, 0},
        {"as many descriptors as the kernel passes", "\0\0\0\0\x01\0\xfa\0", 8, WIRE_MAX_FDS, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int pair[2];
        int fds[WIRE_MAX_FDS];
        make_pair(pair);
        for (unsigned j = 0; j < WIRE_MAX_FDS; j++)
            fds[j] = pair[0];
        send_raw(pair[0], cases[i].bytes, cases[i].size, fds, cases[i].fds);
        shutdown(pair[0], SHUT_WR);
        unsigned before = open_descriptors();
        struct frame_header header;
        unsigned char *body = (unsigned char *)"";
        int got[4];
        errno = 0;
        int result = wire_receive(pair[1], &header, &body, got, cases[i].room);
        if (!CHECK(result == -1) || !CHECK(errno == EPROTO) || !CHECK(body == NULL))
            fprintf(stderr, "  with %s\n", cases[i].what);
        CHECK(open_descriptors() == before);
        close(pair[0]);
        close(pair[1]);
    }
}

static void test_descriptors_that_come_within_the_body_count(void)
{
    int pair[2];
    make_pair(pair);
    send_raw(pair[0], "\x02\0\0\0\x01\0\x01\0a", 9, NULL, 0);
    send_raw(pair[0], "b", 1, &pair[0], 1);
    unsigned before = open_descriptors();
    struct frame_header header;
    unsigned char *body;
    int fd;
    if (CHECK(wire_receive(pair[1], &header, &body, &fd, 1) == 1)) {
        CHECK(memcmp(body, "ab", 2) == 0);
        free(body);
        close(fd);
    }
    CHECK(open_descriptors() == before);
    close(pair[0]);
    close(pair[1]);
}

static void test_descriptors_beyond_the_process_limit_are_an_error(void)
{
    int pair[2];
    make_pair(pair);
    CHECK(wire_send(pair[0], FRAME_INVOKE, NULL, 0, (const int[]){pair[0], pair[1], pair[0]}, 3) == 0);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    int free_fd = dup(0);
    close(free_fd);
    const struct rlimit tight = {(rlim_t)free_fd + 1, limit.rlim_max};
    unsigned before = open_descriptors();
    struct frame_header header;
    unsigned char *body;
    int fds[3];
    setrlimit(RLIMIT_NOFILE, &tight);
    int result = wire_receive(pair[1], &header, &body, fds, 3);
    setrlimit(RLIMIT_NOFILE, &limit);
    CHECK(result == -1);
    CHECK(open_descriptors() == before);
    close(pair[0]);
    close(pair[1]);
}

static void test_a_gone_peer_is_an_error_and_no_signal(void)
{
    int pair[2];
    make_pair(pair);
    close(pair[1]);
    CHECK(wire_send(pair[0], FRAME_READY, NULL, 0, NULL, 0) == -1 && errno == EPIPE);
    CHECK(wire_send(pair[0], FRAME_READY, "", WIRE_MAX_BODY + 1u, NULL, 0) == -1 && errno == EMSGSIZE);
    CHECK(wire_send(pair[0], FRAME_READY, NULL, 0, pair, WIRE_MAX_FDS + 1u) == -1 && errno == EMSGSIZE);
    close(pair[0]);
}

int main(void)
{
    test_a_header_survives_and_its_limits_hold();
    test_what_is_written_is_read();
    test_a_short_body_fails_at_every_length();
    test_malformed_items_fail();
    test_bytes_behind_the_end_are_noticed();
    test_a_list_longer_than_allowed_fails();
    test_a_writer_stops_at_the_limit();
    test_random_bodies_are_read_within_their_bounds();
    test_a_frame_and_its_descriptors_arrive();
    test_a_large_frame_crosses_a_small_buffer();
    test_a_bad_frame_is_refused_whole();
    test_descriptors_that_come_within_the_body_count();
    test_descriptors_beyond_the_process_limit_are_an_error();
    test_a_gone_peer_is_an_error_and_no_signal();
    return summary("wire");
}
