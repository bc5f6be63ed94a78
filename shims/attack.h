/* What the files of the attack program share. */
#ifndef AGENTHOST_ATTACK_H
#define AGENTHOST_ATTACK_H

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
bool act_on_ours(char **argv);
bool act_on_races(char **argv);
bool act_on_processes(char **argv);

/* Does one action, argv[0] with its arguments. False: there is no such one. */
bool act(char **argv);

/* Performs the actions of a command line; main's status. */
int run_actions(int argc, char **argv, bool (*perform)(char **));

_Noreturn void wait_for_ever(void);

/* Connects, or ends the program. */
int connect_unix(const char *path);

/* Sends one byte and a descriptor; false with errno. */
bool send_descriptor(int socket, int fd);
int receive_descriptor(int socket);

struct sockaddr_un;
int unix_socket(const char *path, struct sockaddr_un *address);

/* An attempt: returns 0 or -errno, and runs in a child of its own. */
struct attempt {
    const char *name;
    int (*function)(void);
};
#define TRY(name) {#name, name}

/* Each ends with one that has no name. */
extern const struct attempt attempts_of_calls[];
extern const struct attempt attempts_of_modes[];
extern const struct attempt attempts_of_privileges[];

/* 0 for a result that is no error, else -errno. */
int done(long result);

/* Runs one named attempt in a child of its own and tells "ok", an errno, or "signal N". False: there is no such one. */
bool attempt(const char *name);
void attempt_all(void);

#endif
