/* init: the first process of a view or of an environment.
 *
 * The builder decides everything about paths and hands over finished mounts; init makes the namespaces, attaches the
 * mounts, gives up every privilege, and then runs what the daemon sends. When the daemon's end of the control socket
 * closes, init ends, and the kernel ends every other process of the namespace with it (pid_namespaces(7)).
 *
 *     oac-init tree     descriptors: 3 control (to the daemon), 4 set-up (from the builder)
 *     oac-init userns   makes a user namespace, says so on 3, and waits there until it may go; for id maps
 */
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernel.h"

_Noreturn void fail(const char *step)
{
    int error = errno;
    struct wire_writer writer = {0};
    wire_write_u32(&writer, 0);
    wire_write_u32(&writer, (uint32_t)error);
    wire_write_u32(&writer, 125);
    wire_write_blob(&writer, step, strlen(step));
    wire_send(CONTROL_FD, FRAME_FAILED, writer.bytes, writer.length, NULL, 0);
    _exit(125);
}

static void send_ready(int *listeners, unsigned count)
{
    int fds[MAX_LISTENERS + 1];
    fds[0] = (int)syscall(KERNEL_PIDFD_OPEN, getpid(), 0);
    if (fds[0] < 0)
        fail("open init's own pidfd");
    memcpy(fds + 1, listeners, count * sizeof(int));
    if (wire_send(CONTROL_FD, FRAME_READY, NULL, 0, fds, count + 1) != 0)
        _exit(125);
    for (unsigned i = 0; i <= count; i++)
        close(fds[i]);
}

static _Noreturn void run_tree(void)
{
    struct setup setup;
    int listeners[MAX_LISTENERS];

    receive_setup(&setup);
    become_first_process();
    make_namespaces(&setup);
    unsigned count = open_listeners(&setup, listeners);
    if (setup.flags & SETUP_MEMFD_NOEXEC)
        forbid_executable_memfds();
    attach_tree(&setup);
    close(SETUP_FD);
    drop_privileges(&setup);
    prepare_to_serve(); /* who is told that init is ready has its commands run */
    send_ready(listeners, count);
    free(setup.body);
    free(setup.hostname);
    free(setup.ports);
    free(setup.executables);
    serve();
}

static int hold_user_namespace(void)
{
    char byte = 0;
    if (unshare(CLONE_NEWUSER) != 0 || write(CONTROL_FD, &byte, 1) != 1)
        return 1;
    return read(CONTROL_FD, &byte, 1) < 0;
}

int main(int argc, char **argv)
{
    /* The daemon's user could otherwise read the set-up through /proc while init still has its privileges. */
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
        return 125;
    if (argc == 2 && strcmp(argv[1], "userns") == 0)
        return hold_user_namespace();
    if (argc == 2 && strcmp(argv[1], "tree") == 0) {
        if (fcntl(CONTROL_FD, F_SETFD, FD_CLOEXEC) != 0 || fcntl(SETUP_FD, F_SETFD, FD_CLOEXEC) != 0)
            return 125;
        run_tree();
    }
    static const char usage[] = "oac-init is started by agenthost; see 'agenthost --help'\n";
    return write(2, usage, sizeof usage - 1) < 0 ? 125 : 2;
}
