/* The frames that daemon, builder, broker, shim and init speak. agenthost/wire.py is the Python half and says who
 * sends what; contracts/frames holds frames that both halves must read and write alike.
 *
 *   0        4      6      8
 *   | length | type | fds  | body ... |     little-endian; `length` counts the body alone
 *
 * `fds` descriptors travel (SCM_RIGHTS) with the first byte of the frame. In a body a string is a u32 length and that
 * many bytes without a NUL; a list is a u32 count and that many strings.
 */
#ifndef AGENTHOST_WIRE_H
#define AGENTHOST_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_HEADER_SIZE 8u
#define WIRE_MAX_BODY (8u << 20)
#define WIRE_MAX_FDS 250u
#define WIRE_MAX_STRINGS (1u << 20)

enum frame_type {
    FRAME_INVOKE = 1,  /* shim -> broker */
    FRAME_COMMAND = 2, /* daemon -> init */
    FRAME_SIGNAL = 3,  /* shim -> init, daemon -> init */
    FRAME_EXITED = 4,  /* init -> shim, init -> daemon */
    FRAME_FAILED = 5,  /* broker -> shim, init -> shim, init -> daemon */
    FRAME_STARTED = 6, /* init -> daemon */
    FRAME_READY = 7,   /* init -> daemon */
    FRAME_SETUP = 8,   /* builder -> init */
    FRAME_TREE = 9,    /* builder -> init */
};

enum command_flag { COMMAND_TERMINAL = 1, COMMAND_CONNECTION = 2, COMMAND_MAIN = 4 };

enum setup_flag {
    SETUP_PRIVATE_NETWORK = 1,
    SETUP_PROC_SUBSET = 2,
    SETUP_MEMFD_NOEXEC = 4,
    SETUP_LANDLOCK = 8,
    SETUP_ROOTLESS = 16,
    SETUP_OWN_FILES = 32,
};

enum signal_scope { SCOPE_GROUP = 0, SCOPE_LEADER = 1, SCOPE_END = 2 };

struct frame_header {
    uint32_t length;
    uint16_t type;
    uint16_t fds;
};

/* Reads a body that it does not own. After the first short or malformed item `failed` stays set and every further
 * item is empty, so that a parser may check once, at the end. */
struct wire_reader {
    const unsigned char *at;
    size_t left;
    bool failed;
};

/* Points into the body: not terminated, lives as long as the body. */
struct wire_string {
    const char *bytes;
    uint32_t length;
};

struct wire_writer {
    unsigned char *bytes; /* owned; free with wire_writer_free */
    size_t length;
    size_t capacity;
    bool failed; /* out of memory, or beyond WIRE_MAX_BODY */
};

void wire_header_encode(const struct frame_header *header, unsigned char bytes[WIRE_HEADER_SIZE]);
bool wire_header_decode(const unsigned char bytes[WIRE_HEADER_SIZE], struct frame_header *header);

uint32_t wire_read_u32(struct wire_reader *reader);
struct wire_string wire_read_blob(struct wire_reader *reader);
struct wire_string wire_read_string(struct wire_reader *reader);
uint32_t wire_read_count(struct wire_reader *reader);
bool wire_read_end(const struct wire_reader *reader);

/* A NULL-terminated vector of terminated strings, in one allocation that the caller frees; NULL on failure. */
char **wire_read_vector(struct wire_reader *reader);

/* A terminated copy that the caller frees; NULL on failure. */
char *wire_copy_string(struct wire_string string);

void wire_write_u32(struct wire_writer *writer, uint32_t value);
void wire_write_blob(struct wire_writer *writer, const void *bytes, size_t length);
void wire_write_vector(struct wire_writer *writer, char *const *strings);
void wire_writer_free(struct wire_writer *writer);

/* Sends one frame on a blocking socket: 0, or -1 with errno. */
int wire_send(int socket, enum frame_type type, const void *body, size_t length, const int *fds, unsigned fd_count);

/* Receives one frame from a blocking socket. `body` is allocated (the caller frees it; never NULL on success), the
 * descriptors are close-on-exec and owned by the caller; more than `fd_room` of them is an error. Returns 1; 0 when the
 * peer closed before the first byte; -1 with errno (EPROTO: not a frame). Nothing is owned unless it returns 1. */
int wire_receive(int socket, struct frame_header *header, unsigned char **body, int *fds, unsigned fd_room);

#endif
