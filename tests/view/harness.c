/* A Harness that is not Codex: does one thing and says so. Static, no more than libc. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static volatile sig_atomic_t received;

static void on_signal(int number) { received = number; }

static int copy(void) {
	char buffer[65536];
	for (;;) {
		ssize_t got = read(0, buffer, sizeof buffer);
		if (got <= 0)
			return got < 0;
		for (ssize_t done = 0; done < got;) {
			ssize_t written = write(1, buffer + done, (size_t)(got - done));
			if (written < 0)
				return 1;
			done += written;
		}
	}
}

static int wait_for_signal(void) {
	static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
	sigset_t blocked, before;
	sigfillset(&blocked);
	sigprocmask(SIG_BLOCK, &blocked, &before);
	struct sigaction action = {.sa_handler = on_signal};
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		sigaction(numbers[i], &action, NULL);
	puts("ready");
	fflush(stdout);
	while (!received)
		sigsuspend(&before);
	printf("signal %d\n", (int)received);
	return 7;
}

static int descriptors(void) {
	DIR *directory = opendir("/proc/self/fd");
	struct dirent *entry;
	while (directory != NULL && (entry = readdir(directory)) != NULL) {
		char target[512];
		if (entry->d_name[0] == '.' || atoi(entry->d_name) == dirfd(directory))
			continue;
		ssize_t length = readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1);
		target[length < 0 ? 0 : length] = '\0';
		printf("%s %s\n", entry->d_name, target);
	}
	return 0;
}

int main(int argc, char **argv) {
	const char *act = argc > 1 ? argv[1] : "";
	if (strcmp(act, "exit") == 0 && argc > 2)
		return atoi(argv[2]);
	if (strcmp(act, "kill") == 0 && argc > 2) {
		kill(getpid(), atoi(argv[2]));
		return 99;
	}
	if (strcmp(act, "copy") == 0)
		return copy();
	if (strcmp(act, "wait") == 0)
		return wait_for_signal();
	if (strcmp(act, "descriptors") == 0)
		return descriptors();
	if (strcmp(act, "both") == 0) {
		fputs("to stdout", stdout);
		fputs("to stderr", stderr);
		return 0;
	}
	if (strcmp(act, "environment") == 0) {
		for (char **variable = environ; *variable != NULL; variable++)
			puts(*variable);
		return 0;
	}
	for (int i = 1; i < argc; i++)
		fwrite(argv[i], 1, strlen(argv[i]) + 1, stdout);
	return 0;
}
