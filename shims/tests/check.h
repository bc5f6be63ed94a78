/* A check that says where it failed, and does not end the run. */
#ifndef AGENTHOST_CHECK_H
#define AGENTHOST_CHECK_H

#include <stdio.h>

static unsigned checks;
static unsigned failures;

#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)

static inline int check(int holds, const char *text, const char *file, int line)
{
    checks++;
    if (!holds) {
        failures++;
        fprintf(stderr, "%s:%d: %s\n", file, line, text);
    }
    return holds;
}

static inline int summary(const char *name)
{
    printf("%s: %u checks, %u failed\n", name, checks, failures);
    return failures == 0 && checks > 0 ? 0 : 1;
}

#endif
