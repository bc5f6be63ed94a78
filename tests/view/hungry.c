/* A Harness that asks for memory until there is no more: `hungry MEBIBYTES`, at most so much. */
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    for (long left = argc == 2 ? atol(argv[1]) : 0; left > 0; left--) {
        char *block = malloc(1 << 20);
        if (block == NULL)
            return 3;
        memset(block, 'x', 1 << 20);
    }
    return 0;
}
