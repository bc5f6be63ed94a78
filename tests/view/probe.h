/* What the probe's two files share. */
#ifndef AGENTHOST_PROBE_H
#define AGENTHOST_PROBE_H

#include <stdbool.h>

/* "EPERM" for EPERM; "E<number>" for one without a name here. */
const char *errno_name(int error);

/* One fact: "NAME=VALUE\n", or "NAME ARGUMENT=VALUE\n"; what cannot stand in a line is escaped. */
void tell(const char *name, const char *argument, const char *value);
void tell_error(const char *name, const char *argument, int error);
void tell_number(const char *name, const char *argument, long value);

void tell_done(const char *name, const char *argument, bool done); /* "ok", or errno */

_Noreturn void give_up(const char *why);
const char *argument(char **argv, int at);

void tell_facts(void);
void tell_mounts(void);
void map_executable(const char *path, bool later);
bool act_on_files(char **argv);
bool act_on_programs(char **argv);

struct sockaddr_un;
int unix_socket(const char *path, struct sockaddr_un *address);

/* Runs one named attempt in a child of its own and tells "ok", an errno, or "signal N". False: there is no such one. */
bool attempt(const char *name);
void attempt_all(void);

#endif
