/* Reads the golden frames named on the command line, and writes each one again: the bytes must be the same. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../wire.h"
#include "check.h"

enum { MAX_FRAME = 1 << 16 };

/* The bodies of agenthost/wire.py: u = u32, s = string, b = blob, v = list of strings. NULL: no such frame. */
static const char *layout_of(uint16_t type)
{
    switch (type) {
    case FRAME_INVOKE:
        return "uuuussvv";
    case FRAME_COMMAND:
        return "uuuuussvv";
    case FRAME_SIGNAL:
        return "uu";
    case FRAME_EXITED:
        return "uuu";
    case FRAME_FAILED:
        return "uuus";
    case FRAME_STARTED:
        return "uu";
    case FRAME_READY:
        return "";
    case FRAME_SETUP:
        return "uuusvvb";
    case FRAME_TREE:
        return "v";
    default:
        return NULL;
    }
}

static int digit(int character)
{
    const char *digits = "0123456789abcdef";
    const char *at = character == '\0' ? NULL : strchr(digits, character);
    return at == NULL ? -1 : (int)(at - digits);
}

/* Hex digits, with white space between them and comments from `#` to the end of the line. Bytes, or -1. */
static long read_hex(const char *path, unsigned char *bytes)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return -1;
    long count = 0;
    int high = -1;
    int character;
    while (count >= 0 && (character = getc(file)) != EOF) {
        if (character == '#') {
            while (character != EOF && character != '\n')
                character = getc(file);
        } else if (!isspace(character)) {
            int value = digit(character);
            if (value < 0 || count == MAX_FRAME)
                count = -1;
            else if (high < 0)
                high = value;
            else {
                bytes[count++] = (unsigned char)(high << 4 | value);
                high = -1;
            }
        }
    }
    fclose(file);
    return high < 0 ? count : -1;
}

static void copy_item(char kind, struct wire_reader *reader, struct wire_writer *writer)
{
    if (kind == 'u') {
        wire_write_u32(writer, wire_read_u32(reader));
    } else if (kind == 'v') {
        char **vector = wire_read_vector(reader);
        if (CHECK(vector != NULL))
            wire_write_vector(writer, vector);
        free(vector);
    } else if (kind == 's') {
        char *text = wire_copy_string(wire_read_string(reader));
        if (CHECK(text != NULL))
            wire_write_blob(writer, text, strlen(text));
        free(text);
    } else {
        struct wire_string blob = wire_read_blob(reader);
        wire_write_blob(writer, blob.bytes, blob.length);
    }
}

static void check_frame(const unsigned char *frame, size_t size)
{
    struct frame_header header;
    if (!CHECK(size >= WIRE_HEADER_SIZE) || !CHECK(wire_header_decode(frame, &header)))
        return;
    const unsigned char *body = frame + WIRE_HEADER_SIZE;
    const char *layout = layout_of(header.type);
    if (!CHECK(header.length == size - WIRE_HEADER_SIZE) || !CHECK(layout != NULL))
        return;
    struct wire_reader reader = {.at = body, .left = header.length};
    struct wire_writer writer = {0};
    for (; *layout != '\0'; layout++)
        copy_item(*layout, &reader, &writer);
    CHECK(wire_read_end(&reader));
    CHECK(!writer.failed);
    CHECK(writer.length == header.length);
    CHECK(writer.length == 0 || memcmp(writer.bytes, body, writer.length) == 0);
    wire_writer_free(&writer);

    unsigned char again[WIRE_HEADER_SIZE];
    wire_header_encode(&header, again);
    CHECK(memcmp(again, frame, sizeof again) == 0);
}

int main(int argc, char **argv)
{
    static unsigned char frame[MAX_FRAME];
    for (int i = 1; i < argc; i++) {
        unsigned before = failures;
        long size = read_hex(argv[i], frame);
        if (CHECK(size >= 0))
            check_frame(frame, (size_t)size);
        if (failures != before)
            fprintf(stderr, "  in %s\n", argv[i]);
    }
    return summary("frames");
}
