/* Kernel interfaces that libc headers may lack, as in the uapi headers named beside each. Numbers from 424 on are the
 * same on every architecture. musl's include path holds no kernel headers, so the few values stand here. */
#ifndef AGENTHOST_KERNEL_H
#define AGENTHOST_KERNEL_H

#include <stdint.h>

enum {
    KERNEL_MOVE_MOUNT = 429,
    KERNEL_FSOPEN = 430,
    KERNEL_FSCONFIG = 431,
    KERNEL_FSMOUNT = 432,
    KERNEL_PIDFD_OPEN = 434,
    KERNEL_OPENAT2 = 437,
    KERNEL_LANDLOCK_CREATE_RULESET = 444,
    KERNEL_LANDLOCK_ADD_RULE = 445,
    KERNEL_LANDLOCK_RESTRICT_SELF = 446,
};

/* linux/openat2.h */
struct kernel_open_how {
    uint64_t flags;
    uint64_t mode;
    uint64_t resolve;
};
#define KERNEL_RESOLVE_NO_MAGICLINKS 0x02u
#define KERNEL_RESOLVE_NO_SYMLINKS 0x04u
#define KERNEL_RESOLVE_IN_ROOT 0x10u

/* linux/mount.h */
#define KERNEL_MOVE_MOUNT_F_EMPTY_PATH 0x04u
#define KERNEL_MOVE_MOUNT_T_EMPTY_PATH 0x40u
#define KERNEL_FSCONFIG_SET_STRING 1u
#define KERNEL_FSCONFIG_CMD_CREATE 6u
#define KERNEL_MOUNT_ATTR_NOSUID 0x02u
#define KERNEL_MOUNT_ATTR_NODEV 0x04u
#define KERNEL_MOUNT_ATTR_NOEXEC 0x08u

/* linux/landlock.h */
struct kernel_landlock_ruleset {
    uint64_t handled_access_fs;
    uint64_t handled_access_net; /* since version 4 */
    uint64_t scoped;             /* since version 6 */
};
#define KERNEL_LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET 1u
struct kernel_landlock_path_beneath {
    uint64_t allowed_access;
    int32_t parent_fd;
} __attribute__((packed));
#define KERNEL_LANDLOCK_ACCESS_FS_EXECUTE 1u
#define KERNEL_LANDLOCK_ACCESS_FS_WRITE_FILE (1u << 1)
#define KERNEL_LANDLOCK_ACCESS_FS_CHANGE_DIRECTORY (0x1ff0u) /* REMOVE_DIR to MAKE_SYM */
#define KERNEL_LANDLOCK_ACCESS_FS_REFER (1u << 13)           /* since version 2 */
#define KERNEL_LANDLOCK_ACCESS_FS_TRUNCATE (1u << 14)        /* since version 3 */
#define KERNEL_LANDLOCK_CREATE_RULESET_VERSION 1u
#define KERNEL_LANDLOCK_RULE_PATH_BENEATH 1u

/* linux/capability.h */
struct kernel_capability_header {
    uint32_t version;
    int pid;
};
struct kernel_capability_data {
    uint32_t effective;
    uint32_t permitted;
    uint32_t inheritable;
};
#define KERNEL_CAPABILITY_VERSION_3 0x20080522u
#define KERNEL_CAP_CHECKPOINT_RESTORE 40u /* the last one of Linux 5.9 */

/* linux/filter.h, linux/seccomp.h */
struct kernel_sock_filter {
    uint16_t code;
    uint8_t jump_true;
    uint8_t jump_false;
    uint32_t k;
};
struct kernel_sock_program {
    unsigned short length;
    const struct kernel_sock_filter *filter;
};
#define KERNEL_SECCOMP_MODE_FILTER 2

#endif
