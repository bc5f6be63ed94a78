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

/* Runs one named attempt in a child of its own and tells "ok", an errno, or "signal N". False: there is no such one. */
bool attempt(const char *name);
void attempt_all(void);

#endif
