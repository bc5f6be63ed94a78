/* PID 1 of a view and of an environment. init.c tells the story; init_setup.c makes the namespaces and drops the
 * privileges; init_serve.c runs commands. */
#ifndef AGENTHOST_INIT_H
#define AGENTHOST_INIT_H

#include <stdint.h>

#include "wire.h"

/* Descriptors that the builder hands over. */
enum { CONTROL_FD = 3, SETUP_FD = 4 };

/* Ports that a view listens on: proxy, model, and one for each MCP server. */
enum { MAX_LISTENERS = 64 };

/* Limits that hold without a cgroup, too. Open files of a process: init's own, and the most that a command can ask for;
 * it starts with what select(2) can bear. Processes and threads of the user: in root mode it is the Session's alone. */
enum { MOST_FILES = 524288, FIRST_FILES = 1024, MOST_PROCESSES = 16384 };

struct setup {
    uint32_t flags;
    uint32_t uid;
    uint32_t gid;
    char *hostname;
    char **ports;
    char **executables;
    struct wire_string seccomp; /* points into `body` */
    unsigned char *body;
};

/* Tells the daemon which step failed, with errno, and ends the process. */
_Noreturn void fail(const char *step);

void receive_setup(struct setup *setup);
void become_first_process(void);
void make_namespaces(const struct setup *setup);
unsigned open_listeners(const struct setup *setup, int listeners[MAX_LISTENERS]);
void forbid_executable_memfds(void);
void attach_tree(const struct setup *setup);
void drop_privileges(const struct setup *setup);

/* Runs commands until the main one has ended or the daemon is gone. */
void prepare_to_serve(void);
_Noreturn void serve(void);

#endif
