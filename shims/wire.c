#include "wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static void put_u32(unsigned char *at, uint32_t value)
{
    at[0] = (unsigned char)value;
    at[1] = (unsigned char)(value >> 8);
    at[2] = (unsigned char)(value >> 16);
    at[3] = (unsigned char)(value >> 24);
}

static uint32_t get_u32(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

void wire_header_encode(const struct frame_header *header, unsigned char bytes[WIRE_HEADER_SIZE])
{
    put_u32(bytes, header->length);
    bytes[4] = (unsigned char)header->type;
    bytes[5] = (unsigned char)(header->type >> 8);
    bytes[6] = (unsigned char)header->fds;
    bytes[7] = (unsigned char)(header->fds >> 8);
}

bool wire_header_decode(const unsigned char bytes[WIRE_HEADER_SIZE], struct frame_header *header)
{
    header->length = get_u32(bytes);
    header->type = (uint16_t)(bytes[4] | bytes[5] << 8);
    header->fds = (uint16_t)(bytes[6] | bytes[7] << 8);
    return header->length <= WIRE_MAX_BODY && header->fds <= WIRE_MAX_FDS;
}

static const unsigned char *take(struct wire_reader *reader, size_t size)
{
    if (reader->failed || size > reader->left) {
        reader->failed = true;
        return NULL;
    }
    const unsigned char *at = reader->at;
    reader->at += size;
    reader->left -= size;
    return at;
}

uint32_t wire_read_u32(struct wire_reader *reader)
{
    const unsigned char *at = take(reader, 4);
    return at == NULL ? 0 : get_u32(at);
}

struct wire_string wire_read_blob(struct wire_reader *reader)
{
    uint32_t length = wire_read_u32(reader);
    const unsigned char *at = take(reader, length);
    if (at == NULL)
        return (struct wire_string){"", 0};
    return (struct wire_string){(const char *)at, length};
}

struct wire_string wire_read_string(struct wire_reader *reader)
{
    struct wire_string string = wire_read_blob(reader);
    if (memchr(string.bytes, '\0', string.length) != NULL) {
        reader->failed = true;
        return (struct wire_string){"", 0};
    }
    return string;
}

uint32_t wire_read_count(struct wire_reader *reader)
{
    uint32_t count = wire_read_u32(reader);
    if (count > WIRE_MAX_STRINGS || count > reader->left / 4)
        reader->failed = true;
    return reader->failed ? 0 : count;
}

bool wire_read_end(const struct wire_reader *reader)
{
    return !reader->failed && reader->left == 0;
}

char **wire_read_vector(struct wire_reader *reader)
{
    uint32_t count = wire_read_count(reader);
    if (reader->failed)
        return NULL;
    size_t pointers = ((size_t)count + 1) * sizeof(char *);
    /* Every string is at most what is left of the body, less its length word and plus its NUL. */
    char **vector = malloc(pointers + reader->left + 1);
    if (vector == NULL) {
        reader->failed = true;
        return NULL;
    }
    char *text = (char *)vector + pointers;
    for (uint32_t i = 0; i < count; i++) {
        struct wire_string string = wire_read_string(reader);
        if (reader->failed) {
            free(vector);
            return NULL;
        }
        memcpy(text, string.bytes, string.length);
        text[string.length] = '\0';
        vector[i] = text;
        text += string.length + 1;
    }
    vector[count] = NULL;
    return vector;
}

char *wire_copy_string(struct wire_string string)
{
    char *copy = malloc((size_t)string.length + 1);
    if (copy == NULL)
        return NULL;
    memcpy(copy, string.bytes, string.length);
    copy[string.length] = '\0';
    return copy;
}

static unsigned char *reserve(struct wire_writer *writer, size_t size)
{
    if (writer->failed || size > WIRE_MAX_BODY - writer->length) {
        writer->failed = true;
        return NULL;
    }
    if (writer->length + size > writer->capacity) {
        size_t capacity = writer->capacity == 0 ? 4096 : writer->capacity;
        while (capacity < writer->length + size)
            capacity *= 2;
        unsigned char *bytes = realloc(writer->bytes, capacity);
        if (bytes == NULL) {
            writer->failed = true;
            return NULL;
        }
        writer->bytes = bytes;
        writer->capacity = capacity;
    }
    unsigned char *at = writer->bytes + writer->length;
    writer->length += size;
    return at;
}

void wire_write_u32(struct wire_writer *writer, uint32_t value)
{
    unsigned char *at = reserve(writer, 4);
    if (at != NULL)
        put_u32(at, value);
}

void wire_write_blob(struct wire_writer *writer, const void *bytes, size_t length)
{
    if (length > WIRE_MAX_BODY) {
        writer->failed = true;
        return;
    }
    wire_write_u32(writer, (uint32_t)length);
    unsigned char *at = reserve(writer, length);
    if (at != NULL && length != 0)
        memcpy(at, bytes, length);
}

void wire_write_vector(struct wire_writer *writer, char *const *strings)
{
    uint32_t count = 0;
    while (strings[count] != NULL)
        count++;
    wire_write_u32(writer, count);
    for (uint32_t i = 0; i < count; i++)
        wire_write_blob(writer, strings[i], strlen(strings[i]));
}

void wire_writer_free(struct wire_writer *writer)
{
    free(writer->bytes);
    *writer = (struct wire_writer){0};
}

union fd_space {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(WIRE_MAX_FDS * sizeof(int))];
};

int wire_send(int socket, enum frame_type type, const void *body, size_t length, const int *fds, unsigned fd_count)
{
    if (length > WIRE_MAX_BODY || fd_count > WIRE_MAX_FDS) {
        errno = EMSGSIZE;
        return -1;
    }
    unsigned char header[WIRE_HEADER_SIZE];
    wire_header_encode(&(struct frame_header){(uint32_t)length, (uint16_t)type, (uint16_t)fd_count}, header);
    struct iovec parts[2] = {{header, sizeof header}, {(void *)(uintptr_t)body, length}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    union fd_space space;
    if (fd_count > 0) {
        memset(&space, 0, sizeof space);
        message.msg_control = space.bytes;
        message.msg_controllen = (socklen_t)CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *control = CMSG_FIRSTHDR(&message);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = (socklen_t)CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(control), fds, fd_count * sizeof(int));
    }
    size_t left = sizeof header + length;
    for (;;) {
        ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EINTR)
                continue;
            return -1;
        }
        left -= (size_t)sent;
        if (left == 0)
            return 0;
        message.msg_control = NULL;
        message.msg_controllen = 0;
        size_t skip = (size_t)sent;
        while (skip >= message.msg_iov->iov_len) {
            skip -= message.msg_iov->iov_len;
            message.msg_iov++;
            message.msg_iovlen--;
        }
        message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + skip;
        message.msg_iov->iov_len -= skip;
    }
}

static void close_all(const int *fds, unsigned count)
{
    int saved = errno;
    for (unsigned i = 0; i < count; i++)
        close(fds[i]);
    errno = saved;
}

/* musl's CMSG_NXTHDR converts a sign inside the macro. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"

/* Appends the descriptors of one message; closes those that find no room and says so. */
static bool collect(struct msghdr *message, int *fds, unsigned room, unsigned *have)
{
    bool fits = (message->msg_flags & MSG_CTRUNC) == 0;
    for (struct cmsghdr *control = CMSG_FIRSTHDR(message); control != NULL; control = CMSG_NXTHDR(message, control)) {
        if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof fd);
            if (*have < room) {
                fds[(*have)++] = fd;
            } else {
                close(fd);
                fits = false;
            }
        }
    }
    return fits;
}

#pragma GCC diagnostic pop

/* Reads `size` bytes: 1, 0 at the peer's end, -1 with errno. Descriptors may come only with the first byte. */
static int read_exact(int socket, unsigned char *bytes, size_t size, int *fds, unsigned room, unsigned *have)
{
    union fd_space space;
    size_t got = 0;
    while (got < size) {
        struct iovec part = {bytes + got, size - got};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        message.msg_control = space.bytes;
        message.msg_controllen = sizeof space.bytes;
        ssize_t count = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
        if (count < 0) {
            if (errno == EINTR)
                continue;
            return -1;
        }
        if (!collect(&message, fds, room, have)) {
            errno = EPROTO;
            return -1;
        }
        if (count == 0) {
            errno = EPROTO;
            return got == 0 ? 0 : -1;
        }
        got += (size_t)count;
    }
    return 1;
}

int wire_receive(int socket, struct frame_header *header, unsigned char **body, int *fds, unsigned fd_room)
{
    unsigned char bytes[WIRE_HEADER_SIZE];
    unsigned have = 0;
    *body = NULL;
    int result = read_exact(socket, bytes, sizeof bytes, fds, fd_room, &have);
    if (result == 1) {
        bool fits = wire_header_decode(bytes, header);
        *body = fits ? malloc((size_t)header->length + 1) : NULL;
        errno = fits ? ENOMEM : EPROTO;
        result = *body == NULL ? -1 : read_exact(socket, *body, header->length, fds, fd_room, &have);
        if (result == 1 && have == header->fds)
            return 1;
        if (result >= 0) {
            errno = EPROTO;
            result = -1;
        }
    }
    close_all(fds, have);
    free(*body);
    *body = NULL;
    return result;
}
